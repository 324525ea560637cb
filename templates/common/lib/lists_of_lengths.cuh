// Tile lists of packed documents, from cumulative lengths alone. Tile rows begin where documents
// do, as tiles of keys do. The keys of a row are a band of its document, so every block can count
// the tiles of all rows, and no block waits for another one. A tile row is a line, which a warp
// writes; a list has room for more. Blocks have more threads than those of make_lists.cuh, so that
// a thread counts few lines.
// Needs: block_before.cuh, entries.cuh, list_items.cuh, reading_at, OF_Q and OF_K, STOPS. Gives:
// lists_of_lengths.

constexpr i32 TILES_BITS = 20;  // tiles of a line need as many

// What a block keeps in shared memory.
struct Counted {
    int4 keys[MAX_ROWS / 4];     // of each line: larger ones have their items earlier
    i32 ends[MAX_LENGTHS];       // cumulative lengths: of queries, then of keys
    i32 before[MAX_LENGTHS + 1]; // tile rows before each document of queries, of all lists
    unsigned short document[MAX_ROWS]; // of each line, among those of all lists
};
FN i32 *keys_of(struct Counted &all) { return (i32 *)all.keys; }
FN const i32 *keys_of(const struct Counted &all) { return (const i32 *)all.keys; }

// The cumulative lengths of a side.
FN i32 slot_of(i32 side) { return reading_at(side ? OF_K : OF_Q).slot; }
// Loads one of them. Returns the tokens up to the next one; sets `wrong` if it is.
FN i32 load_end(const struct Lists &p, i32 side, i32 list, i32 number, i32 &to, bool &wrong) {
    const i32 slot = slot_of(side);
    const bool last = number + 1 == p.ends[slot];
    const i32 places[2] = {number, last ? number : number + 1};
    i64 x[2];
    entries_at(p, slot, list, places, x);
    wrong |= x[0] > (last ? p.n[side] : x[1]) || x[1] - x[0] > p.most[slot] ||
             (number == 0 && x[0] != 0);
    to = (i32)x[0];
    return (last ? p.n[side] : (i32)x[1]) - (i32)x[0];
}

// Divides numbers below 2^24 by the tokens of a tile, without the long code of a division.
struct Divisor {
    u32 by, inverse;
    FN explicit Divisor(i32 tokens) : by(tokens), inverse(0xffffffffu / (u32)tokens + 1) {}
    FN i32 down(i32 x) const {
        return by == 1 ? x : (i32)((unsigned long long)(u32)x * inverse >> 32);
    }
    FN i32 up(i32 x) const { return down(x + (i32)by - 1); }
};

// The number of entries up to `x`; they ascend.
FN i32 entries_up_to(const i32 *entries, i32 count, i32 x) {
    i32 low = 0, high = count;
    while (low < high) {
        const i32 middle = (low + high) / 2;
        if (entries[middle] <= x) low = middle + 1;
        else high = middle;
    }
    return low;
}

// A document: that of the tokens of a side, or, as the last one, the tokens behind all others.
struct Document {
    i32 begin, end;
};
FN struct Document document_at(const i32 *ends, i32 count, i32 number, i32 n) {
    return {ends[number], number + 1 < count ? ends[number + 1] : n};
}

