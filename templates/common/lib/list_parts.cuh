// Work items of pack_gqa with split_kv, from lists built on the device; rows are cut as
// maskc/layout/work/work_list.py does (Cutting). Needs: block_sums.cuh; Place of a block: side,
// list. Gives: size_of_all,
// write_parts.

constexpr i32 NO_ROW = -1;  // tile row of an unused item
constexpr i32 CHOICES = sizeof(Lists::pieces) / sizeof(i32);

FN i32 ceil_div(u32 x, u32 y) { return (x + y - 1) / y; }  // shorter than with signs

// Divides by a number several times, in fewer instructions than a division has.
struct Divisor {
    u32 by, inverse;
    FN explicit Divisor(i32 number) : by(number), inverse(0xffffffffu / (u32)number) {}
    FN i32 up(i32 x) const {
        const u32 rounded = x + by - 1;
        const u32 low = (u32)((unsigned long long)rounded * inverse >> 32);  // or one less
        return low + (rounded - low * by >= by);
    }
};

// Limit on the tiles of a part of a row, if splits depend on the row's own tiles only.
FN i32 size_of_row(const struct Lists &p, i32 count) {
    i32 size = p.fixed_tiles;
    while (count > p.most_parts * size) size *= 2;
    return size;
}
FN i32 choice(const struct Lists &p, i32 longest, i32 j) {
    return max_i32(p.part_tiles, ceil_div(longest, p.pieces[j]));
}
// Twice the expected time of rows, summed over all blocks: see Cutting in work_list.py.
FN i64 time_of(const struct Lists &p, i64 items, i64 tiles, i32 last, i32 size, i32 cost) {
    // 32 bits are divided in less time; so many items would not fit anyway
    const i32 rest = (u32)(items < 0x7fffffff ? items : 0x7fffffff) % (u32)p.blocks;
    const i64 waves = rest ? items - rest + p.blocks : items;
    const i32 enough = 3 * (i64)p.blocks / 4;  // blocks that read as fast as all
    const i64 spared = rest ? p.blocks - max_i32(rest, enough) : 0;
    const i64 turns = 2 * (waves * (size + cost) - spared * size);
    const i64 spread = 2 * (tiles + items * cost) + (i64)p.blocks * (last + cost);
    return turns < spread ? turns : spread;
}
// The size with the least expected time for all rows, the largest one of several; 0 if splits
// depend on the row's own tiles only. Every thread of the block gets it; a lane of a warp has one
// choice, a warp some of the rows.
FN i32 size_of_all(const struct Lists &p, const i32 *counts) {
    static_assert(CHOICES <= 32, "a lane has one choice");
    if (p.fixed_tiles) return 0;
    enum { SHORT, PARTS, FAR_PARTS, FAR_TILES, KINDS };
    __shared__ i32 sums[KINDS][32];  // of all rows of one owner
    const i32 lane = threadIdx.x % 32;
    if (threadIdx.x < 32)
        for (i32 kind = 0; kind < KINDS; kind++) sums[kind][lane] = 0;
    i32 longest = 0, tiles = 0, empty = 0;
#pragma unroll 4
    for (i32 i = lane; i < p.lists; i += 32) {
        const i32 x = counts[i];
        longest = max_i32(longest, x), tiles += x, empty += !x;
    }
    longest = warp_max(longest), tiles = warp_sum(tiles), empty = warp_sum(empty);
    const i32 size = choice(p, longest, min_i32(lane, CHOICES - 1));
    const Divisor by_size(size);
    __syncthreads();
    i32 rows = 0;
#pragma unroll 4  // loads that need not wait for one another
    for (i32 i = threadIdx.x / 32; i < p.lists; i += THREADS / 32)
        rows += counts[i] && counts[i] <= size;
    atomicAdd(&sums[SHORT][lane], rows);
    __syncthreads();
    // The least choice with as many rows up to it as blocks
    const bool enough = (i64)p.owners * sums[SHORT][lane] >= p.blocks;
    const i32 shorter = ~warp_max(~(enough ? size : longest));
    i32 parts = 0, far_parts = 0, far_tiles = 0;
#pragma unroll 4  // loads that need not wait for one another
    for (i32 i = threadIdx.x / 32; i < p.lists; i += THREADS / 32) {
        const i32 x = counts[i], own = by_size.up(x);
        parts += own;
        far_parts += x > shorter ? own : 0, far_tiles += x > shorter ? x : 0;
    }
    atomicAdd(&sums[PARTS][lane], parts);
    atomicAdd(&sums[FAR_PARTS][lane], far_parts), atomicAdd(&sums[FAR_TILES][lane], far_tiles);
    __syncthreads();
    const i64 owners = p.owners, items = owners * sums[PARTS][lane];
    const i32 cost = p.item_cost + (size < longest ? p.part_cost : 0);
    i64 time = 0;
#pragma unroll 1  // the same instructions twice
    for (i32 far = 0; far < 2; far++) {
        const i64 count = far ? owners * sums[FAR_PARTS][lane] : items;
        const i64 all = owners * (far ? sums[FAR_TILES][lane] : tiles);
        const i64 own = time_of(p, count, all, far ? size : min_i32(size, shorter), size, cost);
        time = own > time ? own : time;
    }
    const bool fits = lane == 0 || items + owners * empty <= p.items;
    if (!fits || lane >= CHOICES) time = 0x7fffffffffffffff;
    i64 least = time;
#pragma unroll 1
    for (i32 by = 16; by; by /= 2) {
        const i64 other = __shfl_xor_sync(ALL, least, by);
        least = other < least ? other : least;
    }
    return __shfl_sync(ALL, size, __ffs(__ballot_sync(ALL, time == least)) - 1);
}
FN i32 parts_of(const struct Lists &p, i32 size, i32 count) {
    return ceil_div(count, size ? size : size_of_row(p, count));
}

