// Assigns list positions and work items to lines, given the tile counts of all lines. The threads
// of a line are a warp, or a block. Needs: block_sums.cuh, block_before.cuh, list_parts.cuh. Gives:
// Place, Listing, the words of p.state, line_thread, line_sums, line_before, line_place,
// clear_words, write_items, write_planned, wait_for_launches, tell_verdict.

struct Place {
    i32 side, list, tile;
};
// Words of p.state: blocks that have read, counted and listed, and whether any data were wrong.
// Then, for each list: lines of p.work_side with tiles, documents, and whether ids descend.
enum { READ, COUNTED, LISTED, WRONG, OF_LISTS };
enum { LIVE, RUNS, DESCENDS, OF_LIST = DESCENDS + 2 };  // for queries and for keys
FN i32 *of_list(const struct Lists &p, i32 list) { return p.state + OF_LISTS + OF_LIST * list; }

// Position of a line's tiles in its side's list, and their number.
struct Listing {
    i32 first, count;
};

// The number of a thread among those of its line, and sums over these.
FN i32 line_thread(const struct Lists &p) { return threadIdx.x & (p.line_threads - 1); }
template <int COUNT>
FN void line_sums(const struct Lists &p, i32 (&x)[COUNT]) {
    if (p.line_threads == THREADS) return block_sums(x);
#pragma unroll
    for (int i = 0; i < COUNT; i++) x[i] = warp_sum(x[i]);
}
FN i32 line_before(const struct Lists &p, i32 count, i32 &all) {
    if (p.line_threads == THREADS) return block_before(count, all);
    const i32 until = warp_until(count);
    all = __shfl_sync(ALL, until, 31);
    return until - count;
}

// The line of a thread: a tile row (side 0) or a tile column (side 1) of one of the lists. All rows
// precede the columns; a pass may need only one side.
FN struct Place line_place(const struct Lists &p, i32 block) {
    const i32 line = (block * THREADS + (i32)threadIdx.x) / p.line_threads;
    const i32 rows = p.lists * p.tile_count[0];
    const i32 number = line + p.first_side * rows, side = number >= rows;
    const i32 rest = number - side * rows, list = rest / p.tile_count[side];
    return {side, list, rest - list * p.tile_count[side]};
}

// Clears the words of the previous launch and the counters of the pass, for later launches.
FN void clear_words(const struct Lists &p) {
#pragma unroll 1
    for (i32 i = threadIdx.x; p.spent && i < OF_LISTS + OF_LIST * p.lists; i += THREADS)
        p.spent[i] = 0;
#pragma unroll 1
    for (i32 i = threadIdx.x; i < p.counters; i += THREADS) p.counter[i] = 0;
}

#include "common/lib/list_parts.cuh"

// The first of the owners that share the cache with one.
FN i32 first_sharing(const struct Lists &p, i32 owner) {
    const i32 group = max_i32(p.group_owners, 1);  // 0 if items are planned
    return owner / group * group;
}

constexpr i32 MAX_LINES = THREADS / 32;  // of a block: in one list, one after another

// Sums over other lines; those of RANK are of each line of the block.
enum { TILES_BEFORE, DEAD_BEFORE, LIVE_LISTS, LIVE_GROUPS, IN_GROUP, LIVE_ALL, RANK };
enum { SUMS = RANK + MAX_LINES };

// What follows from a line's place alone. Computed before the block waits for the counts, because
// divisions take long.
struct Ranks {
    i32 group, behind;       // lists that share the cache
    i32 batch, head, begin;  // of the line, and the first owner that shares the cache
    i32 number;              // of the line in its block
};
FN struct Ranks ranks_of(const struct Lists &p, const struct Place &at) {
    const i32 lists = max_i32(p.group_lists, 1);
    const i32 group = at.list / lists * lists, batch = at.list / p.heads;
    return {group, min_i32(group + lists, p.lists), batch, at.list - batch * p.heads,
            first_sharing(p, line_thread(p)), (i32)threadIdx.x / p.line_threads};
}

