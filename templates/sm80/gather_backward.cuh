// Attention backward over gathered keys for mma.sync (sm_80 and later); contract:
// maskc/core/abi.py and gather.py.

#include "sm80/lib/constants.cuh"

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "common/lib/unpack.cuh"

#include "common/lib/integers.h"

#include TOKENS_POLICY

#include "sm80/lib/ptx.cuh"

#include "sm80/lib/load.cuh"

#include "sm80/lib/logit.cuh"

#include "common/lib/gathered_items.cuh"

constexpr int PIECES = CHUNKS;  // 16-byte pieces in a row of sums
#include "common/lib/gather_sums.cuh"

#include "sm80/lib/softmax.cuh"

#include "sm80/lib/scores.cuh"

#include "sm80/lib/values.cuh"

// Shared memory of a block. maskc/plan/families/gather.py plans its size.
struct Shared {
    unsigned char q[TILE_Q * PITCH], dout[TILE_Q * PITCH];
    unsigned char k[TILE_K * PITCH], v[TILE_K * PITCH];
    unsigned char p[TILE_Q * 2 * TILE_K], ds[TILE_Q * 2 * TILE_K];  // heads x keys
    float slope[TILE_Q];  // of heads
    i32 key[TILE_K];      // of the tile
};
static_assert(sizeof(struct Shared) <= MEMORY, "planned memory");
static_assert(FRAGMENTS == 1, "a warp has sixteen heads");

#include "sm80/lib/gather_rows.cuh"

#include "common/lib/gather_tables.cuh"

// ---------------------------------------------------------------- heads

// Per-head values of a thread's two rows.
struct Heads {
    float lse[2];    // times log2(e); infinity for a head that does not exist
    float delta[2];  // sum of out * dout
    float total[2];  // gradient of the head's slope so far
    struct TableSums tables;
};

FN float row_delta(const struct Attention &p, const struct Item &item, i32 head) {
    const uint4 *const out = (const uint4 *)row_of(p.out, p.out_stride, item.batch, head,
                                                   item.query);
    const uint4 *const dout = (const uint4 *)row_of(p.dout, p.dout_stride, item.batch, head,
                                                    item.query);
    float sum = 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x % 4; i < PIECES_V; i += 4) {
        const uint4 a = __ldg(out + i), b = __ldg(dout + i);
        const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 left = unpack(x[j]), right = unpack(y[j]);
            sum = fmaf(left.x, right.x, fmaf(left.y, right.y, sum));
        }
    }
    return quad_sum(sum);
}
FN i32 own_row(int r) { return first_row() + threadIdx.x % 32 / 4 + 8 * r; }

FN void begin_heads(struct Heads &heads, const struct Attention &p, const struct Item &item) {
    heads.tables = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = own_row(r), head = item.head + min_i32(row, item.heads - 1);
        const float lse = p.lse[item.batch * p.lse_stride[0] + head * p.lse_stride[1]
                                + item.query * p.lse_stride[2]];
        const float finite = lse == MINUS_INFINITY ? 0.0f : lse * LOG2E;
        heads.lse[r] = row < item.heads ? finite : PLUS_INFINITY;
        heads.delta[r] = row_delta(p, item, head);
        heads.total[r] = 0.0f;
    }
}
// Stores the gradients that belong to a whole head (sink, slope).
FN void end_heads(const struct Heads &heads, const struct Attention &p, const struct Item &item,
                  const struct Units &units) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = own_row(r), head = item.head + row;
        const float total = quad_sum(heads.total[r]);
        end_tables(heads.tables, r, row < item.heads, item.query, min_i32(head, p.heads_q - 1),
                   item.batch, p);
        if (row >= item.heads || threadIdx.x % 4) continue;
        if (HEAD_GRADIENT && p.dslopes) add_slope(p, units, head, -total * p.spacing);
        if (WITH_SINKS && p.dsink) {
            const float share = fast_exp2(fmaf(p.sink_logits[head], LOG2E, -heads.lse[r]));
            add_sink(p, units, head, -share * heads.delta[r]);
        }
    }
}

// ---------------------------------------------------------------- a tile

// Offset of a 16-byte piece of a row of p or ds. Pieces are XOR-swizzled as in other tiles.
constexpr int P_SPAN = TILE_K < 64 ? TILE_K / 8 : 8, P_PITCH = 2 * TILE_K;
FN u32 p_place(u32 row, u32 piece) {
    return row * P_PITCH + 16 * (piece ^ (row / (8 / P_SPAN) % P_SPAN));
}

// Turns scores and dp into weights and the gradients of scores without the scale factor, and stores
// both for the other warps. `left`: existing keys of the tile.
FN void weigh(Scores &s, Scores &dp, struct Shared &shared, const struct Attention &p,
              struct Heads &heads, const struct Item &item, i32 left) {
    const struct Logit all = logit_of(&p, 0);
    const float unit = PAIRWISE_LOGITS ? all.unit : p.scale * LOG2E;  // signed
    const struct Steps steps = steps_from(p, item.query);
    const i32 own = make_opaque(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int n = 0; n < TILE_K / 8; n++) {
        if (HEAD_GRADIENT) __syncwarp();  // spreads the loads of keys: registers are short
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const i32 row = own_row(r);
            const struct Logit kind = {unit, HEAD_GRADIENT ? shared.slope[row] : 0.0f,
                                       all.sharpness};
            float x[2], y[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const i32 column = 8 * n + own + e, key = shared.key[column];
                const struct Pair pair = {item.query, key,
                                          item.head + min_i32(row, item.heads - 1), item.batch,
                                          steps.to(key)};
                const float score = s[0][n][2 * r + e], logit = to_logit(score, p, kind, pair);
                const float weight = fast_exp2(fmaf(logit, unit, -heads.lse[r]));
                const float gradient = weight * (dp[0][n][2 * r + e] - heads.delta[r]);
                const bool live = column < left;
                x[e] = live ? weight : 0.0f, y[e] = live ? gradient : 0.0f;
                if (HEAD_GRADIENT)
                    heads.total[r] = fmaf(y[e], fabsf(pair.q_minus_k), heads.total[r]);
                add_to_tables(heads.tables, r, y[e], score * p.scale, pair.query, key, pair.head,
                              pair.batch, p);
                y[e] *= logit_slope(score, logit, p, kind, pair, y[e] != 0.0f);
                dp[0][n][2 * r + e] = y[e];
            }
            const u32 to = p_place(row, n) + 2 * own;
            *(u32 *)(shared.p + to) = pack(x[0], x[1]);
            *(u32 *)(shared.ds + to) = pack(y[0], y[1]);
        }
    }
}

