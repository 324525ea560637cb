// Attention forward over gathered keys for Hopper; contract: maskc/core/abi.py and gather.py.

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "sm90a/lib/logit.cuh"

#include "common/lib/integers.h"

#include TOKENS_POLICY

#include "sm90a/lib/constants.cuh"
// cp.async groups in flight. k and v of STAGES - 1 tiles lie in between, so the next slot of the
// ring is free by the time it is needed.
constexpr int BEHIND = STAGES > 2 ? 3 : 2;

#include "sm90a/lib/ptx.cuh"

#include "sm90a/lib/gather_copy.cuh"

#include "sm90a/lib/wgmma.cuh"

#include "sm90a/lib/softmax.cuh"

#include "common/lib/bits.cuh"

#include "common/lib/quad_columns.cuh"

#include "sm90a/lib/visible.cuh"

#include "sm90a/lib/apply_mask.cuh"

#include "sm90a/lib/mask_tail.cuh"

#include "sm90a/lib/gather_load.cuh"

// Shared memory of a block. maskc/plan/families/gather.py plans its size.
struct Shared {
    unsigned char q[Q_BYTES];
    unsigned char k[STAGES][K_BYTES];
    unsigned char v[STAGES][V_STAGE];
    u64 q_full, q_free;
    u64 k_full[STAGES], k_free[STAGES], v_full[STAGES], v_free[STAGES];
};

#include "common/lib/memory.cuh"

FN void initialize(struct Shared &shared) {
    barrier_init(shared.q_full, COPIERS);
    barrier_init(shared.q_free, GROUPS);
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared.k_full[i], COPIERS);
        barrier_init(shared.v_full[i], COPIERS);
        barrier_init(shared.k_free[i], GROUPS);
        barrier_init(shared.v_free[i], GROUPS);
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
#pragma unroll 1
        for (i32 tile = 0; tile < tiles; tile++) {
            const struct Rows own = rows;
            rows = rows_of(keys, count, min_i32(tile + 1, tiles - 1));  // used one tile later
            wait(shared.k_free[stage.at], stage.phase ^ 1);
            gather<PIECES_QK>(shared.k[stage.at], p.k, p.k_stride, item, own);
            begun(under, shared.k_full[stage.at]);
            if (tile == 0) {
                // The wait for q depends on the previous item, which may wait for these copies
                settle_all(under);
                wait(shared.q_free, q_turn ^ 1);
                q_turn ^= 1;
                copy_heads<PIECES_QK>(shared.q, p.q, p.q_stride, item);
                begun(under, shared.q_full);
            }
            wait(shared.v_free[stage.at], stage.phase ^ 1);
            gather<PIECES_V>(shared.v[stage.at], p.v, p.v_stride, item, own);
            begun(under, shared.v_full[stage.at]);
            stage.next();
        }
    }
    settle_all(under);
}

// ---------------------------------------------------------------- warpgroups that compute

// The thread's first row, which is a head; its second one is 8 further on.
FN i32 row_in_tile(i32 group) {
    const i32 thread = threadIdx.x % 128;
    return 64 * group + thread / 32 * 16 + thread % 32 / 4;
}

// Maps a thread's score elements to pairs: rows are heads, and columns are keys at arbitrary
// positions. See logit.cuh.
struct Where {
    struct Item item;
    const i32 *keys;
    i32 count, row, tile;
    struct HeadLogit own[2];
    struct Steps steps;
    FN void refresh(const struct Attention &p) {
#pragma unroll
        for (int r = 0; r < 2; r++) own[r] = head_logit_of(p, head(2 * r));
        steps = steps_from(p, item.query);
    }
    FN i32 own_key(int i) const {
        const i32 column = tile * TILE_K + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        return __ldg(keys + min_i32(column, count - 1));
    }
    FN float distance(int i) const { return fabsf(steps.to(own_key(i))); }
    FN struct HeadLogit head_logit(int i) const { return own[i / 2 % 2]; }
    FN i32 query(const struct Attention &, int) const { return item.query; }
    FN i32 key(const struct Attention &, int i) const { return own_key(i); }
    FN float q_minus_k(const struct Attention &, int i) const { return steps.to(own_key(i)); }
    FN i32 head(int i) const { return item.head + min_i32(row + i / 2 % 2 * 8, item.heads - 1); }
    FN i32 batch() const { return item.batch; }
};

// Issues s = q k^T.
FN void begin_scores(Scores &s, u64 q, u64 k) {
    fence_operand(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < QK_STEPS; i++)
        multiply_qk(s, q + column_step(i, Q_SLAB), k + column_step(i, K_SLAB), i > 0);
    products_commit();
}
// Issues o += p v.
FN void begin_output(Output &o, Weights &weights, u64 v) {
    fence_operand(weights);
    fence_operand(o);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++)
        multiply_pv(o, weights + 4 * i, v + token_step(i), true);
    products_commit();
}

// Scheduler barrier between the two consumer warpgroups (named barriers 1 and 2): they issue WGMMAs
// in turn, so that the softmax of one overlaps the WGMMAs of the other.
FN void scheduler_barrier_sync(i32 group) {
    if (GROUPS > 1) sync_threads(1 + group, 256);
}
FN void scheduler_barrier_arrive(i32 group) {
    if (GROUPS > 1) arrive_threads(1 + (group + 1 == GROUPS ? 0 : group + 1), 256);
}

