// Run-time selections and their tile lists, made on the device: sm_90a, bfloat16, head_dim 128.
// Written by `maskc compile`; change the pattern, not this file.

#define FN __device__ __forceinline__
typedef int i32;
typedef long long i64;

struct Selected {
    const void *q;  // [batch, heads_q, n_q, HEAD_DIM]
    const void *k;  // [batch, heads_kv, n_kv, HEAD_DIM]
    const void *ranked[5];  // scores, index_q, index_k, index_w, its factors; or null
    const i32 *classes[3];  // [rows][columns]: 0 no pair may be chosen, 1 some, 2 all
    const i32 *args;  // values of parameters
    float *joined[6];  // sums or means of blocks: of queries, of keys; [..., HEAD_DIM]
    i32 *bits[3];  // [batch or 1][heads or 1][rows][words]: what is chosen
    i32 *state;  // of struct Lists, to be cleared
    i64 q_stride[3];  // elements between batches, heads, tokens
    i64 k_stride[3];  // likewise
    i64 ranked_stride[20];  // of each: between batches, heads, rows, columns
    i64 bits_batch[3];  // words from one sequence to the next, 0 if all share theirs
    i64 bits_head[3];  // the same of query heads
    i32 ranked_type[5];  // 0 fp32, 1 fp16, 2 bf16, 3 E4M3
    i32 cells;  // whether scores are of blocks, not of pairs
    i32 index_heads;  // of the indexer
    i32 index_dim;  // elements of its rows
    i32 n[2];  // queries, and keys
    i32 batch;  // sequences
    i32 heads_q;  // query heads
    i32 heads_kv;  // key/value heads
    i32 rows[3];  // blocks of queries
    i32 columns[3];  // blocks of keys
    i32 words[3];  // of 32 blocks of keys
    i32 turn[3];  // blocks of queries that a block ranks for
    i32 owners[3];  // who choose for themselves in a sequence
    i32 voters[3];  // query heads whose scores an owner joins
    i32 copies[3];  // query heads to which an owner's choice is written
    i32 first_block[3];  // of the launch that ranks
    i32 first_join[3];  // warp of the launch that joins rows
    i32 state_words;  // of the state
};

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

typedef unsigned int u32;
typedef unsigned short u16;
#include "common/lib/element_bf16.cuh"
#include "common/lib/integers.h"
#include "common/lib/formulas.h"
constexpr i32 THREADS = 128, WARPS = THREADS / 32;
constexpr i32 HEAD_DIM = 128;
constexpr i32 ROWS = 16;        // most query blocks that a block ranks for
constexpr i32 OWN = ROWS / WARPS;            // of these, per warp
constexpr i32 COLUMNS = 32;                  // key blocks at a time, one per lane
constexpr i32 KEY_ROW = HEAD_DIM + 4;        // floats per row in shared memory
constexpr i32 BLOCKS = 8;            // that an SM runs at once, or more
constexpr u32 ALL = 0xffffffff;
extern __shared__ __align__(16) unsigned char memory[];

// What a selection ranks by.
enum { PRODUCTS, MEANS, INDEXER, GIVEN };
// Class of a cell (query block x key block): how many of its pairs the static mask allows.
enum { NOTHING, SOMETHING, EVERYTHING };

// Parameters of the formulas.
struct Mask {
    i32 c0;
};
FN struct Mask load_mask(const struct Selected &p) {
    struct Mask m = {};
    return m;
}

struct Selection0 {
    static constexpr i32 INDEX = 0;
    static constexpr i32 MOST = 13;  // chosen blocks
    static constexpr i32 BLOCK = 64, Q_BLOCK = 1;  // tokens
    static constexpr i32 SCORE = GIVEN;
    // Cells of one class are stored as one number
    static constexpr i32 CLASS_ROWS = 128;
    static constexpr i32 CLASS_COLUMNS = 2;
    // Whether a pair is a candidate.
    static FN bool allows(const struct Mask &m, i32 q, i32 k, i32 n_q, i32 n_kv) {
        (void)m, (void)q, (void)k, (void)n_q, (void)n_kv;
        return
            floor_div(q + n_kv - n_q, 64) >= k / 64 + 2 && k >= 64 && k <=
            q + n_kv - n_q;
    }
};

