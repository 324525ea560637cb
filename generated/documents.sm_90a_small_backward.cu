// Attention for one mask: sm_90a, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

// Switches of the included files; those that are not defined here are 0.
#define WITH_SHIFTS 1

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
struct DataRows<ByKey> {
    static constexpr int INTERVALS = 1;  // of a row, per run of columns
    // That depend on the column only
    static constexpr int CONDITIONS = 0;
    static constexpr bool RUNS = 1;  // runs: columns with equal data
    // The queries of key tj in a run, from its first.
    FN static void row_bounds(struct Bounds *bounds, struct Mask m, Integer tj,
                   Integer run, Integer n_q, Integer n_kv) {
        (void)run, (void)n_q, (void)n_kv;
        bounds[0].first = range_end(max_int(tj - m.c0, 0));
        bounds[0].last = range_end(n_q);
        if (!((Integer)m.a0[tj] == (Integer)m.a1[run])) bounds[0].last = 0;
    }
    // Whether a column belongs to another run than the column `before` it.
    FN static i32 differs(struct Mask m, Integer q, Integer before, Integer n_q,
                Integer n_kv) {
        (void)m, (void)q, (void)before, (void)n_q, (void)n_kv;
        return (Integer)m.a1[before] != (Integer)m.a1[q];
    }
    // The condition that columns of an interval must meet; -1: none.
    FN static int condition(int interval) {
        (void)interval;
        return -1;
    }
    FN static i32 counts(int condition, struct Mask m, Integer q, Integer n_q,
               Integer n_kv) {
        (void)condition, (void)m, (void)q, (void)n_q, (void)n_kv;
        return 1;
    }
};
// DATA_EARLY: columns have conditions, or pairs are tested. DATA_OF_KEYS: data bound the queries of
// keys.
[[maybe_unused]] constexpr bool DATA_EARLY = 1;
[[maybe_unused]] constexpr bool DATA_OF_KEYS = 1;

// Pairs are tested one by one. Aligned runs of this many keys, or queries, give equal results.
constexpr int KEY_RUN = 1, QUERY_RUN = 1;
// Columns per loop iteration: keys if rows are queries, and queries if rows are keys.
constexpr int KEYS_AT_ONCE = 4, QUERIES_AT_ONCE = 2;
constexpr bool LONG_FORMULA = 0;  // needs many registers

constexpr int HEAD_DIM = 128;  // elements of a row of q, k, dq and dk
constexpr int HEAD_DIM_V = 128;  // elements of a row of v, out, dv and dout
// Number of 16-byte pieces of a row in memory: of q or k, and of v or out. PADDED: rows are shorter
// than HEAD_DIM. Loads fill the rest with zeros, and stores skip it.
[[maybe_unused]] constexpr bool PADDED = 0;
[[maybe_unused]] constexpr int PIECES_QK = 16, PIECES_V = 16;
constexpr int TILE_Q = 64;  // queries of a step
constexpr int TILE_K = 64;  // keys of a tile column
constexpr int SLABS = 2;  // slabs of 64 columns in tiles of q and k
constexpr int STAGES = 2;  // query tiles in flight
constexpr int COMPUTE_REGISTERS = 232;
constexpr int COPY_REGISTERS = 24;
// Queries of the transposed score tile that one warpgroup computes.
constexpr int QUERIES = 64;
constexpr int GROUPS = 1;  // that compute
constexpr int BLOCKS = 2;  // blocks that an SM runs at once
// Shared memory of a block in bytes; in the separate dq launch; in the launch before, for entmax.
constexpr unsigned MEMORY = 109056, ROW_MEMORY = 0, MEAN_MEMORY = 109056;
constexpr bool KEEP_ROWS = 0;  // of q and dout, in the dq launch
// The consumer warpgroups split a tile column by keys, or else split the columns of the gradients.
#define SPLIT_KEYS 1
// dq leaves through shared memory and bulk reduce-add copies, or else by atomics from registers.
#define BULK_SHARES 0
#define ZEROING_WARP 0  // an idle warp zeroes most tiles of dq
constexpr u32 DS_STAGES = 1;  // tiles of ds in shared memory
constexpr u32 DOUT_STAGES = 2;  // tiles of dout in flight
constexpr i32 GROUP_TOKENS = 32768;  // queries that share L2
constexpr int KEY_BLOCKS = 4;  // blocks that sum up a shared column
constexpr int SHARES = 2;  // of a tile of dq in the workspace
// Tiles come as lists in memory, or else as ranges of consecutive tiles.
constexpr bool TILE_LISTS = 1;
// With few live pairs, delta is recomputed with less rounding error (settled_delta.cuh).
#define SETTLES_DELTA 1

#define ELEMENT_POLICY "common/lib/element_bf16.cuh"
#define TOKENS_POLICY "common/lib/tokens_even.cuh"
#define MASK_POLICY "sm90a/lib/mask_rows.cuh"

// WGMMA shapes with 64 rows: columns, registers, operand kinds, which operands are MN-major.
#define PRODUCTS \
    PRODUCT_OF_TILES(multiply_scores, 64, 32, HALVES, ", 0, 0") \
    PRODUCT_OF_REGISTERS(multiply_pieces, 64, 32, BFLOATS, ", 0") \
    PRODUCT_OF_REGISTERS(multiply_gradient, 128, 64, HALVES, ", 1") \
    PRODUCT_OF_TILES(multiply_dq, 64, 32, HALVES, ", 0, 1")

#include "sm90a/backward.cuh"
