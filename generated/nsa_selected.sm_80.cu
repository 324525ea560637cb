// Attention for one mask: sm_80, bfloat16, head_dim 128, tiles of 128 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

constexpr int HEAD_DIM = 128;  // elements of a row of q, k, v and out
// Pieces of 16 bytes of a row of q or k, and of v or out, in memory. Where rows are PADDED copies
// fill up the rest of HEAD_DIM with zeros, and nothing is stored behind them.
[[maybe_unused]] constexpr bool PADDED = 0;
[[maybe_unused]] constexpr int PIECES_QK = 16;
[[maybe_unused]] constexpr int PIECES_V = 16;
constexpr int TILE_Q = 128;  // queries per block
constexpr int TILE_K = 64;  // keys per step
constexpr int WARPS = 4;
constexpr int MIN_BLOCKS = 2;  // resident per multiprocessor
// A warp's q stays in registers.
constexpr bool KEEP_Q = 0;
// Tops and sums wait in shared memory between uses.
constexpr bool PARK_ROWS = 1;
// Keys and values of so many tokens fit the L2 cache.
constexpr int GROUP_KEYS = 65536;
// Bytes that struct Block may take, and of all shared memory.
[[maybe_unused]] constexpr int BLOCK_BYTES = 1024;
[[maybe_unused]] constexpr int MEMORY = 70656;
// Tiles come as lists in memory, or as ranges of consecutive ones.
[[maybe_unused]] constexpr bool TILE_LISTS = 1;

#include "sm80/lib/constants.cuh"

#ifndef WITH_SOFTCAP
#define WITH_SOFTCAP 0
#endif
#ifndef WITH_ALIBI
#define WITH_ALIBI 0
#endif
#ifndef WITH_SINKS
#define WITH_SINKS 0
#endif
#ifndef WITH_ENTMAX
#define WITH_ENTMAX 0
#endif
#ifndef WITH_NAN_SAFE
#define WITH_NAN_SAFE 0
#endif
#ifndef WITH_WIDE
#define WITH_WIDE 0
#endif
#include "common/lib/score_facts.h"

#define FN __device__ __forceinline__
typedef int i32;
typedef long long i64;

struct Attention {
    const void *q;  // [batch, heads_q, n_q, HEAD_DIM]
    const void *k;  // [batch, heads_kv, n_kv, HEAD_DIM]
    const void *v;  // [batch, heads_kv, n_kv, HEAD_DIM_V]
    void *out;  // [batch, heads_q, n_q, HEAD_DIM_V]
    float *lse;  // [batch, heads_q, n_q], natural log
    const void *dout;  // backward: like out
    void *dq;  // backward: like q
    void *dk;  // backward: like k
    void *dv;  // backward: like v
    float *delta;  // workspace; backward: [batch, heads_q, n_q] rowsum(out * dout)
    float *dsink;  // backward: [heads_q] to add to, or null
    float *dslopes;  // backward: [heads_q] to add to, or null
    const float *alibi_slopes;  // [heads_q], or null
    const float *sink_logits;  // [heads_q], or null
    const i32 *row_ptr;  // [lists][tile_rows + 1] offsets into row_tiles
    const i32 *row_tiles;  // tile column * 2 + (1 if every pair is live), ascending
    const i32 *col_ptr;  // backward: [lists][tile_cols + 1] offsets into col_tiles
    const i32 *col_tiles;  // backward: tile row * 2 + (1 if full), ascending
    const i32 *work;  // [items + empty + merges][WORK_FIELDS], see maskc/core/abi.py
    i32 *counter;  // [2 + rows], zero before and after every launch: see below
    const i32 *head_variant;  // [heads_q] which mask each head has, or null: mask 0
    const i32 *mask_args;  // [variants][1 + N_ARGS]: the formula's shape, its constants
    const i32 *distances;  // [variants] bits of partial tiles, see maskc/layout/
    const i32 *col_turns;  // of each of col_tiles, or null: see maskc/layout/work/
    const i32 *array[8];  // data arrays of the mask
    i64 array_batch[8];  // elements from one sequence's array to the next, 0 if shared
    i64 array_head[8];  // elements from one head's array to the next, 0 if shared
    i64 array_row[8];  // elements from one row to the next; of parts see lib/tokens_*.cuh
    i64 q_stride[3];  // elements between batches, heads, tokens
    i64 k_stride[3];  // likewise
    i64 v_stride[3];  // likewise
    i64 out_stride[3];  // likewise
    i64 dout_stride[3];  // likewise
    i64 dq_stride[3];  // likewise
    i64 dk_stride[3];  // likewise
    i64 dv_stride[3];  // likewise
    i64 lse_stride[3];  // likewise
    i32 batch;  // sequences
    i32 heads_q;  // query heads
    i32 heads_kv;  // key/value heads; heads_q is a multiple
    i32 n_q;  // queries per sequence, or rows of a packed head
    i32 queries;  // per sequence: n_q, but for packed heads
    i32 n_kv;  // keys per sequence
    i32 tile_rows;  // ceil(n_q / TILE_Q), or boxes of a grid
    i32 tile_cols;  // ceil(n_kv / TILE_K), or boxes of a grid
    i32 items;  // of the work list that have tiles
    i32 empty;  // items behind them without any
    i32 shared_items;  // rows to be merged, or columns that items share
    i32 list_batch;  // lists from one sequence to the next, 0 if all share theirs
    i32 joins;  // 1: results hold those of other keys, and are joined with them
    float spacing;  // the distance from one token to the next
    float scale;  // factor of q . k
    float softcap;  // of the options; read only where they are built in
    float alpha_minus_1;  // of entmax; read only by kernels built WITH_ENTMAX
    i32 further;  // deterministic: most further tiles of dq of a list
    const i32 *row_sums;  // [lists][tile_rows + 1] of them before a row, or null: none
};

