// The tokens of the rows of a launch: one side reads its tokens from a list, TOKENS of a mask.
// `array_row` of PLACE is query position minus query token. Needs: vector.h, Mask; TOKENS,
// LISTED_QUERIES, PLACE. Gives what tokens_even.h does.

FN i32 query_token(struct Mask m, i32 row) { return LISTED_QUERIES ? TOKENS(m)[row] : row; }
FN i32 key_token(struct Mask m, i32 row) { return LISTED_QUERIES ? row : TOKENS(m)[row]; }
FN vec queries_from(const struct Attention *p, struct Mask m, i32 row, i32 *first) {
    vec lanes = lane_numbers();
    *first = query_token(m, row);
    if (LISTED_QUERIES) {
        for (i32 i = 0; i < LANES; i++)
            lanes[i] = (float)(query_token(m, min_i32(row + i, p->n_q - 1)) - *first);
    }
    return lanes;
}
FN i32 position_shift(const struct Attention *p) { return (i32)p->array_row[PLACE]; }
FN i32 all_queries(const struct Attention *p) {
    return LISTED_QUERIES ? p->n_kv - position_shift(p) : p->n_q;
}
FN i32 all_keys(const struct Attention *p) {
    return LISTED_QUERIES ? p->n_kv : p->n_q + position_shift(p);
}
