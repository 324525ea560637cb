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
    // Both ends at once: few tiles have more
    const i64 one = from[r0 * p.array_row[slot] + c0], other = from[r1 * p.array_row[slot] + c1];
    struct Span found = span(min_int(one, other), max_int(one, other));
    if (r1 - r0 + c1 - c0 < 2) return found;
    for (i64 row = r0; row <= r1; row++) {
        for (i64 column = c0; column <= c1; column++) {
            const i64 x = from[row * p.array_row[slot] + column];
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
