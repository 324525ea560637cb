// Gradients of the table with an entry for each pair, from a step's tile of ds in shared memory:
// all threads that compute write whole rows. Needs: pair_rows.cuh, Shared. Gives: add_pair_tile.

// Adds four neighboring keys of a thread. Only `count` of them exist.
FN void add_four(float *from, i64 place, uint2 x, i32 count, bool whole, i64 step, i32 pairs) {
    if (whole && count >= 4) {
        const float2 low = unpack(x.x), high = unpack(x.y);
        const float4 four = make_float4(low.x, low.y, high.x, high.y);
        if (pairs & HALF_GRADIENT) *(uint2 *)((unsigned short *)from + place) = x;
        else if (pairs & ALONE_IN_ENTRY) *(float4 *)(from + place) = four;
        else if (x.x | x.y) atomicAdd((float4 *)(from + place), four);
        return;
    }
    const struct PairSums sums = {from, {}, 0, pairs};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 two = unpack(i < 2 ? x.x : x.y);
        if (i < count) sums.add(place + i * step, i % 2 ? two.y : two.x);
    }
}
// `query` and `key` are the first ones of the tile.
FN void add_pair_tile(const unsigned char *tile, const struct Attention &p, const struct Place &at,
                      i32 query, i32 key) {
    constexpr int FOURS = TILE_K / 4, ROWS = 128 * GROUPS / FOURS;  // of all threads at once
    static_assert(ROWS % 8 == 0, "a thread's rows are swizzled alike");
    float *const from = pair_gradient(at.head, at.batch, p);
    if (!from) return;
    const i64 step = gradient_key_step(p), down = gradient_row_step(p);
    const i32 thread = threadIdx.x - 128, column = thread % FOURS * 4, row = thread / FOURS;
    const i32 rows = p.n_q - query - row, count = p.n_kv - key - column, pairs = p.score_pairs;
    const bool whole = step == 1 && down % 4 == 0;
    i64 place = (query + row) * down + (key + column) * step;
    tile += column / 64 * Q_SLAB + row * SLAB_ROW + (column % 64 / 8 ^ row % 8) * 16
            + column % 8 * 2;
#pragma unroll 2
    for (int i = 0; i < TILE_Q; i += ROWS, place += ROWS * down, tile += ROWS * SLAB_ROW)
        if (i < rows) add_four(from, place, *(const uint2 *)tile, count, whole, step, pairs);
}
