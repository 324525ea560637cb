// Gathers rows: the heads of a query, and listed keys. Needs: load.cuh, gathered_items.cuh; Shared
// of the includer.

FN i32 first_row() { return threadIdx.x / 32 * 16 * FRAGMENTS; }

// SPAN threads copy a row; `at(i)` returns the address of row `i` of the tile. Rows from `end` on
// become zeros, without calling `at`; so do pieces beyond OWN, which rows in memory do not have.
template <int COUNT, int OWN, typename F>
FN void copy_rows(u32 tile, i32 end, const F &at) {
    const i32 row = threadIdx.x / SPAN, chunk = threadIdx.x % SPAN;
#pragma unroll
    for (int i = 0; i < COUNT; i += COPY_ROWS) {
        const bool inside = row + i < end;
        const unsigned char *const from = at(inside ? row + i : end - 1) + 16 * chunk;
#pragma unroll
        for (int j = 0; j < CHUNKS; j += SPAN)
            copy_async(tile + place(row + i, chunk + j), from + 16 * j,
                       inside && (OWN == CHUNKS || chunk + j < OWN));
    }
    copy_commit();
}
template <int OWN>
FN void copy_heads(u32 tile, const void *tensor, const i64 (&stride)[3],
                   const struct Item &item) {
    copy_rows<TILE_Q, OWN>(tile, item.heads, [&](i32 row) {
        return row_of(tensor, stride, item.batch, item.head + row, item.query);
    });
}
template <int OWN>
FN void copy_keys(u32 tile, const void *tensor, const i64 (&stride)[3], const struct Item &item,
                  const i32 *keys, i32 count) {
    copy_rows<TILE_K, OWN>(tile, min_i32(count, TILE_K), [&](i32 row) {
        return row_of(tensor, stride, item.batch, item.kv_head, __ldg(keys + row));
    });
}

// Loads the slopes of the heads, and the keys of a tile.
FN void take_slopes(struct Shared &shared, const struct Attention &p, const struct Item &item) {
    if (HEAD_GRADIENT && threadIdx.x < TILE_Q)
        shared.slope[threadIdx.x] =
            head_slope(p, item.head + min_i32(threadIdx.x, item.heads - 1));
}
FN void take_keys(struct Shared &shared, const i32 *keys, i32 count) {
    if (threadIdx.x < TILE_K)
        shared.key[threadIdx.x] = __ldg(keys + min_i32(threadIdx.x, count - 1));
}
