#pragma once
// The two sides of a mask: rows are queries, or rows are keys.

// Rows are queries, columns are keys. Keys past the last one are never visible.
struct ByQuery {
    static constexpr bool KEY_ROWS = false;
    FN static i32 queries(const struct Attention &p) { return p.queries; }
    // The query of a tile row. A template, because kernels define mask_row later.
    template <class Block>
    FN static i32 row(const Block &p, i32 place) { return mask_row(p, place); }
    FN static i32 inside(i32 row, i32) { return row; }
    FN static i32 last_column(i32, i32 n_kv) { return n_kv - 1; }
    FN static i32 query(i32 row, i32) { return row; }
    FN static i32 key(i32, i32 column) { return column; }
    FN static i32 column_end(i32 end, i32 n_kv) { return min_i32(end, n_kv); }
};
// Rows are keys, columns are queries. Keys past the last one see nothing. For queries past the last
// one any answer is fine, because their lse is infinite.
struct ByKey {
    static constexpr bool KEY_ROWS = true;
    FN static i32 queries(const struct Attention &p) { return p.n_q; }
    FN static i32 row(const struct Attention &, i32 place) { return place; }
    FN static i32 inside(i32 row, i32 n_kv) { return min_i32(row, n_kv - 1); }
    FN static i32 last_column(i32 n_q, i32) { return n_q - 1; }
    FN static i32 query(i32, i32 column) { return column; }
    FN static i32 key(i32 row, i32) { return row; }
    FN static i32 column_end(i32 end, i32) { return end; }
};

template <bool KEY_ROWS> struct SideType { typedef ByQuery Type; };
template <> struct SideType<true> { typedef ByKey Type; };
template <bool KEY_ROWS> using SideOf = typename SideType<KEY_ROWS>::Type;

// Rows bounded by data. Config headers specialize this for the sides that data bound.
template <class Side>
struct DataRows {  // not bounded by data
    static constexpr int INTERVALS = 0;
};
