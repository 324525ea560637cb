// Keys and values that lie in pages of pools: a row has an address of its own. Rows past the end of
// a sequence, and rows of invalid page-table entries, are zeros without a memory access.
// Needs: storage.h, PAGE_SIZE; Place. Gives: load_pages, key_scale, value_scale.

#if E4M3_POOLS
typedef unsigned char in_pool;

// Numbers of E4M3 are converted on load, and multiplied by the scale of their head.
FN float pool_scale(const struct Attention *p, const float *scales, const i64 *step, float number,
                    i32 batch, i32 head) {
    if (!scales) return number;
    const i32 sequence = p->scale_sequence ? p->scale_sequence[batch] : batch;
    return scales[sequence * step[0] + head * step[1]];
}
FN float key_scale(const struct Attention *p, i32 batch, i32 head) {
    return pool_scale(p, p->k_scale, p->k_scale_step, p->k_number, batch, head);
}
FN float value_scale(const struct Attention *p, i32 batch, i32 head) {
    return pool_scale(p, p->v_scale, p->v_scale_step, p->v_number, batch, head);
}

typedef in_pool bytes __attribute__((vector_size(LANES)));
typedef bytes bytes_in_memory __attribute__((aligned(1), may_alias));

// Four bits of exponent, three of fraction; no infinity, and one NaN of each sign.
FN vec widen_bytes(bytes x) {
    const ivec code = __builtin_convertvector(x, ivec), size = code & 127;
    const vec normal = (vec)((size << 20) + (120 << 23));
    const vec small = __builtin_convertvector(size, vec) * 0x1p-9f;
    const vec number = either(size < 8, small, normal);
    const vec nan = splat(__builtin_nanf(""));
    return (vec)((ivec)either(size == 127, nan, number) | (code & 128) << 24);
}
// As load_row.
FN vec load_pool_row(float *to, const in_pool *from, i32 columns, float scale) {
    vec trace = {0};
    i32 j = 0;
    for (; j + LANES <= columns; j += LANES) {
        const vec x = widen_bytes(*(const bytes_in_memory *)(from + j)) * scale;
        trace += x * 0.0f;
        store(to + j, x);
    }
    if (columns % LANES) {
        in_pool rest[LANES] = {0};
        for (i32 i = 0; j + i < columns; i++) rest[i] = from[j + i];
        const vec x = widen_bytes(*(const bytes_in_memory *)rest) * scale;
        trace += x * 0.0f;
        store(to + j, x);
    }
    return trace;
}
#else
typedef element in_pool;

FN float key_scale(const struct Attention *p, i32 batch, i32 head) {
    (void)p, (void)batch, (void)head;
    return 1.0f;
}
FN float value_scale(const struct Attention *p, i32 batch, i32 head) {
    return key_scale(p, batch, head);
}
FN vec load_pool_row(float *to, const in_pool *from, i32 columns, float scale) {
    (void)scale;
    return load_row(to, from, columns);
}
#endif

// As load_tile, of the keys of a tile. `stride`: elements from one page, head, token to the next.
FN i32 load_pages(const struct Attention *p, float *to, i32 ld, const void *pool,
                  const i64 *stride, i32 batch, i32 head, struct Place at, i32 columns,
                  float scale) {
    const i32 *const entries = p->pages + p->first_page[batch];
    vec trace = {0};
    for (i32 i = 0; i < at.keys; i++) {
        const i32 key = at.k0 + i, page = key < p->key_count[batch] ? entries[key / PAGE_SIZE] : -1;
        if (page < 0 || page >= p->page_count) {
            clear(to + i * ld, ld);
            continue;
        }
        const in_pool *const from =
            (const in_pool *)pool + row_offset(stride, page, head, key % PAGE_SIZE);
        trace += load_pool_row(to + i * ld, from, columns, scale);
    }
    return sum_lanes(trace) == 0.0f;
}
