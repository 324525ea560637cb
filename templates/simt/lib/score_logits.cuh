// From scores q . k to logits by the formula of the score.
// Needs: gen/score.h.j2. Gives: Logit, logit_of, LogitAndSlope, logit.

// Whose logits they are.
struct Logit {
    const struct Attention *p;
    i32 head, batch;
};
FN struct Logit logit_of(const struct Attention &p, i32 head, i32 batch) {
    return {&p, head, batch};
}

struct LogitAndSlope {
    float value;
    float slope;  // d value / d (scale * score)
};
FN struct LogitAndSlope logit(const struct Logit &l, float score, i32 q, i32 k) {
    const float s = l.p->scale * score;
    return {score_logit(s, q, k, l.head, l.batch, *l.p),
            score_slope(s, q, k, l.head, l.batch, *l.p)};
}
FN void add_to_tables(const struct Logit &l, float d, float score, i32 q, i32 k) {
    score_table_gradient(d, l.p->scale * score, q, k, l.head, l.batch, *l.p);
}

// The logits of a tile, R queries x C keys a thread; hidden pairs have minus infinity.
template <int R, int C>
FN void make_logits(float (&x)[R][C], const struct Logit &kind, u32 seen, i32 first_q,
                    i32 first_k) {
    const i32 q = first_q + R * thread_down(), k = first_k + C * thread_across();
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++) {
            const bool sees = seen >> (C * r + c) & 1;
            x[r][c] = sees ? logit(kind, x[r][c], q + r, k + c).value : MINUS_INFINITY;
        }
}
