// Entries of the caller's arrays, including document ids of tokens, and their bounds by tile.
// Needs: integers.h, block_sums.cuh, Lists, Reading. Gives: elements, entries_at, OWN, Stretch,
// token_at, Ends, ends_of, document_of, documents_of, bounds_at.

// How an array is converted to 32 bits.
enum { AS_IS, BOOLEAN, CLIPPED, CUMULATIVE };

// Elements of any type, without branches: a warp runs this code once or twice, so its time is that
// of fetching the instructions. Loads the aligned word that holds an element, and cuts it out.
template <int COUNT>
FN void elements(const struct Lists &p, i32 slot, const i64 (&place)[COUNT], i64 (&to)[COUNT]) {
    typedef unsigned long long u64;
    const i32 code = p.source_code[slot], log_bytes = max_i32(code - 1, 0);
    const u32 mask = code < 2 ? 0xff : code == 2 ? 0xffff : ALL;
    const u32 sign = code == 1 ? 0x80 : code == 2 ? 0x8000 : 0;
    u32 low[COUNT], high[COUNT] = {}, shift[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const u64 at = (u64)p.source[slot] + ((u64)place[i] << log_bytes);
        const u32 *const word = (const u32 *)(at & ~3ull);
        low[i] = word[0], shift[i] = 8 * ((u32)at & 3);
        if (code == 4) high[i] = word[1];
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const i32 value = (i32)((low[i] >> shift[i] & mask ^ sign) - sign);
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
// Document ids of queries past the last document. Keys there get this plus 1, so that no query sees
// them. maskc/layout/inputs/call_data.py uses the same numbers.
constexpr i32 NO_QUERY = (1 << 30) - 1;

constexpr i32 OWN = 4;  // tokens of a lane in a turn: a warp reads a tile of 128 keys in one

// A range of tokens of one side and sequence, in an array that a warp reads.
struct Stretch {
    i32 slot, side, batch, first, end;
};
// The token of a lane, for i < OWN.
FN i32 token_at(i32 turn, i32 i) { return turn + 32 * i + (i32)threadIdx.x % 32; }

// What a warp finds in the cumulative lengths of a sequence: how many end before the first token,
// at or before it, and at or before the last token; begin and end of the documents of these two;
// and whether lengths descend, exceed the tokens, or belong to a document longer than declared.
struct Ends {
    i32 before, first, last;
    i32 begin, end;
    bool wrong;
};
FN struct Ends ends_of(const struct Lists &p, const struct Stretch &at) {
    const i32 ends = p.ends[at.slot];
    const i64 tokens = p.columns[at.slot], most = p.most[at.slot];
    struct Ends sum = {0, 0, 0, 0, ~p.n[at.side], false};
#pragma unroll 1
    for (i32 own = OWN * ((i32)threadIdx.x % 32); own < ends; own += 32 * OWN) {
        i32 places[OWN + 1];
        i64 x[OWN + 1];
#pragma unroll
        for (i32 i = 0; i <= OWN; i++) places[i] = min_i32(own + i, ends - 1);
        entries_at(p, at.slot, at.batch, places, x);
#pragma unroll
        for (i32 i = 0; i < OWN; i++) {
            if (own + i >= ends) break;
            const bool has_next = own + i + 1 < ends;
            sum.wrong |= x[i] > (has_next ? x[i + 1] : tokens) ||
                         (has_next && x[i + 1] - x[i] > most) || (own + i == 0 && x[i] != 0);
            sum.before += x[i] < at.first, sum.first += x[i] <= at.first;
            sum.last += x[i] < at.end;
            if (x[i] <= at.first) sum.begin = max_i32(sum.begin, (i32)x[i]);
            if (x[i] >= at.end) sum.end = max_i32(sum.end, ~(i32)x[i]);
        }
    }
    return {warp_sum(sum.before), warp_sum(sum.first), warp_sum(sum.last),
            warp_max(sum.begin), ~warp_max(sum.end), sum.wrong};
}
// The document of a token before which `count` documents end or at which they do.
FN i32 document_of(const struct Lists &p, const struct Stretch &at, i32 count) {
    return count < p.ends[at.slot] ? count - 1 : NO_QUERY + at.side;
}
// The documents of a lane's tokens.
FN void documents_of(const struct Lists &p, const struct Stretch &at, const struct Ends &ends,
                     i32 turn, i32 (&to)[OWN]) {
    i32 step = 1;
    while (step <= ends.last - ends.before) step *= 2;
#pragma unroll
    for (i32 i = 0; i < OWN; i++) to[i] = ends.before;
#pragma unroll 1
    while (step /= 2) {
        i32 places[OWN];
        i64 x[OWN];
#pragma unroll
        for (i32 i = 0; i < OWN; i++) places[i] = min_i32(to[i] + step, ends.last) - 1;
        entries_at(p, at.slot, at.batch, places, x);
#pragma unroll
        for (i32 i = 0; i < OWN; i++)
            if (to[i] + step <= ends.last && x[i] <= token_at(turn, i)) to[i] += step;
    }
#pragma unroll
    for (i32 i = 0; i < OWN; i++) to[i] = document_of(p, at, to[i]);
}
// Bounds of the entries that a tile reads.
FN int4 bounds_at(const struct Lists &p, const struct Reading &own, i32 batch, i32 tile) {
    const i32 place = (p.batches[own.slot] > 1 ? batch : 0) * p.tile_count[own.side] + tile;
    return ((const int4 *)p.bounds)[p.first_tile[own.number] + place];
}
