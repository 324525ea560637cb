// Attention for one mask: sm_90a, bfloat16, head_dim 128, tiles of 64 queries x 128 keys.
// Written by `maskc compile`; change the pattern, not this file.

// Switches of the included files; those that are not defined here are 0.
#define GRID 1

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

// Tiles are boxes of a grid whose tokens are numbered row by row:
// queries of 4 x 16, keys of 4 x 32, in N x 64.
struct Point {
    i32 y, x;
};
FN struct Point query_point(i32 place) {
    const u32 box = (u32)place / TILE_Q, own = (u32)place % TILE_Q;
    struct Point at;
    at.y = box / 4 * 4 + own / 16;
    at.x = box % 4 * 16 + own % 16;
    return at;
}
FN struct Point key_point(i32 place) {
    const u32 box = (u32)place / TILE_K, own = (u32)place % TILE_K;
    struct Point at;
    at.y = box / 2 * 4 + own / 32;
    at.x = box % 2 * 32 + own % 32;
    return at;
}

constexpr i32 BEYOND = 0x7fffffff;  // no token
FN i32 token_at(const struct Point &at) {
    return at.x >= 64 ? BEYOND : at.y * 64 + at.x;
}
// Coordinates of a box copy, without the element: the point from the innermost axis on, then the
// head, sequence.
#define BOX_COORDINATES "r"(at.x), "r"(at.y), "r"(head), "r"(batch)

// maskc/layout/tiles/grid_tiles.py builds these words. Each thread of a quad has its own; this is
// where the words of a head and a thread begin.
FN u32 words_of(const struct Attention &p, i32 head) {
    const u32 rows = (u32)p.tile_cols / 2 * 4, size = 1024 + (u32)p.tile_rows / 4 * rows * 4;
    return (p.head_variant ? p.head_variant[head] : 0) * size + threadIdx.x % 4;
}
// Columns of tile `box` that a row sees along the innermost axis, and along the others. A pair is
// visible if all axes agree.
FN u32 seen_inside(const struct Attention &p, u32 words, const struct Point &at, u32 box) {
    return __ldg((const u32 *)p.distances + (words + (box % 4 * 64 + at.x) * 4));
}
FN u32 seen_outside(const struct Attention &p, u32 words, const struct Point &at, u32 box) {
    const u32 *const first = (const u32 *)p.distances;
    const u32 rows = (u32)p.tile_cols / 2 * 4;
    return
        __ldg(first + (words + 1024 + (box / 4 * rows + at.y) * 4));
}
// Position of a tile of columns along all axes except the innermost.
FN u32 outer_box(u32 box) { return box / 4; }

#define ELEMENT_POLICY "common/lib/element_bf16.cuh"
#define TOKENS_POLICY "common/lib/tokens_even.cuh"
#define MASK_POLICY "sm90a/lib/mask_boxes.cuh"

// WGMMA shapes with 64 rows: columns, registers, operand kinds, which operands are MN-major.
#define PRODUCTS \
    PRODUCT_OF_TILES(multiply_scores, 64, 32, HALVES, ", 0, 0") \
    PRODUCT_OF_REGISTERS(multiply_pieces, 64, 32, BFLOATS, ", 0") \
    PRODUCT_OF_REGISTERS(multiply_gradient, 128, 64, HALVES, ", 1") \
    PRODUCT_OF_TILES(multiply_dq, 64, 32, HALVES, ", 0, 1")

#include "sm90a/backward.cuh"
