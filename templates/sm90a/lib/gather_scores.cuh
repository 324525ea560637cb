// The scores of an indexer by WGMMA: one warpgroup copies heads, the others compute. Needs:
// index_scores.cuh, ptx.cuh, wgmma.cuh.

#include "sm90a/lib/ptx.cuh"

#include "sm90a/lib/gather_copy.cuh"

constexpr i32 COPYING = 128, COMPUTING = SCORE_THREADS - COPYING;  // threads
#include "common/lib/index_scores.cuh"

constexpr int BEHIND = SLOTS - INDEX_SLABS < 4 ? SLOTS - INDEX_SLABS : 4;
static_assert(BEHIND > 0, "who copies would wait for a slab that he has not handed over");

struct Shared {
    unsigned char keys[INDEX_SLABS * KEY_SLAB];
    unsigned char heads[SLOTS][COLUMN_SLAB];  // slabs in flight
    float weight[SLOTS][COLUMNS];  // of a step, loaded with its first slab
    u64 full[SLOTS], empty[SLOTS];
    i32 first, last;  // queries that may select one of the keys, and all between them
};

#include "sm90a/lib/ring.cuh"

// ---------------------------------------------------------------- who copies

// WGMMA reads the data only after the copying threads have issued a proxy fence, so a slab is
// handed over when BEHIND later slabs have been started.
FN void hand_over(struct Shared &shared, Ring<SLOTS> &told) {
    publish_writes();
    arrive(shared.full[told.at]);
    told.next();
}
FN void copy_steps(struct Shared &shared, const struct Gathered &p, const struct Part &part,
                   i32 first, i32 last) {
    Ring<SLOTS> ring, told;
    i32 begun = 0;
#pragma unroll 1
    for (struct Step at = step_of(part, first); at.query < last; at = step_after(part, at)) {
        const float weight = weight_at(p, part, at, threadIdx.x % COPYING);
        const struct Heads heads = heads_of(p, part, at);
#pragma unroll
        for (int slab = 0; slab < INDEX_SLABS; slab++) {
            wait(shared.empty[ring.at], ring.phase ^ 1);
            copy_heads(shared_address(shared.heads[ring.at]), p, heads, slab);
            copies_commit();
            if (slab == 0) shared.weight[ring.at][threadIdx.x % COPYING] = weight;
            ring.next();
            if (++begun <= BEHIND) continue;
            copies_wait<BEHIND>();
            hand_over(shared, told);
        }
    }
    copies_wait<0>();
#pragma unroll 1
    while (told.at != ring.at || told.phase != ring.phase) hand_over(shared, told);
}

// ---------------------------------------------------------------- who computes

// Multiplies keys by the heads of a step, over 32 bytes of the reduction.
FN void multiply(float (&x)[COLUMNS / 2], u64 keys, u64 heads, bool add) {
    if (INDEX_BYTES == 1)
        multiply_e4m3(x, keys, heads, add);
    else
        multiply_keys(x, keys, heads, add);
}
FN void score_steps(struct Shared &shared, const struct Gathered &p, const struct Part &part,
                    i32 first, i32 last) {
    const u32 group = uniform(threadIdx.x / 128);
    const u64 keys =
        along_columns(shared_address(shared_memory().keys) + group * 64 * SLAB_ROW);
    const bool whole = part.heads == p.heads && part.bits >= COLUMN_BITS - 1;
    const float2 factor = factors_of(p, part);
    Ring<SLOTS> ring;
    float sum[2] = {}, x[COLUMNS / 2];
#pragma unroll 1
    for (struct Step at = step_of(part, first); at.query < last; at = step_after(part, at)) {
        const Ring<SLOTS> begin = ring;
        fence_operand(x);
#pragma unroll
        for (int slab = 0; slab < INDEX_SLABS; slab++) {
            wait(shared.full[ring.at], ring.phase);
            const u64 heads =
                along_columns(shared_address(shared_memory().heads) + ring.at * COLUMN_SLAB);
            if (slab == 0) products_begin();
#pragma unroll
            for (int i = 0; i < 4; i++)
                multiply(x, keys + column_step(4 * slab + i, KEY_SLAB),
                         heads + column_step(i, COLUMN_SLAB), slab + i > 0);
            ring.next();
        }
        products_commit();
        products_wait<0>();
        fence_operand(x);
        const float *const weight = shared.weight[begin.at];
        if (whole)
            add_all_heads(x, sum, weight, factor, p, part, at);
        else
            add_heads(x, sum, weight, factor, p, part, at);
        __syncwarp();
        Ring<SLOTS> read = begin;
#pragma unroll
        for (int slab = 0; slab < INDEX_SLABS; slab++, read.next())
            if (threadIdx.x % 32 == 0) arrive(shared.empty[read.at]);
    }
}

extern "C" __global__ void __launch_bounds__(COMPUTING + COPYING, 1)
gather_scores(const __grid_constant__ struct Gathered p) {
    struct Shared &shared = shared_memory();
    const struct Part part = part_of(p, blockIdx.x);
    if (threadIdx.x < SLOTS) {
        barrier_init(shared.full[threadIdx.x], COPYING);
        barrier_init(shared.empty[threadIdx.x], COMPUTING / 32);
        barriers_ready();
    }
    find_live(shared.first, shared.last, p, mask_of(p), part);
    const i32 first = uniform(shared.first), last = uniform(shared.last);
    if (first >= last) return;
    if (uniform(threadIdx.x / 128) == COMPUTING / 128) {
        copy_steps(shared, p, part, first, last);
    } else {
        copy_keys(shared_address(shared_memory().keys), p, part);
        copies_commit();
        copies_wait<0>();
        publish_writes();
        sync_threads(1, COMPUTING);
        score_steps(shared, p, part, first, last);
    }
}
