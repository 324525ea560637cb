// The second product, o += p v. Needs: load.cuh, softmax.cuh, mma.cuh. Gives: add_values.

// o += p v, sixteen keys at a time. `pair(m, n, i)` computes two weights, register i of fragment m,
// between the products. `v` is the lane's address in the rows of v.
template <typename F>
FN void add_values(Output &o, u32 v, const F &pair) {
#pragma unroll
    for (int n = 0; n < TILE_K / 16; n++) {
        u32 a[FRAGMENTS][4], b[4];
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) a[m][i] = pair(m, n, i);
#pragma unroll
#if WIDE
        for (int d = 0; d < OWN_GROUPS / 2; d++) {
#else
        for (int d = 0; d < DEPTH; d++) {
#endif
            load_matrices_transposed(b, fragment_at(v, n, d));
#pragma unroll
            for (int m = 0; m < FRAGMENTS; m++) {
                multiply(o[m][2 * d], a[m], b[0], b[1]);
                multiply(o[m][2 * d + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// The same with p = 2^(s unit - top); also accumulates the sums of p.
FN void accumulate(Output &o, float (&sum)[ROWS], const Scores &s, const float (&top)[ROWS],
                   float unit, u32 v_tile) {
#if WIDE
    const u32 v = v_tile + lane_in_rows() + 16 * first_group();
#else
    const u32 v = v_tile + lane_in_rows();
#endif
    float base[ROWS], share[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) base[r] = top[r], share[r] = 0.0f;
    add_values(o, v, [&](int m, int n, int i) {
        const int r = 2 * m + i % 2;
        const float *x = &s[m][2 * n + i / 2][i % 2 * 2];
        const float low = fast_exp2(x[0] * unit - base[r]);
        const float high = fast_exp2(x[1] * unit - base[r]);
        share[r] += low + high;
        return pack(low, high);
    });
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] += share[r];
}
