// Functions of score formulas by single instructions, for kernels with 16-bit inputs. Exception:
// tanh.approx is too coarse for logits. Needs: device.cuh. Gives: score_exp, score_log, score_tanh,
// score_sigmoid, score_erf, score_gelu, score_sin, score_cos, score_over, score_steps.

FN float score_exp(float x) { return fast_exp2(x * LOG2E); }
FN float score_log(float x) { return logf(x); }
FN float score_tanh(float x) {
    return 1.0f - 2.0f * fast_reciprocal(fast_exp2(x * (2.0f * LOG2E)) + 1.0f);
}
FN float score_sigmoid(float x) { return fast_reciprocal(1.0f + fast_exp2(-LOG2E * x)); }
FN float score_erf(float x) { return erff(x); }
FN float score_gelu(float x) { return 0.5f * x * (1.0f + erff(0.70710678f * x)); }
FN float score_sin(float x) { return sinf(x); }
FN float score_cos(float x) { return cosf(x); }
FN float score_over(float x, float y) { return x * fast_reciprocal(y); }

// index * stride for a nonnegative index: two multiplications with a 32-bit index.
FN i64 score_steps(i32 i, i64 step) {
    return (i64)((u64)(u32)i * (u32)step) + ((i64)((u32)i * (u32)(step >> 32)) << 32);
}
FN i64 score_steps(i64 i, i64 step) { return i * step; }
