// Attention for one mask: sm_90a, bfloat16, head_dim 128, tiles of 64 queries x 128 keys.
// Written by `maskc compile`; change the pattern, not this file.

// Switches of the included files; those that are not defined here are 0.
#define WITH_SHIFTS 1

#include "common/config.cuh"

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

// The live pairs of a row (or column) lie in a few intervals, which may overlap or be empty.
#define HAS_INTERVALS 1
constexpr int INTERVALS = 2;
// The live queries of key tj, as ranges [first, last).
FN void row_bounds(ByKey, struct Bounds (&bounds)[INTERVALS], struct Mask m,
                   Integer tj, Integer n_q, Integer n_kv) {
    (void)n_q; (void)n_kv;
#pragma unroll
    for (int i = 0; i < INTERVALS; i++) bounds[i] = {0, 0};
    bounds[0].first = range_end(max_int(tj - m.c2, 0));
    bounds[0].last = range_end(m.c0 >= tj ? n_q : bounds[0].first);
    bounds[1].first = range_end(max_int(tj - m.c2, 0));
    bounds[1].last = range_end(min_int(n_q - 1, m.c1 + tj) + 1);
}

constexpr int HEAD_DIM = 128;  // elements of a row of q, k, dq and dk
constexpr int HEAD_DIM_V = 128;  // elements of a row of v, out, dv and dout
// Number of 16-byte pieces of a row in memory: of q or k, and of v or out. PADDED: rows are shorter
// than HEAD_DIM. Loads fill the rest with zeros, and stores skip it.
[[maybe_unused]] constexpr bool PADDED = 0;
[[maybe_unused]] constexpr int PIECES_QK = 16, PIECES_V = 16;
constexpr int TILE_Q = 64;  // queries of a step
constexpr int TILE_K = 128;  // keys of a tile column
constexpr int SLABS = 2;  // slabs of 64 columns in tiles of q and k
constexpr int STAGES = 2;  // query tiles in flight
constexpr int COMPUTE_REGISTERS = 240;
constexpr int COPY_REGISTERS = 24;
// Queries of the transposed score tile that one warpgroup computes.
constexpr int QUERIES = 64;
constexpr int GROUPS = 2;  // that compute
constexpr int BLOCKS = 1;  // blocks that an SM runs at once
// Shared memory of a block in bytes; in the separate dq launch; in the launch before, for entmax.
constexpr unsigned MEMORY = 207616, ROW_MEMORY = 0, MEAN_MEMORY = 207616;
constexpr bool KEEP_ROWS = 0;  // of q and dout, in the dq launch
// The consumer warpgroups split a tile column by keys, or else split the columns of the gradients.
#define SPLIT_KEYS 1
// dq leaves through shared memory and bulk reduce-add copies, or else by atomics from registers.
#define BULK_SHARES 1
#define ZEROING_WARP 1  // an idle warp zeroes most tiles of dq
constexpr u32 DS_STAGES = 2;  // tiles of ds in shared memory
constexpr u32 DOUT_STAGES = 2;  // tiles of dout in flight
constexpr i32 GROUP_TOKENS = 32768;  // queries that share L2
constexpr int KEY_BLOCKS = 8;  // blocks that sum up a shared column
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
