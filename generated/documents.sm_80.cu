// Attention for one mask: sm_80, bfloat16, head_dim 128, tiles of 128 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

#include "common/config.cuh"

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

// The columns of rows, as bounded by data.
#define DATA_ROWS 1
template <>
struct DataRows<ByQuery> {
    static constexpr int INTERVALS = 1;  // of a row, per run of columns
    // That depend on the column only
    static constexpr int CONDITIONS = 0;
    static constexpr bool RUNS = 1;  // runs: columns with equal data
    // The keys of query ti in a run, from its first.
    FN static void row_bounds(struct Bounds *bounds, struct Mask m, Integer ti,
                   Integer run, Integer n_q, Integer n_kv) {
        (void)run, (void)n_q, (void)n_kv;
        bounds[0].first = range_end(0);
        bounds[0].last = range_end(min_int(n_kv - 1, m.c0 + ti) + 1);
        if (!((Integer)m.a0[run] == (Integer)m.a1[ti])) bounds[0].last = 0;
    }
    // Whether a column belongs to another run than the column `before` it.
    FN static i32 differs(struct Mask m, Integer k, Integer before, Integer n_q,
                Integer n_kv) {
        (void)m, (void)k, (void)before, (void)n_q, (void)n_kv;
        return (Integer)m.a0[before] != (Integer)m.a0[k];
    }
    // The condition that columns of an interval must meet; -1: none.
    FN static int condition(int interval) {
        (void)interval;
        return -1;
    }
    FN static i32 counts(int condition, struct Mask m, Integer k, Integer n_q,
               Integer n_kv) {
        (void)condition, (void)m, (void)k, (void)n_q, (void)n_kv;
        return 1;
    }
};
// DATA_EARLY: columns have conditions, or pairs are tested. DATA_OF_KEYS: data bound the queries of
// keys.
[[maybe_unused]] constexpr bool DATA_EARLY = 1;
[[maybe_unused]] constexpr bool DATA_OF_KEYS = 0;

// Pairs are tested one by one. Aligned runs of this many keys, or queries, give equal results.
constexpr int KEY_RUN = 1, QUERY_RUN = 1;
// Columns per loop iteration: keys if rows are queries, and queries if rows are keys.
constexpr int KEYS_AT_ONCE = 4, QUERIES_AT_ONCE = 4;
constexpr bool LONG_FORMULA = 0;  // needs many registers

constexpr int HEAD_DIM = 128;  // elements of a row of q, k, v and out
// Number of 16-byte pieces of a row in memory: of q or k, and of v or out. PADDED: rows are shorter
// than HEAD_DIM. Loads fill the rest with zeros, and stores skip it.
[[maybe_unused]] constexpr bool PADDED = 0;
[[maybe_unused]] constexpr int PIECES_QK = 16, PIECES_V = 16;
constexpr int TILE_Q = 128;  // queries per block
constexpr int TILE_K = 64;  // keys per step
constexpr int WARPS = 4;
constexpr int MIN_BLOCKS = 2;  // resident per multiprocessor
// Keep a warp's q in registers.
constexpr bool KEEP_Q = 0;
// Keep tops and sums in shared memory between uses.
constexpr bool PARK_ROWS = 1;
// Number of keys that fit the L2 cache together with their values.
constexpr int GROUP_KEYS = 65536;
// Limit for struct Block in bytes, and total shared memory.
[[maybe_unused]] constexpr int BLOCK_BYTES = 1024;
[[maybe_unused]] constexpr int MEMORY = 70656;
// Tiles come as lists in memory, or else as ranges of consecutive tiles.
[[maybe_unused]] constexpr bool TILE_LISTS = 1;

#define ELEMENT_POLICY "common/lib/element_bf16.cuh"
#define KEYS_POLICY "sm80/lib/keys_rows.cuh"
#define TOKENS_POLICY "common/lib/tokens_even.cuh"

#include "sm80/forward.cuh"
