// Distribution of work. Work items come from the host, longest first. Needs: TILE_LISTS.

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

// The word that the producer passes on for a tile: its index, and flags.
constexpr i32 MASKED = 1 << 28;  // some pairs are dead or past the end
constexpr i32 INDEX = MASKED - 1;

// The word of tile `i` of an item. `end` counts the tokens along the list, `size` those of a tile.
FN i32 word_of(const struct Work &work, i32 i, const i32 *tiles, i32 size, i32 end) {
    const i32 entry = TILE_LISTS ? __ldg(tiles + work.first + i) : 0;
    const i32 index = TILE_LISTS ? entry >> 1 : work.first + i;
    const bool full = TILE_LISTS ? entry & 1 : index >= work.full_first && index < work.full_last;
    return index | (full && (index + 1) * size <= end ? 0 : MASKED);
}
