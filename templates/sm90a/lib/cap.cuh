// Capped logits, height * tanh(rate * s), and their derivatives. tanh.approx is too coarse for
// logits, and the exact tanh costs two MUFU operations. If all scores of a warp are moderate,
// which is common, a polynomial replaces it. Needs: device.cuh; score_height, score_rate. Gives:
// Cap, cap_of, cap_scores, slope_at.

// Bound on |rate * s| up to which the polynomial is within 3e-7 of tanh
constexpr float CAP_SERIES_LIMIT = 0.75f;
constexpr int TERMS = 5;
constexpr float TANH[TERMS] = {0.9999972f, -0.33323076f, 0.13226092f, -0.04928044f, 0.012318827f};
// SCALED: the polynomial coefficients include the scale, which takes five registers.
template <bool SCALED = false>
struct Cap {
    float height, rate;
    float slope, bent;  // derivative by scale * score: slope - bent * logit^2
    float odd[SCALED ? TERMS : 1];
};
template <bool SCALED = false>
FN Cap<SCALED> cap_of(const struct Attention &p, i32 head, i32 batch) {
    Cap<SCALED> cap;
    cap.height = score_height(head, batch, p);
    const float rate = score_rate(head, batch, p);
    cap.rate = rate * p.scale;
    cap.slope = cap.height * rate;
    cap.bent = cap.height == 0.0f ? 0.0f : rate * fast_reciprocal(cap.height);
    float power = cap.height * cap.rate;
#pragma unroll
    for (int i = 0; SCALED && i < TERMS; i++)
        cap.odd[i] = TANH[i] * power, power *= cap.rate * cap.rate;
    return cap;
}
template <bool SCALED>
FN float moderate_logit(float s, const Cap<SCALED> &cap) {
    const float *const odd = SCALED ? cap.odd : TANH;
    const float x = SCALED ? s : s * cap.rate, factor = SCALED ? 1.0f : cap.height;
    const float square = x * x;
    float sum = odd[TERMS - 1];
#pragma unroll
    for (int i = TERMS - 2; i >= 0; i--) sum = fmaf(sum, square, odd[i]);
    return factor * x * sum;
}
// tanh as 1 - 2 / (e^2x + 1), with one exponential.
template <bool SCALED>
FN float any_logit(float s, const Cap<SCALED> &cap) {
    const float x = fast_exp2(s * (2.0f * LOG2E * cap.rate));
    return fmaf(-2.0f * cap.height, fast_reciprocal(x + 1.0f), cap.height);
}
// The derivative at a logit. Its sign is that of height * rate, or it is 0: rounding must not flip
// it.
FN float slope_at(float logit, const Cap<> &cap) {
    const float slope = fmaf(-cap.bent * logit, logit, cap.slope);
    return cap.slope < 0.0f ? fminf(slope, 0.0f) : fmaxf(slope, 0.0f);
}
template <int N, bool SCALED>
FN void cap_scores(float (&s)[N], const Cap<SCALED> &cap) {
    float most = 0.0f;
#pragma unroll
    for (int i = 0; i < N; i++) most = fmaxf(most, fabsf(s[i]));
    if (WITH_ENTMAX || __any_sync(0xffffffff, most * fabsf(cap.rate) > CAP_SERIES_LIMIT)) {
#pragma unroll
        for (int i = 0; i < N; i++) s[i] = any_logit(s[i], cap);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) s[i] = moderate_logit(s[i], cap);
    }
}
