// The tokens of the rows of a launch: all queries, and every s-th key from FIRST_KEY on.
// `array_row` of PLACE is query position minus query token. Needs: Attention; FIRST_KEY,
// KEY_TOKENS, PLACE. Gives what tokens_even.cuh does.

struct Steps {
    float first;
    FN float at(i32 down, i32 across) const { return first + (down - KEY_TOKENS * across); }
};
FN struct Steps steps_from(const struct Attention &p, i32, i32 query, i32 key) {
    const i32 shift = HEAD_GRADIENT ? (i32)p.array_row[PLACE] : 0;
    return {(float)(query + shift - (FIRST_KEY + KEY_TOKENS * key))};
}
template <typename S>
FN void make_opaque_steps(S &x) { x.first = make_opaque_float(x.first); }

FN i32 all_queries(const struct Attention &p) { return p.queries; }
FN i32 all_keys(const struct Attention &p) { return p.queries + (i32)p.array_row[PLACE]; }
FN i32 query_token(const struct Attention &, i32, i32 row) { return row; }
FN i32 key_token(const struct Attention &, i32, i32 row) { return FIRST_KEY + KEY_TOKENS * row; }
