// Converts the data of a mask to the 32 bits that its kernels read, and computes their bounds by
// tile. Needs: entries.cuh, segments.cuh, READINGS, READ_TILES, reading_at, CHUNK. Gives:
// read_part.

// Reads the entries of some consecutive tiles of an array.
FN bool read_tokens(const struct Lists &p, const struct Reading &own, i32 block) {
    __shared__ i32 least[READ_TILES];
    __shared__ i32 greatest[READ_TILES];
    const i32 slot = own.slot, tiles = p.tile_count[own.side], size = p.tile[own.side];
    const i32 most = p.reading_tiles[own.side], shares = (tiles + most - 1) / most;
    const i32 batch = block / shares, share = block - batch * shares, tile = share * most;
    const i32 count = min_i32(most, tiles - tile), first = tile * size;
    const i32 end = min_i32(first + count * size, p.n[own.side]);
    const i32 stop = tile + count < tiles ? end : p.columns[slot];  // copy the rest as well
    const struct Stretch at = {slot, own.side, batch, first, stop};
    i32 *const to = p.array[slot] + batch * p.array_batch[slot];
    const bool cumulative = p.rule[slot] == CUMULATIVE;
    if ((i32)threadIdx.x < count)
        least[threadIdx.x] = 0x7fffffff, greatest[threadIdx.x] = -0x7fffffff - 1;
#if SEVERAL
    struct Near near = {};  // loaded here, so that only one wait follows
    if (p.starts && own.side && !cumulative)
        near = entries_near(p, at, {0, first}, {stop, p.n[1]});
#endif
    bool wrong = false;
    struct Ends ends = {};
    if (cumulative) ends = ends_of(p, at, wrong);
    __syncthreads();
    i32 kept = 0;
    for (i32 turn = first; turn < stop; turn += THREADS) {
        const i32 token = turn + threadIdx.x, place = (token - first) / size;
        i32 low = 0x7fffffff, high = -low - 1;
        if (token < stop) {
            kept = cumulative ? document_of(p, at, ends, token)
                              : value_of(p, slot, entry(p, slot, batch, token), wrong);
            if (own.writes) to[token] = kept;
            if (token < end) low = high = kept;
        }
        const bool whole = size % 32 == 0;  // a warp's tokens are in one tile
        if (whole) low = ~warp_max(~low), high = warp_max(high);
        if (token < end && (!whole || threadIdx.x % 32 == 0))
            atomicMin(least + place, low), atomicMax(greatest + place, high);
    }
    __syncthreads();
    i32 last = 0;
#if SEVERAL
    if (p.starts) last = note_segments(p, at, kept, ends, near, tile);
#endif
    if ((i32)threadIdx.x < count)
        ((int4 *)p.bounds)[p.first_tile[own.number] + batch * tiles + tile + threadIdx.x] =
            make_int4(least[threadIdx.x], greatest[threadIdx.x], 0, last);
    return wrong;
}
// Reads a chunk of an array that is not indexed by tokens.
FN bool read_chunk(const struct Lists &p, i32 slot, i32 block) {
    const u32 rows = p.rows[slot], heads = p.heads_of[slot], columns = p.columns[slot];
    const i64 start = (i64)block * CHUNK;
    const i64 rest = (i64)p.batches[slot] * heads * rows * columns - start;
    const i64 first_line = start / columns;
    const u32 first_column = (u32)(start - first_line * columns);
    const bool one_line = rows == 1 && heads == 1 && p.batches[slot] == 1;
    constexpr i32 OWN = CHUNK / THREADS;
    const unsigned char *const bytes = (const unsigned char *)p.source[slot] + start;
    if (one_line && p.source_code[slot] < 2 && p.rule[slot] == BOOLEAN &&
        p.source_step[slot] == 1 &&
        (unsigned long long)bytes % OWN == 0 && rest >= CHUNK) {
        static_assert(OWN == 8, "a thread has two words");
        const uint2 own = ((const uint2 *)bytes)[threadIdx.x];
        int4 *const to = (int4 *)(p.array[slot] + start) + 2 * threadIdx.x;
#pragma unroll
        for (i32 i = 0; i < 2; i++) {
            const u32 x = i ? own.y : own.x;
            to[i] = make_int4((x & 0xff) != 0, (x & 0xff00) != 0, (x & 0xff0000) != 0,
                              x >> 24 != 0);
        }
        return false;
    }
    i64 from[OWN], found[OWN];
#pragma unroll
    for (i32 i = 0; i < OWN; i++) {
        // Entries past the end are read as the last one
        const i64 own = i * THREADS + (i64)threadIdx.x, last = rest - 1;
        const u32 at = first_column + (u32)(own < last ? own : last);
        from[i] = at * p.source_step[slot];
        if (one_line) continue;  // divisions take long
        const u32 line = (u32)first_line + at / columns, column = at % columns;
        const u32 of_head = line / rows, row = line % rows;
        from[i] = of_head / heads * p.source_batch[slot] + of_head % heads * p.source_head[slot] +
                  row * p.source_row[slot] + column * p.source_step[slot];
    }
    elements(p, slot, from, found);
    bool wrong = false;
#pragma unroll
    for (i32 i = 0; i < OWN; i++)
        if (i * THREADS + threadIdx.x < rest)
            p.array[slot][start + i * THREADS + threadIdx.x] = value_of(p, slot, found[i], wrong);
    return wrong;
}
FN bool read_part(const struct Lists &p, i32 block) {
    i32 number = 0;
    while (number + 1 < READINGS && block >= p.first_block[number + 1]) number++;
    const struct Reading own = reading_at(number);
    block -= p.first_block[number];
    const bool wrong = READS_CHUNKS && own.side < 0 ? read_chunk(p, own.slot, block)
                                                    : read_tokens(p, own, block);
    return __syncthreads_or(wrong);
}