// Loads all cumulative lengths, and counts the tile rows before each document. Returns whether any
// length is wrong; no document has rows then.
FN bool count_rows(const struct Lists &p, struct Counted &all, const Divisor &rows) {
    constexpr i32 WARPS = THREADS / 32;
    __shared__ i32 part[WARPS];
    const i32 ends = p.ends[slot_of(0)], ends_k = p.ends[slot_of(1)], documents = p.lists * ends;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    bool wrong = false;
#pragma unroll 1  // the last warps first, so that others wait for the lengths of queries meanwhile
    for (i32 i = THREADS - 1 - (i32)threadIdx.x; i < p.lists * ends_k; i += THREADS) {
        const i32 list = p.lists > 1 ? i / ends_k : 0;
        load_end(p, 1, list, i - list * ends_k, all.ends[documents + i], wrong);
    }
    i32 before = 0;
#pragma unroll 1
    for (i32 base = 0; base < documents; base += THREADS) {
        const i32 i = base + threadIdx.x, list = p.lists > 1 ? i / ends : 0;
        i32 lines = 0;
        if (i < documents)
            lines = rows.up(load_end(p, 0, list, i - list * ends, all.ends[i], wrong));
        const i32 until = warp_until(lines);
        if (base) __syncthreads();  // all have read `part`
        if (lane == 31) part[warp] = until;
        __syncthreads();
        const i32 other = lane < WARPS ? part[lane] : 0;
        const i32 earlier = warp_sum(lane < warp ? other : 0);
        if (i < documents) all.before[i] = before + earlier + until - lines;
        before += warp_sum(other);
    }
    if (threadIdx.x == 0) all.before[documents] = before;
    wrong = __syncthreads_or(wrong);
    if (!wrong) return false;
    for (i32 i = threadIdx.x; i <= documents; i += THREADS) all.before[i] = 0;
    __syncthreads();
    return true;
}

// The queries of a document, and the keys that they see.
struct Matched {
    struct Document q, k;
};
// `number`: of the document in all lists.
FN struct Matched matched_at(const struct Lists &p, const struct Counted &all, i32 list,
                             i32 number) {
    const i32 ends_q = p.ends[slot_of(0)], ends_k = p.ends[slot_of(1)];
    const i32 own = number - list * ends_q;
    const i32 *const of_k = all.ends + p.lists * ends_q + list * ends_k;
    const struct Document q = document_at(all.ends + list * ends_q, ends_q, own, p.n[0]);
    if (own + 1 >= min_i32(ends_q, ends_k)) return {q, {0, 0}};
    return {q, {of_k[own], of_k[own + 1]}};
}
// A tile row, and its tiles of keys.
struct DocumentRow {
    i32 first, end;  // queries
    i32 key, count;  // the first tile's first key, and the tiles
};
FN struct DocumentRow row_at(const struct Lists &p, const struct Matched &at, i32 first,
                             const Divisor &keys) {
    const i32 end = min_i32(first + p.tile[0], at.q.end);
    const i32 low = max_i32(first + p.band[0], at.k.begin) - at.k.begin;
    const i32 high = min_i32(end - 1 + p.band[1], at.k.end) - at.k.begin;
    const i32 tiles = keys.down(low), count = low < high ? keys.up(high) - tiles : 0;
    return {first, end, at.k.begin + tiles * (i32)keys.by, count};
}

// Gives every line its key; every thread takes some consecutive lines. Groups of lists that share
// the cache follow one another; within a group, lines with more tiles come first.
FN void count_lines(const struct Lists &p, struct Counted &all, const Divisor &keys) {
    const i32 ends = p.ends[slot_of(0)], documents = p.lists * ends;
    const i32 lines = all.before[documents], share = (lines + THREADS - 1) / THREADS;
    const i32 start = threadIdx.x * share, stop = min_i32(start + share, lines);
    if (start >= stop) return;
    i32 number = entries_up_to(all.before, documents, start) - 1;
    i32 list = p.lists > 1 ? number / ends : 0;
#pragma unroll 1
    for (i32 line = start; line < stop; number++) {
        while (number >= (list + 1) * ends) list++;
        const i32 before = all.before[number], next = min_i32(all.before[number + 1], stop);
        if (line >= next) continue;
        const struct Matched at = matched_at(p, all, list, number);
        const i32 place = list * p.tile_count[0] - all.before[list * ends];
        const i32 groups_on = p.lists > p.group_lists ? p.lists - list / p.group_lists : 1;
        i32 first = at.q.begin + (line - before) * p.tile[0];
#pragma unroll 1
        for (; line < next; line++, first += p.tile[0]) {
            const i32 count = row_at(p, at, first, keys).count;
            keys_of(all)[place + line] = count ? groups_on << TILES_BITS | count : 0;
            all.document[place + line] = number;
        }
    }
}

