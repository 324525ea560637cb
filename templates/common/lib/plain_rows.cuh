// The query of a row of the tiles: one per row.

[[maybe_unused]] constexpr bool ROWS_PACKED = false;
FN i32 mask_row(const struct Attention &p, i32 row) { return min_i32(row, p.n_q - 1); }
