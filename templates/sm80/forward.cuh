// Attention forward for mma.sync (sm_80 and later); contract: maskc/core/abi.py.

#include "sm80/lib/constants.cuh"

#include "common/lib/tiles.h"

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "common/lib/unpack.cuh"

#include TOKENS_POLICY

#include "sm80/lib/ptx.cuh"

#include "sm80/lib/load.cuh"

#include KEYS_POLICY

#if WIDE
#include "sm80/lib/halves.cuh"

// Drops the first tiles of a list; `count` is the number of tiles left.
FN void begin_later(struct TileList &list, i32 tiles) {
#if TILE_RANGES
    list.first += tiles;
#else
    list.tiles += tiles;
#endif
}

#endif
#include "sm80/lib/work.cuh"

// Shared memory of a block. maskc/plan/families/sm80.py plans its size.
struct Shared {
#if WIDE
    union {
        unsigned char q[TILE_Q * PITCH];  // until q is in registers; then out is staged here
        struct {
            unsigned char k[TILE_K * PITCH];
            unsigned char v[TILE_K * PITCH];
        };
    };
    float4 halves[TILE_K / 8][THREADS];
#else
    unsigned char q[TILE_Q * PITCH];
    unsigned char k[TILE_K * PITCH];
    unsigned char v[TILE_K * PITCH];
#endif
    float top[PARK_ROWS ? THREADS : 1][ROWS], sum[PARK_ROWS ? THREADS : 1][ROWS];
    struct Block block;
};

#include "sm80/lib/softmax.cuh"

#include "sm80/lib/mask_rows.cuh"

#include "sm80/lib/logits.cuh"

#if E4M3_POOLS
FN void scale_scores(Scores &s, float by) {
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
        for (int n = 0; n < TILE_K / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] *= by;
}

#endif
#include "sm80/lib/nan_safe.cuh"

#if WITH_THRESHOLDS
#include "sm80/lib/keep_chosen.cuh"
#endif
#include "sm80/lib/scores.cuh"

#include "sm80/lib/values.cuh"

#include "common/lib/keep.cuh"

#include "sm80/lib/dropout.cuh"

#include "common/lib/join_sum.cuh"

// lse and out of a query.
FN float &lse_of(const struct Attention *p, struct Work work, i32 q) {
    return p->lse[work.batch * p->lse_stride[0] + work.head * p->lse_stride[1]
                  + q * p->lse_stride[2]];
}
FN unsigned char *out_of(const struct Attention *p, struct Work work, i32 q) {
    return head_rows(p->out, p->out_stride, work.batch, work.head) + q * p->out_stride[2] * 2;
}

#if WIDE
#include "sm80/lib/packed_heads.cuh"

#endif
// Divides by the row sums, writes lse (with entmax, `top` is lse), and stores out through the
// warp's own rows of the q tile.
FN void store(const Output &o, const float (&top)[ROWS], const float (&sum)[ROWS],
              const struct Attention *p, struct Shared &shared) {
    const struct Work work = shared.block.work;
    const i32 lane = threadIdx.x % 32, first = work.row * TILE_Q + first_row();
    unsigned char *const tile = shared.q + first_row() * PITCH;
    float joined[ROWS];  // lse of an earlier launch over other keys
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const i32 q = first + lane / 4 + 8 * r;
        joined[r] = p->accumulates && q < p->n_q ? lse_of(p, work, q) : MINUS_INFINITY;
    }
#if WIDE
    __syncthreads();  // the other half has read them too, and no warp reads k or v
#else
    __syncwarp();
#endif
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float total = WITH_ENTMAX ? sum[r] : quad_sum(sum[r]), base = top[r], factor = 1.0f;
#if WITH_SINKS
#if WIDE
        const float sink = sink_of(p, work.head, first + lane / 4 + 8 * r) * LOG2E;
#else
        const float sink = p->sink_logits[work.head] * LOG2E;
#endif
        base = fmaxf(base, sink);
        factor = fast_exp2(top[r] - base);
        total = total * factor + fast_exp2(sink - base);
