// The query and the head of a row of the tiles. With pack_gqa, each head contributes p.queries
// consecutive rows. If INTERLEAVED, the rows of all heads of a query are consecutive. Needs:
// ptx.cuh, tokens.cuh, work.cuh. Gives: ROWS_PACKED, mask_row, head_of_row, first_row, row_step,
// row_offset, box_at, and copies of such rows.

#if INTERLEAVED
[[maybe_unused]] constexpr bool ROWS_PACKED = true;
// The number of heads is a power of two; its exponent.
FN i32 head_bits(const struct Attention &p) { return 31 - __clz((u32)p.n_q / (u32)p.queries); }
FN i32 head_in_group(const struct Attention &p, i32 row) { return row & (1 << head_bits(p)) - 1; }
FN i32 mask_row(const struct Attention &p, i32 row) {
    return min_i32((u32)row >> head_bits(p), p.queries - 1);
}
// The head of a row of a group of heads.
FN i32 head_of_row(const struct Attention &p, i32 group, i32 row) {
    return (group << head_bits(p)) + head_in_group(p, row);
}
// The first row of a query.
FN i32 first_row(const struct Attention &p, i32 query) { return query << head_bits(p); }
// Offset of a row from the first row of its group, in elements. A stride of heads is from one
// group to the next.
FN i64 row_step(const struct Attention &p, const i64 (&stride)[3], i32 row) {
    return head_in_group(p, row) * (stride[1] >> head_bits(p))
         + ((u32)row >> head_bits(p)) * stride[2];
}

// The first query of a box that has the rows of all heads of its queries.
struct Queries {
    i32 first;
};
FN struct Queries box_at(const struct Attention &p, i32 row) {
    return {(i32)((u32)row >> head_bits(p))};
}
FN void load_box(u32 to, const TensorMap &map, u64 &barrier, i32 d, const struct Queries &at,
                 i32 head, i32 batch) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, { %3, %4, %5, %6, %7}], [%2];"
        :: "r"(to), "l"(&map), "r"(shared_address(&barrier)), "r"(d), "r"(0), "r"(at.first),
           "r"(head), "r"(batch) : "memory");
}
FN void store_box(const TensorMap &map, u32 from, i32 d, const struct Queries &at, i32 head,
                  i32 batch) {
    asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group "
                 "[%0, { %2, %3, %4, %5, %6}], [%1];"
                 :: "l"(&map), "r"(from), "r"(d), "r"(0), "r"(at.first), "r"(head), "r"(batch)
                 : "memory");
}
#else
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
FN i32 first_row(const struct Attention &, i32 query) { return query; }
FN i64 row_step(const struct Attention &, const i64 (&stride)[3], i32 row) {
    return row * stride[2];
}
FN Point box_at(const struct Attention &, i32 row) { return query_point(row); }
#endif
FN i64 row_offset(const struct Attention &p, const i64 (&stride)[3], struct Place at, i32 row) {
    return row_offset(stride, at, 0) + row_step(p, stride, row);
}
