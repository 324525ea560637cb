// The factors of tensors in E4M3, and what undoes the raise of exponentials.
// Needs: work.cuh; Output and RAISED of gen/softmax.cuh.j2.

// The factor of a query head's scores, and that of its results.
struct Factors {
    float scores, out;
};
FN float factor_at(const float *factors, i32 index) {
    return factors == nullptr ? 1.0f : __ldg(factors + index);
}
FN struct Factors factors_of(const struct Attention &p, struct Place at) {
    const u32 group = (u32)p.heads_q / (u32)p.heads_kv;
    const i32 index = at.batch * p.heads_kv + (u32)at.head / group;
    return {factor_at(p.q_descale, index) * factor_at(p.k_descale, index),
            factor_at(p.v_descale, index)};
}
template <int N>
FN void multiply_all(float (&x)[N], float by) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] *= by;
}
// The end of a row, or of a part of one.
FN void lower(Output &o, float (&sum)[2], const struct Factors &factors) {
    const float down = fast_exp2(-RAISED);
    sum[0] *= down, sum[1] *= down;
    multiply_all(o, down * factors.out);
}
