// The query and the head of a row of the tiles. With pack_gqa, each head contributes p.queries
// consecutive rows. If INTERLEAVED, a query's rows of all heads are consecutive. Needs: ptx.cuh,
// tokens.cuh, work.cuh. Gives: ROWS_PACKED, mask_row, head_of_row, RowPoint, rows_point, row_step.

[[maybe_unused]] constexpr bool ROWS_PACKED = PACK_GQA;
// INTERLEAVED: the heads of a query are a power of two; its exponent.
FN i32 head_bits(const struct Attention &p) {
    return INTERLEAVED ? 31 - __clz((u32)p.n_q / (u32)p.queries) : 0;
}
FN i32 mask_row(const struct Attention &p, i32 row) {
    if (INTERLEAVED) return min_i32((u32)row >> head_bits(p), p.queries - 1);
    return min_i32(PACK_GQA ? (u32)row % (u32)p.queries : row, p.queries - 1);
}
// The head of a row, where `head` is the launch's first head.
FN i32 head_of_row(const struct Attention &p, i32 head, i32 row) {
    if (INTERLEAVED) return (head << head_bits(p)) + (row & (1 << head_bits(p)) - 1);
    if (!PACK_GQA) return head;
    const u32 packed = (u32)p.n_q / (u32)p.queries;  // heads
    return head * packed + min_i32((u32)row / (u32)p.queries, packed - 1);
}

#if INTERLEAVED
// The first query of a box whose copies move the rows of all heads of its queries.
struct RowPoint {
    i32 query;
};
FN struct RowPoint rows_point(const struct Attention &p, i32 row) {
    return {(i32)((u32)row >> head_bits(p))};
}
FN void load_box(u32 to, const TensorMap &map, u64 &barrier, i32 d, const struct RowPoint &at,
                 i32 head, i32 batch) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, { %3, %4, %5, %6, %7}], [%2];"
        :: "r"(to), "l"(&map), "r"(shared_address(&barrier)), "r"(d), "r"(0), "r"(at.query),
           "r"(head), "r"(batch) : "memory");
}
FN void store_box(const TensorMap &map, u32 from, i32 d, const struct RowPoint &at, i32 head,
                  i32 batch) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
                 "[%0, { %2, %3, %4, %5, %6}], [%1];"
                 :: "l"(&map), "r"(from), "r"(d), "r"(0), "r"(at.query), "r"(head), "r"(batch)
                 : "memory");
}
#else
typedef Point RowPoint;
FN RowPoint rows_point(const struct Attention &, i32 row) { return query_point(row); }
#endif
// Offset of a row from the first row of its head, in elements. If INTERLEAVED, a stride of heads is
// that of all heads that share keys.
FN i64 row_step(const struct Attention &p, const i64 (&stride)[3], i32 row) {
    if (!INTERLEAVED) return row * stride[2];
    const i32 bits = head_bits(p);
    return (row & (1 << bits) - 1) * (stride[1] >> bits) + ((u32)row >> bits) * stride[2];
}
