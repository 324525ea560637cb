// What a formula adds to scores by distance alone. It is found once for every diagonal of a
// warpgroup's tile, and lies in shared memory, where all pairs of the diagonal read it.
// Needs: gen/score.h.j2. Gives: Shifts, lay_shifts.

// Of a tile of QUERIES by KEYS: as many floats as COUNT. A pair reads at the distance of its query
// from the tile's first one, minus that of its key, plus ORIGIN.
template <int QUERIES, int KEYS>
struct Shifts {
    static constexpr int COUNT = QUERIES + KEYS - 1, ORIGIN = KEYS - 1;
};

// By the threads of a warpgroup. `first` is the tile's first query minus its first key. Past the
// ends, where no pair counts, the last distance that there is stands for others. HARMLESS leaves
// what is minus infinity so: nothing that is added is then no number or infinite.
template <typename Shifts, bool HARMLESS>
FN void lay_shifts(float *to, i32 first, i32 head, i32 batch, const struct Attention &p,
                   float factor) {
    const i32 thread = threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < Shifts::COUNT; i += 128) {
        const i32 distance = first + thread + (i - Shifts::ORIGIN);
        const i32 far = min_i32(max_i32(distance, 1 - p.n_kv), p.n_q - 1);
        if (i + 128 <= Shifts::COUNT || thread < Shifts::COUNT - i) {
            const float x = factor * score_shift(far, head, batch, p);
            to[i + thread] = !HARMLESS || x < PLUS_INFINITY ? x : 0.0f;
        }
    }
}
