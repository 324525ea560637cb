// The functions of formulas of the score, in full precision, and sums by several blocks.
// Gives: score_exp, ..., score_join, score_plus, as common/gen/score.h.j2 needs them.

FN float score_abs(float x) { return fabsf(x); }
FN float score_sqrt(float x) { return sqrtf(x); }
FN float score_floor(float x) { return floorf(x); }
FN float score_exp(float x) { return expf(x); }
FN float score_log(float x) { return logf(x); }
FN float score_tanh(float x) { return tanhf(x); }
FN float score_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

FN unsigned score_bits(float x) { return (unsigned)__float_as_int(x); }
FN void score_join(i64 *to, i64 x) {
    if (x) atomicAdd((unsigned long long *)to, (unsigned long long)x);
}
FN void score_plus(float *to, float x) { atomicAdd(to, x); }
