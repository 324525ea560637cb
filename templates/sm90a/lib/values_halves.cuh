// Operand policy for 16-bit tensors: where values lie, and the scales of scores and results.
// Counterpart: values_bytes.cuh. Needs: a loader of keys, wgmma.cuh, softmax.cuh. Gives: Maps,
// Values, values_in, load_values, values_operand, values_step, Factors, factors_of, begin_row,
// multiply_scores, lower.

struct Maps {
    TensorMap q, k;
    ValueMap v;
    TensorMap out;
};

// Where the values of a key/value head lie.
typedef Keys Values;
FN Values values_in(const struct Attention &p, struct Place at) {
    return keys_in(p, p.v_stride, at);
}
FN void load_values(unsigned char *tile, const struct Maps &maps, u64 &full, const Point &first,
                    i32, const Values &from) {
    load_value_rows(tile, maps.v, full, first, from);
}
// A tile of values as the B operand of p v, and the offset of k-step `i`.
FN u64 values_operand(u32 tile) { return along_tokens(tile, K_SLAB); }
FN u32 values_step(int i) { return token_step(i); }

#if E4M3_POOLS
#include "sm90a/lib/factors_pools.cuh"
#else
// All rows have the same scale.
struct Factors {
    float unit, margin;  // from scores to powers of two; RESCALE_THRESHOLD in units of scores
};
FN struct Factors factors_of(const struct Attention &p) {
    const float unit = unit_of(p);
    return {unit, RESCALE_THRESHOLD * fast_reciprocal(unit)};
}
FN void begin_row(struct Factors &, const struct Attention &, const struct Row &) {}
FN void multiply_scores(Scores &, const struct Factors &) {}
FN void lower(Output &, float (&)[2], const struct Factors &) {}
#endif
