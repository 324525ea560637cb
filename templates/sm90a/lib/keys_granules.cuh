// Loader for a paged KV cache, with pages in any order. A tile is loaded in granules: the longest
// runs of keys that share a page wherever a tile begins. Each granule is a box of its own. The TMA
// swizzle depends on shared-memory addresses only, so boxes of any height fit together.
//
// Copies never leave the pool. A granule past the end of its sequence, or with an invalid
// page-table entry, gets coordinates outside of the tensor map: TMA then reads nothing and writes
// zeros.
// Needs: items.cuh, PAGE_SIZE, GRANULE. Gives what keys_boxes.cuh does.

constexpr i32 GRANULES = TILE_K / GRANULE;  // granules of a tile
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

// Loads `rows` keys from `key` on, which share a page, as one box; zeros past the end of the
// sequence.
template <int COUNT>
FN void load_run(unsigned char *tile, const TensorMap &map, u64 &full, i32 row, i32 key,
                 const Keys &from) {
    const i32 *const entry = from.p.pages + from.entry + (u32)key / PAGE_SIZE;
    const i32 page = key < from.count ? __ldg(entry) : -1;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        load_box(shared_address(tile) + i * TILE_K * 128 + row * 128, map, full,
                 COLUMNS * i, (u32)key % PAGE_SIZE, from.head, page);
}
template <int COUNT>
FN void load_granules(unsigned char *tile, const TensorMap &map, u64 &full, const Point &first,
                      const Keys &from) {
    arrive_expecting(full, COUNT * TILE_K * 128);
#pragma unroll 1
    for (int i = 0; i < GRANULES; i++)
        load_run<COUNT>(tile, map, full, i * GRANULE, first + i * GRANULE, from);
}
FN void load_keys(unsigned char *tile, const TensorMap &map, u64 &full, const Point &first,
                  const Keys &from) {
    load_granules<KEY_SLABS>(tile, map, full, first, from);
}
FN void load_value_rows(unsigned char *tile, const ValueMap &map, u64 &full, const Point &first,
                        const Keys &from) {
    const i32 behind = from.count - first;  // keys from the first of the tile to the end
    if (GRANULE == 1 || behind >= TILE_K || behind % GRANULE == 0) {
        load_granules<ROW_SLABS>(tile, map.granule, full, first, from);
        return;
    }
    arrive_expecting(full, ROW_SLABS * TILE_K * 128);
#pragma unroll 1
    for (int i = 0; i < TILE_K;) {
        const bool last = i < behind && behind < i + GRANULE;
        if (!last) load_run<ROW_SLABS>(tile, map.granule, full, i, first + i, from);
#pragma unroll 1
        for (int end = i + GRANULE; i < end; i++)
            if (last) load_run<ROW_SLABS>(tile, map.row, full, i, first + i, from);
    }
}