// The tiles of some consecutive lines: four, or one where a list's lines are not in groups of four;
// -1 for the rest.
FN int4 counts_at(const i32 *counts, i32 i, i32 lines, i32 step) {
    if (i >= lines) return make_int4(-1, -1, -1, -1);
    if (step == 4) return *(const int4 *)(counts + i);
    return make_int4(counts[i], -1, -1, -1);
}
// Adds over the lists that share the cache, and over all lists. Groups of lists follow one another;
// within a group, the longest lines come first, and equal ones in the order of their places.
// `first`: the block's first line. `count`: of its lines.
FN void add_lines(const struct Lists &p, const struct Place &at, const struct Ranks &ranks,
                  bool ranked, i32 first, const i32 (&count)[MAX_LINES], i32 (&sum)[SUMS]) {
    const i32 tiles = p.tile_count[at.side], group = ranks.group, behind = ranks.behind;
    // Otherwise all lines are in the group
    const bool several = ranked && p.lists > p.group_lists;
#pragma unroll 1
    for (i32 list = threadIdx.x; several && list < p.lists; list += THREADS) {
        const i32 live = of_list(p, list)[LIVE];
        sum[LIVE_ALL] += live;
        sum[LIVE_LISTS] += list < at.list ? live : 0;
        sum[LIVE_GROUPS] += list < group ? live : 0;
        sum[IN_GROUP] += list >= group && list < behind ? live : 0;
    }
    const i32 *const counts = p.counts[at.side] + group * tiles;
    const i32 lines = (behind - group) * tiles;
    const i32 own = (at.list - group) * tiles, place = own + first;
    const i32 step = tiles % 4 ? 1 : 4;
    i32 i = step * threadIdx.x;
    int4 next = counts_at(counts, i, lines, step);
#pragma unroll 1
    while (i < lines) {
        const i32 x[4] = {next.x, next.y, next.z, next.w};
        next = counts_at(counts, i + step * THREADS, lines, step);
#pragma unroll
        for (i32 j = 0; j < MAX_LINES; j++)
#pragma unroll
            for (i32 k = 0; k < 4; k++) sum[RANK + j] += x[k] > count[j] - (i + k < place + j);
        if (i < place && i + step > own) {
#pragma unroll
            for (i32 k = 0; k < 4; k++)
                if (i + k >= own && i + k < place)
                    sum[TILES_BEFORE] += max_i32(x[k], 0), sum[DEAD_BEFORE] += x[k] == 0;
        }
        if (!several) {
            const i32 live = (x[0] > 0) + (x[1] > 0) + (x[2] > 0) + (x[3] > 0);
            sum[LIVE_ALL] += live, sum[LIVE_LISTS] += i < own ? live : 0;
        }
        i += step * THREADS;
    }
}

// Writes the items of a line, one per owner. The owners of one line are adjacent, in groups that
// share the L2 cache. Items without tiles come last. If p.sharing query heads of a sequence share a
// tile column of keys, they add to it; these columns follow all items.
FN void write_ranked(const struct Lists &p, const struct Place &at, const struct Ranks &ranks,
                     const struct Listing &own, i32 dead_before, i32 rank,
                     const i32 (&sum)[SUMS]) {
    const i32 tiles = p.tile_count[at.side], batch = ranks.batch, head = ranks.head;
    const i32 first = at.tile * p.tile[at.side];
    const i32 end = min_i32(first + p.tile[at.side], p.n[at.side]);
    i32 begin = ranks.begin;
    const i32 in_group = p.lists > p.group_lists ? sum[IN_GROUP] : sum[LIVE_ALL];
#pragma unroll 1
    for (i32 owner = line_thread(p); owner < p.owners;) {
        const i32 width = min_i32(p.owners - begin, p.group_owners);
        const i32 live = p.owners * sum[LIVE_GROUPS] + begin * in_group +
                         rank * width + owner - begin;
        const i32 dead = sum[LIVE_ALL] + at.list * tiles - sum[LIVE_LISTS] + dead_before;
        const i32 index = own.count ? live : p.owners * dead + owner;
        int4 *const to = (int4 *)p.work + 2 * (i64)index;
        const i32 whose = (batch * p.owners + owner) * p.owner_heads + head;
        to[0] = make_int4(at.tile, whose, own.first, own.count);
        const i32 column = p.sharing ? whose / p.sharing * tiles + at.tile : -1;
        to[1] = make_int4(first, end, p.item_heads, own.count ? 1 + column : 0);
        if (p.sharing && whose % p.sharing == 0) {
            int4 *const shared = (int4 *)p.work + 2 * ((i64)p.lists * tiles * p.owners + column);
            shared[0] = make_int4(at.tile, whose, column, 1);
            shared[1] = make_int4(0, 0, 0, 0);
        }
        owner += p.line_threads;
        if (owner < p.owners) begin = first_sharing(p, owner);
    }
}