#include "common/lib/integers.h"
#include "common/lib/formulas.h"

// The constants and arrays of one head's mask, held in registers.
struct Mask {
    i32 shape;  // which formula, where heads have different ones
    Integer c0;  // n_kv - n_q
    Integer c1;  // 1
    Integer c2;  // 63
    const i32 *a0;  // chosen blocks of keys
    i32 row0;
};

// A constant of the mask: one word, or two.
FN Integer constant(const i32 *args, i32 i) {
#if WITH_WIDE
    return (Integer)args[2 * i + 1] * 4294967296 + (unsigned)args[2 * i];
#else
    return args[i];
#endif
}

FN struct Mask load_mask(const struct Attention *p, i32 batch, i32 head) {
    struct Mask m;
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i32 words = 1 + 3 * (1 + WITH_WIDE);
    const i32 *args = p->mask_args + variant * words;
    m.shape = args[0];
    m.c0 = constant(args + 1, 0);
    m.c1 = constant(args + 1, 1);
    m.c2 = constant(args + 1, 2);
    m.a0 = p->array[0]
        + batch * p->array_batch[0] + head * p->array_head[0];
    m.row0 = (i32)p->array_row[0];
    return m;
}

// Whether query q sees key k. Evaluated in partial tiles only.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 26: where(lambda q, k: k // 64 >= (q + n_kv - n_q) // 64 - 1)
        ((k / 64 + m.c1 >= floor_div(q + m.c0, 64) ||
        // line 27: prefix(64)
        k <= m.c2) &&
        // line 27: causal()
        k <= q + m.c0) ||
        // line 28: topk(13, of=causal() - (causal() & (prefix(64) | where(lambda q, k: k...
        ((m.a0[(q) * m.row0 + k / 64 / 32] >> k / 64 % 32 & 1) != 0 &&
        // line 27: causal()
        k <= q + m.c0);
}

