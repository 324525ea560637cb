// The items of packed heads, whose only tile row is cut, from lists made on the device: as
// maskc/layout/work/work_list.py cuts them. Needs: block_sums.cuh; Place of a block: side, list.
// Gives: write_parts.

struct Cut {
    i32 size, item;  // tiles of a part, 0 where the row is whole, and of an item
};
template <class Lists>
FN struct Cut cut_of(const Lists &p, i32 count) {
    i32 size = p.part_tiles[0];
    while (size < p.part_tiles[1] && count >= 16 * size) size *= 2;
    while (count > p.most_parts * size) size *= 2;
    if (count < 2 * size) return {0, count};
    i32 item = size;
    while (item < p.item_tiles[0] && 2 * item <= p.item_tiles[1]) item *= 2;
    return {size, item};
}
FN i32 pieces_of(const struct Cut &cut, i32 count) {
    return count ? (count + cut.item - 1) / cut.item : 0;
}

// Writes the items of a list, for every owner as many as it may have at most. Those without tiles
// are the last of all; of a row that has none only the first is of that row, to be filled. Behind
// them come the rows.
template <class Lists>
FN void write_parts(const Lists &p, const struct Place &at, i32 first, i32 count) {
    const i32 *const counts = p.counts[at.side];
    i32 sum[2] = {0};  // pieces of the lists before this one, and of all
    for (i32 i = threadIdx.x; i < p.lists; i += THREADS) {
        const i32 pieces = pieces_of(cut_of(p, counts[i]), counts[i]);
        sum[0] += i < at.list ? pieces : 0;
        sum[1] += pieces;
    }
    block_sums(sum);
    const struct Cut cut = cut_of(p, count);
    const i32 mine = pieces_of(cut, count), spare = p.parts - mine;
    const i32 dead = p.owners * (sum[1] + p.parts * at.list - sum[0]);
    for (i32 i = threadIdx.x; i < p.owners * p.parts; i += THREADS) {
        const i32 owner = i / p.parts, piece = i - owner * p.parts;
        const i32 row = at.list * p.owners + owner, whose = row * p.owner_heads;
        const bool live = piece < mine;
        const i32 index = live ? p.owners * sum[0] + owner * mine + piece
                               : dead + owner * spare + piece - mine;
        const i32 begin = first + (live ? piece * cut.item : 0);
        const i32 tiles = live ? min_i32(cut.item, first + count - begin) : 0;
        const i32 last = cut.size ? (begin - first + tiles - 1) / cut.size : 0;
        int4 *const to = (int4 *)p.work + 2 * (i64)index;
        to[0] = make_int4(live ? cut.size : count || piece, whose, begin, tiles);
        to[1] = make_int4(begin, begin, row, live && cut.size ? 1 + row * p.parts + last : 0);
        if (piece) continue;
        int4 *const merged = (int4 *)p.work + 2 * ((i64)p.lists * p.owners * p.parts + row);
        merged[0] = make_int4(0, whose, row * p.parts,
                              cut.size ? (count + cut.size - 1) / cut.size : 0);
        merged[1] = make_int4(0, 0, 0, 0);
    }
}
