// The base of an online softmax.

// A row's exponentials are relative to its top, a logit times log2(e). The top is updated only when
// a logit exceeds it by STALE, the rescale threshold, so p stays below 2^8. NO_TOP is below every
// logit, and -inf minus NO_TOP is -inf, not NaN.
constexpr float STALE = 8.0f;
constexpr float NO_TOP = -1e30f;
