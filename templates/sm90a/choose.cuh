// spec.chosen: the selection thresholds of each query, two numbers per row (see thresholds.cuh.j2),
// for Hopper (sm_90a). Contract: maskc/core/abi.py and core/bundle.py.

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "sm90a/lib/logit.cuh"

#include "sm90a/lib/constants.cuh"

#include "sm90a/lib/ptx.cuh"

#include "sm90a/lib/tokens.cuh"

#include "sm90a/lib/wgmma.cuh"

#include "sm90a/lib/work.cuh"

#include "sm90a/lib/softmax.cuh"

#include "sm90a/lib/packed_rows.cuh"

#include "sm90a/lib/mask_policy.cuh"

#include "common/lib/images.cuh"

#include "common/lib/threshold_place.cuh"

struct Maps {
    TensorMap q, k;
};

// The tile row of a block.
struct alignas(16) Row {
    i32 tile, head, batch, part;
};

// Score i of the thread's row `r`.
FN float &score_at(Scores &s, int r, int i) { return s[i / 2 * 4 + 2 * r + i % 2]; }

#include "common/lib/choose_rows.cuh"

// Shared memory of a block. maskc/plan/families/sm90a.py plans its size.
struct Shared {
    unsigned char q[1][Q_BYTES];
    unsigned char k[STAGES][K_BYTES];
    u32 bins[TILE_Q][BINS];
    u64 q_full[1], k_full[STAGES], k_free[STAGES];
    u64 started, decided;
    i32 first_word;          // here: number of tiles in the block's row
    i32 next[STAGES];        // the word of the tile in this stage
    i32 wishes[2][4 * GROUPS];  // requests: per warp, whether it needs another pass
    struct Row row[1];
};
static_assert(sizeof(struct Shared) <= MEMORY, "planned memory");

#include "common/lib/memory.cuh"

#include "sm90a/lib/ring.cuh"

FN void initialize(struct Shared &shared) {
    barrier_init(shared.started, 1);
    barrier_init(shared.decided, 4 * GROUPS + 1);
    barrier_init(shared.q_full[0], 1);
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared.k_full[i], 1);
        barrier_init(shared.k_free[i], GROUPS);
    }
    barriers_ready();
}

// ---------------------------------------------------------------- the warp that copies

#include "sm90a/lib/items.cuh"

// Returns whether any warp needs another pass. The producer thread arrives too; without it, the
// consumers could complete two phases before the producer looked at the first.
FN bool heard(struct Shared &shared, i32 passes) {
    wait(shared.decided, passes & 1);
    i32 any = 0;
#pragma unroll
    for (int i = 0; i < 4 * GROUPS; i++) any |= shared.wishes[passes & 1][i];
    return any;
}

FN void copy_keys(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                  const struct Work &work, const struct Slice &k, i32 i, Ring<STAGES> &stage) {
    const i32 word = word_of(work, i, p.row_tiles, KEY_STEP, keys_end(p) - (TILE_K - KEY_STEP));
    wait(shared.k_free[stage.at], stage.phase ^ 1);
    shared.next[stage.at] = word;
    load_tile<TILE_K>(shared.k[stage.at], maps.k, shared.k_full[stage.at],
                      key_point((word & INDEX) * KEY_STEP), k);
    stage.next();
}

// The producer thread. It prefetches the first keys of the next pass before it knows whether there
// is a next pass.
FN void copy_passes(struct Shared &shared, const struct Attention &p, const struct Maps &maps) {
    const struct Work work = item(p, blockIdx.x);
    shared.first_word = work.count;
    arrive(shared.started);
    if (work.count == 0) return;
    const struct Place place = place_of(work.head, p.heads_q);
    const i32 kv_head = (u32)place.head / ((u32)p.heads_q / (u32)p.heads_kv);
    const struct Slice k = slice_of(p.k_stride, kv_head, place.batch);
    shared.row[0] = {work.tile, place.head, place.batch, 0};
    load_tile<TILE_Q>(shared.q[0], maps.q, shared.q_full[0], query_point(work.tile * TILE_Q),
                      slice_of(p.q_stride, place.head, place.batch));
    Ring<STAGES> stage, first;
    const i32 ahead = min_i32(work.count, STAGES);
    bool more = true;
#pragma unroll 1
    for (i32 passes = 0; more; passes++) {
#pragma unroll 1
        for (i32 i = passes ? ahead : 0; i < work.count + ahead; i++) {
            if (i == work.count) first = stage;
            copy_keys(shared, p, maps, work, k, i < work.count ? i : i - work.count, stage);
        }
        arrive(shared.decided);
        more = heard(shared, passes);
    }
    // Wait for prefetched tiles that nobody uses: a block must not exit with copies in flight.
    for (i32 i = 0; i < ahead; i++) {
        wait(shared.k_full[first.at], first.phase);
        first.next();
    }
}

// ---------------------------------------------------------------- scores

