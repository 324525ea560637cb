// Attention backward for Hopper with 16 x 16 tiles. A warp computes 64 elements of the gradients of
// a tile column. Only for masks where each tile row has at most one tile, so that dq is stored, not
// added. Contract: maskc/core/abi.py.

#include "common/lib/tiles.h"

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "common/lib/unpack.cuh"

#include "sm90a/lib/logit.cuh"

#include "sm90a/lib/logit_tanh.cuh"

#include "common/lib/mma.cuh"

#include "common/lib/dot.cuh"

#include "common/lib/settled_delta.cuh"

#include TOKENS_POLICY

#include "sm90a/lib/mma16_rows.cuh"

#include "sm90a/lib/mma16_logits.cuh"

// Transposes an 8 x 8 matrix: lane l holds elements 2 (l % 4) and + 1 of row l / 4.
FN u32 transposed(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
// Transposes weights, so that keys are rows.
FN void transpose_weights(u32 (&to)[4], const u32 (&w)[4]) {
    to[0] = transposed(w[0]);
    to[1] = transposed(w[2]);
    to[2] = transposed(w[1]);
    to[3] = transposed(w[3]);
}

// A tile row (for dk and dv, a tile column) of one head, and a span of its elements. Neighboring
// warps have the spans of one row.
struct Place {
    i32 tile, head, batch, span;
};
FN struct Place place_of(u32 index, u32 tiles, u32 heads) {
    const u32 row = index / SPANS, line = row / tiles;
    return {(i32)(row % tiles), (i32)(line % heads), (i32)(line / heads), (i32)(index % SPANS)};
}

FN void store_span(void *tensor, const i64 (&stride)[3], struct Place at, i32 count, const Span &x,
                   float scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = 16 * at.tile + lane_row() + 8 * r;
        if (row >= count) continue;
#pragma unroll
        for (int c = 0; c < 2; c++)
            *piece_at(tensor, stride, at.batch, at.head, row, piece_column(at.span, c)) =
                pack_piece(x, r, c, scale, 0.0f, make_uint4(0, 0, 0, 0));
    }
}

// Zeroes dq of a tile row without a tile: no other warp writes there.
FN void clear_lonely(const struct Attention &p, u32 index) {
    const struct Place at = place_of(index, p.tile_rows, p.heads_q);
    if (at.batch >= p.batch) return;
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    if (row_tiles(&p, mask, at.batch, at.head, at.tile).count > 0) return;
    Span nothing;
    clear(nothing);
    store_span(p.dq, p.dq_stride, at, p.n_q, nothing, 1.0f);
}

// lse times log2(e), for a lane's two rows.
FN void read_levels(float (&level)[2], const struct Attention &p, struct Place at) {
    const float *const lse = p.lse + at.batch * p.lse_stride[0] + at.head * p.lse_stride[1];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 q = min_i32(at.tile * TILE_Q + lane_row() + 8 * r, p.n_q - 1);
        const float own = __ldg(lse + q * p.lse_stride[2]);
        level[r] = own == MINUS_INFINITY ? 0.0f : own * LOG2E;  // all pairs of such a row are dead
    }
}

// Turns scores and dp = dout . v into weights p and gradients ds = p (dp - delta) of logits. The
// only tile of a row holds all of its keys, so delta can be computed as the sum of p dp, without
// the rounding error of `out`; see settled_delta.cuh.
FN void make_gradients(Scores &s, Scores &dp, const float (&level)[2], float (&delta)[2],
                       const float (&size)[2], const struct Attention &p,
                       i32 head, i32 batch, const struct Mask &mask, struct Tile tile,
                       i32 first_q, i32 first_k) {
    const struct Log2Logit logit = log2_logit_of(p, head);
    const struct Where where = where_of(p, head, batch, first_q, first_k);
#if HAS_SLOPE
    Scores slope;
#pragma unroll
    for (int i = 0; i < 8; i++) slope[i / 4][i % 4] = s[i / 4][i % 4];
#endif
    make_logits(s, logit, p, where);
#if HAS_SLOPE
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float &x = slope[i / 4][i % 4];  // holds the score until here
        x = log2_slope(x, s[i / 4][i % 4], logit, p, where, i);
    }
