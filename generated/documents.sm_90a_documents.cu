// Tile lists of a mask that reads data, made on the device: sm_90a.
// Written by `maskc compile`; change the pattern, not this file.

#define FN __device__ __forceinline__
typedef int i32;
typedef long long i64;

struct Lists {
    const void *source[8];  // what the caller gave, by array
    const i32 *kept_ptr[2];  // [heads][tiles + 1]: candidates, the tiles of any data
    const i32 *kept_tiles[2];  // index * 2 + (1 if every pair is live), ascending
    const i32 *mask_args;  // [heads]: the formula's shape, its constants
    const i32 *cases;  // selections: [cases][2], a variant and a head that has the case
    const i32 *codes;  // [variants][tile rows][tile columns], see maskc/layout/topk/
    const i32 *planned;  // [items + merges][WORK_FIELDS] of candidates, or null
    i32 *array[8];  // what is given, or chosen, as the pass reads it
    i32 *bounds;  // [tiles][4]: least and greatest of a tile, 0, their last end
    i32 *starts;  // [batches][tile columns][4] bits: keys that begin a tile, or null
    i32 *seen[3];  // [lists][tile rows][2][words]: what some queries chose, and all
    i32 *bits[2];  // [lists][words][2]: candidates that stay, and are full
    i32 *counts[2];  // [lists][tiles]: live tiles
    i32 *ptr[2];  // [lists][tiles + 1]: row_ptr and col_ptr
    i32 *tiles[2];  // row_tiles and col_tiles; [lists][room]
    i32 *work;  // [items][WORK_FIELDS], or null
    i32 *counter;  // [counters], to be cleared
    i32 *verdict;  // whether anything given was wrong, or null
    i32 *state;  // [STATE_WORDS + lists * STATE_OF_LIST], zero before the launch
    i32 *spent;  // the state of the launch before, to be cleared, or null
    i32 *report;  // the verdict, set and never cleared, in memory of the host
    i32 *fine;  // likewise: gets the ticket where nothing was wrong, or null
    i32 *result[5];  // what is spoilt where something was
    i64 most[8];  // tokens of a document
    i64 ticket;  // of the lists
    i64 result_words[5];  // of four bytes
    i64 source_batch[8];  // elements from one sequence to the next, 0 if shared
    i64 source_head[8];  // the same of heads
    i64 source_row[8];  // the same of rows of a table
    i64 source_step[8];  // elements from one entry, or length, to the next
    i64 array_batch[8];  // as in struct Attention
    i64 array_head[8];  // likewise
    i64 array_row[8];  // likewise
    i32 source_code[8];  // of an element: 0 u8, 1 i8, 2 i16, 3 i32, 4 i64
    i32 rule[8];  // 0 as it is, 1 boolean, 2 clipped to 0..n_kv, 3 cumulative
    i32 ends[8];  // cumulative lengths of a sequence
    i32 batches[8];  // sequences of the array, or 1
    i32 heads_of[8];  // heads of the array, or 1
    i32 rows[8];  // of a table, or 1
    i32 columns[8];  // entries of a row
    i32 first_block[17];  // of each reading; then how many there are
    i32 first_tile[16];  // of each reading, among all bounds
    i32 bit_words[2];  // of a list
    i32 room[2];  // tiles for which a list has room
    i32 n[2];  // queries, and keys
    i32 tile[2];  // tokens of a tile
    i32 tile_count[2];  // tile rows, and tile columns
    i32 lists;  // of tiles: sequences with data of their own, times heads likewise
    i32 heads;  // lists of a sequence
    i32 sharing;  // query heads with lists of their own that share items' columns, or 0
    i32 wide;  // whether constants have two words
    i32 most_runs;  // documents of a list with which its tiles may begin
    i32 reading_blocks;  // of the launch: they read the data
    i32 reading_tiles;  // that such a block reads, at most READ_TILES
    i32 lines;  // of the launch: tile rows, tile columns or both, of all lists
    i32 item_blocks;  // of the launch: they write what is planned, if anything is
    i32 first_side;  // the first of those whose lists are made: 0 rows, 1 columns
    i32 work_side;  // whose tiles items have, if there are any
    i32 owners;  // of the items of every tile of a list: heads, or groups of them
    i32 owner_heads;  // query heads from one owner to the next
    i32 item_heads;  // of an item, see WORK_FIELDS
    i32 group_owners;  // of a list that share the cache
    i32 group_lists;  // that share it; above 1 with all of their owners
    i32 parts;  // packed heads: items and parts of a row for which there is room; else 0
    i32 most_parts;  // of a row
    i32 part_tiles[2];  // of a part, at least, and of long rows
    i32 item_tiles;  // of an item, at most
    i32 blocks;  // of the pass that run at once: each is to have an item
    i32 items;  // that are planned
    i32 merges;  // behind them
    i32 counters;  // of the pass
};

#undef WITH_WIDE
#define WITH_WIDE 1  // bounds need 64 bits
#include "common/lib/integers.h"
#include "common/lib/formulas.h"
#include "common/lib/tile_bounds.h"

typedef unsigned int u32;
constexpr i32 THREADS = 128;
constexpr i32 BLOCKS = 8;  // that an SM runs at once, or more
constexpr i32 MOST_RESULTS = 5;
constexpr u32 ALL = 0xffffffff;

#include "common/lib/block_sums.cuh"

#include "common/lib/block_before.cuh"

#include "common/lib/list_items.cuh"

// ---------------------------------------------------------------- the mask on a tile

