// The scores of an indexer by mma.sync.

#include "sm80/lib/ptx.cuh"

FN void copy_piece(u32 to, const void *from, bool inside) { copy_async(to, from, inside); }
// Slabs have rows of 128 bytes, whose 16-byte pieces are XOR-swizzled with row % 8.
FN u32 swizzled(u32 row, u32 piece) { return row * 128 + ((piece ^ (row % 8)) << 4); }

constexpr i32 COMPUTING = SCORE_THREADS, COPYING = COMPUTING;  // threads
#include "common/lib/index_scores.cuh"

struct Shared {
    unsigned char keys[INDEX_SLABS * KEY_SLAB];
    unsigned char heads[SLOTS][COLUMN_SLAB];  // slabs in flight
    float weight[SLOTS][COLUMNS];             // of steps
    i32 first, last;  // queries that may select one of the keys, and all between them
};

// One slab of a step.
struct Slab {
    struct Step step;
    i32 number, slab, slot;  // slot of its weights; index within the step; slot of the slab
};
FN void advance(struct Slab &at, const struct Part &part) {
    at.slot = at.slot + 1 == SLOTS ? 0 : at.slot + 1;
    if (++at.slab < INDEX_SLABS) return;
    at.slab = 0, at.step = step_after(part, at.step);
    at.number = at.number + 1 == SLOTS ? 0 : at.number + 1;
}

// Starts to copy a slab, and the weights with the first slab of a step. Always commits a group,
// even an empty one, so that group counts stay valid.
FN void begin_slab(struct Shared &shared, struct Slab &ahead, const struct Gathered &p,
                   const struct Part &part, i32 last) {
    if (ahead.step.query < last) {
        copy_heads(shared_address(shared.heads[ahead.slot]), p, heads_of(p, part, ahead.step),
                   ahead.slab);
        if (ahead.slab == 0 && threadIdx.x < COLUMNS)
            shared.weight[ahead.number][threadIdx.x] =
                weight_at(p, part, ahead.step, threadIdx.x);
    }
    copy_commit();
    advance(ahead, part);
}

// x += keys . heads, for one slab of both: a warp's sixteen keys by all columns. Element 4 i + 2 r
// + e of a thread is key lane / 4 + 8 r and column 8 i + 2 (lane % 4) + e.
FN void multiply_slab(float (&x)[COLUMNS / 2], u32 keys, u32 heads) {
    const u32 lane = threadIdx.x % 32, key = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 a[4], b[4];
        load_matrices(a, keys + swizzled(key, 2 * i + lane / 16));
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            const u32 column = 16 * n + lane % 8 + lane / 16 * 8;
            load_matrices(b, heads + swizzled(column, 2 * i + lane / 8 % 2));
#pragma unroll
            for (int half = 0; half < 2; half++)
                multiply(*(float (*)[4])(x + 8 * n + 4 * half), a, b[2 * half], b[2 * half + 1]);
        }
    }
}

FN void score_steps(struct Shared &shared, const struct Gathered &p, const struct Part &part,
                    i32 first, i32 last) {
    const bool whole = part.heads == p.heads && part.bits >= COLUMN_BITS - 1;
    const float2 factor = factors_of(p, part);
    const u32 keys = shared_address(shared.keys), heads = shared_address(shared.heads);
    struct Slab now = {step_of(part, first), 0, 0, 0}, ahead = now;
    float sum[2] = {}, x[COLUMNS / 2] = {};
    copy_keys(keys, p, part);  // they arrive with the first slab
    for (int i = 0; i < SLOTS - 1; i++) begin_slab(shared, ahead, p, part, last);
#pragma unroll 1
    for (; now.step.query < last; advance(now, part)) {
        copy_wait<SLOTS - 2>();
        __syncthreads();  // all threads see this slab, and none reads the previous one
        begin_slab(shared, ahead, p, part, last);
        multiply_slab(x, keys + now.slab * KEY_SLAB, heads + now.slot * COLUMN_SLAB);
        if (now.slab + 1 < INDEX_SLABS) continue;
        const float *const weight = shared.weight[now.number];
        if (whole)
            add_all_heads(x, sum, weight, factor, p, part, now.step);
        else
            add_heads(x, sum, weight, factor, p, part, now.step);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) x[i] = 0.0f;
    }
    copy_wait<0>();
}

extern "C" __global__ void __launch_bounds__(COMPUTING)
gather_scores(const __grid_constant__ struct Gathered p) {
    struct Shared &shared = shared_memory();
    const struct Part part = part_of(p, blockIdx.x);
    find_live(shared.first, shared.last, p, mask_of(p), part);
    const i32 first = shared.first, last = shared.last;
    if (first < last) score_steps(shared, p, part, first, last);
}
