// The live tiles of a tile row or column, ascending: lists in memory. Needs: FN, Attention, Mask.

struct TileList {
    i32 count;
    const i32 *tiles;  // index * 2 + full
};

FN struct TileList row_tiles(const struct Attention *p, struct Mask m, i32 batch, i32 head,
                             Integer ti) {
    struct TileList list = {0};
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i64 number = (i64)batch * p->list_batch + variant;
    const i32 *ptr = p->row_ptr + number * (p->tile_rows + 1) + ti;
    list.tiles = p->row_tiles + ptr[0];
    list.count = ptr[1] - ptr[0];
    (void)m;
    return list;
}
FN struct TileList column_tiles(const struct Attention *p, struct Mask m, i32 batch, i32 head,
                                Integer tj) {
    struct TileList list = {0};
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i64 number = (i64)batch * p->list_batch + variant;
    const i32 *ptr = p->col_ptr + number * (p->tile_cols + 1) + tj;
    list.tiles = p->col_tiles + ptr[0];
    list.count = ptr[1] - ptr[0];
    (void)m;
    return list;
}

FN struct Tile tile_at(struct TileList list, i32 i) {
    struct Tile tile;
    const i32 entry = list.tiles[i];
    tile.index = entry >> 1;
    tile.full = entry & 1;
    return tile;
}
