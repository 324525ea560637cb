// From scores q . k to logits: applies the score formula or the options of a call. Gives: Logit,
// logit_of, LogitAndSlope, logit, make_logits; add_to_tables, or distance.

struct LogitAndSlope {
    float value;
    float slope;  // d value / d (scale * score)
};
#if WITH_SCORE
// Head and sequence of the logits.
struct Logit {
    const struct Attention *p;
    i32 head, batch;
};
FN struct Logit logit_of(const struct Attention &p, i32 head, i32 batch) {
    return {&p, head, batch};
}
FN struct LogitAndSlope logit(const struct Logit &l, float score, i32 q, i32 k) {
    const float s = l.p->scale * score;
    q = query_token(*l.p, l.batch, q), k = key_token(*l.p, l.batch, k);
    return {score_logit(s, q, k, l.head, l.batch, *l.p),
            score_slope(s, q, k, l.head, l.batch, *l.p)};
}
FN void add_to_tables(const struct Logit &l, float d, float score, i32 q, i32 k) {
    q = query_token(*l.p, l.batch, q), k = key_token(*l.p, l.batch, k);
    score_table_gradient(d, l.p->scale * score, q, k, l.head, l.batch, *l.p);
}
#else
#include "common/lib/score_options.cuh"

// Constants of the logits of one head.
struct Logit {
    const struct Attention *p;
    float scale, height, slope;
    i32 batch;
};
FN struct Logit logit_of(const struct Attention &p, i32 head, i32 batch) {
    return {&p, p.scale, SCORE_CAPS ? score_height(head, batch, p) : 1.0f, head_slope(p, head),
            batch};
}
FN float distance(const struct Logit &l, i32 q, i32 k) {
    return fabsf(steps_from(*l.p, l.batch, q, k).at(0, 0));
}
FN struct LogitAndSlope logit(const struct Logit &l, float score, i32 q, i32 k) {
    struct LogitAndSlope x = {l.scale * score, 1.0f};
    if (SCORE_CAPS) {
        const float t = tanhf(x.value / l.height);
        x = {l.height * t, 1.0f - t * t};
    }
    if (HEAD_GRADIENT) x.value -= l.slope * distance(l, q, k);
    return x;
}
#endif

// Computes the logits of a tile, R queries x C keys per thread; hidden pairs get -inf.
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
