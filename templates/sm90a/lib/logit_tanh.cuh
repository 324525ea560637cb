// Logits and their derivatives with an explicit tanh, for kernels that fold the cap's height into
// the unit. Needs: logit.cuh. Gives: Log2Logit, log2_logit_of, log2_logit, log2_slope;
// sharpness_of, tanh_halfway, tanh_logit, tanh_slope.

// Constants of a call and a head, for logits times log2(e).
struct Log2Logit {
    float unit;       // factor of a score, or of its tanh
    float sharpness;  // of the cap: tanh(rate s) = 1 - 2 / (2^(sharpness s) + 1)
    float slope;      // see HeadLogit
};
FN float sharpness_of(const struct Attention &p) {
#if WITH_SCORE
    return 0.0f;
#else
    return CAPPED ? 2.0f * LOG2E * p.scale * score_rate(0, 0, p) : 0.0f;
#endif
}
FN float tanh_of(float score, float sharpness) {
    return 1.0f - 2.0f * fast_reciprocal(fast_exp2(score * sharpness) + 1.0f);
}
FN struct Log2Logit log2_logit_of(const struct Attention &p, i32 head) {
    struct Log2Logit x;
#if WITH_SCORE
    x.unit = LOG2E;
#else
    x.unit = (CAPPED ? score_height(head, 0, p) : p.scale) * LOG2E;
#endif
    x.sharpness = sharpness_of(p);
    x.slope = head_logit_of(p, head).slope * LOG2E;
    return x;
}
// The logit of a score, times log2(e).
template <typename Where>
FN float log2_logit(float score, const struct Log2Logit &l, const struct Attention &p,
                    const Where &where, int i) {
    float x = score;
#if WITH_SCORE
    x = score_logit(x * p.scale, where.query(p, i), where.key(p, i), where.q_minus_k(p, i),
                    where.head(i), where.batch(), p);
#else
    if (CAPPED) x = tanh_of(x, l.sharpness);
#endif
    x *= l.unit;
    if (HEAD_GRADIENT) x -= l.slope * where.distance(i);
    return x;
}
// The derivative by scale * score of the logit that log2_logit returned.
#if WITH_SCORE
template <typename Where>
FN float log2_slope(float score, float, const struct Log2Logit &, const struct Attention &p,
                    const Where &where, int i) {
    return score_slope(score * p.scale, where.query(p, i), where.key(p, i), where.q_minus_k(p, i),
                       where.head(i), where.batch(), p);
}
#else
template <typename Where>
FN float log2_slope(float, float logit, const struct Log2Logit &l, const struct Attention &,
                    const Where &, int) {
    // This is the tanh: with a cap, no kernel adds to it
    const float bend = logit * fast_reciprocal(l.unit);
    return 1.0f - bend * bend;
}
#endif

// Half the way to logits (see logit_slope.cuh), for kernels without gradients of heads. The result
// still needs the factor left_scale, unless a formula computed it.
#if WITH_SCORE
FN float tanh_halfway(float score, float) { return score; }
template <typename Where>
FN float tanh_logit(float score, const struct Attention &p, const Where &where, int i) {
    return score_logit(score * p.scale, where.query(p, i), where.key(p, i), where.q_minus_k(p, i),
                       where.head(i), where.batch(), p);
}
template <typename Where>
FN float tanh_slope(float score, const struct Attention &p, const Where &where, int i) {
    return HAS_SLOPE ? score_slope(score * p.scale, where.query(p, i), where.key(p, i),
                                   where.q_minus_k(p, i), where.head(i), where.batch(), p)
                     : 1.0f;
}
#else
FN float tanh_halfway(float score, float sharpness) {
    return CAPPED ? tanh_of(score, sharpness) : score;
}
template <typename Where>
FN float tanh_logit(float half, const struct Attention &p, const Where &, int) {
    return CAPPED ? score_height(0, 0, p) * half : half;
}
template <typename Where>
FN float tanh_slope(float half, const struct Attention &, const Where &, int) {
    return HAS_SLOPE ? fmaxf(1.0f - half * half, 0.0f) : 1.0f;
}
#endif