#endif
    if (is_masked(p, tile, first_q, first_k))
        hide_rest(s, p, mask, tile.full, first_q, first_k);
    float exact[2] = {0.0f, 0.0f};
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = fast_exp2(s[n][e] - level[e / 2]);
            exact[e / 2] += s[n][e] * dp[n][e];
        }
#pragma unroll
    for (int r = 0; r < 2; r++)
        delta[r] = settled_delta(quad_sum(exact[r]), delta[r], size[r]);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            dp[n][e] = (dp[n][e] - delta[e / 2]) * s[n][e];
#if HAS_SLOPE
#if WITH_SCORE
            // The derivative of a dead pair may be anything
            if (s[n][e] == 0.0f) slope[n][e] = 0.0f;
#endif
            dp[n][e] *= slope[n][e];
#endif
        }
}

// Processes one tile of a query head: stores a span of its rows of dq, and adds to dk and dv of its
// column.
FN void add_tile(Span &dk, Span &dv, const struct Attention &p, struct Tile tile, struct Place at,
                 i32 head, const struct Mask &mask) {
    const i32 first_q = tile.index * TILE_Q, first_k = at.tile * TILE_K;
    const struct Place row = {tile.index, head, at.batch, at.span};
    const struct Rows q = rows_of(p.q, p.q_stride, at.batch, head, p.n_q);
    const struct Rows k = rows_of(p.k, p.k_stride, at.batch, at.head, p.n_kv);
    const struct Rows v = rows_of(p.v, p.v_stride, at.batch, at.head, p.n_kv);
    const struct Rows out = rows_of(p.out, p.out_stride, at.batch, head, p.n_q);
    const struct Rows dout = rows_of(p.dout, p.dout_stride, at.batch, head, p.n_q);
    Scores s, dp;
    float level[2], delta[2] = {0.0f, 0.0f}, size[2] = {0.0f, 0.0f};
    read_levels(level, p, row);
    clear(s);
    clear(dp);
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        const struct Slice x = load_slice(dout, first_q, i), y = load_slice(out, first_q, i);
        multiply_along(s, load_slice(q, first_q, i), load_slice(k, first_k, i));
        multiply_along(dp, x, load_slice(v, first_k, i));
        delta[0] += dot(x.low, y.low);
        delta[1] += dot(x.high, y.high);
        size[0] += absolute_dot(x.low, y.low);
        size[1] += absolute_dot(x.high, y.high);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) delta[r] = quad_sum(delta[r]), size[r] = quad_sum(size[r]);
    make_gradients(s, dp, level, delta, size, p, head, at.batch, mask, tile, first_q, first_k);
    u32 w[4], by_key[4];
    Across x;
    pack_weights(w, s);
    transpose_weights(by_key, w);
    load_span(x, dout, first_q, at.span);
    multiply_span(dv, by_key, x);
    pack_weights(w, dp);
    transpose_weights(by_key, w);
    load_span(x, q, first_q, at.span);
    multiply_span(dk, by_key, x);
    Span dq;
    clear(dq);
    load_span(x, k, first_k, at.span);
    multiply_span(dq, w, x);
    store_span(p.dq, p.dq_stride, row, p.n_q, dq, p.scale);
}

// Processes a column: the tiles of every query head that shares its keys and values.
FN void take_column(const struct Attention &p, struct Place at) {
    Span dk, dv;
    clear(dk);
    clear(dv);
    const i32 group = p.heads_q / p.heads_kv;
#pragma unroll 1
    for (i32 head = at.head * group; head < (at.head + 1) * group; head++) {
        const struct Mask mask = load_mask(&p, at.batch, head);
        const struct TileList list = column_tiles(&p, mask, at.batch, head, at.tile);
#pragma unroll 1
        for (i32 i = 0; i < list.count; i++)
            add_tile(dk, dv, p, tile_at(list, i), at, head, mask);
    }
    store_span(p.dk, p.dk_stride, at, p.n_kv, dk, p.scale);
    store_span(p.dv, p.dv_stride, at, p.n_kv, dv, 1.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_backward(const __grid_constant__ struct Attention p) {
    const u32 index = blockIdx.x * WARPS + uniform(threadIdx.x / 32);
    const struct Place at = place_of(index, p.tile_cols, p.heads_kv);
    if (at.batch < p.batch) take_column(p, at);
    clear_lonely(p, index);  // last, because the data that it reads is in cache by then
}
