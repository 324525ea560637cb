// The first product, s = q k^T. Needs: load.cuh, logit.cuh, softmax.cuh, mma.cuh. Gives: Query,
// score.

#if WIDE
// A warp's rows of q; its half of the columns stays in registers.
struct Query {
    u32 at;
    u32 fragment[HALF_DEPTH][FRAGMENTS][4];
};

FN void keep_query(struct Query &q) {
    const struct Half half = half_of(q.at, own_half());
#pragma unroll
    for (int d = 0; d < HALF_DEPTH; d++) load_matrices(q.fragment[d][0], half_at(half, 0, d));
}

// Computes one half of s = q k^T.
FN void score(Scores &s, const struct Query &q, u32 k_tile) {
    const struct Half half = half_of(k_tile + lane_in_halves(), own_half());
    clear(s);
#pragma unroll
    for (int d = 0; d < HALF_DEPTH; d++)
#pragma unroll
        for (int n = 0; n < TILE_K / 16; n++) {
            u32 b[4];
            load_matrices(b, half_at(half, n, d));
            multiply(s[0][2 * n], q.fragment[d][0], b[0], b[1]);
            multiply(s[0][2 * n + 1], q.fragment[d][0], b[2], b[3]);
        }
}
#else
// A warp's rows of q: an address and, if registers allow, fragments.
struct Query {
    u32 at;
    u32 fragment[KEEP_Q ? DEPTH : 1][FRAGMENTS][4];
};

FN void keep_query(struct Query &q) {
#pragma unroll
    for (int d = 0; d < (KEEP_Q ? DEPTH : 0); d++)
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++)
            load_matrices(q.fragment[d][m], fragment_at(q.at, m, d));
}

// s = q k^T
FN void score(Scores &s, const struct Query &q, u32 k_tile) {
    const u32 k = k_tile + lane_in_halves();
    clear(s);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        if (REGISTER_PRESSURE && d == DEPTH / 2) __syncwarp();  // keeps ptxas from hoisting loads
        u32 a[FRAGMENTS][4], b[4];
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++)
            if constexpr (KEEP_Q)
#pragma unroll
                for (int e = 0; e < 4; e++) a[m][e] = q.fragment[d][m][e];
            else
                load_matrices(a[m], fragment_at(q.at, m, d));
#pragma unroll
        for (int n = 0; n < TILE_K / 16; n++) {
            load_matrices(b, fragment_at(k, n, d));
#pragma unroll
            for (int m = 0; m < FRAGMENTS; m++) {
                multiply(s[m][2 * n], a[m], b[0], b[1]);
                multiply(s[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}
#endif
