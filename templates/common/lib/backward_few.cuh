// Recomputes delta if a call has few pairs. Needs: backward_rows.cuh; keep of the mask. Gives:
// settle_rows.

// delta = rowsum(out * dout) inherits the rounding error of `out`. With many pairs it averages out;
// with few pairs it would dominate the error of dq and dk, so a warp per query recomputes delta.
#include "common/lib/settled_delta.cuh"

#if SETTLES_DELTA
#include "common/lib/plain_logit.cuh"

// The rows of a tensor's head, in pieces of eight numbers.
FN const uint4 *pieces_of(const void *tensor, const i64 (&stride)[3], struct Place at, i32 token) {
    return (const uint4 *)tensor + row_offset(stride, at, token) / 8;
}

// exp(logit - lse) * (dout . v) of one key.
FN float term_of(const struct Attention &p, struct Place at, struct Place keys, i32 q, i32 k,
                 float lse, const uint4 *of_q, const uint4 *of_dout) {
    const uint4 *const of_k = pieces_of(p.k, p.k_stride, keys, k);
    const uint4 *const of_v = pieces_of(p.v, p.v_stride, keys, k);
    float score = 0.0f, dp = 0.0f;
#pragma unroll 1
    for (int i = 0; i < PIECES_QK; i++) {
        score += dot(__ldg(of_q + i), __ldg(of_k + i));
        if (!PADDED) dp += dot(__ldg(of_dout + i), __ldg(of_v + i));
    }
#pragma unroll 1
    for (int i = 0; PADDED && i < PIECES_V; i++) dp += dot(__ldg(of_dout + i), __ldg(of_v + i));
    dp *= kept_factor(p, q, k, at.head, at.batch);
    return fast_exp2((plain_logit(p, score, at.head, at.batch, q, k) - lse) * LOG2E) * dp;
}
#endif

// One block per tile row. `first`, `end`: of its queries.
FN void settle_rows(const struct Attention &p, i32 first, i32 end) {
#if SETTLES_DELTA
#if !WITH_ENTMAX
    const i64 row = blockIdx.x;
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const struct Place at = place_of_row(p, blockIdx.x);
    const struct Place keys = {at.batch, at.head / (p.heads_q / p.heads_kv)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
#pragma unroll 1
    for (i32 r = warp; r < TILE_Q; r += PLAIN_THREADS / 32) {
        const i32 q = query_at(first + r);
        if (q >= end) continue;
        const float lse = __ldg(p.lse + row_offset(p.lse_stride, at, q));
        if (lse == MINUS_INFINITY) continue;  // no keys: delta is 0
        const uint4 *const of_q = pieces_of(p.q, p.q_stride, at, q);
        const uint4 *const of_dout = pieces_of(p.dout, p.dout_stride, at, q);
        float exact = 0.0f, rounded = 0.0f, size = 0.0f;
#pragma unroll 1
        for (i32 k = lane; k < p.n_kv; k += 32)
            if (keep(mask, q, k, p.n_q, p.n_kv))
                exact += term_of(p, at, keys, q, k, lse, of_q, of_dout);
#if WIDE
        for (int i = lane; i < PIECES_V; i += 32) {
            const uint4 out = __ldg(pieces_of(p.out, p.out_stride, at, q) + i);
            const uint4 dout = __ldg(of_dout + i);
            rounded += dot(out, dout);
            size += absolute_dot(out, dout);
        }
#else
        if (lane < PIECES_V) {
            const uint4 out = __ldg(pieces_of(p.out, p.out_stride, at, q) + lane);
            const uint4 dout = __ldg(of_dout + lane);
            rounded = dot(out, dout);
            size = absolute_dot(out, dout);
        }
#endif
        exact = warp_sum(exact);
        rounded = warp_sum(rounded);
        size = warp_sum(size);
        if (lane == 0) leave_row(p, row, r, lse, settled_delta(exact, rounded, size));
    }
#endif
#endif
    (void)p, (void)first, (void)end;
}
