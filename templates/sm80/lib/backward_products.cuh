// Products of a warp, from fragments in shared memory or registers.
// Needs: backward_constants.cuh, load.cuh, mma.cuh. Gives: Scores, Pairs, Gradient, products.

// The scores of a warp are transposed: [16 keys][8 queries][key lane / 4 and + 8, queries 2 (lane %
// 4) and + 1].
typedef float Scores[FRAGMENTS][STEP_Q / 8][4];
typedef u32 Pairs[FRAGMENTS][STEP_Q / 8][2];  // two queries each, in storage precision
// dk or dv of the warp's keys.
#if WIDE
typedef float Gradient[FRAGMENTS][OWN_GROUPS][4];
#else
typedef float Gradient[FRAGMENTS][HEAD_DIM / 8][4];
#endif

template <int COUNT, int GROUPS>
FN void clear(float (&x)[COUNT][GROUPS][4]) {
#pragma unroll
    for (int m = 0; m < COUNT; m++)
#pragma unroll
        for (int n = 0; n < GROUPS; n++) x[m][n][0] = x[m][n][1] = x[m][n][2] = x[m][n][3] = 0.0f;
}

// s = a b^T along the head dimension. `a_at` is the lane's address of its rows, 16 by 16; `b_at`
// its address of half rows.
template <int COUNT, int GROUPS>
FN void products(float (&s)[COUNT][GROUPS][4], u32 a_at, u32 b_at) {
    clear(s);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        u32 a[COUNT][4], b[4];
#pragma unroll
        for (int m = 0; m < COUNT; m++) load_matrices(a[m], fragment_at(a_at, m, d));
#pragma unroll
        for (int n = 0; n < GROUPS / 2; n++) {
            load_matrices(b, fragment_at(b_at, n, d));
#pragma unroll
            for (int m = 0; m < COUNT; m++) {
                multiply(s[m][2 * n], a[m], b[0], b[1]);
                multiply(s[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// x += w b, where w are scores in storage precision, and b has one row per column of w.
template <int COUNT, int GROUPS, int COLUMNS>
FN void add_products(float (&x)[COUNT][COLUMNS][4], const u32 (&w)[COUNT][GROUPS][2], u32 b_at) {
#pragma unroll
    for (int n = 0; n < GROUPS / 2; n++)
#pragma unroll
        for (int d = 0; d < COLUMNS / 2; d++) {
            u32 b[4];
            load_matrices_transposed(b, fragment_at(b_at, n, d));
#pragma unroll
            for (int m = 0; m < COUNT; m++) {
                const u32 a[4] = {w[m][2 * n][0], w[m][2 * n][1], w[m][2 * n + 1][0],
                                  w[m][2 * n + 1][1]};
                multiply(x[m][2 * d], a, b[0], b[1]);
                multiply(x[m][2 * d + 1], a, b[2], b[3]);
            }
        }
}

// Gradients of scores in shared memory: one row of TILE_Q queries per key, with 16-byte pieces
// XOR-swizzled as in other tiles.
constexpr int DS_SPAN = TILE_Q < 64 ? TILE_Q / 8 : 8;
constexpr int DS_PITCH = 2 * TILE_Q;
FN u32 ds_place(u32 key, u32 piece) {
    return key * DS_PITCH + 16 * (piece ^ (key / (8 / DS_SPAN) % DS_SPAN));
}

// x = ds k, for a warp's 16 queries of a tile and its share of dq's columns.
typedef float Share[1][HEAD_DIM / 8 / SHARES][4];
FN void dq_products(Share &x, u32 ds, u32 k, i32 fragment, i32 share) {
    const u32 lane = threadIdx.x % 32, at = k + lane_in_rows();
    clear(x);
#pragma unroll
    for (int n = 0; n < TILE_K / 16; n++) {
        u32 a[4], b[4];
        const u32 key = 16 * n + lane % 8 + lane / 16 * 8;
        load_matrices_transposed(a, ds + ds_place(key, 2 * fragment + lane / 8 % 2));
#pragma unroll
        for (int d = 0; d < DEPTH / SHARES; d++) {
            load_matrices_transposed(b, fragment_at(at, n, share * (DEPTH / SHARES) + d));
            multiply(x[0][2 * d], a, b[0], b[1]);
            multiply(x[0][2 * d + 1], a, b[2], b[3]);
        }
    }
}
