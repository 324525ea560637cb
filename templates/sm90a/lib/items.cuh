// Work items, and copies of their tiles. Needs: work.cuh, ptx.cuh, tokens.cuh.

constexpr i32 FIRST = 1 << 29;  // bit of a word: the tile is the first of its item
constexpr i32 END = 1 << 30;    // bit of a word: no tile, and none will follow

// The word of a tile of an item. Tiles are taken from the last of the row to the first. END if
// there is no item.
FN i32 word_at(const struct Attention &p, const struct Work &work, i32 left) {
    if (work.count == 0) return END;
    const i32 end = keys_end(p) - (TILE_K - KEY_STEP);
    return word_of(work, left, p.row_tiles, KEY_STEP, end) | (flips(p) ? MASKED : 0);
}
FN struct Work item(const struct Attention &p, i32 index) {
    struct Work none = {};
    return index < p.items ? work_at(p, index) : none;
}

// Where a tensor holds the rows of one head. Dimensions with stride 0 broadcast.
struct Slice {
    i32 head, batch;
};
FN struct Slice slice_of(const i64 (&stride)[3], i32 head, i32 batch) {
    return {stride[1] ? head : 0, stride[0] ? batch : 0};
}
template <int ROWS, int COUNT = OPERAND_SLABS, class At>
FN void load_tile(unsigned char *tile, const TensorMap &map, u64 &full, const At &at,
                  struct Slice from) {
    arrive_expecting(full, COUNT * ROWS * 128);
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        load_box(shared_address(tile) + i * ROWS * 128, map, full, SLAB_COLUMNS * i, at, from.head,
                 from.batch);
}
