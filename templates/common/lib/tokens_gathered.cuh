// The tokens of a tile of gathered keys: rows are heads of one query, and columns are listed keys.
// Needs: Attention. Gives: Steps, steps_from; and the functions on lengths of tokens_even.cuh.

// From keys to the query, as in tokens_even.cuh.
struct Steps {
    i32 query;
    FN float to(i32 key) const { return (float)(query - key); }
};
FN struct Steps steps_from(const struct Attention &p, i32 query) {
    return {query + (HEAD_GRADIENT ? p.n_kv - p.n_q : 0)};
}
FN i32 all_queries(const struct Attention &p) { return p.queries; }
FN i32 all_keys(const struct Attention &p) { return p.n_kv; }
