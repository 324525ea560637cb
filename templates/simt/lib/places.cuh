// The part of the work that a block computes. Gives: Place, row_place, column_place.

struct Place {
    i32 tile;   // a tile row, or a tile column
    i32 head;   // a query head; for tile columns, a key/value head
    i32 batch;
};

// Blocks that run at the same time compute rows of one head, or of a few, so that its keys and
// values stay in the L2 cache. Start with the last tile rows, the longest of a causal mask.
FN struct Place row_place(const struct Attention &p) {
    const u32 row = blockIdx.x % (u32)p.tile_rows, head = blockIdx.x / (u32)p.tile_rows;
    return {p.tile_rows - 1 - (i32)row, (i32)(head % p.heads_q), (i32)(head / p.heads_q)};
}

// The same for tile columns, from the first on; `part` numbers the blocks that share one.
FN struct Place column_place(const struct Attention &p, u32 parts, i32 &part) {
    const u32 index = blockIdx.x / parts, head = index / (u32)p.tile_cols;
    part = blockIdx.x % parts;
    return {(i32)(index % (u32)p.tile_cols), (i32)(head % p.heads_kv), (i32)(head / p.heads_kv)};
}
