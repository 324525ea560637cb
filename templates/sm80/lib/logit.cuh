// What the logits of a head are made of.

// Whether features need registers that the plain kernel fills with what it loads early.
constexpr bool SHORT_OF_REGISTERS = PARK_ROWS && (WITH_ALIBI || WITH_NAN_SAFE || WITH_ENTMAX);

// What the logits of one head are made of.
struct Logit {
    float unit;       // of what make_logits leaves, in powers of two; with entmax, times alpha - 1
    float slope;      // of ALiBi
    float sharpness;  // of the soft cap: tanh(scale x / cap) is 1 - 2 / (2^(sharpness x) + 1)
};

FN struct Logit logit_of(const struct Attention *p, i32 head) {
    struct Logit logit;
    // A scale of zero must not turn the mask's -inf into NaN.
    const float whole = WITH_ENTMAX ? p->alpha_minus_1 : LOG2E;
    logit.unit = WITH_ALIBI ? whole
               : WITH_SOFTCAP ? p->softcap * whole
                              : fmaxf(fabsf(p->scale) * whole, 1e-30f);
    logit.slope = WITH_ALIBI ? p->alibi_slopes[head] * p->spacing : 0.0f;
    logit.sharpness = WITH_SOFTCAP ? 2.0f * LOG2E * p->scale * fast_reciprocal(p->softcap) : 0.0f;
    return logit;
}
