// Tiles of consecutive queries and keys: scores to logits, the mask.
// Needs: logit.cuh, softmax.cuh, work.cuh; keep of the mask.

// Scores q . k become logits up to the factor `unit`, which the exponential applies.
FN void make_logits(Scores &s, const struct Attention *p, const struct Block &block, i32 first_k) {
#if SCORED
    const struct Work work = block.work;
    const struct Logit logit = block.logit;
    const i32 thread = anew(threadIdx.x), lane_k = first_k + thread % 4 * 2;
    const i32 first_q = warp_query(work, thread / 32) + thread % 32 / 4;
    const struct Steps steps = steps_from(*p, work.batch, first_q, lane_k);
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) {
#if WITH_SCORE
        // Few queries are rows of few fragments: what there is nothing of is left alone.
        if (first_q - thread % 32 / 4 + 16 * m >= p->n_q) continue;
#endif
#pragma unroll
        for (int n = 0; n < TILE_K / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int down = 16 * m + e / 2 * 8, across = 8 * n + e % 2;
                const i32 query = min_i32(first_q + down, p->n_q - 1), key = lane_k + across;
                const struct Pair pair = {query_token(*p, work.batch, query),
                                          key_token(*p, work.batch, key), work.head, work.batch,
                                          steps.at(down, across)};
                s[m][n][e] = to_logit(s[m][n][e], *p, logit, pair);
            }
    }
#else
    if (p->scale < 0.0f)
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
            for (int n = 0; n < TILE_K / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[m][n][e] = -s[m][n][e];
#endif
}

// What queries lane / 4 + 8 r of a warp see of a tile's keys.
FN struct Seen seen_by(const struct Attention *p, const struct Block &block, struct Tile tile) {
    const struct Mask mask = block.mask;
#if WIDE
    const i32 n_q = p->queries, n_kv = p->n_kv;
#else
    const i32 n_q = p->n_q, n_kv = p->n_kv;
#endif
    const i32 q = lane_query(block.work), k = lane_key(tile.index * TILE_K);
    struct Seen seen = {};
#pragma unroll UNROLL
    for (int i = 0; i < TILE_K / 4; i++) {
        const i32 column = k + i / 2 * 8 + i % 2, inside = min_i32(column, n_kv - 1);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#if WIDE
            const i32 row = mask_row(p, q + 8 * r);
#else
            const i32 row = min_i32(q + 8 * r, n_q - 1);
#endif
            const u32 live = tile.full | (keep(mask, row, inside, n_q, n_kv) != 0);
            seen.word[r / 2] |= (live & (column < n_kv)) << (16 * (r % 2) + i);
        }
    }
    return seen;
}
