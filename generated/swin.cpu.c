// Attention for one mask: cpu, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

#include "cpu/config.h"

// The constants and arrays of one head's mask, held in registers. Comments give their values.
struct Mask {
    i32 shape;  // index of the formula, if heads have different ones
    Integer c0;  // 4
    Integer c1;  // 4
    Integer c2;  // 4
    Integer c3;  // 4
};

// Whether query q sees key k. Used in partial tiles that test pairs.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 24: where(lambda q, k: ((k // 64 + 4) // 8 == (q // 64 + 4) // 8) & ((k %...
        (k / 64 + m.c0) / 8 == (q / 64 + m.c1) / 8 &&
        (k % 64 + m.c2) / 8 == (q % 64 + m.c3) / 8;
}

FN i32 keep(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

FN struct Mask load_mask(const struct Attention *p, i32 batch, i32 head) {
    struct Mask m;
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i32 words = 1 + 4 * (1 + WITH_WIDE);
    const i32 *args = p->mask_args + variant * words;
    m.shape = args[0];
    m.c0 = constant(args + 1, 0);
    m.c1 = constant(args + 1, 1);
    m.c2 = constant(args + 1, 2);
    m.c3 = constant(args + 1, 3);
    return m;
}

enum {
    HEAD_DIM = 128,  // elements of a row of q and k
    HEAD_DIM_V = 128,  // elements of a row of v and out
    TILE_Q = 64,  // queries per tile
    TILE_K = 64,  // keys per tile
};

#define STORAGE_POLICY "cpu/lib/storage_bfloat16.h"
#define TOKENS_POLICY "cpu/lib/tokens_even.h"

#include "cpu/attention.h"