#endif
        const i32 row = lane / 4 + 8 * r, q = first + row;
        const bool accumulates = p->accumulates && q < p->n_q;
        const float weight = accumulates ? join_sum(joined[r], total, base, factor) : 0.0f;
        const bool empty = total == 0.0f;
#if E4M3_POOLS
        const float scale =
            not_zero(factor * fast_reciprocal(total)) * shared.block.value_scale;
#else
        const float scale = not_zero(factor * fast_reciprocal(total)) * kept_scale(*p);
#endif
        const float share = not_zero(weight * fast_reciprocal(total));
        if (lane % 4 == 0 && q < p->n_q)
            lse_of(p, work, q) =
                WITH_ENTMAX ? base : (base + fast_log2(total)) * LN2;
#pragma unroll
#if WIDE
        for (int n = 0; n < OWN_GROUPS; n++) {
            const float *x = &o[r / 2][n][r % 2 * 2];
            u32 *to = (u32 *)(tile + place(row, first_group() + n)) + lane % 4;
#else
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            const float *x = &o[r / 2][n][r % 2 * 2];
            u32 *to = (u32 *)(tile + place(row, n)) + lane % 4;
#endif
            *to = empty ? 0 : pack(x[0] * scale, x[1] * scale);
        }
        if (!accumulates || empty) continue;
#if WIDE
#pragma unroll
        for (int n = 0; n < OWN_GROUPS; n++) {
            const i32 group = first_group() + n;
            if (PADDED && group >= PIECES_V) continue;
            const float *x = &o[r / 2][n][r % 2 * 2];
            const float2 before =
                unpack(((const u32 *)out_of(p, work, q))[4 * group + lane % 4]);
            u32 *to = (u32 *)(tile + place(row, group)) + lane % 4;
            *to = pack(x[0] * scale + before.x * share, x[1] * scale + before.y * share);
        }
#else
#pragma unroll
        for (int n = 0; n < PIECES_V; n++) {
            const float *x = &o[r / 2][n][r % 2 * 2];
            const float2 before = unpack(((const u32 *)out_of(p, work, q))[4 * n + lane % 4]);
            u32 *to = (u32 *)(tile + place(row, n)) + lane % 4;
            *to = pack(x[0] * scale + before.x * share, x[1] * scale + before.y * share);
        }
#endif
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * FRAGMENTS; i += 32 / SPAN) {
        const i32 row = i + lane / SPAN;
        uint4 *const to = (uint4 *)out_of(p, work, first + row);
#pragma unroll
#if WIDE
        for (int j = 0; j < OWN_GROUPS; j += SPAN) {
            const i32 chunk = first_group() + j + lane % SPAN;
#else
        for (int j = 0; j < CHUNKS; j += SPAN) {
            const i32 chunk = j + lane % SPAN;
#endif
            if (PADDED && chunk >= PIECES_V) continue;
            if (first + row < p->n_q) to[chunk] = *(const uint4 *)(tile + place(row, chunk));
        }
    }
}

// The next tile, in one register if registers are short, or if it is just a list entry.
constexpr bool PACKED = TILE_LISTS || REGISTER_PRESSURE;
FN void pack(struct Tile &tile) {
    if constexpr (PACKED) tile.index = tile.index * 2 + tile.full;
}
FN void unpack(struct Tile &tile) {
    if constexpr (PACKED) tile.full = tile.index & 1, tile.index >>= 1;
}
FN i32 first_key(const struct Tile &packed) {
    return (PACKED ? packed.index >> 1 : packed.index) * TILE_K;
}

#if WITH_ENTMAX
#include "sm80/lib/entmax.cuh"

