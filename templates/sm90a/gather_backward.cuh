// Attention backward over gathered keys for Hopper; contract: maskc/core/abi.py and gather.py.

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "common/lib/unpack.cuh"

#include "sm90a/lib/logit.cuh"

#include "sm90a/lib/logit_slope.cuh"

#include "common/lib/integers.h"

#include TOKENS_POLICY

#include "sm90a/lib/constants.cuh"
constexpr int BEHIND = STAGES - 1;  // cp.async groups in flight; k and v of a tile form one group

#include "sm90a/lib/ptx.cuh"

#include "sm90a/lib/gather_copy.cuh"

#include "sm90a/lib/wgmma.cuh"

#include "sm90a/lib/gather_load.cuh"

#include "common/lib/gather_sums.cuh"

// Shared memory of a block. maskc/plan/families/gather.py plans its size.
struct Shared {
    unsigned char q[Q_BYTES];
    unsigned char dout[Q_BYTES];
    unsigned char k[STAGES][K_BYTES];
    unsigned char v[STAGES][K_BYTES];
    unsigned char p[K_SLAB], ds[K_SLAB];  // heads x keys
    i32 key[STAGES][TILE_K];              // the keys in this stage
    u64 q_full, q_free;
    u64 full[STAGES], free[STAGES];
};
static_assert(GROUPS == 1 && TILE_Q == 64 && TILE_K == 64, "a tile of p is one slab");

#include "common/lib/memory.cuh"

FN void initialize(struct Shared &shared) {
    barrier_init(shared.q_full, COPIERS);
    barrier_init(shared.q_free, GROUPS);
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared.full[i], COPIERS);
        barrier_init(shared.free[i], GROUPS);
    }
    barriers_ready();
}

FN void copy_items(struct Shared &shared, const struct Attention &p) {
    Ring<STAGES> stage;
    struct Under under;
    u32 q_turn = 0;
#pragma unroll 1
    for (i32 index = blockIdx.x; index < p.items; index += gridDim.x) {
        const struct Item item = item_at(p, index);
        const i32 *const keys = keys_of(p, item);
        const i32 count = count_of(p, item), tiles = tiles_of(count);
        if (count == 0) continue;
        struct Rows rows = rows_of(keys, count, 0);
        // The wait for q depends on the previous item, which may wait for these copies
        settle_all(under);
        wait(shared.q_free, q_turn ^ 1);
        q_turn ^= 1;
        copy_heads<PIECES_QK>(shared.q, p.q, p.q_stride, item);
        copy_heads<PIECES_V>(shared.dout, p.dout, p.dout_stride, item);
        begun(under, shared.q_full);
#pragma unroll 1
        for (i32 tile = 0; tile < tiles; tile++) {
            const struct Rows own = rows;
            rows = rows_of(keys, count, min_i32(tile + 1, tiles - 1));  // used one tile later
            wait(shared.free[stage.at], stage.phase ^ 1);
            gather<PIECES_QK>(shared.k[stage.at], p.k, p.k_stride, item, own);
            gather<PIECES_V>(shared.v[stage.at], p.v, p.v_stride, item, own);
            if (threadIdx.x % 8 == 0)
#pragma unroll
                for (int i = 0; i < TURNS; i++)
                    shared.key[stage.at][threadIdx.x / 8 + ROWS_AT_ONCE * i] = own.key[i];
            begun(under, shared.full[stage.at]);
            stage.next();
        }
    }
    settle_all(under);
}

// ---------------------------------------------------------------- rows

// Accumulator layout: element 4 i + 2 r + e of a thread is in row 16 warp + lane / 4 + 8 r and
// column 8 i + 2 (lane % 4) + e. Rows are heads and columns are keys, or rows are keys and columns
// are a slab of the head dimension.
typedef float Scores[TILE_K / 2];
typedef float Gradient[HEAD_DIM / 2];
typedef float Slab[32];
typedef u32 Weights[TILE_K / 4];  // in storage precision, as the A operand

#include "common/lib/gather_tables.cuh"

// Per-head values of a thread's two rows.
struct Heads {
    float lse[2];    // times log2(e); infinity for a head that does not exist
    float delta[2];  // sum of out * dout
    struct HeadLogit logit[2];
    float total[2];  // gradient of the head's slope so far
    struct TableSums tables;
};

FN i32 row_in_tile() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

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

FN void begin_heads(struct Heads &heads, const struct Attention &p, const struct Item &item) {
    heads.tables = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = row_in_tile() + 8 * r, head = item.head + min_i32(row, item.heads - 1);
        const float lse = p.lse[item.batch * p.lse_stride[0] + head * p.lse_stride[1]
                                + item.query * p.lse_stride[2]];
        const float finite = lse == MINUS_INFINITY ? 0.0f : lse * LOG2E;
        heads.lse[r] = row < item.heads ? finite : PLUS_INFINITY;
        heads.delta[r] = row_delta(p, item, head);
        heads.logit[r] = head_logit_of(p, head);
        heads.total[r] = 0.0f;
    }
}

