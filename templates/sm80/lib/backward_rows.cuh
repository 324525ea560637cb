// Per-query inputs of a backward pass, the launch before it that computes them, and the launch
// after it. Needs: backward_constants.cuh, load.cuh, dot.cuh; lists of tiles. Gives: Workspace,
// Place, row_offset, leave_row, dq_place.

struct Place {
    i32 batch, head;
};
FN struct Place place_of(i32 head, i32 heads) {
    const i32 batch = (u32)head / (u32)heads;
    return {batch, head - batch * heads};
}
// Offset of a token's row, in elements.
FN i64 row_offset(const i64 (&stride)[3], struct Place at, i32 token) {
    return at.batch * stride[0] + at.head * stride[1] + token * stride[2];
}
FN struct Place place_of_row(const struct Attention &p, i32 row) {
    return place_of((u32)row / (u32)p.tile_rows, p.heads_q);
}
FN i32 query_at(i32 place) { return place; }

// For every tile row, head and sequence: lse and delta of TILE_Q queries, two sums, a tile of dq.
struct Workspace {
    float *lse;    // times log2(e), or with entmax the level; infinite without keys
    float *delta;  // softmax: rowsum(out * dout); entmax: mean of dout . v, weighted by u
    float *sums;   // of the tile: gradients of its head's sink and slope
    float *dq;
};
enum { SINK_SUM = 0, SLOPE_SUM = 1 };

