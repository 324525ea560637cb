// Attention for one mask: sm_80, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

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
constexpr int KEYS_AT_ONCE = 4, QUERIES_AT_ONCE = 4;
constexpr bool LONG_FORMULA = 0;  // needs many registers

constexpr int HEAD_DIM = 128;  // elements of a row of q, k, v and out
// Number of 16-byte pieces of a row in memory: of q or k, and of v or out. PADDED: rows are shorter
// than HEAD_DIM. Loads fill the rest with zeros, and stores skip it.
[[maybe_unused]] constexpr bool PADDED = 0;
[[maybe_unused]] constexpr int PIECES_QK = 16, PIECES_V = 16;
constexpr int TILE_Q = 64;  // queries per block
constexpr int TILE_K = 64;  // keys per step
constexpr int WARPS = 2;
constexpr int MIN_BLOCKS = 4;  // resident per multiprocessor
// Keep a warp's q in registers.
constexpr bool KEEP_Q = 0;
// Keep tops and sums in shared memory between uses.
constexpr bool PARK_ROWS = 1;
// Number of keys that fit the L2 cache together with their values.
constexpr int GROUP_KEYS = 65536;
// Limit for struct Block in bytes, and total shared memory.
[[maybe_unused]] constexpr int BLOCK_BYTES = 1024;
[[maybe_unused]] constexpr int MEMORY = 52224;
// Tiles come as lists in memory, or else as ranges of consecutive tiles.
[[maybe_unused]] constexpr bool TILE_LISTS = 1;

#define ELEMENT_POLICY "common/lib/element_bf16.cuh"
#define KEYS_POLICY "sm80/lib/keys_rows.cuh"
#define TOKENS_POLICY "common/lib/tokens_even.cuh"

#include "sm80/forward.cuh"
