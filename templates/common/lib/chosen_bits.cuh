// What the queries of tile rows have chosen: a part of the verdict policy of make_lists.cuh. Needs:
// lists_arguments.h. Gives: join_bits.

// ---------------------------------------------------------------- what a tile has of the chosen

// The words of a tile row: first the union of what its queries selected, then the intersection.
template <class S>
FN i32 *seen_by(const struct Lists &p, i32 list, i32 row) {
    const i64 place = (i64)list * p.tile_count[0] + row;
    return p.seen[S::INDEX] + 2 * place * p.array_row[S::INDEX];
}

// Reads the selections of some tile rows of a list.
template <class S>
FN void join_bits(const struct Lists &p, i32 list, i32 tile, i32 tiles) {
    constexpr i32 INDEX = S::INDEX;
    const i32 words = (i32)p.array_row[INDEX], head = p.cases[2 * (list % p.heads) + 1];
    const i64 from = list / p.heads * p.array_batch[INDEX] + head * p.array_head[INDEX];
    for (i32 i = threadIdx.x; i < tiles * words; i += THREADS) {
        const i32 own = i / words, word = i - own * words, row = tile + own;
        const i32 first = row * p.tile[0] / S::Q_BLOCK;
        const i32 last = (min_i32((row + 1) * p.tile[0], p.n[0]) - 1) / S::Q_BLOCK;
        i32 some = 0, all = -1;
#pragma unroll 8
        for (i32 block = first; block <= last; block++) {
            const i32 bits = p.array[INDEX][from + (i64)block * words + word];
            some |= bits, all &= bits;
        }
        i32 *const to = seen_by<S>(p, list, row);
        to[word] = some, to[words + word] = all;
    }
}
