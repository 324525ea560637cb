// From scores q . k to logits: applies the score formula or the options of a call. Needs:
// device.cuh, Attention. Gives: Logit, logit_of, PAIRWISE_LOGITS, Pair, to_logit, logit_of_any,
// logit_slope.
#if WITH_SCORE
FN float head_slope(const struct Attention &, i32) { return 0.0f; }  // see score_options.cuh
#else
#include "common/lib/score_options.cuh"
#endif

// Whether features need the registers that the plain kernel uses for early loads.
#if WITH_SCORE
constexpr bool REGISTER_PRESSURE = PARK_ROWS;
#else
constexpr bool REGISTER_PRESSURE = PARK_ROWS && (HEAD_GRADIENT || WITH_NAN_SAFE || WITH_ENTMAX);
#endif

// Whether logits are more than scores times a factor, and whether they depend on the position of
// the pair.
constexpr bool PAIRWISE_LOGITS = SCORED;
#if WITH_SCORE
constexpr bool NEEDS_WHERE = true;
#else
constexpr bool NEEDS_WHERE = HEAD_GRADIENT;
#endif

// Constants of the logits of one head.
struct Logit {
    // Factor from the output of `to_logit` to powers of two; with entmax, times alpha - 1
    float unit;
    float slope;      // decrease of the logit per unit of distance
    float sharpness;  // of the cap: tanh(scale x / height) = 1 - 2 / (2^(sharpness x) + 1)
};
FN struct Logit logit_of(const struct Attention *p, i32 head) {
    struct Logit logit = {};
    // Not 0: the mask's -inf would become NaN.
    const float whole = WITH_ENTMAX ? p->alpha_minus_1 : LOG2E;
#if WITH_SCORE
    logit.unit = whole;
#else
    const float height = score_height(head, 0, *p);
    logit.unit = HEAD_GRADIENT ? whole
               : SCORE_CAPS ? height * whole
                            : fmaxf(fabsf(p->scale) * whole, 1e-30f);
    logit.slope = head_slope(*p, head);
    logit.sharpness = SCORE_CAPS ? 2.0f * LOG2E * p->scale * fast_reciprocal(height) : 0.0f;
#endif
    return logit;
}

// The pair of a score. Unused members cost nothing.
struct Pair {
    i32 query, key, head, batch;
    float q_minus_k;  // query minus key: tokens, or positions for the slope of a head
};

// The logit of a score, up to the factor `unit`, which the exponential applies.
FN float to_logit(float x, const struct Attention &p, const struct Logit &logit,
                  const struct Pair &pair) {
#if WITH_SCORE
    return score_logit(x * p.scale, pair.query, pair.key, pair.q_minus_k, pair.head, pair.batch, p);
#else
    // tanh with one exponential; tanh.approx is too coarse for logits.
    if (SCORE_CAPS) x = 1.0f - 2.0f * fast_reciprocal(fast_exp2(x * logit.sharpness) + 1.0f);
    if (HEAD_GRADIENT)
        x = x * (SCORE_CAPS ? score_height(pair.head, pair.batch, p) : p.scale)
            - logit.slope * fabsf(pair.q_minus_k);
    return x;
#endif
}
// The same if the query may be past the last one.
FN float logit_of_any(float x, const struct Attention &p, const struct Logit &logit,
                      const struct Pair &pair, bool inside) {
#if WITH_SCORE
    return inside ? to_logit(x, p, logit, pair) : MINUS_INFINITY;
#else
    return to_logit(x, p, logit, pair);
#endif
}

// The derivative of the logit x by scale times its score. `counts`: whether it is needed.
FN float logit_slope(float score, float x, const struct Attention &p, const struct Logit &logit,
                     const struct Pair &pair, bool counts) {
#if WITH_SCORE
    if (!SCORE_BENDS) return 1.0f;
    return counts ? score_slope(score * p.scale, pair.query, pair.key, pair.q_minus_k, pair.head,
                                pair.batch, p)
                  : 0.0f;
#else
    if (!SCORE_CAPS) return 1.0f;
    if (HEAD_GRADIENT)
        x = (x + logit.slope * fabsf(pair.q_minus_k))
            * fast_reciprocal(score_height(pair.head, pair.batch, p));
    return fmaxf(1.0f - x * x, 0.0f);
#endif
}
