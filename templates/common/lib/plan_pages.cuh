// Builds the arrays of a step over pages in one launch, from the caller's tables. A block has some
// consecutive sequences and sums up the counts of all earlier ones. The last block fills entries
// that belong to no sequence. Needs: block_sums.cuh, PageStep. Gives: integer_at, plan_pages.

FN i64 integer_at(const void *from, i64 place, i32 code) {
    switch (code) {
    case 0: return ((const unsigned char *)from)[place];
    case 1: return ((const signed char *)from)[place];
    case 2: return ((const short *)from)[place];
    case 3: return ((const i32 *)from)[place];
    }
    return ((const i64 *)from)[place];
}
FN i32 length_at(const void *from, i64 place, i32 code) {
    const i64 x = integer_at(from, place, code);
    return x < 0 ? 0 : (i32)(x < 0x7fffffff ? x : 0x7fffffff);
}

FN i32 queries_of(const struct PageStep &p, i32 sequence) {
    if (!p.lens_q) return p.sequence_queries;
    if (!p.cumulative) return length_at(p.lens_q, sequence * p.lens_q_step, p.lens_q_code);
    const i64 first = integer_at(p.lens_q, sequence * p.lens_q_step, p.lens_q_code);
    const i64 end = integer_at(p.lens_q, (sequence + 1) * p.lens_q_step, p.lens_q_code);
    return end > first ? (i32)(end - first) : 0;
}
FN i32 blocks_of(const struct PageStep &p, i32 queries) {
    return p.whole ? 1 : (queries + p.block - 1) / p.block;
}
// Where a sequence's entries begin, and how many there are.
struct Entries {
    i32 first, count;
};
FN struct Entries entries_of(const struct PageStep &p, i32 sequence) {
    if (!p.starts) return {sequence * p.columns, p.columns};
    const i32 first = length_at(p.starts, sequence * p.starts_step, p.starts_code);
    const i32 end = length_at(p.starts, (sequence + 1) * p.starts_step, p.starts_code);
    const i32 last = end < p.entries ? end : p.entries;
    return {first < last ? first : 0, first < last ? last - first : 0};
}
FN i32 entry_at(const struct PageStep &p, i32 entry) {
    const i32 row = entry / p.columns, column = entry - row * p.columns;
    const i64 place = row * p.table_step[0] + column * p.table_step[1];
    const i64 page = integer_at(p.table, place, p.table_code);
    return page == (i32)page ? (i32)page : -1;  // what has no 32 bits is no page
}
FN i32 clipped(i32 x, i32 end) { return x < 0 ? 0 : x < end ? x : end > 0 ? end - 1 : 0; }

// Data of the mask: entries of the block's queries, or of all keys.
FN i32 datum_at(const struct PageStep &p, i32 slot, i32 sequence, i32 token) {
    const i64 place = sequence * p.source_sequence[slot] + token * p.source_token[slot];
    const i32 x = (i32)integer_at(p.source[slot], place, p.source_code[slot]);
    return p.flags[slot] ? x != 0 : x;
}
FN void fill_keys(const struct PageStep &p, i32 slot, i32 sequence, i32 block, i32 keys) {
    i32 *const to = p.array[slot] + (i64)block * p.n_kv;
    for (i32 k = threadIdx.x; k < p.n_kv; k += THREADS)
        to[k] = k < keys ? datum_at(p, slot, sequence, k) : 0;
}

FN void fill_nobody(const struct PageStep &p, i32 token) {
    p.slots[token] = p.token_position[token] = -1;
    if (p.places) p.places[token] = 0;
    if (p.is_real) p.is_real[token] = 0;
}