// Adds 32 columns of dv (or dk) of sixteen keys to the sums: p^T dout (or ds^T q) of the tile.
FN void add_keys(struct Shared &shared, const struct Attention &p, i64 first_row, i32 left,
                 i32 fragment, i32 slab, bool values, const struct Units &units) {
    const u32 lane = threadIdx.x % 32;
    const u32 w = shared_address(values ? shared.p : shared.ds);
    const u32 rows = shared_address(values ? shared.dout : shared.q) + lane_in_rows();
    float x[4][4] = {};
#pragma unroll
    for (int n = 0; n < TILE_Q / 16; n++) {
        u32 a[4], b[4];
        const u32 row = 16 * n + lane % 8 + lane / 16 * 8;
        load_matrices_transposed(a, w + p_place(row, 2 * fragment + lane / 8 % 2));
#pragma unroll
        for (int d = 0; d < 2; d++) {
            load_matrices_transposed(b, fragment_at(rows, n, 2 * slab + d));
            multiply(x[2 * d], a, b[0], b[1]);
            multiply(x[2 * d + 1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 key = 16 * fragment + lane / 4 + 8 * r;
        if (key >= left) continue;
        const i64 own = first_row + shared.key[key] + (values ? rows_of_keys(p) : 0);
        Sum *const to = sums_of(p) + own * HEAD_DIM + 32 * slab + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float sum = x[i][2 * r + e];
#if DETERMINISTIC
                add_exactly(to + 8 * i + e, marks_of(p) + own, sum,
                            values ? units.dv : units.dk);
#else
                atomicAdd(to + 8 * i + e, sum);
#endif
            }
    }
}

FN void store_dq(const Output &dq, const struct Attention &p, const struct Item &item) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = own_row(r);
        if (row >= item.heads) continue;
        u32 *const to = (u32 *)row_of(p.dq, p.dq_stride, item.batch, item.head + row, item.query);
#pragma unroll
        for (int n = 0; n < PIECES_QK; n++)
            to[4 * n + lane % 4] =
                pack(dq[0][n][2 * r] * p.scale, dq[0][n][2 * r + 1] * p.scale);
    }
}

FN void attend(struct Shared &shared, const struct Attention &p, const struct Item &item,
               const struct Units &units) {
    const u32 q_tile = shared_address(shared.q), dout_tile = shared_address(shared.dout);
    const u32 k_tile = shared_address(shared.k), v_tile = shared_address(shared.v);
    const i32 *const keys = keys_of(p, item);
    const i32 count = count_of(p, item);
    const i64 first_of_head = (i64)(item.batch * p.heads_kv + item.kv_head) * p.n_kv;
    struct Query query, gradient;
    query.at = q_tile + first_row() * PITCH + lane_in_rows();
    gradient.at = dout_tile + first_row() * PITCH + lane_in_rows();
    struct Heads heads;
    begin_heads(heads, p, item);
    Output dq;
    clear(dq);
    if (count > 0) {
        copy_heads<PIECES_QK>(q_tile, p.q, p.q_stride, item);
        copy_heads<PIECES_V>(dout_tile, p.dout, p.dout_stride, item);
        take_slopes(shared, p, item);
    }
#pragma unroll 1
    for (i32 first = 0; first < count; first += TILE_K) {
        const i32 left = count - first;
        copy_keys<PIECES_QK>(k_tile, p.k, p.k_stride, item, keys + first, left);
        copy_keys<PIECES_V>(v_tile, p.v, p.v_stride, item, keys + first, left);
        take_keys(shared, keys + first, left);
        copy_wait<0>();
        __syncthreads();
        Scores s, dp;
        score(s, query, k_tile);
        score(dp, gradient, v_tile);
        weigh(s, dp, shared, p, heads, item, left);
        add_values(dq, k_tile + lane_in_rows(), [&](int m, int n, int i) {
            const float *x = &dp[m][2 * n + i / 2][i % 2 * 2];
            return pack(x[0], x[1]);
        });
        __syncthreads();  // p and ds are complete
        constexpr int FEW = TILE_K / 16, SLABS = HEAD_DIM / 32;
#pragma unroll 1
        for (i32 job = threadIdx.x / 32; job < 2 * FEW * SLABS; job += WARPS)
            add_keys(shared, p, first_of_head, left, job % FEW, job / FEW % SLABS,
                     job < FEW * SLABS, units);
        __syncthreads();  // the tile is no longer read
    }
    store_dq(dq, p, item);
    end_heads(heads, p, item, units);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_backward(const __grid_constant__ struct Attention p) {
    extern __shared__ __align__(128) unsigned char memory[];
    struct Shared &shared = *(struct Shared *)memory;
    const struct Units units = units_of(p);
#pragma unroll 1
    for (i32 index = blockIdx.x; index < p.items; index += gridDim.x)
        attend(shared, p, item_at(p, index), units);
}
