// Distribution of work. A work item is one tile row, or a part of one, with its tiles. Items come
// longest first, from the host or from a kernel that builds lists. Needs: TILE_LISTS.

// A work item; maskc/core/abi.py documents its fields.
struct alignas(16) Work {
    i32 tile, head, first, count, full_first, full_last, heads, shared;
};

FN struct Work work_at(const struct Attention &p, i32 index) {
    struct Work work;
    const int4 *from = (const int4 *)(p.work + 8 * (i64)index);
    const int4 low = __ldg(from), high = __ldg(from + 1);
    work.tile = low.x, work.head = low.y, work.first = low.z, work.count = low.w;
    work.full_first = high.x, work.full_last = high.y, work.heads = high.z, work.shared = high.w;
    return work;
}

// A sequence and one of its heads.
struct Place {
    i32 batch, head;
};
FN struct Place place_of(i32 head, i32 heads) {
    const i32 batch = (u32)head / (u32)heads;
    return {batch, head - batch * heads};
}
// Offset of a token's row, in elements.
FN i64 row_offset(const i64 (&stride)[3], struct Place at, i32 token) {
    return at.batch * stride[0] + at.head * stride[1] + token * stride[2];
}

// The tile word that the producer passes to the consumers: the tile's index, and flags. items.cuh
// adds FIRST and END.
constexpr i32 MASKED = 1 << 28;  // apply the mask: some pairs are masked or past the end
constexpr i32 INDEX = MASKED - 1;

// The word of tile `i` of an item. `end`: number of tokens along the list. `size`: tokens of a
// tile. Entries of a list are 2 * index + (1 if all pairs of the tile are live).
FN i32 word_of(const struct Work &work, i32 i, const i32 *tiles, i32 size, i32 end) {
    const i32 entry = TILE_LISTS ? __ldg(tiles + work.first + i) : 0;
    const i32 index = TILE_LISTS ? entry >> 1 : work.first + i;
    const bool full = TILE_LISTS ? entry & 1 : index >= work.full_first && index < work.full_last;
    return index | (full && (index + 1) * size <= end ? 0 : MASKED);
}
