// Attention for one mask: sm_90a, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

#define WITH_SHIFTS 1

#include "common/config.cuh"

// The constants and arrays of one head's mask, held in registers.
struct Mask {
    i32 shape;  // which formula, where heads have different ones
    Integer c0;  // n_kv // 64 - 4
    Integer c1;  // 3
    Integer c2;  // 3
    Integer c3;  // 60
    Integer c4;  // 3
    Integer c5;  // 3
    Integer c6;  // 3
    Integer c7;  // 3
};

// Whether query q sees key k. Evaluated in partial tiles only.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 34: where(lambda q, k: (max(min(q // 64, n_kv // 64 - 4), 3) >= k // 64 -...
        max_int(min_int(q / 64, m.c0), m.c1) + m.c2 >= k / 64 &&
        k % 64 + m.c4 >= min_int(q % 64, m.c3) &&
        k / 64 + m.c5 >= min_int(q / 64, m.c0) &&
        max_int(min_int(q % 64, m.c3), m.c6) + m.c7 >= k % 64;
}

FN i32 keep(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

FN struct Mask load_mask(const struct Attention *p, i32 batch, i32 head) {
    struct Mask m;
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i32 words = 1 + 8 * (1 + WITH_WIDE);
    const i32 *args = p->mask_args + variant * words;
    m.shape = args[0];
    m.c0 = constant(args + 1, 0);
    m.c1 = constant(args + 1, 1);
    m.c2 = constant(args + 1, 2);
    m.c3 = constant(args + 1, 3);
    m.c4 = constant(args + 1, 4);
    m.c5 = constant(args + 1, 5);
    m.c6 = constant(args + 1, 6);
    m.c7 = constant(args + 1, 7);
    return m;
}

// Pairs are tested one by one: aligned runs of so many keys, or queries, are alike.
constexpr int KEY_RUN = 1, QUERY_RUN = 1;
// Columns of a turn of the loop: keys of queries, and queries of keys.
constexpr int KEYS_AT_ONCE = 16, QUERIES_AT_ONCE = 2;
constexpr bool LONG_FORMULA = 0;  // that takes many registers

constexpr int HEAD_DIM = 128;  // elements of a row of any tensor
// Pieces of 16 bytes of a row of q or k, and of v or out, in memory. Where rows are PADDED copies
// fill up the rest of HEAD_DIM with zeros, and nothing is stored behind them.
[[maybe_unused]] constexpr bool PADDED = 0;
[[maybe_unused]] constexpr int PIECES_QK = 16, PIECES_V = 16;
constexpr int TILE_Q = 64;  // queries per step
constexpr int TILE_K = 64;  // keys of a tile column
constexpr int SLABS = 2;  // of 64 columns, in every tile
constexpr int STAGES = 2;  // query tiles in flight
constexpr int COMPUTE_REGISTERS = 232;
constexpr int COPY_REGISTERS = 24;
// Queries of the transposed scores that a warpgroup computes.
constexpr int QUERIES = 64;
constexpr int GROUPS = 1;  // that compute
constexpr int BLOCKS = 2;  // that a multiprocessor runs at once
constexpr unsigned MEMORY = 109056;  // of a block; of one that makes dq:
constexpr unsigned ROW_MEMORY = 115712;
#define DQ_LAUNCH 1
// A warp's rows of q and dout stay in registers where dq has a launch of its own.
constexpr bool KEEP_ROWS = 1;
// The warpgroups that compute divide the keys of a column, or else the columns of gradients.
#define SPLIT_KEYS 1
// Shares of dq leave through shared memory and bulk copies that add, or straight from registers.
#define BULK_SHARES 0
// Key/value heads come in groups whose queries are so many tokens.
constexpr i32 GROUP_TOKENS = 32768;
// Blocks that add up a column which items share.
constexpr int KEY_BLOCKS = 4;
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
    PRODUCT_OF_TILES(multiply_dq, 64, 32, HALVES, ", 0, 1") \
    PRODUCT_OF_REGISTERS(multiply_kept_scores, 64, 32, HALVES, ", 0")

#include "sm90a/backward.cuh"
