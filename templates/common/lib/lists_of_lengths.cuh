// Tile lists of packed documents, from cumulative lengths alone. Tile rows begin where documents
// do, as tiles of keys do. The keys of a row are a band of its document, so every block can count
// the tiles of all rows, and no block waits for another one. A tile row is a line of
// list_items.cuh; a list has room for more. Needs: entries.cuh, list_items.cuh, reading_at, OF_Q
// and OF_K, STOPS. Gives: lists_of_lengths.

// What a block keeps in shared memory.
struct Counted {
    i32 ends[MOST_LENGTHS];       // cumulative lengths: of queries, then of keys
    i32 before[MOST_LENGTHS + 1]; // tile rows before each document of queries, of all lists
    i32 tiles[MOST_ROWS];         // of each line
    i32 live[MOST_LISTS];         // lines with tiles
};

// The cumulative lengths of a side.
FN i32 slot_of(i32 side) { return reading_at(side ? OF_K : OF_Q).slot; }
// Loads those of some lists. Returns whether they are wrong.
FN bool load_ends(const struct Lists &p, i32 side, i32 list, i32 lists, i32 *to) {
    const i32 slot = slot_of(side), ends = p.ends[slot];
    bool wrong = false;
    for (i32 i = threadIdx.x; i < lists * ends; i += THREADS) {
        const i32 of = i / ends, own = i - of * ends;
        const bool last = own + 1 == ends;
        const i32 places[2] = {own, last ? own : own + 1};
        i64 x[2];
        entries_at(p, slot, list + of, places, x);
        wrong |= x[0] > (last ? p.n[side] : x[1]) || x[1] - x[0] > p.most[slot] ||
                 (own == 0 && x[0] != 0);
        to[i] = (i32)x[0];
    }
    return wrong;
}
FN bool load_all_ends(const struct Lists &p, struct Counted &all) {
    bool wrong = false;
#pragma unroll 1  // half the instructions to fetch
    for (i32 side = 0; side < 2; side++)
        wrong |= load_ends(p, side, 0, p.lists, all.ends + side * p.lists * p.ends[slot_of(0)]);
    return wrong;
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

// Writes to `all.before`. Every thread takes some consecutive documents.
FN void count_rows(const struct Lists &p, struct Counted &all) {
    const i32 ends = p.ends[slot_of(0)], documents = p.lists * ends;
    const i32 share = (documents + THREADS - 1) / THREADS, start = threadIdx.x * share;
    const i32 stop = min_i32(start + share, documents), own = start % ends;
    const Divisor rows(p.tile[0]);
    i32 before = 0, total;
#pragma unroll 1
    for (i32 pass = 0; pass < 2; pass++) {
        for (i32 i = start, at = own; i < stop; i++) {
            if (pass) all.before[i] = before;
            const bool last = at + 1 == ends;
            const i32 end = last ? p.n[0] : all.ends[i + 1];
            before += rows.up(end - all.ends[i]);
            at = last ? 0 : at + 1;
        }
        if (!pass) before = block_before(before, total);
    }
    if (threadIdx.x == 0) all.before[documents] = total;
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

// Counts the tiles of all lines; every thread takes some consecutive ones.
FN void count_lines(const struct Lists &p, struct Counted &all, const Divisor &keys) {
    const i32 ends = p.ends[slot_of(0)], documents = p.lists * ends;
    const i32 lines = all.before[documents], share = (lines + THREADS - 1) / THREADS;
    const i32 start = threadIdx.x * share, stop = min_i32(start + share, lines);
    if (start >= stop) return;
    i32 number = entries_up_to(all.before, documents, start) - 1, list = number / ends;
#pragma unroll 1
    for (i32 line = start; line < stop; number++) {
        while (number >= (list + 1) * ends) list++;
        const i32 before = all.before[number], next = min_i32(all.before[number + 1], stop);
        if (line >= next) continue;
        const struct Matched at = matched_at(p, all, list, number);
        i32 *const to = all.tiles + list * p.tile_count[0] - all.before[list * ends];
        i32 first = at.q.begin + (line - before) * p.tile[0], live = 0;
#pragma unroll 1
        for (; line < next; line++, first += p.tile[0]) {
            const i32 count = row_at(p, at, first, keys).count;
            to[line] = count, live += count > 0;
        }
        if (p.lists > p.group_lists) atomicAdd(all.live + list, live);
    }
}

// As for other lists, see list_items.cuh. Lines with as many tiles keep the order of their places.
FN void add_lines(const struct Lists &p, const struct Place &at, const struct Ranks &ranks,
                  const struct Counted &all, bool, i32 first, const i32 (&count)[MOST_LINES],
                  i32 (&sum)[SUMS]) {
    const i32 rows = p.tile_count[0], begin = ranks.group * rows, end = ranks.behind * rows;
    const i32 own = at.list * rows, place = own + first;
    const bool several = p.lists > p.group_lists;
    for (i32 list = threadIdx.x; several && list < p.lists; list += THREADS) {
        const i32 live = all.live[list];
        sum[LIVE_ALL] += live;
        sum[LIVE_LISTS] += list < at.list ? live : 0;
        sum[LIVE_GROUPS] += list < ranks.group ? live : 0;
        sum[IN_GROUP] += list >= ranks.group && list < ranks.behind ? live : 0;
    }
    static_assert(MOST_ROWS <= 1 << 12, "places have 12 bits, tiles of a row the others");
    u32 keys[MOST_LINES];
#pragma unroll
    for (i32 j = 0; j < MOST_LINES; j++) keys[j] = (u32)count[j] << 12 | (u32)(4095 - place - j);
#pragma unroll 4
    for (i32 i = begin + (i32)threadIdx.x; i < end; i += THREADS) {
        const i32 x = all.tiles[i];
        const u32 key = (u32)x << 12 | (u32)(4095 - i);
#pragma unroll
        for (i32 j = 0; j < MOST_LINES; j++) sum[RANK + j] += key > keys[j];
        if (i >= own && i < place) sum[TILES_BEFORE] += x, sum[DEAD_BEFORE] += !x;
        if (!several) sum[LIVE_ALL] += x > 0, sum[LIVE_LISTS] += x && i < own;
    }
}

// Writes the words of a line.
FN void write_words(const struct Lists &p, const struct DocumentRow &row, i32 key_end, i32 *to) {
    const i32 size = p.tile[1];
    // Keys that all queries see: from the last one's first key to the first one's last
    const i32 low = row.end - 1 + p.band[0], high = min_i32(row.first + p.band[1], key_end);
    for (i32 i = line_thread(p); i < row.count; i += p.line_threads) {
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
    load_ends(p, own.side, batch, 1, ends);
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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
lists_of_lengths(const __grid_constant__ struct Lists p) {
    __shared__ struct Counted all;
    const i32 number = (i32)blockIdx.x - p.reading_blocks;
    if (number < 0) {
        wait_for_launches();
        if (blockIdx.x == 0 && p.verdict) {  // before blocks with lines are done
            const bool wrong = __syncthreads_or(load_all_ends(p, all));
            if (threadIdx.x == 0) tell_verdict(p, wrong);
        }
        return write_documents(p, blockIdx.x, all.ends);
    }
    const struct Place at = line_place(p, number);
    const struct Ranks ranks = ranks_of(p, at);
    const i32 ends = p.ends[slot_of(0)], documents = p.lists * ends;
    for (i32 i = threadIdx.x; i < p.lists * p.tile_count[0]; i += THREADS) all.tiles[i] = 0;
    for (i32 i = threadIdx.x; i < p.lists; i += THREADS) all.live[i] = 0;
    wait_for_launches();
    if (__syncthreads_or(load_all_ends(p, all))) {  // no rows: the results will be overwritten
        for (i32 i = threadIdx.x; i <= documents; i += THREADS) all.before[i] = 0;
    } else {
        count_rows(p, all);
    }
    __syncthreads();
    const Divisor keys(p.tile[1]);
    count_lines(p, all, keys);
    __syncthreads();
    const i32 line = all.before[at.list * ends] + at.tile;
    struct Named named = {NO_ROW, 0, 0};
    struct DocumentRow row = {};
    i32 key_end = 0;
    if (line < all.before[(at.list + 1) * ends]) {
        const i32 own = entries_up_to(all.before, documents, line) - 1;
        const struct Matched own_keys = matched_at(p, all, at.list, own);
        const i32 first = own_keys.q.begin + (line - all.before[own]) * p.tile[0];
        row = row_at(p, own_keys, first, keys), key_end = own_keys.k.end;
        named = {at.tile, row.first, row.end};
    }
    const struct Listing listing = write_items<false>(p, at, ranks, all, [&] { return named; });
    write_words(p, row, key_end, p.tiles[0] + listing.first);
    if (blockIdx.x == gridDim.x - 1) clear_words(p);
}
