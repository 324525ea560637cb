// Rows of queries whose ends are the same in all tiles: a thread finds them once and keeps them.
// Needs: quad_columns.cuh, work.cuh, logits.cuh; KEPT, the intervals of a row, and find_ends,
// count_columns of the mask.

// In columns of the thread's own, counted from the first one of all.
struct KeptRows {
    i32 first[KEPT][ROWS], last[KEPT][ROWS];
};

FN void keep_rows(struct KeptRows &kept, const struct Attention &p, const struct Block &block) {
    const i32 q = lane_query(block.work);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        struct Bounds own[KEPT];
        find_ends(own, block.mask, mask_row(p, q + 8 * r), p.n_q, p.n_kv);
#pragma unroll
        for (int i = 0; i < KEPT; i++) {
            kept.first[i][r] = own_before(own[i].first - KeyColumns::first());
            kept.last[i][r] = own_before(min_i32(own[i].last, p.n_kv) - KeyColumns::first());
        }
    }
}

// What they see of a tile.
FN struct Seen see_kept(const struct KeptRows &kept, const struct Attention &p,
                        const struct Block &block, struct Tile tile) {
    u32 word[ROWS] = {}, counts[KEPT];
    count_columns(counts, block.mask, tile.index * TILE_K, p.n_q, p.n_kv);
    const i32 before = tile.index * KeyColumns::COUNT;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            word[r] |= bits_from(kept.first[i][r] - before) & bits_before(kept.last[i][r] - before)
                & counts[i];
    return seen_of(word);
}