// Writes the items of a list, one or several per owner: items with tiles, the longest parts first,
// then unused items, then one item for each row without tiles, whose results must be filled. The
// rows to merge follow.
// `counts`: the tiles of all lists. `size`: see size_of_all.
FN void write_parts(const struct Lists &p, const struct Place &at, i32 first, i32 count,
                    const i32 *counts, i32 size) {
    const i32 mine = parts_of(p, size, count), pieces = max_i32(mine, 1);
    const i32 own = ceil_div(count, pieces);
    __shared__ i32 sum[4];  // parts that come before, and all; then rows without tiles, likewise
    __syncthreads();  // all have read those of another list
    if (threadIdx.x < 4) sum[threadIdx.x] = 0;
    i32 part[4] = {0};
#pragma unroll 1
    for (i32 i = threadIdx.x; i < p.lists; i += THREADS) {
        const i32 x = counts[i], parts = parts_of(p, size, x);
        const i32 length = ceil_div(x, max_i32(parts, 1));
        part[0] += length > own || (length == own && i < at.list) ? parts : 0;
        part[1] += parts;
        part[2] += i < at.list && !x;
        part[3] += !x;
    }
    __syncthreads();
#pragma unroll
    for (i32 j = 0; j < 4; j++) {
        const i32 of_warp = warp_sum(part[j]);
        if (threadIdx.x % 32 == 0) atomicAdd(&sum[j], of_warp);
    }
    __syncthreads();
    int4 *const work = (int4 *)p.work;
    const i32 base = p.owners * sum[0];
    const i32 used = p.owners * sum[1], empty = p.items - p.owners * sum[3];
#pragma unroll 1
    for (i32 i = threadIdx.x; i < p.owners * pieces; i += THREADS) {
        const i32 owner = i / pieces, piece = i - owner * pieces;
        const i32 row = at.list * p.owners + owner, whose = row * p.owner_heads;
        const i32 index = count ? base + i : empty + p.owners * sum[2] + owner;
        const i32 begin = first + piece * own, tiles = min_i32(own, first + count - begin);
        int4 *const to = work + 2 * (i64)index;
        to[0] = make_int4(0, whose, begin, tiles);
        to[1] = make_int4(begin, begin, row, mine > 1 ? 1 + index : 0);
        if (piece) continue;
        int4 *const merged = work + 2 * ((i64)p.items + row);
        merged[0] = make_int4(0, whose, index, mine > 1 ? mine : 0);
        merged[1] = make_int4(0, 0, 0, 0);
    }
#pragma unroll 1
    for (i32 i = used + at.list * THREADS + threadIdx.x; i < empty; i += p.lists * THREADS) {
        work[2 * (i64)i] = make_int4(NO_ROW, 0, 0, 0);
        work[2 * (i64)i + 1] = make_int4(0, 0, 0, 0);
    }
}
