// Attention forward over gathered keys for mma.sync (sm_80 and later); contract:
// maskc/core/abi.py and gather.py.

#include "sm80/lib/constants.cuh"

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "common/lib/integers.h"

#include TOKENS_POLICY

#include "sm80/lib/ptx.cuh"

#include "sm80/lib/load.cuh"

#include "sm80/lib/logit.cuh"

#include "common/lib/gathered_items.cuh"

#include "sm80/lib/softmax.cuh"

#include "sm80/lib/scores.cuh"

#include "sm80/lib/values.cuh"

// Shared memory of a block. maskc/plan/families/gather.py plans its size.
struct Shared {
    unsigned char q[TILE_Q * PITCH];
    unsigned char k[TILE_K * PITCH];
    unsigned char v[TILE_K * PITCH];
    float top[PARK_ROWS ? THREADS : 1][ROWS], sum[PARK_ROWS ? THREADS : 1][ROWS];
    float slope[TILE_Q];  // of heads
    i32 key[TILE_K];      // of the tile
};
static_assert(sizeof(struct Shared) <= MEMORY, "planned memory");

#include "sm80/lib/gather_rows.cuh"

// ---------------------------------------------------------------- one item

// Turns scores q . k into logits, up to the factor `unit`. Rows are heads, and columns are keys at
// arbitrary positions.
FN void make_logits(Scores &s, const struct Attention &p, const struct Logit &logit,
                    const struct Shared &shared, const struct Item &item) {
    (void)logit, (void)shared, (void)item;
#if SCORED
    const i32 thread = make_opaque(threadIdx.x), first = first_row() + thread % 32 / 4;
    const struct Steps steps = steps_from(p, item.query);
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++) {
        if (i % 4 == 0) __syncwarp();  // spreads the loads of keys: registers are short
        const i32 key = NEEDS_WHERE ? shared.key[i / 2 * 8 + thread % 4 * 2 + i % 2] : 0;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float &x = s[r / 2][i / 2][r % 2 * 2 + i % 2];
            const float slope = HEAD_GRADIENT ? shared.slope[first + 8 * r] : 0.0f;
            const struct Logit own = {logit.unit, slope, logit.sharpness};
            const i32 head = item.head + min_i32(first + 8 * r, item.heads - 1);
            x = to_logit(x, p, own, {item.query, key, head, item.batch, steps.to(key)});
        }
    }
#else
    if (p.scale < 0.0f)
#pragma unroll
        for (int i = 0; i < TILE_K / 4 * ROWS; i++) {
            float &x = s[i / (TILE_K / 2)][i % (TILE_K / 2) / 4][i % 4];
            x = -x;
        }
#endif
}

// Hides columns past the last key.
FN void hide_tail(Scores &s, i32 count) {
    const i32 own = count - make_opaque(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
        for (int n = 0; n < TILE_K / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * n + e % 2 >= own) s[m][n][e] = MINUS_INFINITY;
}

// Divides by the row sums, and writes out and lse of the existing heads.
FN void store(const Output &o, const float (&top)[ROWS], const float (&sum)[ROWS],
              const struct Item &item, const struct Attention &p) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const i32 row = first_row() + lane / 4 + 8 * r;
        const i32 head = item.head + min_i32(row, item.heads - 1);
        float total = quad_sum(sum[r]), base = top[r], factor = 1.0f;
#if WITH_SINKS
        const float sink = p.sink_logits[head] * LOG2E;
        base = fmaxf(base, sink);
        factor = fast_exp2(top[r] - base);
        total = total * factor + fast_exp2(sink - base);
#endif
        if (row >= item.heads) continue;
        const bool empty = total == 0.0f;
        const float scale = not_zero(factor * fast_reciprocal(total));
        if (lane % 4 == 0)
            p.lse[item.batch * p.lse_stride[0] + head * p.lse_stride[1]
                  + item.query * p.lse_stride[2]] =
                empty ? MINUS_INFINITY : (base + fast_log2(total)) * LN2;
        u32 *const to = (u32 *)row_of(p.out, p.out_stride, item.batch, head, item.query);
#pragma unroll
        for (int n = 0; n < PIECES_V; n++) {
            const float *x = &o[r / 2][n][r % 2 * 2];
            to[4 * n + lane % 4] = empty ? 0 : pack(x[0] * scale, x[1] * scale);
        }
    }
}

FN void attend(struct Shared &shared, const struct Attention &p, const struct Item &item) {
    const u32 q_tile = shared_address(shared.q);
    const u32 k_tile = shared_address(shared.k), v_tile = shared_address(shared.v);
    const i32 *const keys = keys_of(p, item);
    const i32 count = count_of(p, item);
    const struct Logit logit = logit_of(&p, item.head);
    struct Query query;
    query.at = q_tile + first_row() * PITCH + lane_in_rows();
    Scores s;
    Output o;
    float own[2][ROWS];  // per row: its top, and this lane's share of the sum
    float (&top)[ROWS] = PARK_ROWS ? shared.top[threadIdx.x] : own[0];
    float (&sum)[ROWS] = PARK_ROWS ? shared.sum[threadIdx.x] : own[1];
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = ROW_MAX_INIT, sum[r] = 0.0f;
    clear(o);
    take_slopes(shared, p, item);
    if (count > 0) {
        copy_heads<PIECES_QK>(q_tile, p.q, p.q_stride, item);
        copy_keys<PIECES_QK>(k_tile, p.k, p.k_stride, item, keys, count);
    }
#pragma unroll 1
    for (i32 first = 0; first < count; first += TILE_K) {
        const i32 left = count - first;
        copy_wait<0>();   // k has arrived, and
        __syncthreads();  // the previous v is no longer read
        copy_keys<PIECES_V>(v_tile, p.v, p.v_stride, item, keys + first, left);
        if (NEEDS_WHERE) take_keys(shared, keys + first, left);
        if (KEEP_Q && first == 0) keep_query(query);
        score(s, query, k_tile);

        copy_wait<0>();   // v has arrived, and
        __syncthreads();  // k is no longer read
        if (left > TILE_K)
            copy_keys<PIECES_QK>(k_tile, p.k, p.k_stride, item, keys + first + TILE_K,
                                 left - TILE_K);
        make_logits(s, p, logit, shared, item);
        if (left < TILE_K) hide_tail(s, left);
        raise_tops(s, logit.unit, top, sum, o);
        accumulate(o, sum, s, top, logit.unit, v_tile);
    }
    store(o, top, sum, item, p);
    __syncthreads();  // q and v are no longer read
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_forward(const __grid_constant__ struct Attention p) {
    extern __shared__ __align__(128) unsigned char memory[];
    struct Shared &shared = *(struct Shared *)memory;
#pragma unroll 1
    for (i32 index = blockIdx.x; index < p.items; index += gridDim.x)
        attend(shared, p, item_at(p, index));
}
