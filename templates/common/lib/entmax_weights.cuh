// alpha-entmax: from a score to its weight, given the row's level. Gives: Alpha, Weight, by_alpha,
// power.

// alpha-entmax (Peters, Niculae and Martins, 2019), with a = alpha - 1: a row's weights are
//     p = x^(1/a),  u = x^(1/a - 1) = dp/dscore,  x = max(0, 1 + a * score - level)
// for the one level = a * lse that makes them sum to 1.
// Alpha 1.5 and 2 need no powers; below 1 + 2^-7 the logarithm of x = 1 + y would lose y.
enum Alpha { ANY, NEAR_SOFTMAX, HALF_MORE, SPARSEMAX };
template <Alpha VALUE>
struct Kind {
    static constexpr Alpha value = VALUE;
};
// Calls `f` with the kind of alpha as a compile-time constant; instantiates `f` four times.
template <typename F>
FN void by_alpha(float a, const F &f) {
    if (a == 0.5f)
        f(Kind<HALF_MORE>());
    else if (a == 1.0f)
        f(Kind<SPARSEMAX>());
    else if (a < 0x1p-7f)
        f(Kind<NEAR_SOFTMAX>());
    else
        f(Kind<ANY>());
}

FN float power(float x, float exponent) { return fast_exp2(exponent * fast_log2(x)); }

// log(1 + y) for small |y|, or for y so negative that its weight is 0.
FN float log_near_1(float y) {
    return y * (1.0f - y * (0.5f - y * (1.0f / 3 - y * (0.25f - y * 0.2f))));
}

struct Weight {
    float p, u;
};
// score * unit = a * score. Hidden scores are -inf, and levels of rows without keys are infinite:
// both give weight 0.
template <Alpha ALPHA>
FN struct Weight weigh(float score, float unit, float level, float a) {
    if (ALPHA == NEAR_SOFTMAX) {
        const float log = log_near_1(fmaf(score, unit, -level)) * (LOG2E / a);
        return {fast_exp2(log), fast_exp2(log * (1.0f - a))};
    }
    const float x = __saturatef(fmaf(score, unit, 1.0f - level));  // a weight is at most 1
    if (ALPHA == HALF_MORE) return {x * x, x};
    if (ALPHA == SPARSEMAX) return {x, x > 0.0f ? 1.0f : 0.0f};
    const float u = power(x, 1.0f / a - 1.0f);
    return {u * x, u};
}
