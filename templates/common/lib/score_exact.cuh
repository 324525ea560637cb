// Functions of formulas of the score in full precision.
// Gives: score_exp, score_log, score_tanh, score_sigmoid, score_over.

FN float score_exp(float x) { return expf(x); }
FN float score_log(float x) { return logf(x); }
FN float score_tanh(float x) { return tanhf(x); }
FN float score_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
FN float score_over(float x, float y) { return x / y; }
