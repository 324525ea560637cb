// Attention for one mask: sm_80, bfloat16, head_dim 128, tiles of 128 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

#include "common/config.cuh"

// The constants and arrays of one head's mask, held in registers. Comments give their values.
struct Mask {
    i32 shape;  // index of the formula, if heads have different ones
    Integer c0;  // n_q - n_kv + 63
    Integer c1;  // n_kv - n_q
    Integer c2;  // n_q - n_kv + 256
    Integer c3;  // n_kv - n_q + 256
    Integer c4;  // 63
};

// Whether query q sees key k. Used in partial tiles that test pairs.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 18: global_tokens(64)
        (q <= m.c0 &&
        q >= -m.c1) ||
        // line 18: window(256, 256)
        (k >= q - m.c2 &&
        k <= q + m.c3) ||
        // line 18: global_tokens(64)
        k <= m.c4;
}

FN i32 keep(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

FN struct Mask load_mask(const struct Attention *p, i32 batch, i32 head) {
    struct Mask m;
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i32 words = 1 + 5 * (1 + WITH_WIDE);
    const i32 *args = p->mask_args + variant * words;
    m.shape = args[0];
    m.c0 = constant(args + 1, 0);
    m.c1 = constant(args + 1, 1);
    m.c2 = constant(args + 1, 2);
    m.c3 = constant(args + 1, 3);
    m.c4 = constant(args + 1, 4);
    return m;
}

// The live pairs of a row (or column) lie in a few intervals, which may overlap or be empty.
#define HAS_INTERVALS 1
constexpr int INTERVALS = 3;
// The live keys of query ti, as ranges [first, last).
FN void row_bounds(ByQuery, struct Bounds (&bounds)[INTERVALS], struct Mask m,
                   Integer ti, Integer n_q, Integer n_kv) {
    (void)n_q; (void)n_kv;
#pragma unroll
    for (int i = 0; i < INTERVALS; i++) bounds[i] = {0, 0};
    bounds[0].first = range_end(0);
    bounds[0].last = range_end(m.c0 >= ti && m.c1 + ti >= 0 ? n_kv : bounds[0].first);
    bounds[1].first = range_end(max_int(ti - m.c2, 0));
    bounds[1].last = range_end(min_int(n_kv - 1, m.c3 + ti) + 1);
    bounds[2].first = range_end(0);
    bounds[2].last = range_end(min_int(n_kv - 1, m.c4) + 1);
}

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
