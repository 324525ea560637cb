// Tiles of consecutive queries and keys: turns scores into logits and applies the mask. Needs:
// logit.cuh, softmax.cuh, work.cuh; see_rows of the mask.

// Turns scores q . k into logits, up to the factor `unit`, which the exponential applies.
FN void make_logits(Scores &s, const struct Attention *p, const struct Block &block, i32 first_k) {
#if SCORED
    const struct Work work = block.work;
    const struct Logit logit = block.logit;
    const i32 thread = make_opaque(threadIdx.x), lane_k = first_k + thread % 4 * 2;
    const i32 first_q = warp_query(work, thread / 32) + thread % 32 / 4;
    const struct Steps steps = steps_from(*p, work.batch, first_q, lane_k);
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) {
#if WITH_SCORE
        // With few queries, skip fragments without rows.
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

// The bits of all keys of a tile.
constexpr u32 ALL_VISIBLE = (1u << TILE_K / 4) - 1 | ((1u << TILE_K / 4) - 1) << 16;

// What queries lane / 4 + 8 r of a warp see of a tile's keys.
FN struct Seen seen_by(const struct Attention *p, const struct Block &block, struct Tile tile) {
    typedef QuadColumns<TILE_K / 4> Own;
#if WIDE
    const i32 n_q = p->queries;
#else
    const i32 n_q = p->n_q;
#endif
    const i32 first_k = tile.index * TILE_K, q = lane_query(block.work);
    u32 word[ROWS][1] = {};
    if (tile.full) {
        const u32 inside = bits_before(Own::before(p->n_kv - lane_key(first_k)));
#pragma unroll
        for (int r = 0; r < ROWS; r++) word[r][0] = inside;
    } else {
        i32 rows[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) rows[r] = mask_row(*p, q + 8 * r);
        see_rows<ByQuery, Own>(word, block.mask, rows, first_k, n_q, p->n_kv);
    }
    struct Seen seen;
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
        seen.word[m] = (word[2 * m][0] & 0xffff) | word[2 * m + 1][0] << 16;
    return seen;
}

// Whether any row of the warp sees a key of the tile, and whether all rows see all keys.
FN bool sees_any(const struct Seen &seen) {
    u32 some = 0;
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) some |= seen.word[m];
    return __any_sync(0xffffffff, some & ALL_VISIBLE);
}
FN bool sees_all(const struct Seen &seen) {
    u32 every = ALL_VISIBLE;
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) every &= seen.word[m];
    return __all_sync(0xffffffff, every == ALL_VISIBLE);
}
