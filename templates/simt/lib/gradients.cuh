// From weights to the gradients of scores, pair by pair. Needs: logits.cuh, pairs.cuh,
// workspace.cuh. Gives: Row, load_row, load_rows, weigh, score_gradients.

// Per-query inputs of a backward pass. lse recovers a weight from its logit.
struct Row {
    float lse;    // +inf without keys, so that weights are 0
    float delta;  // mean of dout . v over the row's keys: rowsum(out * dout)
};
FN struct Row load_row(const struct Attention &p, i32 batch, i32 head, i32 q) {
    if (q >= p.n_q) return {PLUS_INFINITY, 0.0f};
    const float lse = row_of(p.lse, p.lse_stride, batch, head, q);
    return {lse == MINUS_INFINITY ? PLUS_INFINITY : lse, delta_of(p, batch, head)[q]};
}
// Loads the rows of a tile to shared memory. The barriers of the next product make them visible.
FN void load_rows(struct Row *rows, const struct Attention &p, i32 batch, i32 head, i32 first_q) {
    const i32 i = threadIdx.x;
    if (i < TILE_Q) rows[i] = load_row(p, batch, head, first_q + i);
}

#if WITH_ENTMAX
FN struct Weight weigh(const struct Attention &p, float logit, float lse) {
    const float a = p.alpha_minus_1, level = a * lse;
    struct Weight w;
    by_alpha(a, [&](auto kind) { w = weigh<decltype(kind)::value>(logit, a, level, a); });
    return w;
}
#else
struct Weight {
    float p, u;  // the weight, and its derivative by the logit at constant delta
};
FN struct Weight weigh(const struct Attention &, float logit, float lse) {
    const float weight = expf(logit - lse);
    return {weight, weight};
}
#endif

// Turns scores into weights, and dp, the gradients of the weights, into gradients of scale * score.
// Hidden pairs get 0, whatever their rows hold; with nan_safe they get -0, see add_product. Returns
// this thread's share of the gradient of the head's slope.
template <int R, int C, bool TURNED>
FN float score_gradients(float (&x)[R][C], float (&dp)[R][C], const struct Attention &p,
                         const struct Logit &kind, const struct Row *rows, u32 seen, i32 first_q,
                         i32 first_k) {
    const i32 row = (TURNED ? first_k : first_q) + R * thread_down();
    const i32 column = (TURNED ? first_q : first_k) + C * thread_across();
    const float hidden = WITH_NAN_SAFE ? -0.0f : 0.0f;
    float slope = 0.0f;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++) {
            const i32 q = TURNED ? column + c : row + r, k = TURNED ? row + r : column + c;
            const struct Row own = rows[q - first_q];
            const struct LogitAndSlope made = logit(kind, x[r][c], q, k);
            const struct Weight w = weigh(p, made.value, own.lse);
            const bool sees = seen >> (C * r + c) & 1;
            const float d = w.u == 0.0f ? 0.0f : w.u * (dp[r][c] - own.delta);
#if WITH_SCORE
            if (!TURNED && sees && d != 0.0f) add_to_tables(kind, d, x[r][c], q, k);
#else
            if (HEAD_GRADIENT && sees) slope -= d * distance(kind, q, k);
#endif
            x[r][c] = sees ? w.p : hidden;
            dp[r][c] = sees ? d * made.slope + 0.0f : hidden;
        }
    return slope;
}
