// Attention for one mask: cpu, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

#include "cpu/config.h"

// The constants and arrays of one head's mask, held in registers. Comments give their values.
struct Mask {
    i32 shape;  // index of the formula, if heads have different ones
    Integer c0;  // n_kv - n_q
    const i32 *a0;  // document ids, k
    const i32 *a1;  // document ids, q
};

// Whether query q sees key k. Used in partial tiles that test pairs.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 19: documents(...)
        (Integer)m.a0[k] == (Integer)m.a1[q] &&
        // line 20: causal()
        k <= q + m.c0;
}

FN i32 keep(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

FN struct Mask load_mask(const struct Attention *p, i32 batch, i32 head) {
    struct Mask m;
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i32 words = 1 + 1 * (1 + WITH_WIDE);
    const i32 *args = p->mask_args + variant * words;
    m.shape = args[0];
    m.c0 = constant(args + 1, 0);
    m.a0 = p->array[0]
        + batch * p->array_batch[0] + head * p->array_head[0];
    m.a1 = p->array[1]
        + batch * p->array_batch[1] + head * p->array_head[1];
    return m;
}

enum {
    HEAD_DIM = 128,  // elements of a row of q and k
    HEAD_DIM_V = 128,  // elements of a row of v and out
    TILE_Q = 64,  // queries per tile
    TILE_K = 64,  // keys per tile
};

#define HAS_BOUNDS 1
enum {
    INTERVALS = 1,  // of a query, per run of keys
    CONDITIONS = 0,  // that depend on the key only
    RUNS = 1,  // runs: keys with equal data
};
// The keys of query ti in a run, from its first.
FN void row_bounds(struct Bounds *bounds, struct Mask m, Integer ti,
               Integer run, Integer n_q, Integer n_kv) {
    (void)run, (void)n_q, (void)n_kv;
    bounds[0].first = range_end(0);
    bounds[0].last = range_end(min_int(n_kv - 1, m.c0 + ti) + 1);
    if (!((Integer)m.a0[run] == (Integer)m.a1[ti])) bounds[0].last = 0;
}
// Whether a column belongs to another run than the column `before` it.
FN i32 differs(struct Mask m, Integer k, Integer before, Integer n_q,
            Integer n_kv) {
    (void)m, (void)k, (void)before, (void)n_q, (void)n_kv;
    return (Integer)m.a0[before] != (Integer)m.a0[k];
}
// The condition that columns of an interval must meet; -1: none.
FN int condition(int interval) {
    (void)interval;
    return -1;
}
FN i32 counts(int condition, struct Mask m, Integer k, Integer n_q,
           Integer n_kv) {
    (void)condition, (void)m, (void)k, (void)n_q, (void)n_kv;
    return 1;
}

#define STORAGE_POLICY "cpu/lib/storage_bfloat16.h"
#define TOKENS_POLICY "cpu/lib/tokens_even.h"

#include "cpu/attention.h"
