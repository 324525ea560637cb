// What a running softmax is relative to.

// A row's exponentials are relative to its top, a logit in powers of two. The top is kept until a
// logit passes it by STALE: P stays below 2^8. NO_TOP is below every logit, and -inf minus it is
// -inf.
constexpr float STALE = 8.0f;
constexpr float NO_TOP = -1e30f;