// Writes a block's share of the planned items, after all lists have positions. In a planned item,
// `first` is the line's index among all lists. First the items with tiles, then the others, then
// the rows to merge, each in the order of the plan.
FN void write_planned(const struct Lists &p, i32 block) {
    const i32 side = p.work_side, tiles = p.tile_count[side], all = p.items + p.merges;
    const i32 share = (all + p.item_blocks - 1) / p.item_blocks;
    const i32 start = block * share, stop = min_i32(start + share, all);
    const int4 *const planned = (const int4 *)p.planned;
    int4 *const work = (int4 *)p.work;
    i32 live[2] = {0};  // items before the share, and in total
#pragma unroll 4
    for (i32 i = threadIdx.x; i < p.items; i += THREADS) {
        const i32 some = p.counts[side][planned[2 * i].z] > 0;
        live[0] += i < start && some, live[1] += some;
    }
    block_sums(live);
    for (i32 turn = start; turn < stop; turn += THREADS) {
        const i32 i = turn + threadIdx.x;
        int4 low = {}, high = {};
        if (i < stop) low = planned[2 * i], high = planned[2 * i + 1];
        const bool item = i < stop && i < p.items;
        if (item) {
            const i32 line = low.z;
            low.w = p.counts[side][line];
            low.z = high.x = high.y = p.ptr[side][line + line / tiles];
            if (low.w == 0) high.w = 0;
        }
        i32 some;
        const i32 before = live[0] + block_before(item && low.w > 0, some);
        live[0] += some;
        const i32 to = !item ? i : low.w > 0 ? before : live[1] + i - before;
        if (i < stop) work[2 * to] = low, work[2 * to + 1] = high;
    }
}

// Writes a line's position, and its share of the work. The block adds up the counts for all of its
// lines.
FN struct Listing write_items(const struct Lists &p, const struct Place &at,
                              const struct Ranks &ranks) {
    const i32 side = at.side, tiles = p.tile_count[side], first = at.tile - ranks.number;
    const bool items = p.work && side == p.work_side && !p.planned;
    i32 sum[SUMS] = {0}, count[MAX_LINES];
#pragma unroll
    for (i32 j = 0; j < MAX_LINES; j++)
        count[j] = p.counts[side][at.list * tiles + min_i32(first + j, tiles - 1)];
    add_lines(p, at, ranks, items && !p.part_tiles, first, count, sum);
    block_sums(sum);
    i32 before = sum[TILES_BEFORE], dead = sum[DEAD_BEFORE], rank = sum[RANK], own_count = count[0];
#pragma unroll
    for (i32 j = 1; j < MAX_LINES; j++) {
        if (j > ranks.number) continue;
        before += count[j - 1], dead += !count[j - 1], rank = sum[RANK + j], own_count = count[j];
    }
    const struct Listing own = {at.list * p.room[side] + before, own_count};
    i32 *const ptr = p.ptr[side] + at.list * (tiles + 1) + at.tile;
    if (line_thread(p) == 0) {
        ptr[0] = own.first;
        if (at.tile + 1 == tiles) ptr[1] = own.first + own.count;
    }
    if (items && p.part_tiles)
        write_parts(p, at, own.first, own.count, p.counts[side], size_of_all(p, p.counts[side]));
    else if (items)
        write_ranked(p, at, ranks, own, dead, rank, sum);
    return own;
}

// Waits for all launches before this one, see Launch.overlaps.
FN void wait_for_launches() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// One thread reports wrong data to the launch after the pass, and to the host.
FN void tell_verdict(const struct Lists &p, bool wrong) {
    *p.verdict = wrong;
    if (wrong) *(volatile i32 *)p.report = 1;
    else if (p.fine) *(volatile i32 *)p.fine = (i32)p.ticket;
    __threadfence_system();
}
