// Tile lists of documents, made on the device: sm_90a.
// Written by `maskc compile`; change the template, not this file.

#define FN __device__ __forceinline__
typedef int i32;
typedef long long i64;

struct Listed {
    const void *source[2];  // ids [lists][n], or cumulative lengths [lists][ends]
    const i32 *kept_ptr[2];  // [tiles + 1]: lists of the mask but for its documents
    const i32 *kept_tiles[2];  // index * 2 + (1 if every pair is live), ascending
    i32 *ids[2];  // [lists][n]
    i32 *bounds[2];  // [lists][tiles][4]: least and greatest id of a tile, what is odd
    i32 *counts[2];  // [lists][tiles]: live tiles
    i32 *ptr[2];  // [lists][tiles + 1]: row_ptr and col_ptr
    i32 *tiles[2];  // row_tiles and col_tiles; [lists][room]
    i32 *work;  // [items][WORK_FIELDS], or null
    i32 *counter;  // [2], to be cleared
    i32 *runs;  // [lists][tile columns][4] bits: keys that begin a document, or null
    i32 *starts;  // likewise: keys that tiles begin with
    i32 *stops;  // [lists][n]: where their documents end, or -n
    i32 *packed;  // [lists]: whether tiles begin with documents
    i32 *verdict;  // whether anything given was wrong
    i32 *report;  // the same, set and never cleared, in memory of the host
    i32 *fine;  // likewise: gets the ticket where nothing was, or null
    i32 *result[5];  // what is spoilt where it was
    i64 most[2];  // tokens of a document
    i64 ticket;  // of the lists
    i64 result_words[5];  // of four bytes
    i64 source_list[2];  // elements from one list to the next, 0 if all share theirs
    i64 source_step[2];  // elements from one id, or length, to the next
    i32 source_bytes[2];  // of an element: 4 or 8
    i32 ends[2];  // cumulative lengths of a list; 0: there are ids
    i32 n[2];  // queries, and keys
    i32 tile[2];  // tokens of a tile
    i32 tile_count[2];  // tile rows, and tile columns
    i32 room;  // tiles for which a list has room
    i32 most_runs;  // documents of a list that tiles may begin with
    i32 lists;  // sequences with documents of their own, or 1
    i32 first_side;  // the first of those whose lists are made: 0 rows, 1 columns
    i32 owners;  // of the items of every tile of a list: heads, or groups of them
    i32 owner_heads;  // query heads from one owner to the next
    i32 item_heads;  // of an item, see WORK_FIELDS
    i32 group_owners;  // of a list that share the cache
    i32 group_lists;  // that share it; above 1 with all of their owners
};

typedef unsigned int u32;
constexpr i32 THREADS = 128;
static_assert(THREADS == 128, "bits of the keys of a tile come from four warps");
constexpr i32 BLOCKS = 8;  // that a multiprocessor runs at once, or more
constexpr u32 ALL = 0xffffffff;

// What a block is for: a tile row (side 0) or a tile column (side 1) of one of the lists.
struct Place {
    i32 side, list, tile;
};
FN struct Place place_of(const struct Listed &p, i32 block) {
    const i32 rows = p.lists * p.tile_count[0], side = block >= rows;
    const i32 rest = block - side * rows, list = rest / p.tile_count[side];
    return {side, list, rest - list * p.tile_count[side]};
}

FN i32 least_of(i32 a, i32 b) { return a < b ? a : b; }
FN i32 greatest_of(i32 a, i32 b) { return a > b ? a : b; }

#include "common/lib/block_sums.cuh"

// ---------------------------------------------------------------- ids, and their bounds by tile

