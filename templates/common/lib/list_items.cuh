// Lists of tiles made on the device: where a line's begins, who has its work, what was wrong.
// Needs: block_sums.cuh; Place of a block: side, list, tile. Gives: tiles_before, write_items,
// tell_verdict.

// How many tiles of its list come before a tile row's (or column's) first.
template <class Lists>
FN i32 tiles_before(const Lists &p, const struct Place &at) {
    const i32 *const counts = p.counts[at.side] + at.list * p.tile_count[at.side];
    i32 sum[1] = {0};
    for (i32 i = threadIdx.x; i < at.tile; i += THREADS) sum[0] += counts[i];
    block_sums(sum);
    return sum[0];
}

// Writes the items of a tile row (or column), one for every owner. Groups of lists and, inside of
// these, of owners come one after another; in each the longest lists are first, and the owners of
// one side by side. Items without tiles are the last of all. A sequence has `heads` lists; where
// these are of query heads of which `sharing` have one tile column of keys, they add to it, and
// behind all items come these columns.
template <class Lists>
FN void write_items(const Lists &p, const struct Place &at, i32 first, i32 count, i32 heads,
                    i32 sharing) {
    const i32 tiles = p.tile_count[at.side], own = at.list * tiles + at.tile;
    const i32 group = at.list / p.group_lists * p.group_lists;
    const i32 *const counts = p.counts[at.side];
    i32 sum[5] = {0};  // live: before the group, in it, in it before this, in all; dead before this
    for (i32 i = threadIdx.x; i < p.lists * tiles; i += THREADS) {
        const i32 list = i / tiles, tile = i - list * tiles, x = counts[i];
        const bool inside = list >= group && list < group + p.group_lists;
        const bool nearer = tile < at.tile || (tile == at.tile && list < at.list);
        sum[0] += x && list < group;
        sum[1] += x && inside;
        sum[2] += inside && (x > count || (x == count && nearer));
        sum[3] += x > 0;
        sum[4] += !x && i < own;
    }
    block_sums(sum);
    const i32 batch = at.list / heads, head = at.list % heads;
    for (i32 owner = threadIdx.x; owner < p.owners; owner += THREADS) {
        const i32 begin = owner / p.group_owners * p.group_owners;
        const i32 rest = p.owners - begin, width = rest < p.group_owners ? rest : p.group_owners;
        const i32 live = p.owners * sum[0] + begin * sum[1] + sum[2] * width + owner - begin;
        const i32 index = count ? live : p.owners * (sum[3] + sum[4]) + owner;
        int4 *const to = (int4 *)p.work + 2 * (i64)index;
        const i32 whose = (batch * p.owners + owner) * p.owner_heads + head;
        to[0] = make_int4(at.tile, whose, first, count);
        const i32 column = sharing ? whose / sharing * tiles + at.tile : -1;
        to[1] = make_int4(first, first, p.item_heads, count ? 1 + column : 0);
        if (sharing && whose % sharing == 0) {
            int4 *const shared = (int4 *)p.work + 2 * ((i64)p.lists * tiles * p.owners + column);
            shared[0] = make_int4(at.tile, whose, column, 1);
            shared[1] = make_int4(0, 0, 0, 0);
        }
    }
}

// One thread tells the launch behind the pass, and the host, whether anything given was wrong.
template <class Lists>
FN void tell_verdict(const Lists &p, bool wrong) {
    *p.verdict = wrong;
    if (wrong) *(volatile i32 *)p.report = 1;
    else if (p.fine) *(volatile i32 *)p.fine = (i32)p.ticket;
    __threadfence_system();
}
