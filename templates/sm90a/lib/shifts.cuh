// What a formula adds to scores by distance alone. It is found once for every diagonal of a
// warpgroup's tile, and lies in shared memory, where all pairs of the diagonal read it.
// Needs: gen/score.h.j2. Gives: Shifts, find_shifts, lay_shifts.

// Of a tile of QUERIES by KEYS: as many floats as COUNT. A pair reads at the distance of its query
// from the tile's first one, minus that of its key, plus ORIGIN.
template <int QUERIES, int KEYS>
struct Shifts {
    static constexpr int COUNT = QUERIES + KEYS - 1, ORIGIN = KEYS - 1;
    float own[(COUNT + 127) / 128];  // every so-manieth is of one thread of a warpgroup
};

// Those of a thread, `first` being the tile's first query minus its first key. Past the ends, where
// no pair counts, the last distance that there is stands for others.
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
// To shared memory. HARMLESS leaves what is minus infinity so: nothing that is added is then no
// number or infinite.
template <bool HARMLESS, int QUERIES, int KEYS>
FN void lay_shifts(float *to, const struct Shifts<QUERIES, KEYS> &x) {
    constexpr int COUNT = Shifts<QUERIES, KEYS>::COUNT;
    const i32 thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < COUNT; i += 128)
        if (i + 128 <= COUNT || thread < COUNT - i) {
            const float own = x.own[i / 128];
            to[i + thread] = !HARMLESS || own < PLUS_INFINITY ? own : 0.0f;
        }
}
