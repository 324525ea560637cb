// Powers for alpha-entmax in fp32 precision, where other families use fast instructions. Gives:
// fast_exp2, fast_log2, LOG2E, as common/lib/entmax_weights.cuh needs them.

constexpr float LOG2E = 1.4426950408889634f;
FN float fast_exp2(float x) { return exp2f(x); }
FN float fast_log2(float x) { return log2f(x); }
