// Attention for one mask: sm_90a, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

// Switches of the included files; those that are not defined here are 0.
#define WITH_SHIFTS 1

#include "common/config.cuh"

// The constants and arrays of one head's mask, held in registers. Comments give their values.
struct Mask {
    i32 shape;  // index of the formula, if heads have different ones
    Integer c0;  // n_kv - n_q
    Integer c1;  // 1
    Integer c2;  // 63
    const i32 *a0;  // chosen blocks of keys
    i32 row0;
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
        ((m.a0[(q) * m.row0 + k / 64 / 32] >> k / 64 % 32 & 1) != 0 &&
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

// The live pairs of a row (or column) lie in a few intervals, which may overlap or be empty.
#define HAS_INTERVALS 1
constexpr int INTERVALS = 3;
// The live queries of key tj, as ranges [first, last).
FN void row_bounds(ByKey, struct Bounds (&bounds)[INTERVALS], struct Mask m,
                   Integer tj, Integer n_q, Integer n_kv) {
    (void)n_q; (void)n_kv;
#pragma unroll
    for (int i = 0; i < INTERVALS; i++) bounds[i] = {0, 0};
    bounds[0].first = range_end(max_int(tj - m.c0, 0));
    bounds[0].last = range_end(min_int(n_q - 1, 64 * m.c1 + tj - tj % 64 - m.c0 + 63) + 1);
    bounds[1].first = range_end(max_int(tj - m.c0, 0));
    bounds[1].last = range_end(m.c2 >= tj ? n_q : bounds[1].first);
    bounds[2].first = range_end(max_int(tj - m.c0, 0));
    bounds[2].last = range_end(n_q);
}

// Table of the selection: one row per CHOSEN_Q queries, with one bit per CHOSEN_K keys.
constexpr i32 CHOSEN_Q = 1, CHOSEN_K = 64;
constexpr i32 CELL_KEYS = 64;  // keys of a tile that are selected together
constexpr i32 CELL_QUERIES = 1;  // queries of a tile that select together
// Bit i: interval i holds pairs that need to be selected; or pairs that are visible without it.
constexpr unsigned OF_CHOSEN = 4, OF_OTHERS = 0;
// Under register pressure the words are not prefetched.
constexpr bool BLOCKS_EARLY = 0;
FN const i32 *chosen_table(const struct Mask &m) { return m.a0; }
FN i32 chosen_pitch(const struct Mask &m) { return m.row0; }

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
#define MASK_POLICY "sm90a/lib/mask_chosen_blocks.cuh"

// WGMMA shapes with 64 rows: columns, registers, operand kinds, which operands are MN-major.
#define PRODUCTS \
    PRODUCT_OF_TILES(multiply_scores, 64, 32, HALVES, ", 0, 0") \
    PRODUCT_OF_REGISTERS(multiply_pieces, 64, 32, BFLOATS, ", 0") \
    PRODUCT_OF_REGISTERS(multiply_gradient, 128, 64, HALVES, ", 1") \
    PRODUCT_OF_TILES(multiply_dq, 64, 32, HALVES, ", 0, 1")

#include "sm90a/backward.cuh"
