// Attention backward on CUDA cores (compute capability 7.0 and later).
// Contract: maskc/core/abi.py; docs/simt.md walks through it.

#include "simt/lib/constants.cuh"

// A thread's part of a tile; strips of rows of q and k, and of v.
constexpr int ROWS = TILE_Q / SIDE, COLS = TILE_K / SIDE;
constexpr int STRIPS = (HEAD_DIM + STRIP - 1) / STRIP;
constexpr int STRIPS_V = (HEAD_DIM_V + STRIP - 1) / STRIP;
constexpr int PARTS = (STRIPS + STRIPS_V + OWNED - 1) / OWNED;  // blocks that share a tile column

#include "common/lib/tiles.h"

#include ELEMENT_POLICY

#include "simt/lib/places.cuh"

#include "simt/lib/tensors.cuh"

#include "simt/lib/products.cuh"

#include "simt/lib/sums.cuh"

#include TOKENS_POLICY

#include "simt/lib/logits.cuh"

#include "simt/lib/mask_rows.cuh"

#if WITH_DROPOUT
#include "common/lib/dropout.h"

#include "simt/lib/dropout.cuh"

#endif
#include "simt/lib/workspace.cuh"

#if WITH_ENTMAX
#include "simt/lib/powers.cuh"

#include "common/lib/entmax_weights.cuh"

#endif
#include "simt/lib/gradients.cuh"

#include "simt/lib/store_gradients.cuh"

// The inputs of a backward pass for one query head.
struct Head {
    struct Rows<HEAD_DIM> q, k;
    struct Rows<HEAD_DIM_V> v, dout;
    struct Mask mask;
    struct Logit kind;
};
FN struct Head head_of(const struct Attention &p, const struct Place &at) {
    const i32 head_kv = at.head / (p.heads_q / p.heads_kv);
    return {rows_of<HEAD_DIM>(p.q, p.q_stride, at.batch, at.head, p.n_q),
            rows_of<HEAD_DIM>(p.k, p.k_stride, at.batch, head_kv, p.n_kv),
            rows_of<HEAD_DIM_V>(p.v, p.v_stride, at.batch, head_kv, p.n_kv),
            rows_of<HEAD_DIM_V>(p.dout, p.dout_stride, at.batch, at.head, p.n_q),
            load_mask(&p, at.batch, at.head), logit_of(p, at.head, at.batch)};
}

#include "simt/lib/delta.cuh"

// dq: a block owns one tile of queries, and loops over the tiles of keys that they see.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_backward_rows(const __grid_constant__ struct Attention p) {
    __shared__ __align__(16) struct Shared shared;
    __shared__ struct Row rows[TILE_Q];
    const struct Place at = row_place(p);
    __shared__ struct Head h;  // not in registers, which are short
    if (threadIdx.x == 0) h = head_of(p, at);
    __syncthreads();
    const struct TileList list = row_tiles(&p, h.mask, at.batch, at.head, at.tile);
    const i32 first_q = at.tile * TILE_Q;
    float dq[STRIPS][ROWS][4], slope = 0.0f;
#pragma unroll
    for (int i = 0; i < STRIPS; i++) clear(dq[i]);
    load_rows(rows, p, at.batch, at.head, first_q);
#pragma unroll 1
    for (i32 i = 0; i < list.count; i++) {
        const struct Tile tile = tile_at(list, i);
        const i32 first_k = tile.index * TILE_K;
        float x[ROWS][COLS], dp[ROWS][COLS];
        multiply_rows<HEAD_DIM_V, true>(dp, shared, h.dout, first_q, h.v, first_k);
        multiply_rows<HEAD_DIM>(x, shared, h.q, first_q, h.k, first_k);
        const u32 seen = visible<ROWS, COLS, false>(p, h.mask, tile.full, first_q, first_k);
#if WITH_DROPOUT
        drop(dp, draw<ROWS, COLS, false>(p, at.batch, at.head, first_q, first_k), p.dropout_scale);
#endif
        slope += score_gradients<ROWS, COLS, false>(x, dp, p, h.kind, rows, seen, first_q, first_k);
        keep_weights(shared, dp);
#pragma unroll
        for (int j = 0; j < STRIPS; j++)
            add_strip<TILE_K, HEAD_DIM>(dq[j], shared, h.k, first_k, j * STRIP);
    }
    const struct Rows<HEAD_DIM> to = rows_of<HEAD_DIM>(p.dq, p.dq_stride, at.batch, at.head, p.n_q);
#pragma unroll
    for (int j = 0; j < STRIPS; j++)
        store_strip(to, dq[j], first_q, j * STRIP, p.scale, p.accumulates);
    if (HEAD_GRADIENT) {
        slope = block_sum(slope);
        if (threadIdx.x == 0) slope_shares(p, at.batch, at.head)[at.tile] = slope;
    }
}

