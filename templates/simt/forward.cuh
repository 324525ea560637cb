// Attention forward on CUDA cores (compute capability 7.0 and later); contract: maskc/core/abi.py.
// docs/simt.md walks through it.

#include "simt/lib/constants.cuh"

// A thread's part of a tile, and of out.
constexpr int ROWS = TILE_Q / SIDE, COLS = TILE_K / SIDE;
constexpr int STRIPS = (HEAD_DIM_V + STRIP - 1) / STRIP;

#include "common/lib/tiles.h"

#include ELEMENT_POLICY

#include "simt/lib/places.cuh"

#include "simt/lib/tensors.cuh"

#include "simt/lib/products.cuh"

#include "simt/lib/sums.cuh"

#include TOKENS_POLICY

#include "simt/lib/logits.cuh"

#include "simt/lib/mask_rows.cuh"

#if WITH_DROPOUT
#include "common/lib/dropout.h"

#include "simt/lib/dropout.cuh"

#endif
#include "simt/lib/softmax.cuh"

#include "simt/lib/store_rows.cuh"

// The inputs of a block, and its tiles.
struct Head {
    struct Rows<HEAD_DIM> q, k;
    struct Rows<HEAD_DIM_V> v;
    struct Mask mask;
    struct TileList list;
    struct Logit kind;
};
FN struct Head head_of(const struct Attention &p, const struct Place &at) {
    const i32 head_kv = at.head / (p.heads_q / p.heads_kv);
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    return {rows_of<HEAD_DIM>(p.q, p.q_stride, at.batch, at.head, p.n_q),
            rows_of<HEAD_DIM>(p.k, p.k_stride, at.batch, head_kv, p.n_kv),
            rows_of<HEAD_DIM_V>(p.v, p.v_stride, at.batch, head_kv, p.n_kv),
            mask, row_tiles(&p, mask, at.batch, at.head, at.tile), logit_of(p, at.head, at.batch)};
}

// Computes the logits of a tile. Returns the visible pairs; the others get -inf.
FN u32 tile_logits(float (&x)[ROWS][COLS], const struct Attention &p, struct Shared &shared,
                   const struct Head &h, const struct Tile &tile, i32 first_q) {
    const i32 first_k = tile.index * TILE_K;
    multiply_rows<HEAD_DIM>(x, shared, h.q, first_q, h.k, first_k);
    const u32 seen = visible<ROWS, COLS, false>(p, h.mask, tile.full, first_q, first_k);
    make_logits(x, h.kind, seen, first_q, first_k);
    return seen;
}

#if WITH_ENTMAX
#include "simt/lib/entmax.cuh"

#endif
// One block computes one tile of queries: it loops once over the tiles of keys that they see.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_forward(const __grid_constant__ struct Attention p) {
    __shared__ __align__(16) struct Shared shared;
    const struct Place at = row_place(p);
    __shared__ struct Head h;  // not in registers, which are short
    if (threadIdx.x == 0) h = head_of(p, at);
    __syncthreads();
    const i32 first_q = at.tile * TILE_Q;
    float o[STRIPS][ROWS][4];  // weighted sums of values
#pragma unroll
    for (int i = 0; i < STRIPS; i++) clear(o[i]);
    struct RowState rows;
    start(rows);
#if WITH_ENTMAX
    find_levels(rows, o, p, shared, h, first_q);
#else
#pragma unroll 1
    for (i32 i = 0; i < h.list.count; i++) {
        const struct Tile tile = tile_at(h.list, i);
        float x[ROWS][COLS];
        const u32 seen = tile_logits(x, p, shared, h, tile, first_q);
        add_scores(rows, x, seen, o);
#if WITH_DROPOUT
        const i32 first_k = tile.index * TILE_K;
        drop(x, draw<ROWS, COLS, false>(p, at.batch, at.head, first_q, first_k), p.dropout_scale);
#endif
        keep_weights(shared, x);
#pragma unroll
        for (int j = 0; j < STRIPS; j++)
            add_strip<TILE_K, HEAD_DIM_V>(o[j], shared, h.v, tile.index * TILE_K, j * STRIP);
    }
#endif
    store_rows(p, at, rows, o);
}
