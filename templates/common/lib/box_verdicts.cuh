// The verdict policy of make_lists.cuh for masks that read data. Needs: box_entries.cuh, and
// load_mask and classify of the config header. Gives: line_of, word_at, across_of,
// verdict_of.

// ---------------------------------------------------------------- the candidates of a line

struct Line {
    struct Place at;
    i32 batch, head;
    struct Mask mask;
    const i32 *words;
    i32 count;
    uint2 *bits;
};
// A sequence has one candidate list per head, or one for all heads.
FN struct Line line_of(const struct Lists &p, const struct Place &at) {
    const i32 batch = at.list / p.heads, head = at.list - batch * p.heads;
    const i32 *const ptr = p.kept_ptr[at.side] + head * (p.tile_count[at.side] + 1);
    const i32 first = ptr[at.tile], count = ptr[at.tile + 1] - first;
    const i64 bits = (i64)at.list * p.bit_words[at.side] + (first - ptr[0]) / 32 + at.tile;
    return {at, batch, head, load_mask(p, head), p.kept_tiles[at.side] + first, count,
            (uint2 *)p.bits[at.side] + bits};
}
FN i32 word_at(const struct Line &line, i32 i) { return i < line.count ? line.words[i] : 0; }
FN i32 across_of(i32 word) { return word >> 1; }
FN struct Box box_of(const struct Line &line, i32 across) {
    const struct Place &at = line.at;
    return {line.batch, line.head, at.side ? across : at.tile, at.side ? at.tile : across};
}

// If bounds cannot exclude a tile, its pairs are tested when it has at most this many queries.
// Testing then costs no more than loading the tile for nothing, as in tiles with tokens of many
// sequences.
constexpr i32 FEW_QUERIES = 8;

// Whether a tile has a live pair according to data. By a warp.
FN bool has_pairs(const struct Lists &p, const struct Mask &m, const struct Box &at) {
    const struct Tokens tokens = tokens_of(p, at);
    for (i32 k = (i32)tokens.k0; k <= tokens.k1; k += 32) {
        const i32 own = k + threadIdx.x % 32;
        bool live = false;
        if (own <= tokens.k1)
            for (i32 q = (i32)tokens.q0; q <= tokens.q1 && !live; q++) {
                const struct Pair pair = {at.batch, at.head, q, own};
                live = classify(p, m, pair, true) & 1;
            }
        if (__any_sync(ALL, live)) return true;
    }
    return false;
}

FN i32 verdict_of(const struct Lists &p, const struct Line &line, i32 i, i32 word) {
    i32 found = 0;
    if (i < line.count)
        found = classify(p, line.mask, box_of(line, word >> 1), word & 1);
    if (p.n[0] > FEW_QUERIES) return found;
    for (u32 rest = __ballot_sync(ALL, found == 1); rest; rest &= rest - 1) {
        const i32 lane = __ffs(rest) - 1, across = __shfl_sync(ALL, word, lane) >> 1;
        const bool live = has_pairs(p, line.mask, box_of(line, across));
        if (!live && threadIdx.x % 32 == lane) found = 0;
    }
    return found;
}
