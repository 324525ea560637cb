// The tokens of the rows of a launch: one side reads its tokens from a list, the data array LIST.
// `array_row` of PLACE is query position minus query token. Needs: integers.h, Attention; LIST,
// LISTED_QUERIES, PLACE. Gives what tokens_even.cuh does.

FN const i32 *tokens_of(const struct Attention &p, i32 batch) {
    return p.array[LIST] + batch * p.array_batch[LIST];
}
FN i32 listed_token(const i32 *list, const struct Attention &p, i32 row) {
    return __ldg(list + min_i32(row, (LISTED_QUERIES ? p.queries : p.n_kv) - 1));
}

struct Steps {
    const i32 *list;
    i32 row, last;  // list index of the first pair, and of the last entry
    i32 other;      // the first pair's token on the other side, as far as steps need it
    FN float at(i32 down, i32 across) const {
        const i32 token = __ldg(list + min_i32(row + (LISTED_QUERIES ? down : across), last));
        return (float)(LISTED_QUERIES ? token - (other + across) : other + down - token);
    }
};
FN struct Steps steps_from(const struct Attention &p, i32 batch, i32 query, i32 key) {
    const i32 shift = HEAD_GRADIENT ? (i32)p.array_row[PLACE] : 0;
    const i32 last = (LISTED_QUERIES ? p.queries : p.n_kv) - 1;
    return {tokens_of(p, batch), LISTED_QUERIES ? query : key, last,
            LISTED_QUERIES ? key - shift : query + shift};
}
template <typename S>
FN void make_opaque_steps(S &x) { x.row = make_opaque(x.row); }

FN i32 all_queries(const struct Attention &p) {
    return LISTED_QUERIES ? p.n_kv - (i32)p.array_row[PLACE] : p.queries;
}
FN i32 all_keys(const struct Attention &p) {
    return LISTED_QUERIES ? p.n_kv : p.queries + (i32)p.array_row[PLACE];
}
FN i32 query_token(const struct Attention &p, i32 batch, i32 row) {
    return LISTED_QUERIES ? listed_token(tokens_of(p, batch), p, row) : row;
}
FN i32 key_token(const struct Attention &p, i32 batch, i32 row) {
    return LISTED_QUERIES ? row : listed_token(tokens_of(p, batch), p, row);
}
