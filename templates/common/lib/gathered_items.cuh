// Work items of passes over gathered keys: a query's heads and its list of keys. Needs: TILE_Q,
// TILE_K. Gives: Item, keys_of, count_of, row_of.

// One query and up to TILE_Q of the heads that share its keys; the heads are the rows of a tile.
struct Item {
    i32 query, kv_head, batch;
    i32 head, heads;  // first head, and their number
};
FN struct Item item_at(const struct Attention &p, i32 index) {
    const u32 group = (u32)p.heads_q / (u32)p.heads_kv, tiles = (group + TILE_Q - 1) / TILE_Q;
    const u32 tile = (u32)index % tiles, rest = (u32)index / tiles;
    const u32 list = rest / (u32)p.n_q, first = tile * TILE_Q;
    struct Item item;
    item.query = rest - list * (u32)p.n_q;
    item.batch = list / (u32)p.heads_kv;
    item.kv_head = list - item.batch * (u32)p.heads_kv;
    item.head = item.kv_head * group + first;
    item.heads = min_i32(group - first, TILE_Q);
    return item;
}

// The keys of the query, ascending. `array` holds the lists and their lengths.
FN const i32 *keys_of(const struct Attention &p, const struct Item &item) {
    return p.array[0] + item.batch * p.array_batch[0] + item.kv_head * p.array_head[0]
        + item.query * p.array_row[0];
}
FN i32 count_of(const struct Attention &p, const struct Item &item) {
    return p.array[1][item.batch * p.array_batch[1] + item.kv_head * p.array_head[1] + item.query];
}
FN i32 tiles_of(i32 count) { return (count + TILE_K - 1) / TILE_K; }

FN const unsigned char *row_of(const void *tensor, const i64 (&stride)[3], i32 batch, i32 head,
                               i32 token) {
    return (const unsigned char *)tensor
        + 2 * (batch * stride[0] + head * stride[1] + token * stride[2]);
}