// What the keys of other lines say of one line.
struct Rank {
    i32 tiles_before;  // in its list
    i32 lines_before;  // whose items come earlier
    i32 group, behind;  // the first line of its group with tiles, and past the last one
};
FN struct Rank rank_of(const struct Lists &p, const struct Counted &all, i32 list, i32 place) {
    const i32 *const keys = keys_of(all);
    const i32 own = keys[place], lane = threadIdx.x % 32;
    const i32 rows = p.tile_count[0], lines = p.lists * rows, four = place / 4 * 4;
    const i32 group = own >> TILES_BITS << TILES_BITS, earlier = group + (1 << TILES_BITS);
    const bool split = p.group_owners < p.owners;  // otherwise the order of lines is that of items
    i32 tiles = 0, before = 0, groups = 0, behind = 0;
#pragma unroll 1
    for (i32 i = 4 * lane; i < lines; i += 4 * 32) {
        const int4 x = all.keys[i / 4];
        const i32 least = own - (i < place);
        before += (x.x > least) + (x.y > least) + (x.z > least) + (x.w > least);
        if (!split) continue;
        behind += (x.x >= group) + (x.y >= group) + (x.z >= group) + (x.w >= group);
        if (p.lists > 1)
            groups += (x.x >= earlier) + (x.y >= earlier) + (x.z >= earlier) + (x.w >= earlier);
    }
    constexpr i32 TILES = (1 << TILES_BITS) - 1;
#pragma unroll 1
    for (i32 i = list * rows + 4 * lane; i < four; i += 4 * 32) {
        const int4 x = all.keys[i / 4];
        tiles += (x.x & TILES) + (x.y & TILES) + (x.z & TILES) + (x.w & TILES);
    }
    if (lane < place - four) tiles += keys[four + lane] & TILES;
    else if (lane < 4 && four < place) before -= keys[four + lane] == own;  // not before it
    struct Rank found = {warp_sum(tiles), warp_sum(before), 0, 0};
    if (split) found.group = warp_sum(groups), found.behind = warp_sum(behind);
    return found;
}

// Writes the items of a line, one per owner, in the order of write_ranked in list_items.cuh.
// `number`: of the line, or NO_ROW if it does not exist. `wrong`: the pass writes NaN.
FN void write_row_items(const struct Lists &p, i32 list, i32 number, const struct DocumentRow &row,
                        i32 first, const struct Rank &rank, bool wrong) {
#pragma unroll 1
    for (i32 owner = threadIdx.x % 32; owner < p.owners; owner += 32) {
        i32 index = p.owners * rank.lines_before + owner;
        if (row.count && p.group_owners < p.owners) {
            const i32 begin = first_sharing(p, owner);
            const i32 width = min_i32(p.owners - begin, p.group_owners);
            index = p.owners * rank.group + begin * (rank.behind - rank.group) +
                    (rank.lines_before - rank.group) * width + owner - begin;
        }
        int4 *const to = (int4 *)p.work + 2 * (i64)index;
        to[0] = make_int4(number, (list * p.owners + owner) * p.owner_heads, first, row.count);
        to[1] = make_int4(row.first, row.end, p.item_heads, wrong ? -1 : 0);
    }
}

// Writes the words of a line.
FN void write_words(const struct Lists &p, const struct DocumentRow &row, i32 key_end, i32 *to) {
    const i32 size = p.tile[1];
    // Keys that all queries see: from the last one's first key to the first one's last
    const i32 low = row.end - 1 + p.band[0], high = min_i32(row.first + p.band[1], key_end);
    for (i32 i = threadIdx.x % 32; i < row.count; i += 32) {
        const i32 key = row.key + i * size;
        to[i] = 2 * key + (low <= key && key + size <= high);
    }
}

