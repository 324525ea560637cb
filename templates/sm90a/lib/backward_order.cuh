// The order in which blocks take tile columns; in deterministic mode also the order of additions to
// dq. Needs: work.cuh, backward_workspace.cuh, order.cuh. Gives: Item, Turn.

// A tile column and the query heads that are processed one after another.
struct alignas(16) Item {
    struct Work work;
    i32 steps;         // query tiles of all heads; negative past the end of the work
};

// Items in shared memory at a time. In deterministic mode, large tiles leave no registers for a
// second one.
constexpr u32 ITEMS = DETERMINISTIC && !ONE_WARPGROUP ? 1 : 2;

// The tile of dq that a step adds to (`sum`), and in deterministic mode the number of additions
// that must come first (`rank`). The last turn of a column may be HELD; see
// maskc/layout/work/deterministic_order.py.
struct Turn {
    i32 sum, rank;
};
constexpr i32 HELD = 1 << 30;
FN i32 rank_in(const struct Turn &turn) { return turn.rank & ~HELD; }
FN bool held(const struct Turn &turn) { return DETERMINISTIC && turn.rank & HELD; }

#if DETERMINISTIC
// Columns are added to a tile of dq in the order in which blocks take them, from the last column of
// a head to the first. A block that waits therefore waits for a block that already runs, so there
// is no deadlock. In most masks a later column begins at a later row, so the wait is short.
typedef struct TileList List;

FN void find_list(List &list, const struct Attention &p, const struct Work &work, i32 head) {
    const struct Place at = place_of(head, p.heads_q);
    list = column_tiles(&p, load_mask(&p, at.batch, at.head), at.batch, at.head, work.tile);
    if (work.shared) {
        list.count = work.count;
        skip_tiles(list, work.first);
    }
}
FN i32 word_in(const struct Attention &, const List &list, i32 i) {
    const struct Tile tile = tile_at(list, i);
    return tile.index | (tile.full ? 0 : MASKED);
}

FN void find_item(struct Item &item, const struct Attention &p, i32 index) {
    item.steps = -1;
    // The same order with long columns split; see maskc/layout/work/deterministic_order.py.
    if (p.work) {
        if (index >= p.items) return;
        item.work = work_at(p, index);
        item.steps = item.work.count;
        return;
    }
    if (index >= p.batch * p.heads_kv * p.tile_cols) return;
    const i32 together = max_i32(1, GROUP_TOKENS / p.n_q);
    const i32 first = index / (together * p.tile_cols) * together;
    const i32 width = min_i32(together, p.batch * p.heads_kv - first);
    index -= first * p.tile_cols;
    item.work.tile = p.tile_cols - 1 - index / width;
    item.work.heads = p.heads_q / p.heads_kv;
    item.work.head = (first + index % width) * item.work.heads;
    item.work.shared = item.steps = 0;
#pragma unroll 1
    for (i32 i = 0; i < item.work.heads; i++) {
        List list;
        find_list(list, p, item.work, item.work.head + i);
        item.steps += list.count;
    }
}

FN i32 rank_of(const struct Attention &p, i32 head, i32 row, i32 column) {
    const struct Place at = place_of(head, p.heads_q);
    return behind(row_tiles(&p, load_mask(&p, at.batch, at.head), at.batch, at.head, row), column);
}

// The turn of tile `i` of a column's list. Lists from the host store it.
FN struct Turn turn_at(const struct Attention &p, const List &list, i32 i, i32 head, i32 row,
                       i32 column) {
    const i32 sum = head * p.tile_rows + row;
    i32 word;
    if (turn_word(word, p, list, i)) {
        constexpr i32 MAX_SUMS = 32;  // as in maskc/layout/work/deterministic_order.py
        const i32 which = word % MAX_SUMS, rank = (word & ~HELD) / MAX_SUMS;
        return {which ? further_of(p, head, row).first + which - 1 : sum, rank | (word & HELD)};
    }
    return {sum, rank_of(p, head, row, column)};
}
#else
typedef struct Work List;

FN void find_list(List &list, const struct Attention &, const struct Work &work, i32) {
    list = work;
}
FN i32 word_in(const struct Attention &p, const List &list, i32 i) {
    return word_of(list, i, p.col_tiles, TILE_Q, p.tile_rows * TILE_Q);
}
FN void find_item(struct Item &item, const struct Attention &p, i32 index) {
    item.steps = -1;
    if (index >= p.items + p.empty) return;
    item.work = work_at(p, index);
    item.steps = item.work.count * item.work.heads;
}
#endif
