// Converts the data of a mask to the 32 bits that its kernels read, and computes their bounds by
// tile. Needs: entries.cuh, segments.cuh, READINGS, reading_at, CHUNK. Gives:
// read_part.

// An element as the mask's formula reads it; sets `wrong` if it does not fit 32 bits.
FN i32 value_of(const struct Lists &p, i32 slot, i64 found, bool &wrong) {
    switch (p.rule[slot]) {
    case BOOLEAN: return found != 0;
    case CLIPPED: return (i32)(found < 0 ? 0 : found > p.n[1] ? p.n[1] : found);
    }
    wrong |= (i32)found != found;
    return (i32)found;
}

// Reads the entries of a tile, by a warp; `number` counts the tiles of all sequences.
FN bool read_tile(const struct Lists &p, const struct Reading &own, i32 number) {
    const i32 slot = own.slot, side = own.side, tiles = p.tile_count[side], size = p.tile[side];
    const i32 batch = number / tiles, tile = number - batch * tiles, first = tile * size;
    const i32 end = min_i32(first + size, p.n[side]);
    const i32 stop = tile + 1 < tiles ? end : p.columns[slot];  // copy the rest as well
    const struct Stretch at = {slot, side, batch, first, stop};
    i32 *const to = p.array[slot] + batch * p.array_batch[slot];
    const bool cumulative = p.rule[slot] == CUMULATIVE;
    struct Ends ends = {};
    if (cumulative) ends = ends_of(p, at);
    bool wrong = ends.wrong;
    i32 low = 0x7fffffff, high = -low - 1;
#if SEVERAL
    const i32 before[1] = {max_i32(first - 1, 0)};
    i64 document[1] = {};
    if (cumulative) document[0] = document_of(p, at, ends.before);
    else if (p.starts) entries_at(p, slot, batch, before, document);
    struct Runs runs = {(i32)document[0]};
#endif
#pragma unroll 1
    for (i32 turn = first; turn < stop; turn += 32 * OWN) {
        i32 kept[OWN];
        if (cumulative) {
            documents_of(p, at, ends, turn, kept);
        } else {
            i32 places[OWN];
            i64 x[OWN];
#pragma unroll
            for (i32 i = 0; i < OWN; i++) places[i] = min_i32(token_at(turn, i), stop - 1);
            entries_at(p, slot, batch, places, x);
#pragma unroll
            for (i32 i = 0; i < OWN; i++) kept[i] = value_of(p, slot, x[i], wrong);
        }
#pragma unroll
        for (i32 i = 0; i < OWN; i++) {
            const i32 token = token_at(turn, i);
            if (own.writes && token < stop) to[token] = kept[i];
            if (token < end) low = min_i32(low, kept[i]), high = max_i32(high, kept[i]);
        }
#if SEVERAL
        if (p.starts) note_runs(at, turn, kept, runs);
#endif
    }
    low = ~warp_max(~low), high = warp_max(high);
    i32 last = 0;
#if SEVERAL
    if (p.starts) last = note_segments(p, at, ends, {low, high}, runs, tile);
#endif
    if (threadIdx.x % 32 == 0)
        ((int4 *)p.bounds)[p.first_tile[own.number] + number] = make_int4(low, high, 0, last);
    return wrong;
}
// Reads the tiles of a block, some by each warp.
FN bool read_tiles(const struct Lists &p, const struct Reading &own, i32 block) {
    const i32 tiles = p.batches[own.slot] * p.tile_count[own.side], first = block * p.reading_tiles;
    const i32 end = min_i32(first + p.reading_tiles, tiles);
    bool wrong = false;
    for (i32 number = first + threadIdx.x / 32; number < end; number += THREADS / 32)
        wrong |= read_tile(p, own, number);
    return wrong;
}
// Reads a chunk of an array that is not indexed by tokens.
FN bool read_chunk(const struct Lists &p, i32 slot, i32 block) {
    const u32 rows = p.rows[slot], heads = p.heads_of[slot], columns = p.columns[slot];
    const i64 start = (i64)block * CHUNK;
    const i64 rest = (i64)p.batches[slot] * heads * rows * columns - start;
    const i64 first_line = start / columns;
    const u32 first_column = (u32)(start - first_line * columns);
    constexpr i32 OWN = CHUNK / THREADS;
    i64 from[OWN], found[OWN];
#pragma unroll
    for (i32 i = 0; i < OWN; i++) {
        // Entries past the end are read as the last one
        const i64 own = i * THREADS + (i64)threadIdx.x, last = rest - 1;
        const u32 at = first_column + (u32)(own < last ? own : last);
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
                                                    : read_tiles(p, own, block);
    return __syncthreads_or(wrong);
}