// The thread's first query; its second one is 8 further on.
FN i32 query_of(const struct Row &row, i32 group) {
    const i32 thread = threadIdx.x % 128;
    return row.tile * TILE_Q + 64 * group + thread / 32 * 16 + thread % 32 / 4;
}

#include "sm90a/lib/query.cuh"

// State of a consumer warpgroup for all passes.
struct Rows {
    i32 batch, head, query, group, tiles;
    struct Query q;
    Ring<STAGES> stage;
    struct MaskRow kept;
};

// Computes the scores of the next tile and returns its word.
FN i32 take_scores(Scores &s, struct Shared &shared, const struct Attention &p, struct Rows &w,
                   i32 (&allowed)[2]) {
    const u64 k_tiles = along_columns(shared_address(shared.k[0]));
    wait(shared.k_full[w.stage.at], w.stage.phase);
    const i32 word = uniform(shared.next[w.stage.at]), first_k = (word & INDEX) * KEY_STEP;
    struct Visible seen;
    if (word & MASKED) {
        const struct Place at = {w.batch, w.head};
        seen = prefetch_mask<ByQuery>(p, at, w.query, first_k);
        seen = visible<ByQuery>(p, at, w.query, first_k, w.kept, seen);
    }
    if (HEAD_DIM > 128) w.q.operand = q_operand(shared_memory(), 0, w.group);
    begin_scores(s, w.q, k_tiles + w.stage.at * (K_BYTES >> 4));
    products_wait<0>();
    fence_operand(s);
    if (threadIdx.x % 128 == 0) arrive(shared.k_free[w.stage.at]);
    w.stage.next();
    if (word & MASKED) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            apply_mask(s, seen, r, NO_CANDIDATE);
#pragma unroll
            for (int i = 0; i < WORDS; i++)
                allowed[r] += __popc(word_of(seen, r, i) & bits_before(OWN - 32 * i));
        }
    } else {
        allowed[0] += OWN, allowed[1] += OWN;
    }
    fence_operand(s);
    return word;
}

#include "common/lib/choose_lists.cuh"


#include "common/lib/choose_passes.cuh"

// ---------------------------------------------------------------- warpgroups that compute

// Makes all warps agree whether there is another pass, and tells the producer thread.
FN bool agreed(struct Shared &shared, bool wish, i32 passes) {
    const i32 any = __any_sync(0xffffffff, wish);
    if (threadIdx.x % 32 == 0) {
        shared.wishes[passes & 1][threadIdx.x / 32 - 4] = any;
        arrive(shared.decided);
    }
    return uniform(heard(shared, passes));
}

FN void compute(struct Shared &shared, const struct Attention &p, i32 group) {
    wait(shared.started, 0);
    struct Rows w;
    w.tiles = uniform(shared.first_word);
    if (w.tiles == 0) return;
    wait(shared.q_full[0], 0);
    w.batch = uniform(shared.row[0].batch), w.head = uniform(shared.row[0].head);
    w.query = query_of(shared.row[0], group), w.group = group;
    take_q(w.q, shared, 0, group);

    struct Bracket row[2] = {};
    u32 *const bins = shared.bins[64 * group + threadIdx.x % 128 / 32 * 16];
    enum Pass pass = MOMENTS;
    bool more = true;
#pragma unroll 1
    for (i32 passes = 0; more; passes++) {
        pass = pass_over(pass, passes, bins, row, shared, p, w);
        more = agreed(shared, !(row[0].done && row[1].done), passes);
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (threadIdx.x % 4 == 0 && w.query + 8 * r < p.n_q)
            thresholds_of(p, p.delta, w.batch, w.head)[w.query + 8 * r] =
                make_int2(__float_as_int(row[r].low), row[r].last);
}

// Writes rows of tiles without an allowed pair. They are at the end of the work list.
FN void store_empty(const struct Attention &p) {
    for (i32 index = p.items + p.empty - 1 - blockIdx.x; index >= 0; index -= gridDim.x) {
        const struct Work work = work_at(p, index);
        if (work.count > 0) return;
        const struct Place at = place_of(work.head, p.heads_q);
        const i32 query = work.tile * TILE_Q + threadIdx.x - 128;
        if (threadIdx.x - 128 < TILE_Q && query < p.n_q)
            thresholds_of(p, p.delta, at.batch, at.head)[query] =
                make_int2(__float_as_int(PLUS_INFINITY), 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_choose(const __grid_constant__ struct Attention p,
                 const __grid_constant__ struct Maps maps) {
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) initialize(shared);
    __syncthreads();
    const i32 group = uniform(threadIdx.x / 128);
    if (group == 0) {
        setmaxnreg_dec<COPY_REGISTERS>();
        if (threadIdx.x / 32 == 0 && elected()) copy_passes(shared, p, maps);
    } else {
        setmaxnreg_inc<COMPUTE_REGISTERS>();
        compute(shared, p, group - 1);
        store_empty(p);
    }
}
