// Pairs of a part of a mask that add to a table. Those side by side in the call often add to the
// same entry, as buckets of distances are wide; these are added up before memory sees them.
// Needs: score_pairs.cuh; Spot, add_to of the includer. Gives: add_alike.

// Pairs of one key (or of one listed query) that lie side by side: COUNT of a thread, and those of
// the lanes that differ from it in bits of LANES.
template <int LANES, int COUNT>
FN void add_line(const struct Attention &p, i32 slot, const i64 (&to)[COUNT], float (&x)[COUNT]) {
    const i32 lane = threadIdx.x % 32;
    const i64 first = __shfl_sync(0xffffffff, to[0], lane & ~LANES);
    bool alike = true;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < COUNT; i++) alike &= to[i] == first, sum += x[i];
    const u32 line = (LANES == 3 ? 0xfu : 0x11111111u) << (lane & ~LANES);
    const bool all = (__ballot_sync(0xffffffff, alike) & line) == line;
#pragma unroll
    for (int by = 1; by < 32; by *= 2)
        if (by & LANES) sum += __shfl_xor_sync(0xffffffff, sum, by);
    if (all) {
        if ((lane & LANES) == 0) add_to(p, slot, first, sum);
        return;
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) add_to(p, slot, to[i], x[i]);
}

// `share` gives what a pair adds, and where.
template <typename Share>
FN void add_alike(const struct Attention &p, i32 slot, const Pairs &s, const Pairs &d,
                  const struct Spot &at, const Share &share) {
    constexpr int LINES = LISTED_QUERIES ? 2 : 4, COUNT = 8 / LINES;
#pragma unroll
    for (int line = 0; line < LINES; line++) {
        i64 to[COUNT];
        float x[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            const int r = LISTED_QUERIES ? line : i, column = LISTED_QUERIES ? i : line;
            const int n = column / 2, e = column % 2;
            x[i] = share(d[n][2 * r + e], s[n][2 * r + e], query_token(p, at.batch, at.query[r]),
                         key_token(p, at.batch, at.key[n][e]), to[i]);
        }
        add_line<LISTED_QUERIES ? 3 : 28>(p, slot, to, x);
    }
}
