// Tile lists of packed documents, from cumulative lengths alone. A line's tiles are one range of
// every document that it sees, so every block can count the tiles of all lines, and no block waits
// for another one. The lists are those that segments.cuh finds from ids. Needs: entries.cuh,
// make_lists.cuh, reading_at, OF_Q and OF_K, STOPS. Gives: lists_of_lengths.

// What a block keeps in shared memory.
struct Counted {
    i32 ends[MOST_LENGTHS];
    u32 columns[MOST_ROWS];  // of a tile row, without its documents: see p.kept_tiles
    i32 tiles[MOST_ROWS];    // of all lines
    i32 live[MOST_ROWS];     // lines with tiles, of every list
};
FN i32 first_of(u32 range) { return (i32)(range & 0xffff); }
FN i32 end_of(u32 range) { return (i32)(range >> 16); }

// Loads the cumulative lengths of a side, for some lists. Returns whether they are wrong.
FN bool load_ends(const struct Lists &p, i32 side, i32 list, i32 lists, i32 *to) {
    const i32 slot = reading_at(side ? OF_K : OF_Q).slot, ends = p.ends[slot];
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
// Number of documents that begin at or before a token.
FN i32 begun(const i32 *ends, i32 count, i32 token) {
    i32 low = 0, high = count;
    while (low < high) {
        const i32 middle = (low + high) / 2;
        if (ends[middle] <= token) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The documents of keys that a tile row sees.
struct Documents {
    i32 first, end;
    bool alone;  // all queries belong to the first one
};
// `at_first`, `at_last`: documents that begin at or before the first, and the last query.
FN struct Documents documents_of(const struct Lists &p, i32 at_first, i32 at_last) {
    const i32 of_q = p.ends[reading_at(OF_Q).slot], of_k = p.ends[reading_at(OF_K).slot] - 1;
    // Queries behind the last document see nothing, and count as if theirs were the last one
    const bool behind = at_last == of_q;
    return {at_first == of_q ? of_k : at_first - 1, behind ? of_k : min_i32(at_last, of_k),
            at_first == at_last && !behind};
}
// The tiles of one document that reach into some columns: the first key, and their number.
struct Stretches {
    i32 first, count;
};
FN struct Stretches tiles_of(const struct Lists &p, i32 begin, i32 end, u32 columns) {
    const i32 size = p.tile[1], low = first_of(columns) * size;
    end = min_i32(end, end_of(columns) * size);
    if (begin >= end || end <= low) return {0, 0};
    const i32 first = begin + (low > begin ? (low - begin) / size * size : 0);
    return {first, (end - first + size - 1) / size};
}

// Counts the tiles of all lines; every thread takes some consecutive ones.
FN void count_lines(const struct Lists &p, struct Counted &all, const i32 *of_q, const i32 *of_k) {
    const i32 ends_q = p.ends[reading_at(OF_Q).slot], ends_k = p.ends[reading_at(OF_K).slot];
    const i32 rows = p.tile_count[0], lines = p.lists * rows;
    const i32 share = (lines + THREADS - 1) / THREADS, start = threadIdx.x * share;
    i32 list = start / rows, row = start - list * rows, at_first = -1;
#pragma unroll 1
    for (i32 line = start; line < min_i32(start + share, lines); line++, row++) {
        if (row == rows) row = 0, list++, at_first = -1;
        const i32 *const own_q = of_q + list * ends_q, *const own_k = of_k + list * ends_k;
        const i32 first = row * p.tile[0], last = min_i32(first + p.tile[0], p.n[0]) - 1;
        if (at_first < 0) at_first = begun(own_q, ends_q, first);
        while (at_first < ends_q && own_q[at_first] <= first) at_first++;
        i32 at_last = at_first, count = 0;
        while (at_last < ends_q && own_q[at_last] <= last) at_last++;
        const struct Documents seen = documents_of(p, at_first, at_last);
        for (i32 i = seen.first; i < seen.end; i++)
            count += tiles_of(p, own_k[i], own_k[i + 1], all.columns[row]).count;
        all.tiles[line] = count;
        if (count) atomicAdd(all.live + list, 1);
        at_first = at_last;
    }
}

// Writes the words of a line.
FN void write_words(const struct Lists &p, const struct Place &at, const struct Listing &own,
                    const i32 *of_q, const i32 *of_k, u32 live, u32 full) {
    const i32 ends_q = p.ends[reading_at(OF_Q).slot], size = p.tile[1];
    const i32 first = at.tile * p.tile[0], last = min_i32(first + p.tile[0], p.n[0]) - 1;
    const struct Documents seen =
        documents_of(p, begun(of_q, ends_q, first), begun(of_q, ends_q, last));
    i32 *to = p.tiles[at.side] + own.first;
    for (i32 i = seen.first, rest = own.count; rest > 0; i++) {
        const i32 end = of_k[i + 1];
        const struct Stretches tiles = tiles_of(p, of_k[i], end, live);
        for (i32 j = line_thread(p); j < tiles.count; j += p.line_threads) {
            const i32 key = tiles.first + j * size, column = key / size;
            const bool whole = first_of(full) <= column && key + size <= end_of(full) * size;
            to[j] = 2 * key + (seen.alone && whole && key + size <= end);
        }
        to += tiles.count, rest -= tiles.count;
    }
}

// Writes documents of some tokens, and the ends of those that tiles of keys begin with.
FN void write_documents(const struct Lists &p, i32 block, i32 *ends) {
    const struct Reading own = reading_at(block >= p.first_block[1]);
    const bool of_keys = own.side;
    block -= p.first_block[own.number];
    const i32 shares = (p.n[own.side] + THREADS - 1) / THREADS, batch = block / shares;
    const i32 count = p.ends[own.slot], token = (block - batch * shares) * THREADS + threadIdx.x;
    load_ends(p, own.side, batch, 1, ends);
    __syncthreads();
    if (token >= p.n[own.side]) return;
    const i32 at = begun(ends, count, token), begin = ends[max_i32(at - 1, 0)];
    p.array[own.slot][batch * p.array_batch[own.slot] + token] =
        at < count ? at - 1 : NO_QUERY + own.side;
    if (!of_keys || (token - begin) % p.tile[1]) return;
    const i32 end = at < count ? ends[at] : p.n[1];
    for (i32 list = batch; list < p.lists; list += p.batches[own.slot])
        p.array[STOPS][list * p.array_batch[STOPS] + token] = end;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
lists_of_lengths(const __grid_constant__ struct Lists p) {
    __shared__ struct Counted all;
    const i32 number = (i32)blockIdx.x - p.reading_blocks, rows = p.tile_count[0];
    if (number < 0) {
        wait_for_launches();
        return write_documents(p, blockIdx.x, all.ends);
    }
    const struct Place at = line_place(p, number);
    const u32 *const columns = (const u32 *)p.kept_tiles[1];  // tables of the host never change
    for (i32 i = threadIdx.x; i < rows; i += THREADS) all.columns[i] = columns[i];
    const u32 full = columns[rows + at.tile];
    for (i32 i = threadIdx.x; i < p.lists; i += THREADS) all.live[i] = 0;
    wait_for_launches();
    const i32 slot_q = reading_at(OF_Q).slot;
    i32 *const of_q = all.ends, *const of_k = of_q + p.lists * p.ends[slot_q];
    bool wrong = false;
#pragma unroll 1  // half the instructions to fetch
    for (i32 side = 0; side < 2; side++)
        wrong |= load_ends(p, side, 0, p.lists, side ? of_k : of_q);
    const struct Ranks ranks = ranks_of(p, at);
    const bool no_tiles = __syncthreads_or(wrong);  // then the results will be overwritten
    if (no_tiles) {
        for (i32 i = threadIdx.x; i < p.lists * rows; i += THREADS) all.tiles[i] = 0;
    } else {
        count_lines(p, all, of_q, of_k);
    }
    if (number == 0 && threadIdx.x == 0 && p.verdict) tell_verdict(p, no_tiles);
    __syncthreads();
    const struct Listing own = write_items<false>(p, at, ranks, {all.tiles, all.live, 1});
    write_words(p, at, own, of_q + at.list * p.ends[slot_q],
                of_k + at.list * p.ends[reading_at(OF_K).slot], all.columns[at.tile], full);
    if (blockIdx.x == gridDim.x - 1) clear_words(p);
}