FN i64 given(const struct Listed &p, const struct Place &at, i32 index) {
    const i64 place = at.list * p.source_list[at.side] + index * p.source_step[at.side];
    const void *const from = p.source[at.side];
    return p.source_bytes[at.side] == 8 ? ((const i64 *)from)[place] : ((const i32 *)from)[place];
}
// The ids of queries behind the last document; those of keys there are greater by 1, so that no
// query sees one. maskc/layout/inputs/call_data.py gives them the same.
constexpr i32 NO_QUERY = (1 << 30) - 1;
// The document of a token, from cumulative lengths: how many of them end at or before it.
FN i32 document_of(const struct Listed &p, const struct Place &at, i32 token) {
    i32 low = 0, high = p.ends[at.side];
    while (low < high) {
        const i32 middle = (low + high) / 2;
        if (given(p, at, middle) <= token) low = middle + 1;
        else high = middle;
    }
    return low < p.ends[at.side] ? low - 1 : NO_QUERY + at.side;
}
// Whether a block's share of the cumulative lengths is out of order, or ends behind the tokens, or
// has a document that is longer than promised.
FN bool wrong_ends(const struct Listed &p, const struct Place &at) {
    const i32 ends = p.ends[at.side], step = p.tile_count[at.side] * THREADS;
    bool wrong = false;
    for (i32 i = at.tile * THREADS + threadIdx.x; i < ends; i += step) {
        const i64 next = i + 1 < ends ? given(p, at, i + 1) : p.n[at.side];
        const i64 end = given(p, at, i);
        wrong |= end > next || (i + 1 < ends && next - end > p.most[at.side]);
        wrong |= i == 0 && end != 0;
    }
    return wrong;
}

// The id of a token, or the number of its document.
FN i64 id_of(const struct Listed &p, const struct Place &at, i32 token) {
    return p.ends[at.side] ? document_of(p, at, token) : given(p, at, token);
}

// What may be odd about a tile.
enum { WRONG = 1, DESCENDS = 2 };

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
documents_tiles(const __grid_constant__ struct Listed p) {
    const struct Place at = place_of(p, blockIdx.x);
    const i32 n = p.n[at.side], size = p.tile[at.side], first = at.tile * size;
    const i32 end = least_of(first + size, n), tile = at.list * p.tile_count[at.side] + at.tile;
    i32 least = 0x7fffffff, greatest = -least - 1;
    bool wrong = p.ends[at.side] && wrong_ends(p, at), descends = false;
    for (i32 turn = first; turn < end; turn += THREADS) {
        const i32 token = turn + threadIdx.x;
        bool begins = token == 0;
        if (token < end) {
            const i64 id = id_of(p, at, token), before = token ? id_of(p, at, token - 1) : id;
            const i32 kept = (i32)id;
            p.ids[at.side][(i64)at.list * n + token] = kept;
            least = least_of(least, kept), greatest = greatest_of(greatest, kept);
            begins |= id != before;
            descends |= id < before;
            wrong |= kept != id;
        }
        const u32 runs = __ballot_sync(ALL, begins);
        if (p.runs && at.side && threadIdx.x % 32 == 0)  // tiles of keys take one turn
            p.runs[4 * tile + threadIdx.x / 32] = runs;
    }
    i32 odd = __syncthreads_or(wrong) ? WRONG : 0;
    odd |= __syncthreads_or(descends) ? DESCENDS : 0;
    least = ~block_max(~least), greatest = block_max(greatest);
    if (threadIdx.x == 0) ((int4 *)p.bounds[at.side])[tile] = make_int4(least, greatest, odd, 0);
    if (threadIdx.x == 0 && blockIdx.x == 0) p.counter[0] = p.counter[1] = 0;
}

// ---------------------------------------------------------------- where tiles of keys begin

// Bits of the keys of a tile column.
struct Bits {
    u32 word[4];
};
FN struct Bits bits_at(const i32 *from, i32 tile) {
    const int4 x = ((const int4 *)from)[tile];
    return {(u32)x.x, (u32)x.y, (u32)x.z, (u32)x.w};
}
FN i32 count_of(const struct Bits &x) {
    return __popc(x.word[0]) + __popc(x.word[1]) + __popc(x.word[2]) + __popc(x.word[3]);
}
// The first bit at or behind `from`, or `none`.
FN i32 first_bit(const struct Bits &x, i32 from, i32 none) {
    i32 found = none;
#pragma unroll
    for (int i = 3; i >= 0; i--) {
        const u32 rest = from >= 32 * i + 32 ? 0 : x.word[i] & ALL << greatest_of(from - 32 * i, 0);
        if (rest) found = 32 * i + __ffs(rest) - 1;
    }
    return found;
}
// The last bit, or `none`.
FN i32 last_bit(const struct Bits &x, i32 none) {
    i32 found = none;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (x.word[i]) found = 32 * i + 31 - __clz(x.word[i]);
    return found;
}

