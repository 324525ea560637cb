// The live tiles of a tile row or column, ascending, as lists in memory. Needs: FN, Attention, Mask.

struct TileList {
    i32 count;
    const i32 *tiles;  // index * 2 + full
};

FN struct TileList tiles_from(const struct Attention *p, const i32 *ptr, const i32 *tiles,
                              i32 count, i32 batch, i32 head, Integer row) {
    struct TileList list = {0};
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i64 number = (i64)batch * p->list_batch + variant;
    ptr += number * (count + 1) + row;
    list.tiles = tiles + ptr[0];
    list.count = ptr[1] - ptr[0];
    return list;
}
FN struct TileList row_tiles(const struct Attention *p, struct Mask m, i32 batch, i32 head,
                             Integer ti) {
    (void)m;
    return tiles_from(p, p->row_ptr, p->row_tiles, p->tile_rows, batch, head, ti);
}
FN struct TileList column_tiles(const struct Attention *p, struct Mask m, i32 batch, i32 head,
                                Integer tj) {
    (void)m;
    return tiles_from(p, p->col_ptr, p->col_tiles, p->tile_cols, batch, head, tj);
}

FN struct Tile tile_at(struct TileList list, i32 i) {
    struct Tile tile;
    const i32 entry = list.tiles[i];
    tile.index = entry >> 1;
    tile.full = entry & 1;
    return tile;
}
