// Work items of pack_gqa with split_kv, from lists built on the device; splits as
// maskc/layout/work/work_list.py does. Needs: block_sums.cuh; Place of a block: side, list. Gives:
// write_parts.

constexpr i32 NO_ROW = -1;  // tile row of an unused item

struct Cut {
    i32 size, item;  // tiles per part (0: not split) and per item
};
// How to split a row; `wanted`: tiles that an item should have.
FN struct Cut cut_of(const struct Lists &p, i32 count, i32 wanted) {
    i32 size = p.part_tiles[0];
    while (size < p.part_tiles[1] && count >= 32 * size) size *= 2;
    while (count > p.most_parts * size) size *= 2;
    if (count < 2 * size) return {0, count};
    i32 item = size;
    while (item < wanted && 2 * item <= p.item_tiles) item *= 2;
    return {size, item};
}
FN i32 pieces_of(const struct Cut &cut, i32 count) {
    return count ? (count + cut.item - 1) / cut.item : 0;
}

// Writes the items of a list. Every owner gets its maximal number: items with tiles, then unused
// items, and one item for each row without tiles, whose results must be filled. The rows to merge
// follow.
FN void write_parts(const struct Lists &p, const struct Place &at, i32 first, i32 count) {
    const i32 *const counts = p.counts[at.side];
    i32 all[1] = {0};
    for (i32 i = threadIdx.x; i < p.lists; i += THREADS) all[0] += counts[i];
    block_sums(all);
    const i32 wanted = (i32)(((i64)p.owners * all[0] + p.blocks - 1) / p.blocks);
    i32 sum[4] = {0};  // parts of the earlier lists, and of all; then rows without tiles, likewise
    for (i32 i = threadIdx.x; i < p.lists; i += THREADS) {
        const i32 x = counts[i], pieces = pieces_of(cut_of(p, x, wanted), x);
        sum[0] += i < at.list ? pieces : 0;
        sum[1] += pieces;
        sum[2] += i < at.list && !x;
        sum[3] += !x;
    }
    block_sums(sum);
    const struct Cut cut = cut_of(p, count, wanted);
    const i32 mine = pieces_of(cut, count), empty = !count, spare = p.parts - mine - empty;
    const i32 left_over = p.owners * (sum[1] + p.parts * at.list - sum[0] - sum[2]);
    const i32 filled = p.owners * (p.parts * p.lists - sum[3] + sum[2]);
    for (i32 i = threadIdx.x; i < p.owners * p.parts; i += THREADS) {
        const i32 owner = i / p.parts, piece = i - owner * p.parts;
        const i32 row = at.list * p.owners + owner, whose = row * p.owner_heads;
        const bool live = piece < mine, fills = empty && piece == 0;
        const i32 index = live    ? p.owners * sum[0] + owner * mine + piece
                          : fills ? filled + owner
                                  : left_over + owner * spare + piece - mine - empty;
        const i32 begin = first + (live ? piece * cut.item : 0);
        const i32 tiles = live ? min_i32(cut.item, first + count - begin) : 0;
        const i32 last = cut.size ? (begin - first + tiles - 1) / cut.size : 0;
        int4 *const to = (int4 *)p.work + 2 * (i64)index;
        to[0] = make_int4(live ? cut.size : fills ? 0 : NO_ROW, whose, begin, tiles);
        to[1] = make_int4(begin, begin, row, live && cut.size ? 1 + row * p.parts + last : 0);
        if (piece) continue;
        int4 *const merged = (int4 *)p.work + 2 * ((i64)p.lists * p.owners * p.parts + row);
        merged[0] = make_int4(0, whose, row * p.parts,
                              cut.size ? (count + cut.size - 1) / cut.size : 0);
        merged[1] = make_int4(0, 0, 0, 0);
    }
}