// Divides by the row sums and writes out and lse of the existing heads.
FN void store(const Output &o, const struct Softmax &softmax, float unit, const struct Item &item,
              const struct Attention &p, i32 first) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = first + 8 * r, head = item.head + min_i32(row, item.heads - 1);
        float total = quad_sum(softmax.sum[r]), base = softmax.top[r] * unit, factor = 1.0f;
#if WITH_SINKS
        const float sink = p.sink_logits[head] * LOG2E, higher = fmaxf(base, sink);
        // The row has neither keys nor a sink
        const float finite = higher == MINUS_INFINITY ? 0.0f : higher;
        factor = fast_exp2(base - finite);
        total = fmaf(total, factor, fast_exp2(sink - finite));
        base = higher;
#endif
        if (row >= item.heads) continue;
        const bool empty = total == 0.0f;
        const float scale = empty ? 0.0f : factor * fast_reciprocal(total);
        if (lane % 4 == 0)
            p.lse[item.batch * p.lse_stride[0] + head * p.lse_stride[1]
                  + item.query * p.lse_stride[2]] =
                empty ? MINUS_INFINITY : (base + fast_log2(total)) * LN2;
        u32 *const to = (u32 *)row_of(p.out, p.out_stride, item.batch, head, item.query);
#pragma unroll
        for (int i = 0; i < PIECES_V; i++) {
            const float *const x = o + 4 * i + 2 * r;
            to[4 * i + lane % 4] = pack(x[0] * scale, x[1] * scale);
        }
    }
}

FN void compute(struct Shared &shared, const struct Attention &p, i32 group) {
    const bool leader = threadIdx.x % 128 == 0;
    const u64 q = along_columns(shared_address(shared.q) + group * 64 * SLAB_ROW);
    const u64 k_tiles = along_columns(shared_address(shared.k[0]));
    const u64 v_tiles = along_tokens(shared_address(shared.v[0]), K_SLAB);
    const float unit = unit_of(p), margin = RESCALE_THRESHOLD * fast_reciprocal(unit);
    const i32 row = row_in_tile(group);
    Ring<STAGES> stage;
    u32 q_turn = 0;
    Scores s;
    Output o;
    Weights weights;
    struct Softmax softmax;
    (void)row;
    if (GROUPS > 1 && group == 0) arrive_threads(1, 256);
#pragma unroll 1
    for (i32 index = blockIdx.x; index < p.items; index += gridDim.x) {
        const struct Item item = item_at(p, index);
        const i32 *const keys = keys_of(p, item);
        const i32 count = uniform(count_of(p, item)), tiles = tiles_of(count);
        (void)keys;
        start(softmax);
        clear(o);
        Ring<STAGES> last = stage;
        if (count > 0) {
            wait(shared.q_full, q_turn);
            q_turn ^= 1;
        }
#pragma unroll 1
        for (i32 tile = 0; tile < tiles; tile++) {
            wait(shared.k_full[stage.at], stage.phase);
            scheduler_barrier_sync(group);
            begin_scores(s, q, k_tiles + stage.at * (K_BYTES >> 4));
            bool raised = true;
            if (tile > 0) {
                wait(shared.v_full[last.at], last.phase);
                begin_output(o, weights, v_tiles + last.at * (V_STAGE >> 4));
                scheduler_barrier_arrive(group);
                products_wait<1>();
            } else {
                scheduler_barrier_arrive(group);
                products_wait<0>();
            }
            fence_operand(s);
            if (leader) arrive(shared.k_free[stage.at]);
            if (leader && tile + 1 == tiles) arrive(shared.q_free);
            bend(s, p, Where{item, keys, count, row, tile});
            if (flips(p)) negate(s);
            if (tile + 1 == tiles)
                apply_mask(s, columns_before(count - tile * TILE_K), MINUS_INFINITY);
            raised = raise_tops(s, unit, margin, softmax);
            exponentials(s, 0, unit, softmax);
            fence_operand(s);
            // The wait is duplicated in both branches, so that ptxas does not hoist it above the
            // row maxima.
            if (raised) {
                asm volatile("wgmma.wait_group.sync.aligned 0;  // raised" ::: "memory");
                fence_operand(o);
                fence_operand(weights);
                if (leader && tile > 0) arrive(shared.v_free[last.at]);
                rescale(o, softmax);
            } else {
                asm volatile("wgmma.wait_group.sync.aligned 0;  // as before" ::: "memory");
                fence_operand(o);
                fence_operand(weights);
                if (leader && tile > 0) arrive(shared.v_free[last.at]);
            }
            exponentials(s, 1, unit, softmax);
            to_weights(weights, s);
            last = stage;
            stage.next();
        }
        if (count > 0) {
            wait(shared.v_full[last.at], last.phase);
            begin_output(o, weights, v_tiles + last.at * (V_STAGE >> 4));
            products_wait<0>();
            fence_operand(o);
            if (leader) arrive(shared.v_free[last.at]);
        }
        store(o, softmax, unit, item, p, row);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_forward(const __grid_constant__ struct Attention p) {
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) initialize(shared);
    __syncthreads();
    const i32 group = uniform(threadIdx.x / 128);
    if (group == 0) {
        setmaxnreg_dec<COPY_REGISTERS>();
        copy_items(shared, p);
    } else {
        setmaxnreg_inc<COMPUTE_REGISTERS>();
        compute(shared, p, group - 1);
    }
}