// Writes the documents of some tokens, and the ends of those that tiles of keys begin with.
FN void write_documents(const struct Lists &p, i32 block, i32 *ends) {
    const struct Reading own = reading_at(block >= p.first_block[1]);
    block -= p.first_block[own.number];
    const i32 n = p.n[own.side], shares = (n + THREADS - 1) / THREADS, batch = block / shares;
    const i32 count = p.ends[own.slot], token = (block - batch * shares) * THREADS + threadIdx.x;
    bool wrong = false;
    for (i32 i = threadIdx.x; i < count; i += THREADS)
        load_end(p, own.side, batch, i, ends[i], wrong);
    __syncthreads();
    if (token >= n) return;
    const i32 number = max_i32(entries_up_to(ends, count, token) - 1, 0);
    const struct Document document = document_at(ends, count, number, n);
    p.array[own.slot][batch * p.array_batch[own.slot] + token] =
        number + 1 < count ? number : NO_QUERY + own.side;
    if (!own.side || (token - document.begin) % p.tile[1]) return;
    for (i32 list = batch; list < p.lists; list += p.batches[own.slot])
        p.array[STOPS][list * p.array_batch[STOPS] + token] = document.end;
}
// Writes the lines of a block, one for each warp. If lengths are wrong, lines have all queries and
// no tiles.
FN void write_lines(const struct Lists &p, i32 place, i32 list, const struct Counted &all,
                    const Divisor &keys, bool wrong) {
    const i32 ends = p.ends[slot_of(0)], rows = p.tile_count[0], tile = place - list * rows;
    const i32 line = all.before[list * ends] + tile;
    i32 number = NO_ROW, key_end = 0;
    struct DocumentRow row = {};
    if (line < all.before[(list + 1) * ends]) {
        const i32 document = all.document[place];
        const struct Matched at = matched_at(p, all, list, document);
        row = row_at(p, at, at.q.begin + (line - all.before[document]) * p.tile[0], keys);
        number = tile, key_end = at.k.end;
    } else if (wrong && tile * p.tile[0] < p.n[0]) {
        number = tile, row.first = tile * p.tile[0];
        row.end = min_i32(row.first + p.tile[0], p.n[0]);
    }
    const struct Rank rank = rank_of(p, all, list, place);
    const i32 first = list * p.room[0] + rank.tiles_before;
    write_words(p, row, key_end, p.tiles[0] + first);
    write_row_items(p, list, number, row, first, rank, wrong);
    i32 *const ptr = p.ptr[0] + list * (rows + 1) + tile;
    if (threadIdx.x % 32 == 0) {
        ptr[0] = first;
        if (tile + 1 == rows) ptr[1] = first + row.count;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
lists_of_lengths(const __grid_constant__ struct Lists p) {
    __shared__ struct Counted all;
    const i32 block = (i32)blockIdx.x - p.reading_blocks, lines = p.lists * p.tile_count[0];
    const i32 place = (block * THREADS + (i32)threadIdx.x) / 32;
    const i32 list = p.lists > 1 ? place / p.tile_count[0] : 0;
    const Divisor tokens(p.tile[0]), keys(p.tile[1]);
#pragma unroll 1
    for (i32 i = threadIdx.x; i < lines / 4; i += THREADS) all.keys[i] = make_int4(0, 0, 0, 0);
    wait_for_launches();
    bool wrong = false;
    if (block >= 0 || blockIdx.x == 0) wrong = count_rows(p, all, tokens);
    if (block < 0) {
        if (blockIdx.x == 0) clear_words(p);
        if (blockIdx.x == 0 && threadIdx.x == 0) tell_verdict(p, wrong);  // done before others
        return write_documents(p, blockIdx.x, all.ends);
    }
    count_lines(p, all, keys);
    __syncthreads();
    if (place < lines) write_lines(p, place, list, all, keys, wrong);
}
