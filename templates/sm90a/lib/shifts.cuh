// The distance term of a score formula. It is evaluated once per diagonal of a warpgroup's tile and
// kept in shared memory, where all pairs of the diagonal read it. Needs: gen/score.h.j2. Gives:
// Shifts, find_shifts, lay_shifts.

// For a tile of QUERIES by KEYS: COUNT floats. A pair (i, j) of the tile reads element i - j +
// ORIGIN.
template <int QUERIES, int KEYS>
struct Shifts {
    static constexpr int COUNT = QUERIES + KEYS - 1, ORIGIN = KEYS - 1;
    float own[(COUNT + 127) / 128];  // of a thread of the warpgroup: every 128th element
};

// Evaluates a thread's elements. `first` is the tile's first query minus its first key. Distances
// past the ends, where no pair is live, are clamped to existing ones.
template <int QUERIES, int KEYS>
FN void find_shifts(struct Shifts<QUERIES, KEYS> &x, i32 first, i32 head, i32 batch,
                    const struct Attention &p, float factor) {
    constexpr int COUNT = Shifts<QUERIES, KEYS>::COUNT;
    first += (i32)threadIdx.x % 128 - Shifts<QUERIES, KEYS>::ORIGIN;
#pragma unroll
    for (int i = 0; i < COUNT; i += 128) {
        const i32 far = min_i32(max_i32(first + i, 1 - p.n_kv), p.n_q - 1);
        x.own[i / 128] = factor * score_shift(far, head, batch, p);
    }
}
// Writes the elements to shared memory. FINITE_ONLY replaces +inf and NaN by 0, so that additions
// cannot make dead pairs NaN; -inf stays.
template <bool FINITE_ONLY, int QUERIES, int KEYS>
FN void lay_shifts(float *to, const struct Shifts<QUERIES, KEYS> &x) {
    constexpr int COUNT = Shifts<QUERIES, KEYS>::COUNT;
    const i32 thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < COUNT; i += 128)
        if (i + 128 <= COUNT || thread < COUNT - i) {
            const float own = x.own[i / 128];
            to[i + thread] = !FINITE_ONLY || own < PLUS_INFINITY ? own : 0.0f;
        }
}
