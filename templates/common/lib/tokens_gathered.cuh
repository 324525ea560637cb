// Which tokens a tile of gathered keys has: rows are heads of one query, and a list has the keys of
// columns. Needs: Attention. Gives: Steps, steps_from; what else tokens_even.cuh gives of lengths.

// From keys to the query, as tokens_even.cuh has them.
struct Steps {
    i32 query;
    FN float to(i32 key) const { return (float)(query - key); }
};
FN struct Steps steps_from(const struct Attention &p, i32 query) {
    return {query + (HEAD_GRADIENT ? p.n_kv - p.n_q : 0)};
}
FN i32 all_queries(const struct Attention &p) { return p.queries; }
FN i32 all_keys(const struct Attention &p) { return p.n_kv; }
