// The order of additions to dq, for lists of tiles and, with TILE_RANGES, for ranges. Needs:
// common/lib/tiles.h.

#if TILE_RANGES
#if DETERMINISTIC
FN void skip_tiles(struct TileList &list, i32 count) { list.first += count; }

// Number of tile columns that add to a tile of dq before this one. Later columns add first.
FN i32 behind(const struct TileList &list, i32 column) {
    return list.first + list.count - 1 - column;
}

// Ranges store no turns.
FN bool turn_word(i32 &, const struct Attention &, const struct TileList &, i32) { return false; }
#endif
#else
#if DETERMINISTIC
FN void skip_tiles(struct TileList &list, i32 count) { list.tiles += count; }

// Number of tile columns that add to a tile of dq before this one. Later columns add first.
FN i32 column_at(const struct TileList &list, i32 i) { return __ldg(list.tiles + i) >> 1; }
// A 4-way search: each step leaves a quarter
FN i32 behind(const struct TileList &list, i32 column) {
    i32 low = 0, high = list.count;
    while (low < high) {
        const i32 step = (high - low + 3) / 4, last = high - 1;
        i32 passed = 0;
#pragma unroll
        for (int i = 1; i < 4; i++)
            passed += column_at(list, min_i32(low + i * step - 1, last)) <= column;
        if (passed < 3) high = min_i32(low + (passed + 1) * step - 1, high);
        low = min_i32(low + passed * step, last + 1);
    }
    return list.count - low;
}

// Reads the turn that the host stored for tile `i` of a column's list; false if it stored none.
FN bool turn_word(i32 &word, const struct Attention &p, const struct TileList &list, i32 i) {
    if (!p.col_turns) return false;
    word = __ldg(p.col_turns + (list.tiles - p.col_tiles) + i);
    return true;
}
#endif
#endif
