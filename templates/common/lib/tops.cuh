// The base of an online softmax.

// A row's exponentials are relative to its top, a logit times log2(e). The top is updated only when
// a logit exceeds it by RESCALE_THRESHOLD, so p stays below 2^8. ROW_MAX_INIT is below every logit,
// and -inf minus ROW_MAX_INIT is -inf, not NaN.
constexpr float RESCALE_THRESHOLD = 8.0f;
constexpr float ROW_MAX_INIT = -1e30f;
