// Loader for a paged KV cache, with pages in any order. A tile is loaded in granules: the longest
// runs of keys that share a page wherever a tile begins. Each granule is a box of its own. The TMA
// swizzle depends on shared-memory addresses only, so boxes of any height fit together.
//
// Copies never leave the pool. A granule past the end of its sequence, or with an invalid
// page-table entry, gets coordinates outside of the tensor map: TMA then reads nothing and writes
// zeros.
// Needs: items.cuh, PAGE_SIZE, GRANULE. Gives what keys_boxes.cuh does.

constexpr i32 GRANULES = TILE_K / GRANULE;  // granules of a tile
// Warps that copy the granules of a tile: one takes as long for many of them as their products do.
// The first one also does all else that a producer does, see forward_load.cuh.
constexpr i32 divisor(i32 n, i32 most) { return n % most ? divisor(n, most - 1) : most; }
#if E4M3_POOLS
constexpr i32 COPIERS = 1, SHARE = GRANULES, TOGETHER = 1;  // registers are for conversions
#else
constexpr i32 COPIERS = PERSISTENT || WITH_ENTMAX ? 1 : divisor(GRANULES, 4);
constexpr i32 SHARE = GRANULES / COPIERS;    // granules of a warp
constexpr i32 TOGETHER = divisor(SHARE, 8);  // granules whose entries are read at once
#endif
// Columns of a slab; slabs of a tile of keys, and of values.
#if E4M3_POOLS
constexpr int COLUMNS = 128, KEY_SLABS = POOL_SLABS, ROW_SLABS = POOL_SLABS_V;
#else
constexpr int COLUMNS = SLAB_COLUMNS, KEY_SLABS = OPERAND_SLABS, ROW_SLABS = VALUE_SLABS;
#endif

struct Keys {
    const struct Attention &p;
    i32 head, count, entry;  // of a sequence: number of keys, and first entry in the page table
};
FN Keys keys_in(const struct Attention &p, const i64 (&stride)[3], struct Place at) {
    return {p, stride[1] ? at.head : 0, __ldg(p.key_count + at.batch),
            __ldg(p.first_page + at.batch)};
}

// The last granule of a sequence's values is copied row by row: memory past the last key may hold
// NaN, and 0 * NaN is NaN. For keys this does not matter, because their scores are overwritten.
struct ValueMap {
    TensorMap granule, row;
};

// The page of a key; -1 past the end of the sequence.
FN i32 page_of(const Keys &from, i32 key) {
    return key < from.count ? __ldg(from.p.pages + from.entry + (u32)key / PAGE_SIZE) : -1;
}
// Loads keys that follow one another in a page as a box; zeros where there is no such page.
template <int COUNT>
FN void load_run(unsigned char *tile, const TensorMap &map, u64 &full, i32 row, i32 inside,
                 i32 page, const Keys &from) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        load_box(shared_address(tile) + i * TILE_K * 128 + row * 128, map, full, COLUMNS * i,
                 inside, from.head, page);
}
// Loads a warp's share of the granules. Entries of several granules are read together, because each
// read takes hundreds of cycles.
template <int COUNT>
FN void load_share(unsigned char *tile, const TensorMap &map, u64 &full, i32 first,
                   const Keys &from, i32 warp) {
#pragma unroll 1
    for (int i = warp * SHARE; i < (warp + 1) * SHARE; i += TOGETHER) {
        i32 page[TOGETHER];
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) page[j] = page_of(from, first + (i + j) * GRANULE);
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            const i32 row = (i + j) * GRANULE;
            const i32 inside = GRANULE == PAGE_SIZE ? 0 : (u32)(first + row) % PAGE_SIZE;
            load_run<COUNT>(tile, map, full, row, inside, page[j], from);
        }
    }
}
template <int COUNT>
FN void load_granules(unsigned char *tile, const TensorMap &map, u64 &full, const Point &first,
                      const Keys &from) {
    arrive_expecting(full, COUNT * TILE_K * 128);
    load_share<COUNT>(tile, map, full, first, from, 0);
}
FN void load_keys(unsigned char *tile, const TensorMap &map, u64 &full, const Point &first,
                  const Keys &from) {
    load_granules<KEY_SLABS>(tile, map, full, first, from);
}
// Whether the sequence does not end inside of a granule of a tile.
FN bool ends_between(const Keys &from, i32 first) {
    const i32 behind = from.count - first;  // keys from the first of the tile to the end
    return GRANULE == 1 || behind >= TILE_K || behind % GRANULE == 0;
}
FN void load_value_rows(unsigned char *tile, const ValueMap &map, u64 &full, const Point &first,
                        const Keys &from) {
    if (ends_between(from, first)) {
        load_granules<ROW_SLABS>(tile, map.granule, full, first, from);
        return;
    }
    arrive_expecting(full, ROW_SLABS * TILE_K * 128);
#pragma unroll 1
    for (int i = 0; i < TILE_K;) {
        const bool last = first + i < from.count && from.count < first + i + GRANULE;
        const i32 end = i + GRANULE;
#pragma unroll 1
        for (; i < end; i += last ? 1 : GRANULE) {
            const i32 key = first + i, inside = (u32)key % PAGE_SIZE, page = page_of(from, key);
            load_run<ROW_SLABS>(tile, last ? map.row : map.granule, full, i, inside, page, from);
        }
    }
}
