// The data of a mask as its kernels read them, of 32 bits, and their bounds by tile.
// Needs: entries.cuh, segments.cuh, READINGS, reading_at, CHUNK. Gives: read_part.

// Whether a block's share of the cumulative lengths is out of order, or ends behind the tokens, or
// has a document that is longer than promised.
FN bool wrong_ends(const struct Lists &p, i32 slot, i32 batch, i32 tile, i32 tiles) {
    const i32 ends = p.ends[slot];
    bool wrong = false;
    for (i32 i = tile * THREADS + threadIdx.x; i < ends; i += tiles * THREADS) {
        const i64 end = entry(p, slot, batch, i);
        const i64 next = i + 1 < ends ? entry(p, slot, batch, i + 1) : p.columns[slot];
        wrong |= end > next || (i + 1 < ends && next - end > p.most[slot]);
        wrong |= i == 0 && end != 0;
    }
    return wrong;
}
// An element as the mask's formula means it; `wrong` where 32 bits cannot hold it.
FN i32 value_of(const struct Lists &p, i32 slot, i64 found, bool &wrong) {
    switch (p.rule[slot]) {
    case BOOLEAN: return found != 0;
    case CLIPPED: return (i32)(found < 0 ? 0 : found > p.n[1] ? p.n[1] : found);
    }
    wrong |= (i32)found != found;
    return (i32)found;
}

// A tile's entries of an array.
FN bool read_tokens(const struct Lists &p, const struct Reading &own, i32 block) {
    const i32 slot = own.slot, tiles = p.tile_count[own.side], batch = block / tiles;
    const i32 tile = block - batch * tiles, first = tile * p.tile[own.side];
    const i32 end = min_i32(first + p.tile[own.side], p.n[own.side]);
    const i32 stop = tile + 1 < tiles ? end : p.columns[slot];  // what no tile reads is kept too
    const struct Stretch at = {slot, own.side, batch, first, stop};
    i32 *const to = p.array[slot] + batch * p.array_batch[slot];
    const bool cumulative = p.rule[slot] == CUMULATIVE;
    i32 least = 0x7fffffff, greatest = -least - 1;
    bool wrong = cumulative && wrong_ends(p, slot, batch, tile, tiles);
    struct Ends ends = {};
    if (cumulative) ends = ends_of(p, at);
    for (i32 token = first + threadIdx.x; token < stop; token += THREADS) {
        const i32 kept = cumulative ? document_of(p, at, ends, token)
                                    : value_of(p, slot, entry(p, slot, batch, token), wrong);
        if (own.writes) to[token] = kept;
        if (token < end) least = min_i32(least, kept), greatest = max_i32(greatest, kept);
    }
    least = ~block_max(~least), greatest = block_max(greatest);
    i32 last = 0;
#if SEVERAL
    if (p.starts) last = note_segments(p, at, ends, tile);
#endif
    const i32 place = p.first_block[own.number] + block;
    if (threadIdx.x == 0) ((int4 *)p.bounds)[place] = make_int4(least, greatest, 0, last);
    return wrong;
}
// A chunk of an array that no tile has as its tokens.
FN bool read_chunk(const struct Lists &p, i32 slot, i32 block) {
    const i32 rows = p.rows[slot], heads = p.heads_of[slot], columns = p.columns[slot];
    const i64 all = (i64)p.batches[slot] * heads * rows * columns;
    bool wrong = false;
    for (i32 i = threadIdx.x; i < CHUNK; i += THREADS) {
        const i64 place = (i64)block * CHUNK + i;
        if (place >= all) break;
        const i32 column = (i32)(place % columns), line = (i32)(place / columns);
        const i32 row = line % rows, head = line / rows % heads, batch = line / rows / heads;
        const i64 from = batch * p.source_batch[slot] + head * p.source_head[slot] +
                         row * p.source_row[slot] + column * p.source_step[slot];
        p.array[slot][place] = value_of(p, slot, element(p, slot, from), wrong);
    }
    return wrong;
}
FN bool read_part(const struct Lists &p, i32 block) {
    i32 number = 0;
    while (number + 1 < READINGS && block >= p.first_block[number + 1]) number++;
    const struct Reading own = reading_at(number);
    block -= p.first_block[number];
    const bool wrong =
        own.side >= 0 ? read_tokens(p, own, block) : read_chunk(p, own.slot, block);
    return __syncthreads_or(wrong);
}