#endif
// Whether warps skip tiles that their rows do not see. Not with WIDE, where all warps exchange
// data.
#if WIDE
constexpr bool SKIPS = false;
#else
constexpr bool SKIPS = !WITH_NAN_SAFE;
#endif
// entmax needs more registers than three blocks per SM leave.
constexpr int RESIDENT = WITH_ENTMAX && MIN_BLOCKS > 2 ? 2 : MIN_BLOCKS;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_forward(const __grid_constant__ struct Attention p) {
    extern __shared__ __align__(128) unsigned char memory[];
    struct Shared &shared = *(struct Shared *)memory;
    const struct Block &block = shared.block;
    const u32 q_tile = shared_address(shared.q);
    const u32 k_tile = shared_address(shared.k), v_tile = shared_address(shared.v);
    if (threadIdx.x == 0) shared.block.work = work_of(&p, blockIdx.x);
    __syncthreads();
    load_tile<TILE_Q>(q_tile, head_rows(p.q, p.q_stride, block.work.batch, block.work.head),
                      p.q_stride, block.work.row * TILE_Q, p.n_q);
    if (threadIdx.x == 0) start_block(shared.block, &p);
    __syncthreads();

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
#if WIDE
    copy_wait<0>();
    __syncthreads();
    keep_query(query);
    __syncthreads();  // keys overwrite q
#endif
#if WITH_ENTMAX
#if WIDE
#else
    copy_wait<0>();
    __syncthreads();
    keep_query(query);
#endif
    find_weights(o, top, sum, query, &p, shared);
    store(o, top, sum, &p, shared);
#else
    struct Tile next = {0, 0};
    if (block.list.count > 0) {
        next = tile_at(block.list, 0);
        pack(next);
        load_keys(k_tile, block.k, p.k_stride, first_key(next), p, block.work.batch);
    } else {
#if WIDE
#else
        copy_wait<0>();  // q has arrived; its place is reused to write zeros
        __syncthreads();
#endif
        if (p.accumulates) return;  // these rows keep the earlier result
    }
#pragma unroll 1
    for (i32 i = 0; i < block.list.count; i++) {
        struct Tile tile = next;
        unpack(tile);
        const i32 first_k = tile.index * TILE_K;
        bool masked = !tile.full || p.n_kv - first_k < TILE_K;
        struct Seen seen = {};
        if (masked) seen = seen_by(&p, block, tile);

        copy_wait<0>();   // k has arrived, and
#if E4M3_POOLS
        convert_keys(k_tile);
#endif
        __syncthreads();  // the previous v is no longer read
        load_keys<PIECES_V>(v_tile, block.v, p.v_stride, first_k, p, block.work.batch);
        next = tile_at(block.list, min_i32(i + 1, block.list.count - 1));
        pack(next);
        const auto load_next = [&] {
            copy_wait<0>();   // v has arrived, and
#if E4M3_POOLS
            convert_keys(v_tile);
#endif
            __syncthreads();  // k is no longer read
#if WIDE
            add_half(s, shared.halves);
#endif
            if (i + 1 < block.list.count)
                load_keys(k_tile, block.k, p.k_stride, first_key(next), p, block.work.batch);
        };
#if WIDE
        score(s, query, k_tile);
        give_half(shared.halves, s);
#else
        if (KEEP_Q && i == 0) keep_query(query);
        if (SKIPS && masked && !sees_any(seen)) {  // uniform in a warp
            load_next();
            continue;
        }
        score(s, query, k_tile);
#endif
        load_next();
#if WITH_THRESHOLDS
        if (!masked) seen = everything(), masked = true;
        keep_chosen(seen, s, &p, block, first_k);
#endif
#if E4M3_POOLS
        if (PAIRWISE_LOGITS) scale_scores(s, block.key_scale);
#endif
        make_logits(s, &p, block, first_k);
        if (masked && !sees_all(seen)) hide_rest(s, seen);
        raise_tops(s, block.logit.unit, top, sum, o);
#if WITH_NAN_SAFE
        quarantine(o, shared.v, masked ? seen : everything());
#endif
        Kept kept;
        draw_tile(kept, &p, block.work, first_k);
        if (DROPS) accumulate_kept(o, sum, s, top, block.logit.unit, v_tile, kept);
        else accumulate(o, sum, s, top, block.logit.unit, v_tile);
    }
#if WIDE && PACK_GQA
    if (block.work.parts > 1) {
        store_part(o, top, sum, &p, block.work);
        return;
    }
#endif
    store(o, top, sum, &p, shared);
#endif
}
#if WIDE

#if PACK_GQA
extern "C" __global__ void __launch_bounds__(THREADS)
attention_merge(const __grid_constant__ struct Attention p) {
    merge_row(&p, blockIdx.x * WARPS + threadIdx.x / 32);
}
#endif
#endif
