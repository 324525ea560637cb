// Entries of the caller's arrays, including document ids of tokens, and their bounds by tile.
// Needs: integers.h, block_sums.cuh, Lists, Reading. Gives: elements, entries, entry, Stretch,
// Ends, ends_of, document_of, bounds_at.

// How an array is converted to 32 bits.
enum { AS_IS, BOOLEAN, CLIPPED, CUMULATIVE };

// Converts elements after all of them have been loaded, so that a thread waits for memory once.
template <class T, int COUNT>
FN void load_each(const void *from, const i64 (&place)[COUNT], i64 (&to)[COUNT]) {
    T loaded[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) loaded[i] = ((const T *)from)[place[i]];
#pragma unroll
    for (int i = 0; i < COUNT; i++) to[i] = loaded[i];
}
template <int COUNT>
FN void elements(const struct Lists &p, i32 slot, const i64 (&place)[COUNT], i64 (&to)[COUNT]) {
    const void *const from = p.source[slot];
    switch (p.source_code[slot]) {
    case 0: return load_each<unsigned char>(from, place, to);
    case 1: return load_each<signed char>(from, place, to);
    case 2: return load_each<short>(from, place, to);
    case 3: return load_each<i32>(from, place, to);
    }
    load_each<i64>(from, place, to);
}
template <int COUNT>
FN void entries(const struct Lists &p, i32 slot, i32 batch, const i32 (&index)[COUNT],
                i64 (&to)[COUNT]) {
    i64 place[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        place[i] = batch * p.source_batch[slot] + index[i] * p.source_step[slot];
    elements(p, slot, place, to);
}
FN i64 entry(const struct Lists &p, i32 slot, i32 batch, i32 index) {
    const i32 one[1] = {index};
    i64 found[1];
    entries(p, slot, batch, one, found);
    return found[0];
}
// Document ids of queries past the last document. Keys there get this plus 1, so that no query sees
// them. maskc/layout/inputs/call_data.py uses the same numbers.
constexpr i32 NO_QUERY = (1 << 30) - 1;

// A range of tokens of one side and sequence, in an array that a block reads.
struct Stretch {
    i32 slot, side, batch, first, end;
};
// Number of cumulative lengths that end before the first token, at or before it, and at or before
// the last token: the documents of the tokens lie in between.
struct Ends {
    i32 before, first, last;
};
FN struct Ends ends_of(const struct Lists &p, const struct Stretch &at) {
    i32 sum[3] = {0};
#pragma unroll 4
    for (i32 i = threadIdx.x; i < p.ends[at.slot]; i += THREADS) {
        const i64 end = entry(p, at.slot, at.batch, i);
        sum[0] += end < at.first, sum[1] += end <= at.first, sum[2] += end < at.end;
    }
    block_sums(sum);
    return {sum[0], sum[1], sum[2]};
}
// The document of a token, from cumulative lengths: the number of documents that end at or before
// it.
FN i32 document_of(const struct Lists &p, const struct Stretch &at, const struct Ends &ends,
                   i32 token) {
    i32 low = ends.before, high = ends.last;
    while (low < high) {
        const i32 middle = (low + high) / 2;
        if (entry(p, at.slot, at.batch, middle) <= token) low = middle + 1;
        else high = middle;
    }
    return low < p.ends[at.slot] ? low - 1 : NO_QUERY + at.side;
}
// Bounds of the entries that a tile reads.
FN int4 bounds_at(const struct Lists &p, const struct Reading &own, i32 batch, i32 tile) {
    const i32 place = (p.batches[own.slot] > 1 ? batch : 0) * p.tile_count[own.side] + tile;
    return ((const int4 *)p.bounds)[p.first_tile[own.number] + place];
}
