// Entries of the caller's arrays, including document ids of tokens, and their bounds by tile.
// Needs: integers.h, block_sums.cuh, Lists, Reading. Gives: elements, entries_at, entry, value_of,
// Stretch, Ends, ends_of, document_of, bounds_at.

// How an array is converted to 32 bits.
enum { AS_IS, BOOLEAN, CLIPPED, CUMULATIVE };

// Elements of any type, without branches: a block runs this code once or twice, so its time is that
// of fetching the instructions. Loads the aligned word that holds an element, and cuts it out.
template <int COUNT>
FN void elements(const struct Lists &p, i32 slot, const i64 (&place)[COUNT], i64 (&to)[COUNT]) {
    typedef unsigned long long u64;
    const i32 code = p.source_code[slot];
    const i32 log_bytes = max_i32(code - 1, 0), unused = code < 2 ? 24 : code == 2 ? 16 : 0;
    u32 low[COUNT], high[COUNT] = {}, shift[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const u64 at = (u64)p.source[slot] + ((u64)place[i] << log_bytes);
        const u32 *const word = (const u32 *)(at & ~3ull);
        low[i] = word[0], shift[i] = 8 * (u32)(at & 3);
        if (code == 4) high[i] = word[1];
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const u32 top = low[i] >> shift[i] << unused;
        const i32 value = code ? (i32)top >> unused : (i32)(top >> unused);
        to[i] = code == 4 ? (i64)((u64)high[i] << 32 | low[i]) : value;
    }
}
template <int COUNT>
FN void entries_at(const struct Lists &p, i32 slot, i32 batch, const i32 (&index)[COUNT],
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
    entries_at(p, slot, batch, one, found);
    return found[0];
}
// An element as the mask's formula reads it; sets `wrong` if it does not fit 32 bits.
FN i32 value_of(const struct Lists &p, i32 slot, i64 found, bool &wrong) {
    switch (p.rule[slot]) {
    case BOOLEAN: return found != 0;
    case CLIPPED: return (i32)(found < 0 ? 0 : found > p.n[1] ? p.n[1] : found);
    }
    wrong |= (i32)found != found;
    return (i32)found;
}
// Document ids of queries past the last document. Keys there get this plus 1, so that no query sees
// them. maskc/layout/inputs/call_data.py uses the same numbers.
constexpr i32 NO_QUERY = (1 << 30) - 1;

// A range of tokens of one side and sequence, in an array that a block reads.
struct Stretch {
    i32 slot, side, batch, first, end;
};
// Number of cumulative lengths that end before the first token, at or before it, and at or before
// the last token: the documents of the tokens lie in between. Then the begin of the first token's
// document, and the end of the last one's.
struct Ends {
    i32 before, first, last;
    i32 begin, end;
};
// Sets `wrong` if lengths descend, exceed the tokens, or belong to a document longer than declared.
FN struct Ends ends_of(const struct Lists &p, const struct Stretch &at, bool &wrong) {
    __shared__ i32 begin;
    __shared__ i32 end;
    const i32 ends = p.ends[at.slot];
    i32 sum[3] = {0};
#pragma unroll 4
    for (i32 i = threadIdx.x; i < ends; i += THREADS) {
        const bool last = i + 1 == ends;
        const i32 places[2] = {i, last ? i : i + 1};
        i64 x[2];
        entries_at(p, at.slot, at.batch, places, x);
        wrong |= x[0] > (last ? p.columns[at.slot] : x[1]) || x[1] - x[0] > p.most[at.slot] ||
                 (i == 0 && x[0] != 0);
        sum[0] += x[0] < at.first, sum[1] += x[0] <= at.first, sum[2] += x[0] < at.end;
        if (x[0] <= at.first && (last || x[1] > at.first)) begin = (i32)x[0];
        if (x[0] < at.end && (last || x[1] >= at.end)) end = last ? p.n[at.side] : (i32)x[1];
    }
    block_sums(sum);
    return {sum[0], sum[1], sum[2], begin, end};
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