// ---------------------------------------------------------------- numbers

FN float from_half(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
FN float from_bfloat(u16 x) { return __uint_as_float((u32)x << 16); }
FN float from_e4m3(u32 x) {  // fp16: fields 7 bits higher, exponent bias 8 more
    if ((x & 0x7f) == 0x7f) return __uint_as_float(0x7fc00000);
    return 256.0f * from_half((x & 0x80) << 8 | (x & 0x7f) << 7);
}
// An element of q or k.
FN float number(u16 x) {
    return BFLOAT16 ? from_bfloat(x) : from_half(x);
}
FN float element(const void *from, i64 place) { return number(((const u16 *)from)[place]); }
// An element of a tensor that a selection ranks by.
enum { SCORES, INDEX_Q, INDEX_K, INDEX_W, FACTORS };
FN float ranked(const struct Selected &p, i32 which, i32 batch, i32 head, i32 row, i32 column) {
    const i64 *const step = p.ranked_stride + 4 * which;
    const i64 place = batch * step[0] + head * step[1] + row * step[2] + column * step[3];
    const void *const from = p.ranked[which];
    if (p.ranked_type[which] == 0) return ((const float *)from)[place];
    if ((which == INDEX_Q || which == INDEX_K) && p.ranked_type[which] == 3)
        return from_e4m3(((const unsigned char *)from)[place]);
    const u16 half = ((const u16 *)from)[place];
    return p.ranked_type[which] == 1 ? from_half(half) : from_bfloat(half);
}

// Increases with the score; 1 for NaN, equal for both zeros, and 0 is reserved for non-candidates.
FN u32 ascending(float score) {
    if (score != score) return 1;
    const u32 bits = __float_as_uint(score + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

template <class T>
FN T warp_sum(T x) {
#pragma unroll
    for (int by = 16; by; by /= 2) x += __shfl_xor_sync(ALL, x, by);
    return x;
}

// ---------------------------------------------------------------- blocks of tokens, as one row

// Sums or averages the rows of a block, one warp each; side 0 is queries, 1 is keys. `number`
// counts over all selections; indices past this one's belong to others.
template <class S>
FN void join_rows(const struct Selected &p, i32 number) {
    const i32 queries = S::Q_BLOCK > 1 ? p.batch * p.heads_q * p.rows[S::INDEX] : 0;
    const i32 side = number >= queries, rest = number - side * queries;
    const i32 size = side ? S::BLOCK : S::Q_BLOCK, heads = side ? p.heads_kv : p.heads_q;
    const i32 blocks = side ? p.columns[S::INDEX] : p.rows[S::INDEX], place = rest / blocks;
    if (number < 0 || place >= p.batch * heads) return;
    const i32 first = rest % blocks * size, last = min_i32(first + size, p.n[side]);
    const i64 *const step = side ? p.k_stride : p.q_stride;
    const void *const from = side ? p.k : p.q;
    const i64 base = place / heads * step[0] + place % heads * step[1];
    float *const to = p.joined[2 * S::INDEX + side] + (i64)rest * HEAD_DIM;
    for (i32 d = threadIdx.x % 32; d < HEAD_DIM; d += 32) {
        double sum = 0;
        for (i32 i = first; i < last; i++) sum += element(from, base + i * step[2] + d);
        to[d] = (float)(S::SCORE == MEANS ? sum / (last - first) : sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
select_join(const __grid_constant__ struct Selected p) {
    const i32 warp = blockIdx.x * WARPS + threadIdx.x / 32;
    (void)warp;
}

// ---------------------------------------------------------------- scores

// The heads and queries that a block selects for: query heads that select together, and query
// blocks from `first` on.
struct Voters {
    i32 batch, head, first;
};

template <class S>
FN i32 class_of(const struct Selected &p, i32 row, i32 column) {
    if (row >= p.rows[S::INDEX] || column >= p.columns[S::INDEX]) return NOTHING;
    const i32 across = (p.columns[S::INDEX] + S::CLASS_COLUMNS - 1) / S::CLASS_COLUMNS;
    return p.classes[S::INDEX][row / S::CLASS_ROWS * across + column / S::CLASS_COLUMNS];
}

// The tokens of a cell.
struct Cell {
    i32 q, q_end, k, k_end;
};
template <class S>
FN struct Cell cell_at(const struct Selected &p, i32 row, i32 column) {
    const i32 q = row * S::Q_BLOCK, k = column * S::BLOCK;
    return {q, min_i32(q + S::Q_BLOCK, p.n[0]), k, min_i32(k + S::BLOCK, p.n[1])};
}
FN i32 pairs_of(const struct Cell &cell) { return (cell.q_end - cell.q) * (cell.k_end - cell.k); }

// Distributes the candidate pairs over the lanes of a warp; returns their number.
template <class S, class Hand>
FN i32 hand_pairs(const struct Selected &p, const struct Mask &m, const struct Cell &cell,
                  const Hand &hand) {
    i32 count = 0;
    for (i32 i = threadIdx.x % 32; i < S::Q_BLOCK * S::BLOCK; i += 32) {
        const i32 q = cell.q + i / S::BLOCK, k = cell.k + i % S::BLOCK;
        if (q < cell.q_end && k < cell.k_end && S::allows(m, q, k, p.n[0], p.n[1]))
            hand(q, k), count++;
    }
    return warp_sum(count);
}

// Number of heads that select together and share keys: the sum of their products is the product of
// their summed queries.
template <class S>
FN i32 heads_alike(const struct Selected &p) {
    return min_i32(p.voters[S::INDEX], p.heads_q / p.heads_kv);
}

#include "common/lib/select_products.cuh"

// The score of one pair.
template <class S>
FN float score_of(const struct Selected &p, i32 batch, i32 head, i32 q, i32 k) {
    if (S::SCORE == GIVEN) return ranked(p, SCORES, batch, head, q, k);
    float total = 0;
    for (i32 h = 0; h < p.index_heads; h++) {
        float product = 0;
        for (i32 d = 0; d < p.index_dim; d++)
            product += ranked(p, INDEX_Q, batch, h, q, d) * ranked(p, INDEX_K, batch, 0, k, d);
        total += ranked(p, INDEX_W, batch, h, q, 0) * (product < 0 ? 0 : product);  // NaN stays
    }
    return p.ranked[FACTORS] ? total * ranked(p, FACTORS, batch, 0, k, 0) : total;
}

// The rank key of a cell where some or all pairs are candidates, computed by a warp. `total` is the
// sum of the heads' scores of the cell, if cells have scores.
template <class S>
FN u32 key_of_some(const struct Selected &p, const struct Mask &m, const struct Voters &at, i32 row,
                   i32 column, bool by_cells, float total) {
    const struct Cell cell = cell_at<S>(p, row, column);
    const i32 heads = p.voters[S::INDEX];
    double sum = 0;
    const i32 count = hand_pairs<S>(p, m, cell, [&](i32 q, i32 k) {
        if (S::SCORE == INDEXER || (S::SCORE == GIVEN && !by_cells))
            for (i32 h = 0; h < heads; h++) sum += score_of<S>(p, at.batch, at.head + h, q, k);
    });
    if (!count) return 0;
    if (by_cells) return ascending(total / (float)heads);
    if (S::SCORE == PRODUCTS)
#pragma unroll 1
        for (i32 h = 0; h < heads; h += heads_alike<S>(p))
            sum += sum_products<S>(p, m, cell, at.batch, at.head + h);
    else sum = warp_sum(sum);
    return ascending((float)(sum / ((double)count * heads)));
}

// The representative of a query block, summed over the heads from `head` on that share keys.
template <class S>
FN float query_of(const struct Selected &p, i32 batch, i32 head, i32 row, i32 d) {
    float sum = 0;
    for (i32 h = head; h < head + heads_alike<S>(p); h++) {
        const i64 place = ((i64)(batch * p.heads_q + h) * p.rows[S::INDEX] + row) * HEAD_DIM + d;
        const i64 from = batch * p.q_stride[0] + h * p.q_stride[1] + row * p.q_stride[2] + d;
        sum += S::Q_BLOCK == 1 ? element(p.q, from) : p.joined[2 * S::INDEX][place];
    }
    return sum;
}

// Products of one column with OWN rows of a warp.
template <int COUNT>
FN void multiply(const float4 *key, const float4 *query, float (&total)[OWN]) {
    float own[COUNT] = {};
#pragma unroll 2
    for (int d = 0; d < HEAD_DIM / 4; d++) {
        const float4 x = key[d];
#pragma unroll
        for (int j = 0; j < COUNT; j++) {
            const float4 y = query[j * WARPS * (HEAD_DIM / 4) + d];
            own[j] += x.x * y.x, own[j] += x.y * y.y, own[j] += x.z * y.z, own[j] += x.w * y.w;
        }
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++) total[j] += own[j];
}

// Adds products of the blocks' representatives; a lane has the same column for all rows of a warp.
template <class S>
FN void add_products(const struct Selected &p, const struct Voters &at, i32 head, i32 chunk,
                     bool fresh, float (&total)[OWN]) {
    constexpr i32 INDEX = S::INDEX;
    float *const queries = (float *)memory, *const keys = queries + ROWS * HEAD_DIM;
    const i32 kv = head / (p.heads_q / p.heads_kv), rows = p.rows[INDEX];
    const float *const of_k = p.joined[2 * INDEX + 1]
        + (i64)(at.batch * p.heads_kv + kv) * p.columns[INDEX] * HEAD_DIM;
    __syncthreads();
    for (i32 i = threadIdx.x; fresh && i < p.turn[INDEX] * HEAD_DIM; i += THREADS) {
        const i32 row = at.first + i / HEAD_DIM;
        queries[i] = row < rows ? query_of<S>(p, at.batch, head, row, i % HEAD_DIM) : 0;
    }
    for (i32 i = threadIdx.x; i < COLUMNS * HEAD_DIM; i += THREADS) {
        const i32 column = COLUMNS * chunk + i / HEAD_DIM, d = i % HEAD_DIM;
        keys[i / HEAD_DIM * KEY_ROW + d] =
            column < p.columns[INDEX] ? of_k[(i64)column * HEAD_DIM + d] : 0;
    }
    __syncthreads();
    const float4 *const key = (const float4 *)(keys + threadIdx.x % 32 * KEY_ROW);
    const float4 *const query = (const float4 *)(queries + threadIdx.x / 32 * HEAD_DIM);
    if (p.turn[INDEX] <= WARPS) multiply<1>(key, query, total);
    else multiply<OWN>(key, query, total);
}

// Whether scores belong to whole cells.
template <class S>
FN bool has_cells(const struct Selected &p) {
    return S::SCORE == MEANS || (S::SCORE == GIVEN && p.cells);
}
// Whether the rank key of a cell of this class follows without looking at its pairs.
template <class S>
FN bool is_plain(const struct Selected &p, i32 kind) {
    return kind == EVERYTHING && (S::SCORE == PRODUCTS || has_cells<S>(p));
}

// Rank keys of the cells of a chunk whose pairs must be looked at, one warp per cell. In a separate
// loop, because the loop over totals needs all registers for the products.
template <class S>
FN void rank_rest(const struct Selected &p, const struct Voters &at, i32 chunk, u32 *keys) {
    const struct Mask m = load_mask(p);
    const i32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (i32 turn = threadIdx.x / 32; turn < p.turn[S::INDEX]; turn += WARPS) {
        const i32 row = at.first + turn, kind = class_of<S>(p, row, COLUMNS * chunk + lane);
        u32 *const own = keys + turn * 32 * p.words[S::INDEX] + COLUMNS * chunk;
#pragma unroll 1
        for (u32 rest = __ballot_sync(ALL, kind && !is_plain<S>(p, kind)); rest; rest &= rest - 1) {
            const i32 other = __ffs(rest) - 1;
            const float total = __shfl_sync(ALL, __uint_as_float(own[lane]), other);
            const u32 key = key_of_some<S>(p, m, at, row, COLUMNS * chunk + other,
                                           has_cells<S>(p), total);
            if (lane == other) own[lane] = key;
        }
    }
}

// Rank keys of all cells: rows of 32 per word of bits.
template <class S>
FN void rank(const struct Selected &p, const struct Voters &at, u32 *keys) {
    constexpr i32 INDEX = S::INDEX;
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, heads = p.voters[INDEX];
    const bool by_cells = has_cells<S>(p);
    const bool joined = S::SCORE == MEANS || S::SCORE == PRODUCTS;
    const i32 alike = joined ? heads_alike<S>(p) : 1;
    bool fresh = true;  // queries are not in shared memory yet
#pragma unroll 1
    for (i32 chunk = 0; chunk < p.words[INDEX]; chunk++) {
        const i32 column = COLUMNS * chunk + lane;
        i32 kind[OWN];
        float total[OWN] = {};
        bool some = false;
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const i32 turn = warp + WARPS * j;
            kind[j] = turn < p.turn[INDEX] ? class_of<S>(p, at.first + turn, column) : NOTHING;
            some |= kind[j] != NOTHING;
        }
        some = __syncthreads_or(some);
#pragma unroll 1
        for (i32 h = 0; some && h < heads; h += alike) {
            if (joined) add_products<S>(p, at, at.head + h, chunk, fresh || heads > alike, total);
#pragma unroll
            for (int j = 0; j < OWN; j++)
                if (!joined && by_cells && kind[j])
                    total[j] += ranked(p, SCORES, at.batch, at.head + h,
                                       at.first + warp + WARPS * j, column);
        }
        fresh = fresh && !some;
#pragma unroll
        for (int j = 0; j < OWN; j++) {
            const i32 turn = warp + WARPS * j;
            if (turn >= p.turn[INDEX]) break;
            const i32 pairs = by_cells ? 1 : pairs_of(cell_at<S>(p, at.first + turn, column));
            keys[turn * 32 * p.words[INDEX] + column] =
                kind[j] == NOTHING ? 0
                : is_plain<S>(p, kind[j]) ? ascending(total[j] / ((float)pairs * heads))
                : __float_as_uint(total[j]);
        }
        if (some) rank_rest<S>(p, at, chunk, keys);
    }
    __syncthreads();
}

// ---------------------------------------------------------------- the best of a row

// The greatest key that at least `most` keys reach; 0 if there are fewer candidates. By a warp.
FN u32 threshold_of(const u32 *keys, i32 words, i32 most) {
    u32 found = 0;
#pragma unroll 1
    for (i32 bit = 31; bit >= 0; bit--) {
        const u32 next = found | 1u << bit;
        i32 count = 0;
        for (i32 i = threadIdx.x % 32; i < 32 * words; i += 32) count += keys[i] >= next;
        if (__reduce_add_sync(ALL, count) >= most) found = next;
    }
    return found;
}

// Bits of the best of a row, ties to the lower index; for all heads that select together.
template <class S>
FN void mark_best(const struct Selected &p, const u32 *keys, i64 row, i64 head_step) {
    const i32 words = p.words[S::INDEX], lane = threadIdx.x % 32;
    const u32 least = threshold_of(keys, words, S::MOST);
    i32 above = 0;
    for (i32 i = lane; i < 32 * words; i += 32) above += keys[i] > least;
    i32 left = S::MOST - __reduce_add_sync(ALL, above);
    for (i32 word = 0; word < words; word++) {
        const u32 key = keys[32 * word + lane];
        const u32 ties = __ballot_sync(ALL, key == least && least > 0);
        const bool tie = ties >> lane & 1 && __popc(ties & ((1u << lane) - 1)) < left;
        const u32 bits = __ballot_sync(ALL, key > least || tie);
        left -= __popc(ties);
        for (i32 head = lane; head < p.copies[S::INDEX]; head += 32)
            p.bits[S::INDEX][row * words + word + head * head_step] = bits;
    }
}

template <class S>
FN void choose(const struct Selected &p, i32 block) {
    constexpr i32 INDEX = S::INDEX;
    const i32 turns = (p.rows[INDEX] + p.turn[INDEX] - 1) / p.turn[INDEX], place = block / turns;
    const i32 owner = place % p.owners[INDEX], heads = p.copies[INDEX];
    // Start with the last rows: in most masks they have the most candidates.
    const i32 first = (turns - 1 - block % turns) * p.turn[INDEX];
    const struct Voters at = {place / p.owners[INDEX], owner * p.voters[INDEX], first};
    u32 *const keys = (u32 *)memory + ROWS * HEAD_DIM + COLUMNS * KEY_ROW;
    rank<S>(p, at, keys);
    const i64 head_step = (i64)p.rows[INDEX] * p.words[INDEX];
    for (i32 turn = threadIdx.x / 32; turn < p.turn[INDEX]; turn += WARPS) {
        if (first + turn >= p.rows[INDEX]) break;
        mark_best<S>(p, keys + turn * 32 * p.words[INDEX],
                     (i64)place * heads * p.rows[INDEX] + first + turn, head_step);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
select_blocks(const __grid_constant__ struct Selected p) {
    const i32 block = blockIdx.x;
    if (block == 0)
        for (i32 i = threadIdx.x; i < p.state_words; i += THREADS) p.state[i] = 0;
    if (block >= p.first_block[0])
        return choose<Selection0>(p, block - p.first_block[0]);
}

#include "common/lib/block_sums.cuh"

#include "common/lib/block_before.cuh"

#include "common/lib/list_items.cuh"

// ---------------------------------------------------------------- what a tile has of the chosen

#define SEVERAL 0

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
FN bool read_part(const struct Lists &p, i32 block) {
    const i32 shares = (p.tile_count[0] + p.reading_tiles - 1) / p.reading_tiles;
    const i32 list = block / shares, tile = (block - list * shares) * p.reading_tiles;
    const i32 tiles = min_i32(p.reading_tiles, p.tile_count[0] - tile);
    join_bits<Selection0>(p, list, tile, tiles);
    return false;
}

// Each pair is selected or not by each selection, which gives a set of possible combinations.
// Returns those that pairs of a tile may have; `chosen` are the combinations that include this
// selection.
template <class S>
FN u32 ways_of(const struct Lists &p, i32 list, i32 row, i32 column, u32 chosen) {
    const i32 *const words = seen_by<S>(p, list, row);
    const i32 first = column * p.tile[1] / S::BLOCK;
    const i32 last = (min_i32((column + 1) * p.tile[1], p.n[1]) - 1) / S::BLOCK;
    u32 some = 0, others = 0;
    for (i32 word = first / 32; word <= last / 32; word++) {
        const u32 from = word == first / 32 ? ALL << first % 32 : ALL;
        const u32 asked = word == last / 32 ? from & ALL >> (31 - last % 32) : from;
        some |= words[word] & asked;
        others |= ~words[p.array_row[S::INDEX] + word] & asked;
    }
    return (some ? chosen : 0) | (others ? ~chosen : 0);
}

// A line: all of its tiles are candidates.
struct Line {
    struct Place at;
    i32 count;
    uint2 *bits;
};
FN struct Line line_of(const struct Lists &p, const struct Place &at) {
    const i32 count = p.tile_count[1 - at.side], words = (count + 31) / 32;
    const i64 place = ((i64)at.list * p.tile_count[at.side] + at.tile) * words;
    return {at, count, (uint2 *)p.bits[at.side] + place};
}
FN i32 across_of(const struct Line &, i32 i) { return i; }
FN i32 verdict_of(const struct Lists &p, const struct Line &line, i32 i) {
    if (i >= line.count) return 0;
    const struct Place &at = line.at;
    const i32 row = at.side ? i : at.tile, column = at.side ? at.tile : i;
    const i32 variant = p.cases[2 * (at.list % p.heads)];
    const i32 code = p.codes[(variant * p.tile_count[0] + row) * p.tile_count[1] + column];
    if (!code) return 0;
    u32 ways = (1u << (1 << 1)) - 1;
    ways &= ways_of<Selection0>(p, at.list, row, column, 2);
    if (!(code & ways)) return 0;
    return (code >> 8 & ways) == ways ? 3 : 1;
}

#include "common/lib/make_lists.cuh"