FN struct Workspace workspace(const struct Attention &p) {
    const i64 rows = (i64)p.batch * p.heads_q * p.tile_rows;
    struct Workspace w;
    w.lse = p.delta;
    w.delta = w.lse + rows * TILE_Q;
    w.sums = w.delta + rows * TILE_Q;
    w.dq = w.sums + rows * TILE_Q;
    return w;
}
// Offset of a lane's number in a 16-row fragment of dq. The lane's four numbers are contiguous if
// one instruction adds four, otherwise the numbers of all lanes are.
#if __CUDA_ARCH__ >= 900
constexpr bool ADDS_FOUR = true;
FN void add_four(float *to, const float (&x)[4]) {
    asm volatile("red.global.add.v4.f32 [%0], { %1, %2, %3, %4};"
                 :: "l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}
#else
constexpr bool ADDS_FOUR = false;
FN void add_four(float *to, const float (&x)[4]) {
#pragma unroll
    for (int e = 0; e < 4; e++) atomicAdd(to + 32 * e, x[e]);
}
#endif
FN i32 dq_place(i32 fragment, i32 column, i32 lane, i32 e) {
    const i32 first = (fragment * (HEAD_DIM / 8) + column) * 128;
    return first + (ADDS_FOUR ? 4 * lane + e : lane + 32 * e);
}

FN float warp_sum(float x) {
#pragma unroll
    for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffff, x, by);
    return x;
}
// Sums one number per thread, in thread 0. The order is fixed, so the result is deterministic.
template <int COUNT>
FN float block_sum(float x) {
    __shared__ float part[COUNT / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x < COUNT / 32 ? part[threadIdx.x] : 0.0f;
    return threadIdx.x < 32 ? warp_sum(x) : 0.0f;
}

// Stores lse and delta of query `r` of a tile row for the main launch.
FN void leave_row(const struct Attention &p, i64 row, i32 r, float lse, float delta) {
    const struct Workspace w = workspace(p);
    w.lse[row * TILE_Q + r] = lse == MINUS_INFINITY ? PLUS_INFINITY
                                                    : lse * (WITH_ENTMAX ? p.alpha_minus_1 : LOG2E);
    w.delta[row * TILE_Q + r] = delta;
}

// Prepare launch: computes lse and delta of a tile row and the sink's gradient, and zeroes dq.
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_prepare(const __grid_constant__ struct Attention p) {
    constexpr int LANES = CHUNKS <= 8 ? 8 : CHUNKS <= 16 ? 16 : 32;  // per row
    const struct Workspace w = workspace(p);
    const i64 row = blockIdx.x;
    const i32 lane = threadIdx.x % LANES, first = blockIdx.x % p.tile_rows * TILE_Q;
    const struct Place at = place_of_row(p, blockIdx.x);
    if (!DETERMINISTIC)
        for (i32 i = threadIdx.x; i < TILE_FLOATS / 4; i += PLAIN_THREADS)
            ((float4 *)(w.dq + row * TILE_FLOATS))[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float sink_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < TILE_Q; i += PLAIN_THREADS / LANES) {
        const i32 r = i + threadIdx.x / LANES, q = first + r;
        if (r >= TILE_Q) break;  // uniform over the lanes of a row
        const bool inside = q < p.n_q;
        float sum = 0.0f;
#if WIDE
        for (int j = lane; inside && j < PIECES_V; j += LANES)
            sum += dot(__ldg((const uint4 *)p.out + row_offset(p.out_stride, at, q) / 8 + j),
                       __ldg((const uint4 *)p.dout + row_offset(p.dout_stride, at, q) / 8 + j));
#else
        if (inside && lane < PIECES_V)
            sum = dot(__ldg((const uint4 *)p.out + row_offset(p.out_stride, at, q) / 8 + lane),
                      __ldg((const uint4 *)p.dout + row_offset(p.dout_stride, at, q) / 8 + lane));
#endif
#pragma unroll
        for (int by = LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
        if (lane > 0) continue;
        const i64 place = row_offset(p.lse_stride, at, q);
        const float lse = inside ? __ldg(p.lse + place) : MINUS_INFINITY;
        const bool dead = lse == MINUS_INFINITY;  // no keys, or past the end: all weights are 0
        leave_row(p, row, r, lse, dead ? 0.0f : sum);
        if (WITH_SINKS && !dead)
            sink_sum -= fast_exp2((p.sink_logits[at.head] - lse) * LOG2E) * sum;
    }
    if (WITH_SINKS) sink_sum = block_sum<PLAIN_THREADS>(sink_sum);
    if (threadIdx.x == 0) w.sums[row * TILE_Q + SINK_SUM] = sink_sum;
}

// Sums the tiles' shares head by head, in a fixed order.
FN void sum_shares(const struct Attention &p, int which, float *to) {
    const float *const sums = workspace(p).sums;
    const i32 tiles = p.batch * p.tile_rows;
    for (i32 head = threadIdx.x / 32; head < p.heads_q; head += PLAIN_THREADS / 32) {
        float sum = 0.0f;
        for (i32 i = threadIdx.x % 32; i < tiles; i += 32) {
            const i32 batch = i / p.tile_rows;
            const i64 row = ((i64)batch * p.heads_q + head) * p.tile_rows + i % p.tile_rows;
            sum += sums[row * TILE_Q + which];
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) to[head] += sum;
    }
}

// Finish launch: converts a tile row of dq to storage precision, if it was accumulated, and sums
// the gradients of heads.
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_finish(const __grid_constant__ struct Attention p) {
    if (blockIdx.x == 0) {
        if (WITH_SINKS && p.dsink) sum_shares(p, SINK_SUM, p.dsink);
        if (HEAD_GRADIENT && DETERMINISTIC && p.dslopes) sum_shares(p, SLOPE_SUM, p.dslopes);
    }
    if (DETERMINISTIC) return;
    const i64 row = blockIdx.x;
    const i32 first = blockIdx.x % p.tile_rows * TILE_Q;
    const struct Place at = place_of_row(p, blockIdx.x);
    const float *const tile = workspace(p).dq + row * TILE_FLOATS;
    unsigned char *const to = head_rows(p.dq, p.dq_stride, at.batch, at.head);
#pragma unroll 4
    for (i32 i = threadIdx.x; i < TILE_FLOATS / 2; i += PLAIN_THREADS) {
        // Four lanes have eight columns of a row. Rows vary fastest, so that whole cache lines are
        // written.
        const i32 lane = i % 4, column = i / 4 % CHUNKS, r = i / 4 / CHUNKS, q = first + r;
        const i32 owner = r % 8 * 4 + lane, e = r % 16 / 8 * 2;
        if (q >= p.n_q) break;
        if (PADDED && column >= PIECES_QK) continue;
        const float low = tile[dq_place(r / 16, column, owner, e)];
        const float high = tile[dq_place(r / 16, column, owner, e + 1)];
        u32 *const place = (u32 *)(to + 2 * (q * p.dq_stride[2] + 8 * column)) + lane;
        float2 sum = make_float2(low * p.scale, high * p.scale);
        if (p.accumulates) {
            const float2 there = unpack(*place);
            sum.x += there.x, sum.y += there.y;
        }
        *place = pack(sum.x, sum.y);
    }
}
