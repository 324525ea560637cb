// Attention for one mask: cpu, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

#include "cpu/config.h"

// The constants and arrays of one head's mask, held in registers. Comments give their values.
struct Mask {
    i32 shape;  // index of the formula, if heads have different ones
    Integer c0;  // n_kv - n_q
};

// Whether query q sees key k. Used in partial tiles that test pairs.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 17: causal()
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
    return m;
}

enum {
    HEAD_DIM = 128,  // elements of a row of q and k
    HEAD_DIM_V = 128,  // elements of a row of v and out
    TILE_Q = 64,  // queries per tile
    TILE_K = 64,  // keys per tile
};
#define TILE_RANGES 1
#include "common/lib/tiles.h"

FN struct TileList row_tiles(const struct Attention *p, struct Mask m, i32 batch, i32 head,
                             Integer ti) {
    struct TileList list = {0};
    const Integer n_q = p->n_q, n_kv = p->n_kv;
    (void)n_q; (void)n_kv; (void)batch; (void)head;
    i32 last = 0;
    list.first = range_end(0);
    last = range_end(min_int(min_int(floor_div(m.c0 + n_q + 63, 64) - 1, (n_kv +
            63) / 64 - 1), floor_div(m.c0 + 63, 64) + ti) + 1);
    list.full_first = range_end(0);
    list.full_last = range_end(min_int(floor_div(m.c0 + 1, 64) + ti - 1, (n_kv + 63) / 64 -
            1) + 1);
    list.count = max_i32(0, last - list.first);
    return list;
}

FN struct TileList column_tiles(const struct Attention *p, struct Mask m, i32 batch, i32 head,
                                Integer tj) {
    struct TileList list = {0};
    const Integer n_q = p->n_q, n_kv = p->n_kv;
    (void)n_q; (void)n_kv; (void)batch; (void)head;
    i32 last = 0;
    list.first = range_end(max_int(floor_div(-m.c0, 64) + tj, 0));
    last = range_end(m.c0 + n_q > 64 * tj ? (n_q + 63) / 64 : list.first);
    list.full_first = range_end(max_int(0, floor_div(-m.c0 + 62, 64) + tj + 1));
    list.full_last = range_end((n_q + 63) / 64);
    list.count = max_i32(0, last - list.first);
    return list;
}

#define HAS_BOUNDS 1
enum { INTERVALS = 1, CONDITIONS = 0, RUNS = 0 };
// The keys of query ti.
FN void row_bounds(struct Bounds *bounds, struct Mask m, Integer ti, Integer run, Integer n_q,
                   Integer n_kv) {
    (void)m, (void)run, (void)n_q, (void)n_kv;
    for (i32 i = 0; i < INTERVALS; i++) bounds[i] = (struct Bounds){0, 0};
    switch (m.shape) {
    case 0:
        bounds[0].first = range_end(0);
        bounds[0].last = range_end(min_int(n_kv - 1, m.c0 + ti) + 1);
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
