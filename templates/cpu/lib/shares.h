// Correction factors for weights that are recomputed from lse. lse = top + log(sum) in fp32: if all
// logits of a row are far from 0, as with finfo.min or -1e9 in a padded row, lse has lost digits of
// the log, and the weights do not sum to 1. A part of backward.h.

#if !WITH_ENTMAX
enum { LARGE = 1 << 12 };  // from this magnitude of lse on, weights are off by more than 1e-4

FN i32 any_large(const float *lse, i32 queries) {
    for (i32 q = 0; q < queries; q++) {
        const float size = __builtin_fabsf(lse[q]);
        if (size >= LARGE && size < INFINITE) return 1;
    }
    return 0;
}
#endif

// If the mean over these keys differs from the one that `out` shows, there are other keys (a mask
// in several parts). Then weights may only become smaller.
FN void find_shares(const struct Attention *p, struct Backward *b, struct Row r, float *share) {
    const struct Place at = place(p, r.ti, 0);
    for (i32 q = 0; q < at.queries; q++) share[q] = 1.0f;
#if !WITH_ENTMAX
    float sum[TILE_Q], sum_u[TILE_Q];
    load_lse(p, r.batch, r.head, at, b->lse);
    if (!any_large(b->lse, at.queries)) return;
    sum_over_keys(p, b, r, sum, sum_u);
    for (i32 q = 0; q < at.queries; q++) {
        float size, total = sum_u[q];
        if (WITH_SINKS) total += exp2_vec(splat(POWER * (sink_score(p, r.head) - b->lse[q])))[0];
        const float mean = row_product(p, r.batch, r.head, at.q0 + q, &size);
        const i32 whole = __builtin_fabsf(sum[q] / total - mean) <= 0x1p-7f * size;
        if (total > 1.0f || (whole && total > 0.0f)) share[q] = 1.0f / total;
    }
#else
    (void)p, (void)b;
#endif
}
