// The query and the head of a row of the tiles. With pack_gqa, each head contributes p.queries
// consecutive rows.

[[maybe_unused]] constexpr bool ROWS_PACKED = PACK_GQA;
FN i32 mask_row(const struct Attention &p, i32 row) {
    return min_i32(PACK_GQA ? (u32)row % (u32)p.queries : row, p.queries - 1);
}
// The head of a row, where `head` is the launch's first head.
FN i32 head_of_row(const struct Attention &p, i32 head, i32 row) {
    if (!PACK_GQA) return head;
    const u32 packed = (u32)p.n_q / (u32)p.queries;  // heads
    return head * packed + min_i32((u32)row / (u32)p.queries, packed - 1);
}
