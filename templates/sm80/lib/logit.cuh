// What the logits of one head are made of: the soft cap bends a score, then ALiBi adds to it; or a
// formula of the score takes their place, see common/gen/score.h.j2.
// Gives: Logit, logit_of, BENT, to_logit, logit_slope.

// Whether features need registers that the plain kernel fills with what it loads early.
#if WITH_SCORE
constexpr bool SHORT_OF_REGISTERS = PARK_ROWS;
#else
constexpr bool SHORT_OF_REGISTERS = PARK_ROWS && (WITH_ALIBI || WITH_NAN_SAFE || WITH_ENTMAX);
#endif

// Whether a logit is more than its score times a factor.
#if WITH_SCORE
constexpr bool BENT = true;
#else
constexpr bool BENT = WITH_SOFTCAP || WITH_ALIBI;
#endif

struct Logit {
    float unit;       // of what `to_logit` leaves, in powers of two; with entmax, times alpha - 1
    float slope;      // of ALiBi
    float sharpness;  // of the soft cap: tanh(scale x / cap) is 1 - 2 / (2^(sharpness x) + 1)
};

FN struct Logit logit_of(const struct Attention *p, i32 head) {
    struct Logit logit;
    // A scale of zero must not turn the mask's -inf into NaN.
    const float whole = WITH_ENTMAX ? p->alpha_minus_1 : LOG2E;
#if WITH_SCORE
    logit.unit = whole;
#else
    logit.unit = WITH_ALIBI ? whole
               : WITH_SOFTCAP ? p->softcap * whole
                              : fmaxf(fabsf(p->scale) * whole, 1e-30f);
#endif
    logit.slope = WITH_ALIBI ? p->alibi_slopes[head] * p->spacing : 0.0f;
    logit.sharpness = WITH_SOFTCAP ? 2.0f * LOG2E * p->scale * fast_reciprocal(p->softcap) : 0.0f;
    return logit;
}

// The logit of a score q . k, up to `unit`, which the exponential applies. `slope` is ALiBi's of
// the row, and `steps` tells how far its query is from the key.
FN float to_logit(float x, const struct Attention *p, float sharpness, float slope, float steps) {
#if WITH_SOFTCAP
    // tanh by one exponential: the approximate instruction is too coarse for logits.
    x = 1.0f - 2.0f * fast_reciprocal(fast_exp2(x * sharpness) + 1.0f);
#endif
#if WITH_ALIBI
    x = x * (WITH_SOFTCAP ? p->softcap : p->scale) - slope * steps;
#endif
    return x;
}

// The derivative of a logit by scale times its score.
FN float logit_slope(float x, const struct Attention *p, float slope, float steps) {
#if WITH_SOFTCAP
    if (WITH_ALIBI) x = (x + slope * steps) * fast_reciprocal(p->softcap);
    return fmaxf(1.0f - x * x, 0.0f);
#else
    return 1.0f;
#endif
}
