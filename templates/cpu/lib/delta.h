// delta, the base of a row's gradients. ROUNDED_OUT: whether `out` was rounded. A part of
// backward.h.

// Sums over a row's keys, weighted by u: of u * (dout . v), and of u. A pass over the row's tiles.
// Loads q and dout.
FN void sum_over_keys(const struct Attention *p, struct Backward *b, struct Row r, float *sum,
                      float *sum_u) {
    clear(sum, TILE_Q);
    clear(sum_u, TILE_Q);
    load_rows(p, b, place(p, r.ti, 0), r.batch, r.head);
    for (i32 i = 0; i < r.tiles.count; i++) {
        const struct Tile tile = tile_at(r.tiles, i);
        const struct Place at = place(p, r.ti, tile.index);
        const struct Left k = {b->k, QK_LD, 1}, v = {b->v, V_LD, 1};
        load_tile(b->k, QK_LD, p->k, p->k_stride, r.batch, r.head_kv, at.k0, at.keys, HEAD_DIM);
        tile_scores(p, r.m, r.head, at, tile.full, b->q_t, k, b->weights, b->kept, b->live);
#if WITH_ENTMAX
        if (!any_weight(p, at, b->weights, b->lse)) continue;
#endif
        load_tile(b->v, V_LD, p->v, p->v_stride, r.batch, r.head_kv, at.k0, at.keys, HEAD_DIM_V);
        clear(&b->dscores[0][0], at.keys * TILE_Q);
        multiply(&b->dscores[0][0], TILE_Q, v, b->dout_t, TILE_Q, at.keys, at.vectors, HEAD_DIM_V);
#if WITH_DROPOUT
        draw_pairs(p, r.batch, r.head, at, b->stay);
        drop(p, at, b->stay, b->dscores);
#endif
        for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
            vec part = {0}, part_u = {0};
            for (i32 n = 0; n < at.keys; n++) {
                const vec u = weigh(p, load(&b->weights[n][j]), load(b->lse + j)).u;
                part += zero_where(u == 0.0f, u * load(&b->dscores[n][j]));
                part_u += u;
            }
            store(sum + j, load(sum + j) + part);
            store(sum_u + j, load(sum_u + j) + part_u);
        }
    }
}

#if WITH_ENTMAX
// The mean of dout . v over a row's keys, weighted by u. It makes the gradients of the scores sum
// to 0, as they must, because the weights sum to 1 for any scores.
FN void find_delta(const struct Attention *p, struct Backward *b, struct Row r, float *delta) {
    const i32 queries = place(p, r.ti, 0).queries;
    float sum[TILE_Q], sum_u[TILE_Q];
    sum_over_keys(p, b, r, sum, sum_u);
    for (i32 q = 0; q < queries; q++) delta[q] = sum_u[q] == 0.0f ? 0.0f : sum[q] / sum_u[q];
}
#else
// dout . out of a query, and the sum of |dout * out|.
FN float row_product(const struct Attention *p, i32 batch, i32 head, i32 token, float *size) {
    float out[V_LD], dout[V_LD];
    load_row(out, (const element *)p->out + row_offset(p->out_stride, batch, head, token),
             HEAD_DIM_V);
    load_row(dout, (const element *)p->dout + row_offset(p->dout_stride, batch, head, token),
             HEAD_DIM_V);
    vec sum = {0}, sizes = {0};
    for (i32 j = 0; j < V_LD; j += LANES) {
        const vec x = load(out + j) * load(dout + j);
        sum += x;
        sizes += max_vec(x, -x);
    }
    *size = sum_lanes(sizes);
    return sum_lanes(sum);
}

#if !ROUNDED_OUT
FN void find_delta(const struct Attention *p, struct Backward *b, struct Row r, float *delta) {
    const struct Place at = place(p, r.ti, 0);
    float size;
    for (i32 q = 0; q < at.queries; q++)
        delta[q] = row_product(p, r.batch, r.head, at.q0 + q, &size);
    (void)b;
}
#else
// `out` was rounded to storage precision. In rows with few keys, or with few large weights, the
// error reaches dq and dk, because delta nearly cancels their largest terms. The fp32 sum over keys
// has no such error. But if the weights of these keys and of the sink do not sum to 1, or if the
// sum differs by more than rounding explains, `out` also contains other keys (a mask in several
// parts), and dout . out must be used.
FN void find_delta(const struct Attention *p, struct Backward *b, struct Row r, float *delta) {
    const float WHOLE = 0x1p-12f;  // missing weights change delta by less than rounding of `out`
    const float ROUNDING = OUT_ROUNDING;
    const struct Place at = place(p, r.ti, 0);
    float sum[TILE_Q], sum_u[TILE_Q];
    sum_over_keys(p, b, r, sum, sum_u);
    for (i32 q = 0; q < at.queries; q++) {
        float size;
        const float rounded = row_product(p, r.batch, r.head, at.q0 + q, &size);
        const float error = sum[q] - rounded, most = ROUNDING * size;
        float missing = 1.0f - sum_u[q];
        if (WITH_SINKS)
            missing -= exp2_vec(splat(POWER * (sink_score(p, r.head) - b->lse[q])))[0];
        const i32 whole = -WHOLE <= missing && missing <= WHOLE;
        delta[q] = whole && -most <= error && error <= most ? sum[q] : rounded;
    }
}
#endif
#endif
