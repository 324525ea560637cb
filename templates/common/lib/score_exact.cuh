// Functions of score formulas in full precision. Gives: score_exp, score_log, score_tanh,
// score_sigmoid, score_erf, score_gelu, score_sin, score_cos, score_over.

FN float score_exp(float x) { return expf(x); }
FN float score_log(float x) { return logf(x); }
FN float score_tanh(float x) { return tanhf(x); }
FN float score_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
FN float score_erf(float x) { return erff(x); }
FN float score_gelu(float x) { return 0.5f * x * (1.0f + erff(0.70710678f * x)); }
FN float score_sin(float x) { return sinf(x); }
FN float score_cos(float x) { return cosf(x); }
FN float score_over(float x, float y) { return x / y; }