FN i32 keep(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

struct Tile {
    i32 index;  // tile column of a row's list, tile row of a column's list
    i32 full;   // every pair of it is live: no predicate
};

#include "common/lib/tiles_csr.h"

#include "common/lib/element_bf16.cuh"
#include "common/lib/device.cuh"

#include "common/lib/unpack.cuh"

#include "common/lib/tokens_even.cuh"

#include "sm80/lib/ptx.cuh"

#include "sm80/lib/load.cuh"

#include "sm80/lib/keys_rows.cuh"

#include "sm80/lib/work.cuh"

// The shared memory of a block; its size is in maskc/plan/families/sm80.py.
struct Shared {
    unsigned char q[TILE_Q * PITCH];
    unsigned char k[TILE_K * PITCH];
    unsigned char v[TILE_K * PITCH];
    float top[PARK_ROWS ? THREADS : 1][ROWS], sum[PARK_ROWS ? THREADS : 1][ROWS];
    struct Block block;
};

#include "sm80/lib/softmax.cuh"

#include "common/lib/bits.cuh"

#include "common/lib/quad_columns.cuh"

#include "common/lib/mask_sides.cuh"

[[maybe_unused]] constexpr bool DATA_FIT = true;

// Aligned runs of so many keys, or queries, are alike.
constexpr int KEY_RUN = 1, QUERY_RUN = 1;
// Columns of a turn of the loop: keys of queries, and queries of keys.
constexpr int KEYS_AT_ONCE = 4, QUERIES_AT_ONCE = 4;
constexpr bool LONG_FORMULA = 1;  // that takes many registers

#include "common/lib/pairs.cuh"

// What rows see of the tile that begins with column `first`, as bits of a thread's own columns.
// Rows lie inside the lengths. Bits of keys past the last one are 0, those past the tile anything.
template <class Side, class Own, int R>
FN void see_rows(u32 (&word)[R][Own::WORDS], const struct Mask &mask, const i32 (&rows)[R],
                 i32 first, i32 n_q, i32 n_kv) {
    add_tested<Side, Own>(word, mask, rows, first, n_q, n_kv);
}

#include "sm80/lib/logits.cuh"

#include "sm80/lib/nan_safe.cuh"

#include "sm80/lib/scores.cuh"

#include "sm80/lib/values.cuh"

#include "common/lib/keep_all.cuh"

#include "sm80/lib/dropout.cuh"

#include "common/lib/join_sum.cuh"

// Where a query's lse and out are.
FN float &lse_of(const struct Attention *p, struct Work work, i32 q) {
    return p->lse[work.batch * p->lse_stride[0] + work.head * p->lse_stride[1]
                  + q * p->lse_stride[2]];
}
FN unsigned char *out_of(const struct Attention *p, struct Work work, i32 q) {
    return head_rows(p->out, p->out_stride, work.batch, work.head) + q * p->out_stride[2] * 2;
}

// Divides by the rows' sums; writes lse, which with entmax is in `top`, and out through the warp's
// own rows of the q tile.
FN void store(const Output &o, const float (&top)[ROWS], const float (&sum)[ROWS],
              const struct Attention *p, struct Shared &shared) {
    const struct Work work = shared.block.work;
    const i32 lane = threadIdx.x % 32, first = work.row * TILE_Q + first_row();
    unsigned char *const tile = shared.q + first_row() * PITCH;
    float joined[ROWS];  // lse of what a row's other keys gave
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const i32 q = first + lane / 4 + 8 * r;
        joined[r] = p->joins && q < p->n_q ? lse_of(p, work, q) : MINUS_INFINITY;
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float total = WITH_ENTMAX ? sum[r] : quad_sum(sum[r]), base = top[r], factor = 1.0f;
#if WITH_SINKS
        const float sink = p->sink_logits[work.head] * LOG2E;
        base = fmaxf(base, sink);
        factor = fast_exp2(top[r] - base);
        total = total * factor + fast_exp2(sink - base);
#endif
        const i32 row = lane / 4 + 8 * r, q = first + row;
        const bool joins = p->joins && q < p->n_q;
        const float weight = joins ? join_sum(joined[r], total, base, factor) : 0.0f;
        const bool empty = total == 0.0f;
        const float scale = not_zero(factor * fast_reciprocal(total)) * kept_scale(*p);
        const float share = not_zero(weight * fast_reciprocal(total));
        if (lane % 4 == 0 && q < p->n_q)
            lse_of(p, work, q) =
                WITH_ENTMAX ? base : (base + fast_log2(total)) * LN2;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            const float *x = &o[r / 2][n][r % 2 * 2];
            u32 *to = (u32 *)(tile + place(row, n)) + lane % 4;
            *to = empty ? 0 : pack(x[0] * scale, x[1] * scale);
        }
        if (!joins || empty) continue;
#pragma unroll
        for (int n = 0; n < PIECES_V; n++) {
            const float *x = &o[r / 2][n][r % 2 * 2];
            const float2 before = unpack(((const u32 *)out_of(p, work, q))[4 * n + lane % 4]);
            u32 *to = (u32 *)(tile + place(row, n)) + lane % 4;
            *to = pack(x[0] * scale + before.x * share, x[1] * scale + before.y * share);
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * FRAGMENTS; i += 32 / SPAN) {
        const i32 row = i + lane / SPAN;
        uint4 *const to = (uint4 *)out_of(p, work, first + row);
#pragma unroll
        for (int j = 0; j < CHUNKS; j += SPAN) {
            const i32 chunk = j + lane % SPAN;
            if (PADDED && chunk >= PIECES_V) continue;
            if (first + row < p->n_q) to[chunk] = *(const uint4 *)(tile + place(row, chunk));
        }
    }
}

