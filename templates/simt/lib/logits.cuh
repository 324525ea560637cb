// From scores q . k to logits, with the features that a source is built with.
// Gives: Logit, logit_of, LogitAndSlope, logit.

// What the logits of one head are made of.
struct Logit {
    float scale, cap, slope;
    i32 shift;  // positions of queries: q + shift, so that the last query meets the last key
};
FN struct Logit logit_of(const struct Attention &p, i32 head) {
    return {p.scale, WITH_SOFTCAP ? p.softcap : 1.0f,
            WITH_ALIBI ? p.alibi_slopes[head] * p.spacing : 0.0f, p.n_kv - p.n_q};
}
FN float distance(const struct Logit &l, i32 q, i32 k) { return fabsf((float)(q + l.shift - k)); }

struct LogitAndSlope {
    float value;
    float slope;  // d value / d (scale * score)
};
FN struct LogitAndSlope logit(const struct Logit &l, float score, i32 q, i32 k) {
    struct LogitAndSlope x = {l.scale * score, 1.0f};
    if (WITH_SOFTCAP) {
        const float t = tanhf(x.value / l.cap);
        x = {l.cap * t, 1.0f - t * t};
    }
    if (WITH_ALIBI) x.value -= l.slope * distance(l, q, k);
    return x;
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
