// Tiles and pairs, and bounds of the data that they read; for gen/verdict_intervals.cuh.j2. Needs:
// lists_arguments.h, tile_bounds.h, read_arrays.cuh.

// A tile of one sequence and head.
struct Box {
    i32 batch, head, row, column;
};
// A pair of one sequence and head.
struct Pair {
    i32 batch, head, q, k;
};
FN struct Span bounds_of(const struct Lists &p, i32 number, const struct Box &at) {
    const struct Reading own = reading_at(number);
    const int4 found = bounds_at(p, own, at.batch, own.side ? at.column : at.row);
    return span(found.x, found.y);
}
FN struct Span bounds_of(const struct Lists &p, i32 number, const struct Pair &at) {
    const struct Reading own = reading_at(number);
    const i32 x = p.array[own.slot][at.batch * p.array_batch[own.slot] + (own.side ? at.k : at.q)];
    return span(x, x);
}
// Bounds of the entries r0 .. r1, c0 .. c1 of a table; the range is small.
template <class At>
FN struct Span entries(const struct Lists &p, i32 slot, const At &at, i64 r0, i64 r1, i64 c0,
                       i64 c1) {
    const i32 *const from = p.array[slot] + at.batch * p.array_batch[slot] +
                            at.head * p.array_head[slot];
    const i32 on = (i32)p.array_row[slot], rows = (i32)(r1 - r0), columns = (i32)(c1 - c0);
    const i32 *const first = from + ((i32)r0 * on + (i32)c0);
    // Both ends at once: few tiles have more
    const i32 one = first[0], other = first[rows * on + columns];
    struct Span found = span(min_i32(one, other), max_i32(one, other));
    if (rows + columns < 2) return found;
#pragma unroll 1  // few instructions to fetch
    for (i32 row = 0; row <= rows; row++) {
#pragma unroll 1
        for (i32 column = 0; column <= columns; column++) {
            const i32 x = first[row * on + column];
            found = span(min_int(found.low, x), max_int(found.high, x));
        }
    }
    return found;
}

// The tokens of a tile, or of a pair.
struct Tokens {
    i64 q0, q1, k0, k1;
};
FN struct Tokens tokens_of(const struct Lists &p, const struct Box &at) {
    const i64 q0 = (i64)at.row * p.tile[0], k0 = (i64)at.column * p.tile[1];
    return {q0, min_int(q0 + p.tile[0], p.n[0]) - 1, k0, min_int(k0 + p.tile[1], p.n[1]) - 1};
}
FN struct Tokens tokens_of(const struct Lists &, const struct Pair &at) {
    return {at.q, at.q, at.k, at.k};
}
