// Softmax: from a score to its weight, given the row's lse. Same interface as entmax_weights.cuh.
// Gives: Alpha, Weight, by_alpha.

enum Alpha { SOFTMAX };
template <Alpha VALUE>
struct Kind {
    static constexpr Alpha value = VALUE;
};
template <typename F>
FN void by_alpha(float, const F &f) { f(Kind<SOFTMAX>()); }

struct Weight {
    float p, u;
};
template <Alpha>
FN struct Weight weigh(float score, float unit, float lse, float) {
    const float p = fast_exp2(fmaf(score, unit, -lse));
    return {p, p};
}
