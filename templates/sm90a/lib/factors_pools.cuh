// The scales of a row's scores and results where keys and values are E4M3 numbers of a pool.
// Counterpart: values_bytes.cuh. Needs: work.cuh, softmax.cuh. Gives: Factors, factors_of,
// begin_row, multiply_scores, lower.

#include "common/lib/pool_scales.cuh"

#include "sm90a/lib/factors.cuh"

// Undoes the scaling of exponentials by 2^P_EXPONENT_OFFSET: in results together with the scale of
// values.
constexpr float DOWN = 1.0f / (1 << (int)P_EXPONENT_OFFSET);

FN void begin_row(struct Factors &x, const struct Attention &p, const struct Row &row) {
    const i32 head = (u32)row.head / ((u32)p.heads_q / (u32)p.heads_kv);
    set_factors(x, p, key_scale(p, row.batch, head), value_scale(p, row.batch, head) * DOWN);
}
// Call at the end of a row or part.
FN void lower(Output &o, float (&sum)[2], const struct Factors &x) {
    multiply_all(o, x.out);
    multiply_all(sum, DOWN);
}