// dk and dv: a block owns the keys of one tile column, and loops over the tiles of queries that see
// them, for all heads that share these keys. No two blocks add to the same number, so the results
// are bitwise deterministic. With large head dimensions, registers cannot hold all of dv and dk;
// several blocks then compute some strips each.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_backward_columns(const __grid_constant__ struct Attention p) {
    __shared__ __align__(16) struct Shared shared;
    __shared__ struct Row rows[TILE_Q];
    __shared__ struct Head h;
    i32 part;
    const struct Place at = column_place(p, PARTS, part);
    const i32 first_k = at.tile * TILE_K, group = p.heads_q / p.heads_kv;
    float sums[OWNED][COLS][4];  // strips of dv, then of dk
#pragma unroll
    for (int i = 0; i < OWNED; i++) clear(sums[i]);
#pragma unroll 1
    for (i32 head = at.head * group; head < (at.head + 1) * group; head++) {
        __syncthreads();
        if (threadIdx.x == 0) h = head_of(p, {0, head, at.batch});
        __syncthreads();
        const struct TileList list = column_tiles(&p, h.mask, at.batch, head, at.tile);
#pragma unroll 1
        for (i32 i = 0; i < list.count; i++) {
            const struct Tile tile = tile_at(list, i);
            const i32 first_q = tile.index * TILE_Q;
            load_rows(rows, p, at.batch, head, first_q);
            float x[COLS][ROWS], dp[COLS][ROWS];  // transposed: keys down, queries across
            multiply_rows<HEAD_DIM_V, true>(dp, shared, h.v, first_k, h.dout, first_q);
            multiply_rows<HEAD_DIM>(x, shared, h.k, first_k, h.q, first_q);
            const u32 seen = visible<COLS, ROWS, true>(p, h.mask, tile.full, first_q, first_k);
#if WITH_DROPOUT
            const u32 stay = draw<COLS, ROWS, true>(p, at.batch, head, first_q, first_k);
            drop(dp, stay, p.dropout_scale);
#endif
            score_gradients<COLS, ROWS, true>(x, dp, p, h.kind, rows, seen, first_q, first_k);
#if WITH_DROPOUT
            drop(x, stay, p.dropout_scale);
#endif
#pragma unroll
            for (int j = 0; j < OWNED; j++) {
                const i32 strip = part * OWNED + j;
                if (strip < STRIPS_V) {
                    if (j == 0) keep_weights(shared, x);
                    add_strip<TILE_Q, HEAD_DIM_V>(sums[j], shared, h.dout, first_q, strip * STRIP);
                } else if (strip < STRIPS_V + STRIPS) {
                    if (j == 0 || strip == STRIPS_V) {
                        __syncthreads();  // p is no longer read
                        keep_weights(shared, dp);
                    }
                    add_strip<TILE_Q, HEAD_DIM>(sums[j], shared, h.q, first_q,
                                                (strip - STRIPS_V) * STRIP);
                }
            }
        }
    }
    const struct Rows<HEAD_DIM> dk =
        rows_of<HEAD_DIM>(p.dk, p.dk_stride, at.batch, at.head, p.n_kv);
    const struct Rows<HEAD_DIM_V> dv =
        rows_of<HEAD_DIM_V>(p.dv, p.dv_stride, at.batch, at.head, p.n_kv);
#pragma unroll
    for (int j = 0; j < OWNED; j++) {
        const i32 strip = part * OWNED + j;
        if (strip < STRIPS_V)
            store_strip(dv, sums[j], first_k, strip * STRIP, 1.0f, p.accumulates);
        else
            store_strip(dk, sums[j], first_k, (strip - STRIPS_V) * STRIP, p.scale, p.accumulates);
    }
}

#if WITH_SCORE
#include "common/lib/score_sums.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
attention_backward_tables(const __grid_constant__ struct Attention p) {
    finish_tables(p, THREADS);
}

#endif
// The gradient of a head's sink: its weight times (0 - delta), because its value is zero. One
// block.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_backward_sinks(const __grid_constant__ struct Attention p) {
    if (!p.dsink) return;
    const i32 head = blockIdx.x;
    const float sink = p.sink_logits[head];
    float sum = 0.0f;
    for (i64 i = threadIdx.x; i < (i64)p.batch * p.n_q; i += THREADS) {
        const struct Row row = load_row(p, (i32)(i / p.n_q), head, (i32)(i % p.n_q));
        sum -= expf(sink - row.lse) * row.delta;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) p.dsink[head] += sum;
}

// The gradient of a head's slope, from the shares of tile rows. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_backward_slopes(const __grid_constant__ struct Attention p) {
    if (!p.dslopes) return;
    const i32 head = blockIdx.x;
    float sum = 0.0f;
    for (i64 i = threadIdx.x; i < (i64)p.batch * p.tile_rows; i += THREADS)
        sum += slope_shares(p, (i32)(i / p.tile_rows), head)[i % p.tile_rows];
    sum = block_sum(sum);
    if (threadIdx.x == 0) p.dslopes[head] += sum * p.spacing;
}
