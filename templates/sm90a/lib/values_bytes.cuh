// Operand policy for FP8 (E4M3) tensors: where values lie, and the scales of scores and results.
// Counterpart with the same names: values_halves.cuh. Needs: as that one. Gives: as that one, and
// the launch attention_transpose_v.

struct Maps {
    TensorMap q, k, out;
};

#include "sm90a/lib/transpose_v.cuh"

// The tiles of v^T of a key/value head.
typedef const unsigned char *Values;
FN Values values_in(const struct Attention &p, struct Place at) { return v_tiles_of(p, at); }
FN void load_values(unsigned char *tile, const struct Maps &, u64 &full, const Point &, i32 column,
                    const Values &from) {
    arrive_expecting(full, V_BYTES);
    load_bytes(shared_address(tile), from + (i64)column * V_BYTES, V_BYTES, full);
}
FN u64 values_operand(u32 tile) { return along_keys(tile); }
FN u32 values_step(int i) { return column_step(i, 0); }

#include "sm90a/lib/factors.cuh"

FN float factor_at(const float *factors, i32 index) {
    return factors == nullptr ? 1.0f : __ldg(factors + index);
}
FN void begin_row(struct Factors &x, const struct Attention &p, const struct Row &row) {
    const u32 group = (u32)p.heads_q / (u32)p.heads_kv;
    const i32 index = row.batch * p.heads_kv + (u32)row.head / group;
    const float scores = factor_at(p.q_descale, index) * factor_at(p.k_descale, index);
    set_factors(x, p, scores, factor_at(p.v_descale, index));
    const float unit = flips(p) ? -x.unit : x.unit;
    if (SHIFTED) x.slope = head_slope(p, row.head) * LOG2E * fast_reciprocal(unit);
}
// SHIFTED: adds the distance term to the scores, in their unit.
template <typename Where>
FN void add_distances(Scores &s, const struct Factors &x, const Where &where) {
    if (!SHIFTED) return;
    // With fmaf, ptxas keeps some sums in registers of their own, next to the products' registers.
#pragma unroll
    for (int i = 0; i < TILE_K / 2; i++)
        asm volatile("fma.rn.f32 %0, %1, %2, %0;"
                     : "+f"(s[i]) : "f"(-x.slope), "f"(where.distance(i)));
}
// Call at the end of a row or part: undoes the scaling of exponentials by 2^P_EXPONENT_OFFSET.
FN void lower(Output &o, float (&sum)[2], const struct Factors &x) {
    const float down = fast_exp2(-P_EXPONENT_OFFSET);
    sum[0] *= down, sum[1] *= down;
    multiply_all(o, down * x.out);
}
