// The tokens that the rows of a launch stand for: all in order, or every s-th. Needs: Attention.
// Gives, as tokens_listed.cuh and tokens_strided.cuh do: Steps, steps_from, make_opaque_steps,
// query_token, key_token, all_queries, all_keys.

// Query minus key, for the pair `down` queries and `across` keys after a first pair. The unit is
// positions for the slope of a head (ALiBi), and tokens for a score formula.
struct Steps {
    float first;
    FN float at(i32 down, i32 across) const { return first + (down - across); }
};
FN struct Steps steps_from(const struct Attention &p, i32, i32 query, i32 key) {
    return {(float)(query + (HEAD_GRADIENT ? p.n_kv - p.queries : 0) - key)};
}
// Keeps the compiler from computing all steps in advance, which would occupy registers.
template <typename S>
FN void make_opaque_steps(S &x) { x.first = make_opaque_float(x.first); }

FN i32 all_queries(const struct Attention &p) { return p.queries; }
FN i32 all_keys(const struct Attention &p) { return p.n_kv; }
FN i32 query_token(const struct Attention &, i32, i32 row) { return row; }
FN i32 key_token(const struct Attention &, i32, i32 row) { return row; }
