// Attention for one mask: sm_90a, bfloat16, head_dim 128, tiles of 64 queries x 128 keys.
// Written by `maskc compile`; change the pattern, not this file.

#define WITH_SHIFTS 1

#include "common/config.cuh"

// The constants and arrays of one head's mask, held in registers.
struct Mask {
    i32 shape;  // which formula, where heads have different ones
    Integer c0;  // 3
    Integer c1;  // n_q - n_kv + 1023
    Integer c2;  // n_kv - n_q
};

// Whether query q sees key k. Evaluated in partial tiles only.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 17: sinks(4)
        (k <= m.c0 ||
        // line 17: window(1023)
        k >= q - m.c1) &&
        // line 17: causal()
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
// The queries of key tj.
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

constexpr int HEAD_DIM = 128;  // elements of a row of any tensor
// Pieces of 16 bytes of a row of q or k, and of v or out, in memory. Where rows are PADDED copies
// fill up the rest of HEAD_DIM with zeros, and nothing is stored behind them.
[[maybe_unused]] constexpr bool PADDED = 0;
[[maybe_unused]] constexpr int PIECES_QK = 16, PIECES_V = 16;
constexpr int TILE_Q = 64;  // queries per step
constexpr int TILE_K = 128;  // keys of a tile column
constexpr int SLABS = 2;  // of 64 columns, in every tile
constexpr int STAGES = 2;  // query tiles in flight
constexpr int COMPUTE_REGISTERS = 240;
constexpr int COPY_REGISTERS = 24;
// Queries of the transposed scores that a warpgroup computes.
constexpr int QUERIES = 64;
constexpr int GROUPS = 2;  // that compute
constexpr int BLOCKS = 1;  // that a multiprocessor runs at once
constexpr unsigned MEMORY = 207616;  // of a block; of one that makes dq:
constexpr unsigned ROW_MEMORY = 0;
// A warp's rows of q and dout stay in registers where dq has a launch of its own.
constexpr bool KEEP_ROWS = 0;
// The warpgroups that compute divide the keys of a column, or else the columns of gradients.
#define SPLIT_KEYS 1
// Shares of dq leave through shared memory and bulk copies that add, or straight from registers.
#define BULK_SHARES 1
// Key/value heads come in groups whose queries are so many tokens.
constexpr i32 GROUP_TOKENS = 32768;
// Blocks that add up a column which items share.
constexpr int KEY_BLOCKS = 8;
// Shares of a tile of dq in memory.
constexpr int SHARES = 2;
// Tiles come as lists in memory, or as ranges of consecutive ones.
constexpr bool TILE_LISTS = 1;
// Delta is found once more where a call has few pairs.
#define SETTLES_DELTA 1

#define ELEMENT_POLICY "common/lib/element_bf16.cuh"
#define TOKENS_POLICY "common/lib/tokens_even.cuh"
#define MASK_POLICY "sm90a/lib/mask_rows.cuh"

// Products of tiles of 64 rows: columns, registers, operands, which of them lie along tokens.
#define PRODUCTS \
    PRODUCT_OF_TILES(multiply_scores, 64, 32, HALVES, ", 0, 0") \
    PRODUCT_OF_REGISTERS(multiply_pieces, 64, 32, BFLOATS, ", 0") \
    PRODUCT_OF_REGISTERS(multiply_gradient, 128, 64, HALVES, ", 1") \
    PRODUCT_OF_TILES(multiply_dq, 64, 32, HALVES, ", 0, 1")

#include "sm90a/backward.cuh"
