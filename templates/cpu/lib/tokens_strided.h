// The tokens of the rows of a launch: all queries, and every s-th key from FIRST_KEY on.
// `array_row` of PLACE is query position minus query token. Needs: vector.h, Mask; FIRST_KEY,
// KEY_TOKENS, PLACE. Gives what tokens_even.h does.

FN i32 query_token(struct Mask m, i32 row) { return (void)m, row; }
FN i32 key_token(struct Mask m, i32 row) { return (void)m, FIRST_KEY + KEY_TOKENS * row; }
FN vec queries_from(const struct Attention *p, struct Mask m, i32 row, i32 *first) {
    (void)p, (void)m;
    *first = row;
    return lane_numbers();
}
FN i32 position_shift(const struct Attention *p) { return (i32)p->array_row[PLACE]; }
FN i32 all_queries(const struct Attention *p) { return p->n_q; }
FN i32 all_keys(const struct Attention *p) { return p->n_q + position_shift(p); }