// Why a block reads an array of the mask: for the tiles of a side (0 rows, 1 columns), or (-1) only
// to convert it to the 32 bits that attention kernels read.
struct Reading {
    i32 number, slot, side;
    bool writes;
};
constexpr i32 READINGS = 2;
constexpr i32 CHUNK = 2048;  // elements per block for side -1
constexpr i32 READ_TILES = 16;  // most tiles per block for the other sides
FN struct Reading reading_at(i32 number) {
    switch (number) {
    case 0:
        return {0, 0, 1, 1};
    case 1:
        return {1, 1, 0, 1};
    }
    return {0, 0, -1, false};
}
#define SEVERAL 1  // tiles of keys may begin with documents
// Readings of document ids
constexpr i32 OF_Q = 1, OF_K = 0;
constexpr i32 STOPS = 2;  // array of document ends
#include "common/lib/entries.cuh"

#include "common/lib/segments.cuh"

#include "common/lib/read_arrays.cuh"

// The constants of the mask.
struct Mask {
    i64 c0;
    i32 shape;
};
FN i64 constant(const i32 *args, i32 i, bool wide) {
    return wide ? (i64)args[2 * i + 1] * 4294967296 + (u32)args[2 * i] : args[i];
}
FN struct Mask load_mask(const struct Lists &p, i32 variant) {
    struct Mask m = {};
    const i32 words = 1 + 1 * (1 + p.wide);
    const i32 *const args = p.mask_args + variant * words;
    m.shape = args[0];
    m.c0 = constant(args + 1, 0, p.wide);
    return m;
}

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
    struct Span found = span(0x7fffffff, -0x7fffffff - 1);
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
// Bit 0: some pair of a tile may be live; bit 1: every pair certainly is. `full`: the part of the
// formula without data keeps all pairs. For a single pair, both bits are exact.
template <class At>
FN i32 classify(const struct Lists &p, const struct Mask &m, const At &at, bool full) {
    const struct Tokens tokens = tokens_of(p, at);
    [[maybe_unused]] const i64 q0 = tokens.q0, q1 = tokens.q1, k0 = tokens.k0, k1 = tokens.k1;
    (void)m, (void)full;
    const struct Span t0 = bounds_of(p, 0, at);
    const struct Span t1 = bounds_of(p, 1, at);
    const i32 t2 = t0.low <= t1.high;
    const i32 t3 = t1.low <= t0.high;
    const i32 t4 = t2 & t3;
    const i32 t5 = t0.high <= t1.low;
    const i32 t6 = t1.high <= t0.low;
    const i32 t7 = t5 & t6;
    return (t4) | (t7 && full) << 1;
}

// ---------------------------------------------------------------- the candidates of a line

struct Line {
    struct Place at;
    struct Mask mask;
    const i32 *words;
    i32 count;
    uint2 *bits;
};
// A sequence has one candidate list per head, or one for all heads.
FN struct Line line_of(const struct Lists &p, const struct Place &at) {
    const i32 head = at.list % p.heads;
    const i32 *const ptr = p.kept_ptr[at.side] + head * (p.tile_count[at.side] + 1);
    const i32 first = ptr[at.tile], count = ptr[at.tile + 1] - first;
    const i64 bits = (i64)at.list * p.bit_words[at.side] + (first - ptr[0]) / 32 + at.tile;
    return {at, load_mask(p, head), p.kept_tiles[at.side] + first, count,
            (uint2 *)p.bits[at.side] + bits};
}
FN i32 across_of(const struct Line &line, i32 i) { return line.words[i] >> 1; }
FN struct Box box_of(const struct Lists &p, const struct Line &line, i32 across) {
    const struct Place &at = line.at;
    return {at.list / p.heads, at.list % p.heads, at.side ? across : at.tile,
            at.side ? at.tile : across};
}

// If bounds cannot exclude a tile, its pairs are tested when it has at most this many queries.
// Testing then costs no more than loading the tile for nothing, as in tiles with tokens of many
// sequences.
constexpr i32 FEW_QUERIES = 8;

// Whether a tile has a live pair according to data. By a warp.
FN bool has_pairs(const struct Lists &p, const struct Mask &m, const struct Box &at) {
    const struct Tokens tokens = tokens_of(p, at);
    for (i32 k = (i32)tokens.k0; k <= tokens.k1; k += 32) {
        const i32 own = k + threadIdx.x % 32;
        bool live = false;
        if (own <= tokens.k1)
            for (i32 q = (i32)tokens.q0; q <= tokens.q1 && !live; q++) {
                const struct Pair pair = {at.batch, at.head, q, own};
                live = classify(p, m, pair, true) & 1;
            }
        if (__any_sync(ALL, live)) return true;
    }
    return false;
}

FN i32 verdict_of(const struct Lists &p, const struct Line &line, i32 i) {
    i32 word = 0, found = 0;
    if (i < line.count) {
        word = line.words[i];
        found = classify(p, line.mask, box_of(p, line, word >> 1), word & 1);
    }
    if (p.n[0] > FEW_QUERIES) return found;
    for (u32 rest = __ballot_sync(ALL, found == 1); rest; rest &= rest - 1) {
        const i32 lane = __ffs(rest) - 1, across = __shfl_sync(ALL, word, lane) >> 1;
        const bool live = has_pairs(p, line.mask, box_of(p, line, across));
        if (!live && threadIdx.x % 32 == lane) found = 0;
    }
    return found;
}

#include "common/lib/make_lists.cuh"

#include "common/lib/spoil_results.cuh"