// One sequence; or the rows and blocks after the last sequence, which belong to none.
struct Span {
    i32 sequence, first_row, rows, first_block, blocks, n_kv;
    bool real;
};
FN void fill_span(const struct PageStep &p, const struct Span &at, const struct Entries &own) {
    const i64 room = (i64)own.count * p.page_size;
    const i32 keys = at.n_kv < room ? at.n_kv : (i32)room;
    for (i32 b = threadIdx.x; b < at.blocks; b += THREADS) {
        p.first_page[at.first_block + b] = at.real ? own.first : 0;
        p.key_count[at.first_block + b] = at.real && at.rows ? keys : 0;
        if (p.owner) p.owner[at.first_block + b] = at.real ? at.sequence : 0;
    }
    const i32 before = at.n_kv - at.rows;  // keys of the sequence before its queries
    for (i32 i = threadIdx.x; i < at.blocks * p.block; i += THREADS) {
        const i64 to = (i64)at.first_block * p.block + i;
        const bool there = at.real && i < at.rows;
        p.position[to] = there ? before + i : -1;
        p.length[to] = there ? at.n_kv : 0;
        if (p.queries) p.queries[to] = at.real ? at.rows : 0;
        if (p.rows) p.rows[to] = at.real ? clipped(at.first_row + i, p.tokens) : 0;
        for (i32 slot = 0; slot < p.arrays; slot++)
            if (p.of_queries[slot])
                p.array[slot][to] =
                    at.real ? datum_at(p, slot, at.sequence, clipped(before + i, p.max_kv)) : 0;
    }
    for (i32 slot = 0; slot < p.arrays; slot++)
        for (i32 b = 0; b < at.blocks && !p.of_queries[slot] && !p.shared[slot]; b++)
            fill_keys(p, slot, at.sequence, at.first_block + b, at.real ? p.max_kv : 0);
    for (i32 i = threadIdx.x; i < at.rows && at.first_row + i < p.tokens; i += THREADS) {
        const i32 token = at.first_row + i, key = before + i;
        if (!at.real) {
            fill_nobody(p, token);
            continue;
        }
        i64 slot = -1;
        if (key >= 0 && key / p.page_size < own.count) {
            const i32 page = entry_at(p, own.first + key / p.page_size);
            if (page >= 0) slot = (i64)page * p.page_size + key % p.page_size;
        }
        p.slots[token] = slot;
        p.token_position[token] = key;
        const bool fits = i < at.blocks * p.block;
        if (p.places) p.places[token] = fits ? at.first_block * p.block + i : 0;
        if (p.is_real) p.is_real[token] = fits;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
plan_pages(const __grid_constant__ struct PageStep p) {
    const i64 thread = (i64)blockIdx.x * THREADS + threadIdx.x, all = (i64)gridDim.x * THREADS;
    for (i64 i = thread; i < p.entries; i += all) p.pages[i] = entry_at(p, (i32)i);
    for (i64 i = thread; i < p.sequences; i += all) {
        const struct Entries own = entries_of(p, (i32)i);
        p.used[i] = length_at(p.lens_kv, i * p.lens_kv_step, p.lens_kv_code);
        p.spans[2 * i] = own.first, p.spans[2 * i + 1] = own.first + own.count;
    }
    for (i32 slot = blockIdx.x; slot < p.arrays; slot += gridDim.x)
        if (!p.of_queries[slot] && p.shared[slot]) fill_keys(p, slot, 0, 0, p.max_kv);

    const i32 share = (p.sequences + gridDim.x - 1) / gridDim.x;
    const i32 left = p.sequences - blockIdx.x * share;
    const i32 first = left > 0 ? blockIdx.x * share : p.sequences;
    const i32 end = left > share ? first + share : p.sequences;
    i32 before[2] = {0, 0};
    for (i32 s = threadIdx.x; s < first; s += THREADS) {
        const i32 queries = queries_of(p, s);
        before[0] += queries, before[1] += blocks_of(p, queries);
    }
    block_sums(before);
    i32 row = before[0], block = before[1];
    if (p.cumulative) {
        const i32 offset = length_at(p.lens_q, 0, p.lens_q_code);
        row += offset;
        for (i64 i = thread; i < offset && i < p.tokens; i += all) fill_nobody(p, (i32)i);
    }
    for (i32 s = first; s < end; s++) {
        const i32 rows = queries_of(p, s), blocks = blocks_of(p, rows);
        const i32 room = p.blocks - block, fit = blocks < room ? blocks : room < 0 ? 0 : room;
        const i32 keys = length_at(p.lens_kv, s * p.lens_kv_step, p.lens_kv_code);
        fill_span(p, {s, row, rows, block, fit, keys, true}, entries_of(p, s));
        row += rows, block += blocks;
    }
    if (blockIdx.x == gridDim.x - 1) {
        const i32 blocks = p.blocks > block ? p.blocks - block : 0;
        fill_span(p, {0, row, p.tokens, block, blocks, 0, false}, {0, 0});
    }
}