// Whether the documents of a list are packed, one behind the other, and of some length.
FN bool is_packed(const struct Listed &p, i32 list, i32 runs) {
    bool descends = false;
    for (int side = 0; side < 2; side++) {
        const int4 *const bounds = (const int4 *)p.bounds[side] + list * p.tile_count[side];
        for (i32 i = threadIdx.x; i < p.tile_count[side]; i += THREADS)
            descends |= bounds[i].z & DESCENDS;
    }
    return !__syncthreads_or(descends) && runs <= p.most_runs;
}

// Where documents are packed every one has tiles of its own, the first of which begins with it: so
// its sums are the same wherever it lies. Elsewhere tiles begin where tile columns do.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
documents_starts(const __grid_constant__ struct Listed p) {
    const i32 tiles = p.tile_count[1], list = blockIdx.x / tiles, tile = blockIdx.x % tiles;
    const i32 n = p.n[1], size = p.tile[1], first = tile * size, own = threadIdx.x;
    i32 begin = 0, end = n, runs[1] = {0};  // of the document that lies before, or goes on behind
    for (i32 i = threadIdx.x; i < tiles; i += THREADS) {
        const struct Bits x = bits_at(p.runs, list * tiles + i);
        runs[0] += count_of(x);
        if (i < tile) begin = greatest_of(begin, i * size + last_bit(x, -i * size));
        if (i > tile) end = least_of(end, i * size + first_bit(x, 0, n));
    }
    block_sums(runs);
    begin = block_max(begin), end = -block_max(-end);
    const bool packed = is_packed(p, list, runs[0]);
    const struct Bits x = bits_at(p.runs, list * tiles + tile);
    const bool goes_on = own == begin % size && own < first_bit(x, 0, size);
    bool starts = own == 0;
    if (packed) starts = first_bit(x, own, size) == own || goes_on;
    starts &= own < size && first + own < n;
    const u32 word = __ballot_sync(ALL, starts);
    if (own % 32 == 0) p.starts[4 * (list * tiles + tile) + own / 32] = word;
    if (starts) {
        const i32 next = first_bit(x, own + 1, size);
        p.stops[(i64)list * n + first + own] = !packed ? -n : next < size ? first + next : end;
    }
    if (own == 0 && tile == 0) p.packed[list] = packed;
}

// ---------------------------------------------------------------- the tiles that stay

// Rows are listed first, then columns, or one of them alone.
FN struct Place listed_place(const struct Listed &p) {
    return place_of(p, blockIdx.x + p.first_side * p.lists * p.tile_count[0]);
}

// A tile row (or column): the tiles that it has but for documents, its bounds and those across.
struct Line {
    const i32 *words;
    i32 count, list;
    int4 own;
    const int4 *across;
};
FN struct Line line_of(const struct Listed &p, const struct Place &at) {
    const i32 count = p.tile_count[at.side], other = p.tile_count[1 - at.side];
    const i32 *const ptr = p.kept_ptr[at.side] + at.tile;
    return {p.kept_tiles[at.side] + ptr[0], ptr[1] - ptr[0], at.list,
            ((const int4 *)p.bounds[at.side])[at.list * count + at.tile],
            (const int4 *)p.bounds[1 - at.side] + at.list * other};
}
FN bool meet(int4 a, int4 b) { return a.x <= b.y && b.x <= a.y; }
FN bool same(int4 a, int4 b) { return a.x == a.y && b.x == b.y && a.x == b.x; }