// Stores the gradients that belong to a whole head (sink, slope).
FN void end_heads(const struct Heads &heads, const struct Attention &p, const struct Item &item,
                  const struct Units &units) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = row_in_tile() + 8 * r, head = item.head + row;
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

// A tile of keys, and the query that selected them.
struct Tile {
    const i32 *keys;
    i32 count;  // existing keys, counted from the first one
    struct Steps steps;
};

// Maps the scores of two columns to pairs; see logit.cuh.
struct Where {
    struct Item item;
    struct Tile tile;
    struct HeadLogit own[2];
    float far[2];
    FN float distance(int i) const { return far[i % 2]; }
    FN struct HeadLogit head_logit(int i) const { return own[i / 2 % 2]; }
    FN i32 query(const struct Attention &, int) const { return item.query; }
    FN i32 key(const struct Attention &, int i) const {
        return tile.keys[i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2];
    }
    FN float q_minus_k(const struct Attention &p, int i) const { return tile.steps.to(key(p, i)); }
    FN i32 head(int i) const {
        return item.head + min_i32(row_in_tile() + i / 2 % 2 * 8, item.heads - 1);
    }
    FN i32 batch() const { return item.batch; }
};

// Computes the weights and the gradients of the scores without the scale factor, as WGMMA operands.
// The scores arrive after the first half of the logit formula.
FN void weigh(const Scores &s, const Scores &dp, Weights &weights, Weights &ds,
              struct Heads &heads, const struct Item &item, const struct Tile &tile,
              const struct Attention &p) {
    const struct Halfway way = halfway_of(p);
#pragma unroll
    for (int i = 0; i < TILE_K / 8; i++) {
        const i32 column = 8 * i + threadIdx.x % 4 * 2;
        const bool live[2] = {column < tile.count, column + 1 < tile.count};
        struct Where where = {item, tile, {heads.logit[0], heads.logit[1]}};
        if (HEAD_GRADIENT)
#pragma unroll
            for (int e = 0; e < 2; e++) where.far[e] = fabsf(where.q_minus_k(p, 4 * i + e));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x[2], y[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int at = 4 * i + 2 * r + e;
                const float logit = logit_from(s[at], way, p, where, at);
                const float weight = fast_exp2(fmaf(logit, LOG2E, -heads.lse[r]));
                x[e] = live[e] ? weight : 0.0f;
                y[e] = live[e] ? weight * (dp[at] - heads.delta[r]) : 0.0f;
                if (HEAD_GRADIENT)
                    heads.total[r] = fmaf(y[e], where.distance(at), heads.total[r]);
                add_to_tables(heads.tables, r, y[e], s[at] * p.scale, item.query,
                              where.key(p, at), where.head(at), item.batch, p);
                if (HAS_SLOPE) y[e] *= slope_from(s[at], way, p, where, at, y[e] != 0.0f);
            }
            weights[2 * i + r] = pack(x[0], x[1]);
            ds[2 * i + r] = pack(y[0], y[1]);
        }
    }
}

// Stores a warp's 16 rows of a tile of heads x keys.
FN void put(u32 tile, const Weights &x) {
    const u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++)
        store_matrices(tile + swizzled(row, 2 * i + lane / 16), x[4 * i], x[4 * i + 1],
                       x[4 * i + 2], x[4 * i + 3]);
}

// Issues s = q k^T, then dp = dout v^T.
FN void begin_scores(Scores &s, u64 rows, u64 keys) {
    fence_operand(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < QK_STEPS; i++)
        multiply_scores(s, rows + column_step(i, Q_SLAB), keys + column_step(i, K_SLAB), i > 0);
    products_commit();
}
// Issues dq += ds k.
FN void begin_dq(Gradient &dq, Weights &ds, u64 k) {
    fence_operand(ds);
    fence_operand(dq);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++) multiply_dq(dq, ds + 4 * i, k + token_step(i), true);
    products_commit();
}
// Issues one slab of dv = p^T dout or of dk = ds^T q. Rows are keys.
FN void begin_slab(Slab &x, u64 weights, u64 rows) {
    fence_operand(x);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_Q / 16; i++)
        multiply_keys(x, weights + token_step(i), rows + token_step(i), i > 0);
    products_commit();
}
// Adds 64 columns of a thread's two keys to memory. A negative row number marks a key that does not
// exist.
FN void add_slab(const struct Attention &p, const float (&x)[32], const i64 (&row)[2], bool values,
                 int slab, const struct Units &units) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row[r] < 0) continue;
        const i64 own = row[r] + (values ? rows_of_keys(p) : 0);
        Sum *const to = sums_of(p) + own * HEAD_DIM + 64 * slab + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (64 * slab + 8 * i >= HEAD_DIM) continue;
            const float a = x[4 * i + 2 * r], b = x[4 * i + 2 * r + 1];
