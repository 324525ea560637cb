// Attention for one mask: sm_90a, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

// Switches of the included files; those that are not defined here are 0.
#define WITH_SHIFTS 1

#include "common/config.cuh"

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

// Pairs are tested one by one. Aligned runs of this many keys, or queries, give equal results.
constexpr int KEY_RUN = 1, QUERY_RUN = 1;
// Columns per loop iteration: keys if rows are queries, and queries if rows are keys.
constexpr int KEYS_AT_ONCE = 16, QUERIES_AT_ONCE = 2;
constexpr bool LONG_FORMULA = 0;  // needs many registers

constexpr int HEAD_DIM = 128;  // elements of a row of q and k
constexpr int HEAD_DIM_V = 128;  // elements of a row of v and out
// Number of 16-byte pieces of a row in memory: of q or k, and of v or out. PADDED: rows are shorter
// than HEAD_DIM. Loads fill the rest with zeros, and stores skip it.
[[maybe_unused]] constexpr bool PADDED = 0;
[[maybe_unused]] constexpr int PIECES_QK = 16, PIECES_V = 16;
constexpr int TILE_Q = 64;  // queries of a tile row
constexpr int TILE_K = 64;  // keys of a tile; a step processes one tile
// Unit of the indices in a tile list, in keys. Tiles that follow documents may begin at any key.
constexpr int KEY_STEP = TILE_K;
// Slabs of 64 columns in tiles of q and k; see lib/wgmma.cuh.
constexpr int SLABS = 2;
constexpr int GROUPS = 1;  // consumer warpgroups, 64 queries each
constexpr int STAGES = 2;  // tiles of k, and of v, in flight
// Whether shared memory has room for one tile of q only, also in persistent blocks.
constexpr bool ONE_Q = 0;
constexpr int BLOCKS = 2;  // blocks that an SM runs at once
// Registers per thread (setmaxnreg) of the consumer and the producer warpgroups.
constexpr int COMPUTE_REGISTERS = 232, COPY_REGISTERS = 24;
// Whether registers have room for q as an operand of q k^T.
#define ROOM_FOR_Q 1
// Shared memory for the lists of entmax, in bytes.
#define LIST_BYTES 0
// When a step waits for p v; PV_WAIT in lib/constants.cuh combines these constants.
// PV_WAIT_FIRST: before the logits. SELECTION_REGISTER_PRESSURE: selection bits and
// intervals leave few registers. PV_WAIT_LAST: the value of PV_WAIT in all other cases, without
// persistent blocks.
constexpr bool PV_WAIT_FIRST = 0;
constexpr bool SELECTION_REGISTER_PRESSURE = 0;
constexpr int PV_WAIT_LAST =
    2;
// The tiles of a row are a list in memory. If 0, they are a range of consecutive tiles.
[[maybe_unused]] constexpr bool TILE_LISTS = 1;
// Scores also decide which pairs are kept, in tiles where the predicate tests pairs.
[[maybe_unused]] constexpr bool FILTERS_PAIRS = 0;

#define ELEMENT_POLICY "common/lib/element_bf16.cuh"
#define TOKENS_POLICY "common/lib/tokens_even.cuh"
#define ROWS_POLICY "sm90a/lib/rows_even.cuh"
#define KEYS_POLICY "sm90a/lib/keys_boxes.cuh"
#define MASK_POLICY "sm90a/lib/mask_rows.cuh"

// WGMMA shapes with 64 rows: columns, registers, operand kinds, which operands are MN-major.
#define PRODUCTS \
    PRODUCT_OF_TILES(multiply_qk, 64, 32, HALVES, ", 0, 0") \
    PRODUCT_OF_REGISTERS(multiply_kept_qk, 64, 32, HALVES, ", 0") \
    PRODUCT_OF_REGISTERS(multiply_pv, 128, 64, HALVES, ", 1")

#include "sm90a/forward.cuh"
