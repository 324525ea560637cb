// The tokens that the rows of a launch stand for: all in order, or every s-th. Needs: vector.h,
// Mask. Gives, as tokens_listed.h does: query_token, key_token, queries_from, position_shift,
// all_queries, all_keys.

FN i32 query_token(struct Mask m, i32 row) { return (void)m, row; }
FN i32 key_token(struct Mask m, i32 row) { return (void)m, row; }
// The tokens of LANES queries relative to the first one, which `first` receives.
FN vec queries_from(const struct Attention *p, struct Mask m, i32 row, i32 *first) {
    (void)p, (void)m;
    *first = row;
    return lane_numbers();
}
FN i32 all_queries(const struct Attention *p) { return p->n_q; }
FN i32 all_keys(const struct Attention *p) { return p->n_kv; }
// Query position minus query token.
FN i32 position_shift(const struct Attention *p) { return p->n_kv - p->n_q; }
