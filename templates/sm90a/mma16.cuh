// Attention forward for Hopper with 16 x 16 tiles, one warp per tile row: no shared memory, no
// barriers, no TMA. Contract: maskc/core/abi.py.

#include "common/lib/tiles.h"

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "common/lib/unpack.cuh"

#include "sm90a/lib/logit.cuh"

#include "sm90a/lib/logit_tanh.cuh"

#include "common/lib/mma.cuh"

#include "common/lib/tops.cuh"

#include TOKENS_POLICY

#include "sm90a/lib/mma16_rows.cuh"

#include "sm90a/lib/mma16_logits.cuh"

#include "common/lib/join_sum.cuh"

// The tile row of a warp. Neighboring warps have the rows of one head.
struct Work {
    i32 row, head, batch;
};
FN struct Work work_of(const struct Attention &p) {
    const u32 index = blockIdx.x * WARPS + uniform(threadIdx.x / 32), line = index / p.tile_rows;
    return {(i32)(index % p.tile_rows), (i32)(line % p.heads_q), (i32)(line / p.heads_q)};
}

typedef Span Output[SPANS];

// Updates the row maxima if a logit is far above, and rescales the accumulators. All lanes of a
// quad have the same maxima; each lane has its own partial sums and outputs.
FN void raise_tops(const Scores &s, float (&top)[2], float (&sum)[2], Output &o) {
    float peak[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        peak[r] = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
    const bool far = peak[0] - top[0] > RESCALE_THRESHOLD || peak[1] - top[1] > RESCALE_THRESHOLD;
    if (!__any_sync(0xffffffff, far)) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float higher = fmaxf(top[r], quad_max(peak[r])), factor = fast_exp2(top[r] - higher);
        top[r] = higher;
        sum[r] *= factor;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            float (&x)[4] = o[i / 8][i % 8];
            x[2 * r] *= factor;
            x[2 * r + 1] *= factor;
        }
    }
}

// Turns logits into weights and adds them to the sums.
FN void make_weights(Scores &s, const float (&top)[2], float (&sum)[2]) {
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = fast_exp2(s[n][e] - top[e / 2]);
            sum[e / 2] += s[n][e];
        }
}

FN float &lse_of(const struct Attention &p, struct Work work, i32 q) {
    return p.lse[work.batch * p.lse_stride[0] + work.head * p.lse_stride[1]
                 + q * p.lse_stride[2]];
}

// Divides by the row sums, adds results of earlier launches, and writes lse and out.
FN void store(const Output &o, const float (&top)[2], const float (&sum)[2],
              const struct Attention &p, struct Work work) {
    const i32 first = work.row * TILE_Q + lane_row();
    float joined[2];  // lse of earlier launches
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 q = first + 8 * r;
        joined[r] = p.accumulates && q < p.n_q ? lse_of(p, work, q) : MINUS_INFINITY;
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 q = first + 8 * r;
        float total = quad_sum(sum[r]), base = top[r], factor = 1.0f;
#if WITH_SINKS
        const float sink = p.sink_logits[work.head] * LOG2E;
        base = fmaxf(base, sink);
        factor = fast_exp2(top[r] - base);
        total = total * factor + fast_exp2(sink - base);
#endif
        const float weight = p.accumulates ? join_sum(joined[r], total, base, factor) : 0.0f;
        if (q >= p.n_q) continue;
        if (threadIdx.x % 4 == 0) lse_of(p, work, q) = (base + fast_log2(total)) * LN2;
        const float inverse = total == 0.0f ? 0.0f : fast_reciprocal(total);
#pragma unroll
        for (int u = 0; u < SPANS; u++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                uint4 *const to = piece_at(p.out, p.out_stride, work.batch, work.head, q,
                                           piece_column(u, c));
                const uint4 before = p.accumulates ? *to : make_uint4(0, 0, 0, 0);
                *to = pack_piece(o[u], r, c, factor * inverse, weight * inverse, before);
            }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_forward(const __grid_constant__ struct Attention p) {
    const struct Work work = work_of(p);
    if (work.batch >= p.batch) return;  // excess warp of the last block
    const i32 kv_head = work.head / (p.heads_q / p.heads_kv), first_q = work.row * TILE_Q;
    const struct Rows k = rows_of(p.k, p.k_stride, work.batch, kv_head, p.n_kv);
    const struct Rows v = rows_of(p.v, p.v_stride, work.batch, kv_head, p.n_kv);
    const struct Log2Logit logit = log2_logit_of(p, work.head);
    struct Slice q[SLICES];
#pragma unroll
    for (int i = 0; i < SLICES; i++)
        q[i] = load_slice(rows_of(p.q, p.q_stride, work.batch, work.head, p.n_q), first_q, i);
    const struct Mask mask = load_mask(&p, work.batch, work.head);
    const struct TileList list = row_tiles(&p, mask, work.batch, work.head, work.row);
    if (list.count == 0 && p.accumulates) return;  // these rows keep the earlier result

    Output o;
#pragma unroll
    for (int u = 0; u < SPANS; u++) clear(o[u]);
    float top[2] = {ROW_MAX_INIT, ROW_MAX_INIT}, sum[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (i32 i = 0; i < list.count; i++) {
        const struct Tile tile = tile_at(list, i);
        const i32 first_k = tile.index * TILE_K;
        Scores s;
        Across x[SPANS];  // of v; requested before anything waits
        clear(s);
#pragma unroll
        for (int j = 0; j < SLICES; j++) multiply_along(s, q[j], load_slice(k, first_k, j));
#pragma unroll
        for (int u = 0; u < SPANS; u++) load_span(x[u], v, first_k, u);
        make_logits(s, logit, p, where_of(p, work.head, work.batch, first_q, first_k));
        if (is_masked(p, tile, first_q, first_k))
            hide_rest(s, p, mask, tile.full, first_q, first_k);
        raise_tops(s, top, sum, o);
        make_weights(s, top, sum);
        u32 w[4];
        pack_weights(w, s);
#pragma unroll
        for (int u = 0; u < SPANS; u++) multiply_span(o[u], w, x[u]);
    }
    store(o, top, sum, p, work);
}
