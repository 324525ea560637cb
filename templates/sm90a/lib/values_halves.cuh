// The operand policy of tensors with two bytes an element: where values lie, and what scores and
// results are multiplied by. values_bytes.cuh is the other one.
// Needs: a loader of keys, wgmma.cuh, softmax.cuh. Gives: Maps, Values, values_in,
// load_values, values_operand, values_step, Factors, factors_of, begin_row, multiply_scores, lower.

struct Maps {
    TensorMap q, k;
    ValueMap v;
    TensorMap out;
};

// Of a key/value head.
typedef Keys Values;
FN Values values_in(const struct Attention &p, struct Place at) {
    return keys_in(p, p.v_stride, at);
}
FN void load_values(unsigned char *tile, const struct Maps &maps, u64 &full, const Point &first,
                    i32, const Values &from) {
    load_value_rows(tile, maps.v, full, first, from);
}
// A tile of them as the right operand of p v, and where step `i` begins.
FN u64 values_operand(u32 tile) { return along_tokens(tile, K_SLAB); }
FN u32 values_step(int i) { return token_step(i); }

// All rows have the same factor of scores.
struct Factors {
    float unit, stale;  // of scores in powers of two; STALE in theirs
};
FN struct Factors factors_of(const struct Attention &p) {
    const float unit = unit_of(p);
    return {unit, STALE * fast_reciprocal(unit)};
}
FN void begin_row(struct Factors &, const struct Attention &, const struct Row &) {}
FN void multiply_scores(Scores &, const struct Factors &) {}
FN void lower(Output &, float (&)[2], const struct Factors &) {}
