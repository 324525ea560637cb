// The query at a row of the tiles: heads that are packed have theirs one after another.

[[maybe_unused]] constexpr bool ROWS_PACKED = PACKED;
FN i32 mask_row(const struct Attention &p, i32 row) {
    return min_i32(PACKED ? (u32)row % (u32)p.queries : row, p.queries - 1);
}
