// Per-row inputs of the main launch of a backward pass, and the launch that computes them. Needs:
// backward_workspace.cuh, work.cuh. Gives: Rows of lse and delta, leave_row.

#include "common/lib/dot.cuh"

FN void fill_zeros(float *to, i64 count, i64 first, i64 step) {
    for (i64 i = first; i < count / 4; i += step)
        ((float4 *)to)[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

FN float warp_sum(float x) {
#pragma unroll
    for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffff, x, by);
    return x;
}

// Sums one number per thread, in thread 0. The order is fixed, so the result is deterministic.
FN float block_sum(float x) {
    __shared__ float part[PLAIN_THREADS / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x < PLAIN_THREADS / 32 ? part[threadIdx.x] : 0.0f;
    return threadIdx.x < 32 ? warp_sum(x) : 0.0f;
}

#if LSE_IN_WGMMA
// Splits a number into the sum of three bf16 numbers: the high halves of two words, and the low
// half of one.
FN uint2 three_pieces(float x) {
    constexpr u32 HIGH = 0xffff0000;
    const u32 first = __float_as_uint(x) & HIGH;
    x -= __uint_as_float(first);
    const u32 second = __float_as_uint(x) & HIGH;
    x -= __uint_as_float(second);
    return make_uint2(first >> 16 | second, __float_as_uint(x) >> 16);
}
#if WITH_SCORE
FN float sum_of_pieces(uint2 x) {
    return __uint_as_float(x.x << 16) + __uint_as_float(x.x & 0xffff0000)
           + __uint_as_float(x.y << 16);
}
#endif
// The numbers that the WGMMAs of scores and dp add for a query: -lse in the unit of scores, and
// -delta. Rows without keys, and rows past the end, get an lse so large that their weights are 0.
FN uint4 row_pieces(const struct Attention &p, float lse, float delta) {
    const float unit = score_unit(p);
    const float level = (lse == MINUS_INFINITY ? 1e8f : lse * LOG2E) / unit;
    const uint2 a = three_pieces(-level), b = three_pieces(-delta);
    return make_uint4(a.x, a.y, b.x, b.y);
}
#endif

// Stores lse and delta of query `r` of a tile row for the main launch.
FN void leave_row(const struct Attention &p, i64 row, i32 r, float lse, float delta) {
    const struct Workspace w = workspace(p);
#if LSE_IN_WGMMA
    ((uint4 *)w.lse)[row * TILE_Q + r] = row_pieces(p, lse, delta);
#else
    const i64 place = row * TILE_Q + place_in_rows(r);
    w.lse[place] = lse == MINUS_INFINITY ? PLUS_INFINITY
                                         : lse * (WITH_ENTMAX ? p.alpha_minus_1 : LOG2E);
    if (!WITH_ENTMAX) w.delta[place] = delta;
#endif
}

#if WITH_SCORE
// Reads both back, for the gradients of tables.
FN float2 left_row(const struct Attention &p, i64 row, i32 r) {
#if LSE_IN_WGMMA
    const uint4 x = ((const uint4 *)workspace(p).lse)[row * TILE_Q + r];
    const float level = sum_of_pieces(make_uint2(x.x, x.y));
    return make_float2(-level * score_unit(p), -sum_of_pieces(make_uint2(x.z, x.w)));
#else
    const i64 place = row * TILE_Q + place_in_rows(r);
    return make_float2(workspace(p).lse[place], workspace(p).delta[place]);
#endif
}
#endif

#if !SEPARATE_DQ
// Prepare launch: computes delta and lse of a tile row and the sink's gradient, and writes zeros
// where it is not known which block adds first. With entmax, another launch computes delta.
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_prepare(const __grid_constant__ struct Attention p,
                           const __grid_constant__ struct Maps) {
    constexpr int LANES = HEAD_DIM <= 64 ? 8 : HEAD_DIM <= 128 ? 16 : 32;  // per row
    const struct Workspace w = workspace(p);
    const i64 row = blockIdx.x;
    const i32 thread = threadIdx.x, lane = thread % LANES;
    const i32 line = blockIdx.x / p.tile_rows, first = blockIdx.x % p.tile_rows * TILE_Q;
    const struct Place at = place_of(line, p.heads_q);
#if ZEROES
    const bool zeroes = row < zeroed_before(p);
#else
    constexpr bool zeroes = !DETERMINISTIC && !EXCLUSIVE_DQ;
#endif
#if EXCLUSIVE_DQ
    const bool lonely = row_tiles(&p, load_mask(&p, at.batch, at.head), at.batch, at.head,
                                  blockIdx.x % p.tile_rows).count == 0;
#else
    constexpr bool lonely = false;
#endif
    if (zeroes) fill_zeros(w.dq + row * TILE_FLOATS, TILE_FLOATS, thread, PLAIN_THREADS);
    float sink_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < TILE_Q * LANES / PLAIN_THREADS; i++) {
        const i32 r = i * (PLAIN_THREADS / LANES) + thread / LANES, q = query_at(first + r);
        float sum = 0.0f;
        if (lonely && q < p.n_q && lane < PIECES_QK)  // no other block writes these zero rows
            ((uint4 *)p.dq)[row_offset(p.dq_stride, at, q) / 8 + lane] = make_uint4(0, 0, 0, 0);
        if (q < p.n_q && lane < PIECES_V) {
            const uint4 *out = (const uint4 *)p.out + row_offset(p.out_stride, at, q) / 8;
            const uint4 *dout = (const uint4 *)p.dout + row_offset(p.dout_stride, at, q) / 8;
            if (!WITH_ENTMAX) sum = dot(__ldg(out + lane), __ldg(dout + lane));
        }
#pragma unroll
        for (int by = LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
        if (lane == 0) {
            const float lse =
                q < p.n_q ? __ldg(p.lse + row_offset(p.lse_stride, at, q)) : MINUS_INFINITY;
            const bool dead = lse == MINUS_INFINITY;  // no keys, or past the end: all weights are 0
            leave_row(p, row, r, lse, dead ? 0.0f : sum);
#if THRESHOLDS
            const i64 place = row * TILE_Q + place_in_rows(r);
            int2 there = make_int2(__float_as_int(PLUS_INFINITY), 0);
            if (q < p.n_q) there = __ldg(thresholds_of(p, lows_of(p), at.batch, at.head) + q);
            lows_of(p)[place] = __int_as_float(there.x);
            ends_of(p)[place] = __int_as_float(there.y);
#endif
#if WITH_SINKS
            if (!dead) sink_sum -= fast_exp2((p.sink_logits[at.head] - lse) * LOG2E) * sum;
#endif
        }
    }
    if (WITH_SINKS) sink_sum = block_sum(sink_sum);
#if DETERMINISTIC
    const struct Further further = further_of(p, line, blockIdx.x % p.tile_rows);
    if (thread < further.count) *control_of(p, further.first + thread, TURN) = 0;
#endif
    if (thread < 2) {
        float4 *const control = (float4 *)(w.control + row * TILE_Q);
        control[thread] = make_float4(thread ? 0.0f : sink_sum, 0.0f, 0.0f, 0.0f);
    }
    if (!DETERMINISTIC)
        fill_zeros(w.keys, (i64)p.shared_items * KEY_TILE_FLOATS, row * PLAIN_THREADS + thread,
                   (i64)gridDim.x * PLAIN_THREADS);
}
#endif

// Stores eight numbers in storage precision, or adds them to those in memory (`accumulates`).
FN void store_eight(uint4 *to, const float2 (&x)[4], bool accumulates) {
    const uint4 there = accumulates ? *to : make_uint4(0, 0, 0, 0);
    const u32 before[4] = {there.x, there.y, there.z, there.w};
    u32 sum[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 y = unpack(before[i]);
        sum[i] = pack(x[i].x + y.x, x[i].y + y.y);
    }
    *to = make_uint4(sum[0], sum[1], sum[2], sum[3]);
}

FN float4 sum_of(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// The tiles of dq to sum: the first, and further ones that are contiguous.
struct Sum {
    const float *first, *more;
    i32 count, stride;
};
// Stores eight columns of two of `tokens` rows, which four threads left at one place of a tile:
// numbers 0 and 1 of each belong to row `first`, 2 and 3 to row `second`.
FN void store_rows(void *to, const i64 (&stride)[3], struct Place at, i32 first, i32 second,
                   i32 tokens, int column, const struct Sum &sum, i32 place, float scale,
                   bool accumulates) {
    float4 x[4] = {};
    const float4 *from = (const float4 *)(sum.first + place);
    if (sum.count > 0)
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = __ldcs(from + i);
    constexpr int TOGETHER = 4;  // loads in flight at a time
#pragma unroll 1
    for (i32 part = 1; part < sum.count; part += TOGETHER) {
        float4 y[TOGETHER][4] = {};
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            if (part + j >= sum.count) break;
            from = (const float4 *)(sum.more + (part + j - 1ll) * sum.stride + place);
#pragma unroll
            for (int i = 0; i < 4; i++) y[j][i] = __ldcs(from + i);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = sum_of(x[i], y[j][i]);
    }
    float2 low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        low[i] = make_float2(x[i].x * scale, x[i].y * scale);
        high[i] = make_float2(x[i].z * scale, x[i].w * scale);
    }
    uint4 *const line = (uint4 *)to + (row_offset(stride, at, 0) + column) / 8;
    if (first < tokens) store_eight(line + first * stride[2] / 8, low, accumulates);
    if (second < tokens) store_eight(line + second * stride[2] / 8, high, accumulates);
}

// The last block sums the tiles' shares head by head, in a fixed order.
FN void sum_shares(const struct Attention &p, const struct Workspace &w, int which, float *to,
                   float factor) {
    const i32 tiles = p.batch * p.tile_rows;
    for (i32 head = threadIdx.x / 32; head < p.heads_q; head += PLAIN_THREADS / 32) {
        float sum = 0.0f;
        for (i32 i = threadIdx.x % 32; i < tiles; i += 32) {
            const i32 batch = i / p.tile_rows;
            const i64 row = ((i64)batch * p.heads_q + head) * p.tile_rows + i % p.tile_rows;
            sum += __ldcg(w.control + row * TILE_Q + which);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) to[head] += factor * sum;
    }
}

#if !(EXCLUSIVE_DQ || SEPARATE_DQ)
// Finish launch: converts a tile row of dq to storage precision, and sums the gradients of whole
// heads.
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_finish(const __grid_constant__ struct Attention p,
                          const __grid_constant__ struct Maps) {
    const struct Workspace w = workspace(p);
    const i64 row = blockIdx.x;
    const i32 thread = threadIdx.x, first = blockIdx.x % p.tile_rows * TILE_Q;
    const struct Place at = place_of_row(p, blockIdx.x);
    const float *const tile = w.dq + row * TILE_FLOATS;
    struct Sum sum = {tile, tile, 1, TILE_FLOATS};
#if DETERMINISTIC
    const struct Further further = further_of(p, row / p.tile_rows, row % p.tile_rows);
    sum.more = w.dq + (i64)further.first * TILE_FLOATS;
    // If no column added to this row, the workspace was not even zeroed.
    sum.count = *control_of(p, row, TURN) ? 1 + further.count : 0;
#endif
#pragma unroll
    for (i32 i = thread; i < TILE_Q * HEAD_DIM / 16; i += PLAIN_THREADS) {
        const i32 share = i >= 32 * DQ_PIECES, j = i - share * 32 * DQ_PIECES;
        const i32 pieces = dq_pieces(share), piece = j % pieces, y = j / pieces;
        const i32 q = first + dq_query(share) + y / 8 * 16 + y % 8;
        if (PADDED && dq_column(share, piece) >= 8 * PIECES_QK) continue;
        store_rows(p.dq, p.dq_stride, at, query_at(q), query_at(q + 8), p.n_q,
                   dq_column(share, piece), sum, share * SHARE + 4 * (piece * 128 + y * 4), p.scale,
                   p.accumulates);
    }
#if HEAD_GRADIENT
    const i32 share = thread / 128;
    const i32 place = share * SHARE + 512 * dq_pieces(share) + thread % 128;
    float slope = sum.count && share < SHARES ? tile[place] : 0.0f;
    for (i32 part = 1; part < sum.count && share < SHARES; part++)
        slope += sum.more[(part - 1ll) * TILE_FLOATS + place];
    slope = block_sum(slope);
    if (thread == 0) w.control[row * TILE_Q + SLOPE_SUM] = slope;
#endif
#if HEAD_GRADIENT || WITH_SINKS
    __shared__ bool last;
    if (thread == 0) {
        __threadfence();
        last = atomicAdd((u32 *)w.control + DONE, 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last && WITH_SINKS && p.dsink) sum_shares(p, w, SINK_SUM, p.dsink, 1.0f);
    if (last && HEAD_GRADIENT && p.dslopes) sum_shares(p, w, SLOPE_SUM, p.dslopes, p.spacing);
#endif
}
#endif

// Finish launch: dk and dv of a tile column that several items share.
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_finish_keys(const __grid_constant__ struct Attention p,
                               const __grid_constant__ struct Maps) {
    const struct Workspace w = workspace(p);
    const struct Work work = work_at(p, p.items + p.empty + blockIdx.x / KEY_BLOCKS);
    const struct Place place = place_of(work.head, p.heads_q);
    const struct Place at = {place.batch, place.head / (p.heads_q / p.heads_kv)};
    const i32 first = work.tile * TILE_K;
    const float *const tile = w.keys + (i64)work.first * KEY_TILE_FLOATS;
    const struct Sum sum = {tile, tile + KEY_TILE_FLOATS, work.count, KEY_TILE_FLOATS};
    constexpr i32 STEP = KEY_BLOCKS * PLAIN_THREADS;
    constexpr i32 OF_DK = GROUPS * PIECES, ALL = OF_DK + GROUPS * PIECES_OF_DV;  // pieces
    for (i32 i = blockIdx.x % KEY_BLOCKS * PLAIN_THREADS + threadIdx.x; i < 32 * ALL; i += STEP) {
        const bool of_v = i >= 32 * OF_DK;
        const i32 pieces = of_v ? PIECES_OF_DV : PIECES, j = of_v ? i - 32 * OF_DK : i;
        const i32 piece = j % pieces, y = j / pieces % 32, group = j / pieces / 32;
        const i32 key = first + key_of(group) + y / 8 * 16 + y % 8;
        const i32 from = 4 * (((of_v ? OF_DK : 0) + group * pieces + piece) * 128 + y * 4);
        const i32 to = of_v ? column_of<SLABS_V>(group, piece) : column_of(group, piece);
        const i32 low = key_at(key), high = key_at(key + 8);
        if (PADDED && to >= 8 * (of_v ? PIECES_V : PIECES_QK)) continue;
        if (!of_v)
            store_rows(p.dk, p.dk_stride, at, low, high, p.n_kv, to, sum, from, p.scale,
                       p.accumulates);
        else
            store_rows(p.dv, p.dv_stride, at, low, high, p.n_kv, to, sum, from, kept_scale(p),
                       p.accumulates);
    }
}
