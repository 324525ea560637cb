// From scores q . k to logits, by the formula of the score or by the options of a call.
// Needs: device.cuh, Attention. Gives: Logit, logit_of, BENT, Pair, to_logit, logit_of_any,
// logit_slope.
#if WITH_SCORE
FN float head_slope(const struct Attention &, i32) { return 0.0f; }  // see score_options.cuh
#else
#include "common/lib/score_options.cuh"
#endif

// Whether features need registers that the plain kernel fills with what it loads early.
#if WITH_SCORE
constexpr bool SHORT_OF_REGISTERS = PARK_ROWS;
#else
constexpr bool SHORT_OF_REGISTERS = PARK_ROWS && (HEAD_GRADIENT || WITH_NAN_SAFE || WITH_ENTMAX);
#endif

// Whether a logit is more than its score times a factor, and whether it matters where its pair is.
constexpr bool BENT = SCORED;
#if WITH_SCORE
constexpr bool NEEDS_WHERE = true;
#else
constexpr bool NEEDS_WHERE = HEAD_GRADIENT;
#endif

// What the logits of one head are made of.
struct Logit {
    float unit;       // of what `to_logit` leaves, in powers of two; with entmax, times alpha - 1
    float slope;      // by which they fall with every step of distance
    float sharpness;  // of the cap: tanh(scale x / height) is 1 - 2 / (2^(sharpness x) + 1)
};
FN struct Logit logit_of(const struct Attention *p, i32 head) {
    struct Logit logit = {};
    // A scale of zero must not turn the mask's -inf into NaN.
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

// Which pair a score is of; what no logit depends on is not computed.
struct Pair {
    i32 query, key, head, batch;
    float apart;  // the query minus the key: tokens, or positions for the slope of a head
};

// The logit of a score, up to `unit`, which the exponential applies.
FN float to_logit(float x, const struct Attention &p, const struct Logit &logit,
                  const struct Pair &pair) {
#if WITH_SCORE
    return score_logit(x * p.scale, pair.query, pair.key, pair.apart, pair.head, pair.batch, p);
#else
    // tanh by one exponential: the approximate instruction is too coarse for logits.
    if (SCORE_CAPS) x = 1.0f - 2.0f * fast_reciprocal(fast_exp2(x * logit.sharpness) + 1.0f);
    if (HEAD_GRADIENT)
        x = x * (SCORE_CAPS ? score_height(pair.head, pair.batch, p) : p.scale)
            - logit.slope * fabsf(pair.apart);
    return x;
#endif
}
// Likewise, where the query may lie past the last one.
FN float logit_of_any(float x, const struct Attention &p, const struct Logit &logit,
                      const struct Pair &pair, bool inside) {
#if WITH_SCORE
    return inside ? to_logit(x, p, logit, pair) : MINUS_INFINITY;
#else
    return to_logit(x, p, logit, pair);
#endif
}

// The derivative of the logit x by scale times its score; `counts`: whether it is asked for.
FN float logit_slope(float score, float x, const struct Attention &p, const struct Logit &logit,
                     const struct Pair &pair, bool counts) {
#if WITH_SCORE
    if (!SCORE_BENDS) return 1.0f;
    return counts ? score_slope(score * p.scale, pair.query, pair.key, pair.apart, pair.head,
                                pair.batch, p)
                  : 0.0f;
#else
    if (!SCORE_CAPS) return 1.0f;
    if (HEAD_GRADIENT)
        x = (x + logit.slope * fabsf(pair.apart))
            * fast_reciprocal(score_height(pair.head, pair.batch, p));
    return fmaxf(1.0f - x * x, 0.0f);
#endif
}
