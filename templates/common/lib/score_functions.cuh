// CUDA primitives of score formulas: atomics across blocks, and functions that are both exact and
// fast. Gives: score_abs, ..., score_join, score_plus, as common/gen/score.h.j2 needs them;
// score_exact.cuh or score_fast.cuh gives the other functions.

// Tables are constant during a launch, so use the read-only path: pairs that read the same entry
// share a load.
FN float score_fetch(const float *from) { return __ldg(from); }
FN i32 score_fetch_integer(const i32 *from) { return __ldg(from); }

FN float score_abs(float x) { return fabsf(x); }
FN float score_sqrt(float x) { return sqrtf(x); }
FN float score_floor(float x) { return floorf(x); }

FN unsigned score_bits(float x) { return (unsigned)__float_as_int(x); }
FN void score_join(i64 *to, i64 x) {
    if (x) atomicAdd((unsigned long long *)to, (unsigned long long)x);
}
FN void score_plus(float *to, float x) { atomicAdd(to, x); }