// Hands on the word of a tile of keys if it stays.
template <class Hand>
FN void hand_tile(const struct Listed &p, const struct Line &line, i32 first, i32 stop, bool full,
                  int4 bounds, const Hand &hand) {
    if (p.packed[line.list])
        bounds.x = bounds.y = p.ids[1][(i64)line.list * p.n[1] + first];
    full &= (stop < 0 ? -stop : stop) - first >= p.tile[1] && same(line.own, bounds);
    if (meet(line.own, bounds)) hand(2 * first + full);
}
// Hands on the words of the tiles that stay of a line's tile `i`, ascending. Ids between the least
// and the greatest may be missing: such a tile stays, and its pairs are tested.
template <class Hand>
FN void hand_tiles(const struct Listed &p, const struct Line &line, i32 i, const Hand &hand) {
    const i32 word = line.words[i], index = word >> 1;
    const int4 bounds = line.across[index];
    if (!meet(line.own, bounds)) return;
    if (!p.runs) return hand(word & ~1 | (word & same(line.own, bounds)));

    // Of the tile column all that begin there; and what reaches into it from one that is dead.
    const i32 size = p.tile[1], first = index * size, column = line.list * p.tile_count[1] + index;
    const i32 *const stops = p.stops + (i64)line.list * p.n[1];
    if (index > 0 && (i == 0 || line.words[i - 1] >> 1 < index - 1)) {
        const i32 start = first - size + last_bit(bits_at(p.starts, column - 1), -size);
        if (start >= 0 && least_of(start + size, stops[start]) > first)
            hand_tile(p, line, start, stops[start], false, bounds, hand);
    }
    const bool next = i + 1 < line.count && line.words[i + 1] == 2 * (index + 1) + 1;
    const struct Bits starts = bits_at(p.starts, column);
    for (i32 at = first_bit(starts, 0, size); at < size; at = first_bit(starts, at + 1, size)) {
        const bool full = word & 1 && (at == 0 || next);
        hand_tile(p, line, first + at, stops[first + at], full, bounds, hand);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
documents_counts(const __grid_constant__ struct Listed p) {
    const struct Place at = listed_place(p);
    const struct Line line = line_of(p, at);
    i32 count[1] = {0};
    for (i32 i = threadIdx.x; i < line.count; i += THREADS)
        hand_tiles(p, line, i, [&](i32) { count[0]++; });
    block_sums(count);
    if (threadIdx.x == 0) p.counts[at.side][at.list * p.tile_count[at.side] + at.tile] = count[0];
}

#include "common/lib/list_items.cuh"

#include "common/lib/block_before.cuh"

// Writes a list in order.
FN void write_tiles(const struct Listed &p, const struct Place &at, i32 *to) {
    const struct Line line = line_of(p, at);
    for (i32 turn = 0; turn < line.count; turn += THREADS) {
        const i32 i = turn + threadIdx.x;
        i32 count = 0, all;
        if (i < line.count) hand_tiles(p, line, i, [&](i32) { count++; });
        i32 *own = to + block_before(count, all);
        if (count) hand_tiles(p, line, i, [&](i32 word) { *own++ = word; });
        to += all;
    }
}

// One block: whether a tile was found that had something wrong.
FN void judge(const struct Listed &p) {
    bool wrong = false;
    for (int side = 0; side < 2; side++) {
        const int4 *const bounds = (const int4 *)p.bounds[side];
        for (i32 i = threadIdx.x; i < p.lists * p.tile_count[side]; i += THREADS)
            wrong |= bounds[i].z & WRONG;
    }
    wrong = __syncthreads_or(wrong);
    if (threadIdx.x == 0) tell_verdict(p, wrong);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
documents_lists(const __grid_constant__ struct Listed p) {
    const struct Place at = listed_place(p);
    const i32 tiles = p.tile_count[at.side], side = at.side;
    const i32 count = p.counts[side][at.list * tiles + at.tile];
    const i32 first = at.list * p.room + tiles_before(p, at);
    i32 *const ptr = p.ptr[side] + at.list * (tiles + 1) + at.tile;
    if (threadIdx.x == 0) {
        ptr[0] = first;
        if (at.tile + 1 == tiles) ptr[1] = first + count;
    }
    if (p.work) write_items(p, at, first, count, 1, 0);
    write_tiles(p, at, p.tiles[side] + first);
    if (blockIdx.x == 0 && p.verdict) judge(p);
}

// ---------------------------------------------------------------- results of what was wrong

// NaN, in any precision.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
documents_spoil(const __grid_constant__ struct Listed p) {
    if (!*p.verdict) return;
    const i64 step = (i64)gridDim.x * THREADS;
    for (int i = 0; i < 5; i++) {
        if (!p.result[i]) continue;
        for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.result_words[i]; at += step)
            p.result[i][at] = -1;
    }
}
