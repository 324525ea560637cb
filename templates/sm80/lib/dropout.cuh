// The second product of a tile with dropout. Needs: values.cuh, a keep policy. Gives: Kept,
// draw_tile, drop_tile, accumulate_kept.

// The kept pairs of a thread, fragment by fragment.
typedef struct Staying<TILE_K / 2> Kept[FRAGMENTS];

FN void draw_tile(Kept &kept, const struct Attention *p, const struct Work &work, i32 first_k) {
    const struct Dropout d = dropout_of(*p);
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
        draw_by_query(kept[m], d, lane_query(work) + 16 * m, lane_key(first_k), work.head,
                      work.batch);
}
FN void drop_tile(Scores &s, const Kept &kept) {
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) drop(*(float (*)[TILE_K / 2])&s[m], kept[m]);
}

// Like `accumulate`; the sums still include dropped weights.
FN void accumulate_kept(Output &o, float (&sum)[ROWS], const Scores &s, const float (&top)[ROWS],
                        float unit, u32 v_tile, const Kept &kept) {
    float base[ROWS], share[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) base[r] = top[r], share[r] = 0.0f;
#if WIDE
    add_values(o, v_tile + lane_in_rows() + 16 * first_group(), [&](int m, int n, int i) {
#else
    add_values(o, v_tile + lane_in_rows(), [&](int m, int n, int i) {
#endif
        const int r = 2 * m + i % 2, at = 4 * (2 * n + i / 2) + 2 * (i % 2);
        const float *x = &s[m][2 * n + i / 2][i % 2 * 2];
        const float low = fast_exp2(x[0] * unit - base[r]);
        const float high = fast_exp2(x[1] * unit - base[r]);
        share[r] += low + high;
        return pack(has(kept[m], at) ? low : 0.0f, has(kept[m], at + 1) ? high : 0.0f);
    });
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] += share[r];
}
