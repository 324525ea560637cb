// Attention for one mask: cpu, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

#include "cpu/config.h"

// The constants and arrays of one head's mask, held in registers. Comments give their values.
struct Mask {
    i32 shape;  // index of the formula, if heads have different ones
    Integer c0;  // n_kv - n_q
    Integer c1;  // 1
    Integer c2;  // 63
    const i32 *a0;  // chosen blocks of keys
    i32 row0;
    // Selection bits of the current tile: bit k - tile_k of word q - tile_q.
    const unsigned long long *chosen0;
    i32 tile_q, tile_k;
};

// Whether query q sees key k. Used in partial tiles that test pairs.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 27: where(lambda q, k: k // 64 >= (q + n_kv - n_q) // 64 - 1)
        ((k / 64 + m.c1 >= floor_div(q + m.c0, 64) ||
        // line 28: prefix(64)
        k <= m.c2) &&
        // line 28: causal()
        k <= q + m.c0) ||
        // line 29: topk(13, of=causal() - (causal() & (prefix(64) | where(lambda q, k: k...
        ((m.chosen0[q - m.tile_q] >> (k - m.tile_k) & 1) != 0 &&
        // line 28: causal()
        k <= q + m.c0);
}

FN i32 keep(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

FN struct Mask load_mask(const struct Attention *p, i32 batch, i32 head) {
    struct Mask m;
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i32 words = 1 + 3 * (1 + WITH_WIDE);
    const i32 *args = p->mask_args + variant * words;
    m.shape = args[0];
    m.c0 = constant(args + 1, 0);
    m.c1 = constant(args + 1, 1);
    m.c2 = constant(args + 1, 2);
    m.a0 = p->array[0]
        + batch * p->array_batch[0] + head * p->array_head[0];
    m.row0 = (i32)p->array_row[0];
    return m;
}

enum {
    HEAD_DIM = 128,  // elements of a row of q and k
    HEAD_DIM_V = 128,  // elements of a row of v and out
    TILE_Q = 64,  // queries per tile
    TILE_K = 64,  // keys per tile
};

#define HAS_SELECTIONS 1
// Bits of the selected pairs of a tile.
#define CHOSEN_PAIRS(m, at) \
    u64 words0[TILE_Q]; \
    m.chosen0 = words0; \
    chosen_pairs(words0, m.a0, m.row0, at, \
                 1, 64);

#define STORAGE_POLICY "cpu/lib/storage_bfloat16.h"
#define TOKENS_POLICY "cpu/lib/tokens_even.h"

#include "cpu/attention.h"