// The tile to come, in one register where they are short, or where a list's entry is just that.
constexpr bool PACKED = TILE_LISTS || SHORT_OF_REGISTERS;
FN void pack(struct Tile &tile) {
    if constexpr (PACKED) tile.index = tile.index * 2 + tile.full;
}
FN void unpack(struct Tile &tile) {
    if constexpr (PACKED) tile.full = tile.index & 1, tile.index >>= 1;
}
FN i32 first_key(const struct Tile &packed) {
    return (PACKED ? packed.index >> 1 : packed.index) * TILE_K;
}

#if WITH_ENTMAX
#include "sm80/lib/entmax.cuh"

#endif
// Whether warps pass over tiles of which their rows see nothing; not where all have to take part.
constexpr bool SKIPS = 1 && !WITH_NAN_SAFE;
// Of more than two blocks none has the registers that entmax takes.
constexpr int RESIDENT = WITH_ENTMAX && MIN_BLOCKS > 2 ? 2 : MIN_BLOCKS;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_forward(const __grid_constant__ struct Attention p) {
    extern __shared__ __align__(128) unsigned char memory[];
    struct Shared &shared = *(struct Shared *)memory;
    const struct Block &block = shared.block;
    const u32 q_tile = shared_address(shared.q);
    const u32 k_tile = shared_address(shared.k), v_tile = shared_address(shared.v);
    if (threadIdx.x == 0) shared.block.work = work_of(&p, blockIdx.x);
    __syncthreads();
    load_tile<TILE_Q>(q_tile, head_rows(p.q, p.q_stride, block.work.batch, block.work.head),
                      p.q_stride, block.work.row * TILE_Q, p.n_q);
    if (threadIdx.x == 0) start_block(shared.block, &p);
    __syncthreads();

    struct Query query;
    query.at = q_tile + first_row() * PITCH + lane_in_rows();
    Scores s;
    Output o;
    float own[2][ROWS];  // of each row its top and this lane's share of the sum
    float (&top)[ROWS] = PARK_ROWS ? shared.top[threadIdx.x] : own[0];
    float (&sum)[ROWS] = PARK_ROWS ? shared.sum[threadIdx.x] : own[1];
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = NO_TOP, sum[r] = 0.0f;
    clear(o);
#if WITH_ENTMAX
    copy_wait<0>();
    __syncthreads();
    keep_query(query);
    find_weights(o, top, sum, query, &p, shared);
    store(o, top, sum, &p, shared);
#else
    struct Tile next = {0, 0};
    if (block.list.count > 0) {
        next = tile_at(block.list, 0);
        pack(next);
        load_keys(k_tile, block.k, p.k_stride, first_key(next), p, block.work.batch);
    } else {
        copy_wait<0>();  // q, in whose place zeros go out
        __syncthreads();
        if (p.joins) return;  // its rows keep what they have
    }
#pragma unroll 1
    for (i32 i = 0; i < block.list.count; i++) {
        struct Tile tile = next;
        unpack(tile);
        const i32 first_k = tile.index * TILE_K;
        bool masked = !tile.full || p.n_kv - first_k < TILE_K;
        struct Seen seen = {};
        if (masked) seen = seen_by(&p, block, tile);

        copy_wait<0>();   // k has arrived, and
        __syncthreads();  // the last v is no longer read
        load_keys<PIECES_V>(v_tile, block.v, p.v_stride, first_k, p, block.work.batch);
        next = tile_at(block.list, min_i32(i + 1, block.list.count - 1));
        pack(next);
        const auto load_next = [&] {
            copy_wait<0>();   // v has arrived, and
            __syncthreads();  // k is no longer read
            if (i + 1 < block.list.count)
                load_keys(k_tile, block.k, p.k_stride, first_key(next), p, block.work.batch);
        };
        if (KEEP_Q && i == 0) keep_query(query);
        if (SKIPS && masked && !sees_any(seen)) {  // nothing, for the whole warp
            load_next();
            continue;
        }
        score(s, query, k_tile);
        load_next();
        make_logits(s, &p, block, first_k);
        if (masked && !sees_all(seen)) hide_rest(s, seen);
        raise_tops(s, block.logit.unit, top, sum, o);
#if WITH_NAN_SAFE
        quarantine(o, shared.v, masked ? seen : everything());
#endif
        Kept kept;
        draw_tile(kept, &p, block.work, first_k);
        if (DROPS) accumulate_kept(o, sum, s, top, block.logit.unit, v_tile, kept);
        else accumulate(o, sum, s, top, block.logit.unit, v_tile);
    }
    store(o, top, sum, &p, shared);
#endif
}
