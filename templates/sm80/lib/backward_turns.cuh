// The keys of a block, and the tiles of queries that see them. Needs: backward_rows.cuh; lists of
// tiles. Gives: Column, column_of, Turn, first_turn, find_tile.

struct Column {
    i32 tile;
    struct Place keys;  // sequence and key/value head
    bool of_values;     // computes dv, if dv has blocks of its own
};
// Heads are processed in groups whose queries fit the L2 cache. Within a group, start with the
// first columns, which are the longest of a causal mask.
FN struct Column column_of(const struct Attention &p, u32 index) {
    const bool of_values = DIVIDED && index % 2;
    if (DIVIDED) index /= 2;
    const u32 heads = p.batch * p.heads_kv, columns = p.tile_cols;
    const u32 fit = GROUP_QUERIES / max_i32(1, p.n_q) / (p.heads_q / p.heads_kv);
    const u32 size = fit < 1 ? 1 : fit < heads ? fit : heads;
    const u32 group = index / (size * columns), rest = index % (size * columns);
    const u32 here = heads - group * size < size ? heads - group * size : size;
    return {(i32)(rest / here), place_of(group * size + rest % here, p.heads_kv), of_values};
}

// Iterates over the tiles of a column, query head by query head.
struct Turn {
    i32 head, end, i;
    struct TileList list;
};
// Finds the next tile; false if there is none.
FN bool find_tile(struct Turn &turn, const struct Attention &p, const struct Column &column) {
    while (turn.i >= turn.list.count) {
        if (++turn.head >= turn.end) return false;
        const i32 batch = column.keys.batch;
        const struct Mask mask = load_mask(&p, batch, turn.head);
        turn.list = column_tiles(&p, mask, batch, turn.head, column.tile);
        turn.i = 0;
    }
    return true;
}
FN struct Turn first_turn(const struct Attention &p, const struct Column &column) {
    const i32 heads = p.heads_q / p.heads_kv;
    struct Turn turn = {};
    turn.head = column.keys.head * heads - 1, turn.end = turn.head + 1 + heads;
    return turn;
}
