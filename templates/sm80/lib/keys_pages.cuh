// Loader for a paged KV cache: every row has an address of its own. Rows past the end of a
// sequence, and rows of invalid page-table entries, become zeros without a memory access. Needs:
// load.cuh, PAGE_SIZE. Gives what keys_rows.cuh does.

FN i32 key_batch(i32) { return 0; }  // all sequences share the pool

template <int PIECES = PIECES_QK>
FN void load_keys(u32 tile, const unsigned char *rows, const i64 (&stride)[3], i32 first,
                  const struct Attention &p, i32 batch) {
    const i32 row = threadIdx.x / SPAN, chunk = threadIdx.x % SPAN;
    const i32 count = __ldg(p.key_count + batch), entry = __ldg(p.first_page + batch);
    const u32 to = tile + place(row, chunk);
#pragma unroll 2
    for (int i = 0; i < TILE_K; i += COPY_ROWS) {
        const i32 key = first + row + i;
        const i32 page = key < count ? __ldg(p.pages + entry + (u32)key / PAGE_SIZE) : -1;
        const bool inside = (u32)page < (u32)p.page_count;
        const i64 at = (inside ? page : 0) * stride[0] + (u32)key % PAGE_SIZE * stride[2];
#pragma unroll
        for (int j = 0; j < CHUNKS; j += SPAN)
            copy_async(to + i * PITCH + 16 * j, rows + 2 * at + 16 * (chunk + j),
                       inside && (!PADDED || chunk + j < PIECES));
    }
    copy_commit();
}
