// Attention for one mask: cpu, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

#include "cpu/config.h"

// The constants and arrays of one head's mask, held in registers. Comments give their values.
struct Mask {
    i32 shape;  // index of the formula, if heads have different ones
    Integer c0;  // 3
    Integer c1;  // n_q - n_kv + 1023
    Integer c2;  // n_kv - n_q
};

// Whether query q sees key k. Used in partial tiles that test pairs.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 18: sinks(4)
        (k <= m.c0 ||
        // line 18: window(1023)
        k >= q - m.c1) &&
        // line 18: causal()
        k <= q + m.c2;
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
    return m;
}

enum {
    HEAD_DIM = 128,  // elements of a row of q and k
    HEAD_DIM_V = 128,  // elements of a row of v and out
    TILE_Q = 64,  // queries per tile
    TILE_K = 64,  // keys per tile
};

#define HAS_BOUNDS 1
enum { INTERVALS = 2, CONDITIONS = 0, RUNS = 0 };
// The keys of query ti.
FN void row_bounds(struct Bounds *bounds, struct Mask m, Integer ti, Integer run, Integer n_q,
                   Integer n_kv) {
    (void)m, (void)run, (void)n_q, (void)n_kv;
    for (i32 i = 0; i < INTERVALS; i++) bounds[i] = (struct Bounds){0, 0};
    switch (m.shape) {
    case 0:
        bounds[0].first = range_end(0);
        bounds[0].last = range_end(min_int(min_int(n_kv - 1, m.c2 + ti), m.c0) + 1);
        bounds[1].first = range_end(max_int(ti - m.c1, 0));
        bounds[1].last = range_end(min_int(n_kv - 1, m.c2 + ti) + 1);
        break;
    }
}
FN i32 differs(struct Mask m, Integer k, Integer before, Integer n_q, Integer n_kv) {
    (void)m, (void)k, (void)before, (void)n_q, (void)n_kv;
    return 0;
}
FN int condition(int interval) { return (void)interval, -1; }
FN i32 counts(int condition, struct Mask m, Integer k, Integer n_q, Integer n_kv) {
    (void)condition, (void)m, (void)k, (void)n_q, (void)n_kv;
    return 1;
}

#define STORAGE_POLICY "cpu/lib/storage_bfloat16.h"
#define TOKENS_POLICY "cpu/lib/tokens_even.h"

#include "cpu/attention.h"