#if DETERMINISTIC
            const i32 exponent = values ? units.dv : units.dk;
            add_exactly(to + 8 * i, marks_of(p) + own, a, exponent);
            add_exactly(to + 8 * i + 1, marks_of(p) + own, b, exponent);
#else
            atomicAdd((float2 *)(to + 8 * i), make_float2(a, b));
#endif
        }
    }
}
// Adds a tile's contribution to dk and dv of its keys, slab by slab. The WGMMAs of the next slab
// overlap the additions of this one.
FN void add_keys(struct Shared &shared, const struct Attention &p, const struct Item &item,
                 const struct Tile &tile, const struct Units &units) {
    i64 row[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 place = row_in_tile() + 8 * r;
        const i64 first = (i64)(item.batch * p.heads_kv + item.kv_head) * p.n_kv;
        row[r] = place < tile.count ? first + tile.keys[place] : -1;
    }
    const u64 weights = along_tokens(shared_address(shared.p), K_SLAB);
    const u64 ds = along_tokens(shared_address(shared.ds), K_SLAB);
    const u64 q = along_tokens(shared_address(shared.q), Q_SLAB);
    const u64 dout = along_tokens(shared_address(shared.dout), Q_SLAB);
    Slab x[2];
    begin_slab(x[0], weights, dout);
#pragma unroll
    for (int i = 0; i < 2 * SLABS; i++) {
        products_wait<0>();
        fence_operand(x[i % 2]);
        const int next = i + 1;
        if (next < SLABS)
            begin_slab(x[next % 2], weights, dout + next * (Q_SLAB >> 4));
        else if (next < 2 * SLABS)
            begin_slab(x[next % 2], ds, q + (next - SLABS) * (Q_SLAB >> 4));
        add_slab(p, x[i % 2], row, i < SLABS, i % SLABS, units);
    }
}

FN void store_dq(const Gradient &dq, const struct Attention &p, const struct Item &item) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = row_in_tile() + 8 * r;
        if (row >= item.heads) continue;
        u32 *const to = (u32 *)row_of(p.dq, p.dq_stride, item.batch, item.head + row, item.query);
#pragma unroll
        for (int i = 0; i < PIECES_QK; i++)
            to[4 * i + lane % 4] =
                pack(dq[4 * i + 2 * r] * p.scale, dq[4 * i + 2 * r + 1] * p.scale);
    }
}

FN void compute(struct Shared &shared, const struct Attention &p) {
    const bool leader = threadIdx.x % 128 == 0;
    const u64 q = along_columns(shared_address(shared.q));
    const u64 dout = along_columns(shared_address(shared.dout));
    const struct Units units = units_of(p);
    Ring<STAGES> stage;
    u32 q_turn = 0;
    Gradient dq;
#pragma unroll 1
    for (i32 index = blockIdx.x; index < p.items; index += gridDim.x) {
        const struct Item item = item_at(p, index);
        const i32 count = uniform(count_of(p, item)), tiles = tiles_of(count);
        struct Heads heads;
        begin_heads(heads, p, item);
        clear(dq);
        if (count > 0) {
            wait(shared.q_full, q_turn);
            q_turn ^= 1;
        }
#pragma unroll 1
        for (i32 tile = 0; tile < tiles; tile++) {
            const struct Tile own = {shared.key[stage.at], count - tile * TILE_K,
                                     steps_from(p, item.query)};
            Scores s, dp;
            Weights weights, ds;
            wait(shared.full[stage.at], stage.phase);
            begin_scores(s, q, along_columns(shared_address(shared.k[stage.at])));
            begin_scores(dp, dout, along_columns(shared_address(shared.v[stage.at])));
            products_wait<0>();
            fence_operand(s);
            fence_operand(dp);
            halfway(s, p);
            weigh(s, dp, weights, ds, heads, item, own, p);
            sync_threads(1, 128);  // WGMMAs have finished reading the tiles
            put(shared_address(shared.p), weights);
            put(shared_address(shared.ds), ds);
            publish_writes();
            sync_threads(1, 128);
            begin_dq(dq, ds, along_tokens(shared_address(shared.k[stage.at]), K_SLAB));
            add_keys(shared, p, item, own, units);
            fence_operand(dq);
            if (leader) arrive(shared.free[stage.at]);
            stage.next();
        }
        if (leader && count > 0) arrive(shared.q_free);
        store_dq(dq, p, item);
        end_heads(heads, p, item, units);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_backward(const __grid_constant__ struct Attention p) {
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) initialize(shared);
    __syncthreads();
    if (uniform(threadIdx.x / 128) == 0) {
        setmaxnreg_dec<COPY_REGISTERS>();
        copy_items(shared, p);
    } else {
        setmaxnreg_inc<COMPUTE_REGISTERS>();
        compute(shared, p);
    }
}
