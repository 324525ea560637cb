// Which tokens the rows of a launch are: those of the call in their order, or every so-manieth.
// Needs: vector.h, Mask. Gives, as tokens_listed.h does: query_token, key_token, queries_from,
// position_shift, all_queries, all_keys.

FN i32 query_token(struct Mask m, i32 row) { return (void)m, row; }
FN i32 key_token(struct Mask m, i32 row) { return (void)m, row; }
// The tokens of LANES queries, less that of the first one, which `first` gets.
FN vec queries_from(const struct Attention *p, struct Mask m, i32 row, i32 *first) {
    (void)p, (void)m;
    *first = row;
    return lane_numbers();
}
FN i32 all_queries(const struct Attention *p) { return p->n_q; }
FN i32 all_keys(const struct Attention *p) { return p->n_kv; }
// By how much positions of queries exceed their tokens.
FN i32 position_shift(const struct Attention *p) { return p->n_kv - p->n_q; }
