// Attention for one mask: sm_90a, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

#define FN __device__ __forceinline__
typedef int i32;
typedef long long i64;

struct Attention {
    const void *q;  // [batch, heads_q, n_q, HEAD_DIM]
    const void *k;  // [batch, heads_kv, n_kv, HEAD_DIM]
    const void *v;  // [batch, heads_kv, n_kv, HEAD_DIM_V]
    void *out;  // [batch, heads_q, n_q, HEAD_DIM_V]
    float *lse;  // [batch, heads_q, n_q], natural log
    const void *dout;  // backward: like out
    void *dq;  // backward: like q
    void *dk;  // backward: like k
    void *dv;  // backward: like v
    float *delta;  // workspace; backward: [batch, heads_q, n_q] rowsum(out * dout)
    float *dsink;  // backward: [heads_q] to add to, or null
    float *dslopes;  // backward: [heads_q] to add to, or null
    const float *alibi_slopes;  // [heads_q], or null
    const float *sink_logits;  // [heads_q], or null
    const i32 *row_ptr;  // [lists][tile_rows + 1] offsets into row_tiles
    const i32 *row_tiles;  // tile column * 2 + (1 if every pair is live), ascending
    const i32 *col_ptr;  // backward: [lists][tile_cols + 1] offsets into col_tiles
    const i32 *col_tiles;  // backward: tile row * 2 + (1 if full), ascending
    const i32 *work;  // [items + empty + merges][WORK_FIELDS], see maskc/core/abi.py
    i32 *counter;  // [2 + rows], zero before and after every launch: see below
    const i32 *head_variant;  // [heads_q] which mask each head has, or null: mask 0
    const i32 *mask_args;  // [variants][1 + N_ARGS]: the formula's shape, its constants
    const i32 *distances;  // [variants] bits of partial tiles, see maskc/layout/
    const i32 *col_turns;  // of each of col_tiles, or null: see maskc/layout/work/
    const i32 *array[8];  // data arrays of the mask
    i64 array_batch[8];  // elements from one sequence's array to the next, 0 if shared
    i64 array_head[8];  // elements from one head's array to the next, 0 if shared
    i64 array_row[8];  // elements from one row to the next; of parts see lib/tokens_*.cuh
    i64 q_stride[3];  // elements between batches, heads, tokens
    i64 k_stride[3];  // likewise
    i64 v_stride[3];  // likewise
    i64 out_stride[3];  // likewise
    i64 dout_stride[3];  // likewise
    i64 dq_stride[3];  // likewise
    i64 dk_stride[3];  // likewise
    i64 dv_stride[3];  // likewise
    i64 lse_stride[3];  // likewise
    i32 batch;  // sequences
    i32 heads_q;  // query heads
    i32 heads_kv;  // key/value heads; heads_q is a multiple
    i32 n_q;  // queries per sequence, or rows of a packed head
    i32 queries;  // per sequence: n_q, but for packed heads
    i32 n_kv;  // keys per sequence
    i32 tile_rows;  // ceil(n_q / TILE_Q), or boxes of a grid
    i32 tile_cols;  // ceil(n_kv / TILE_K), or boxes of a grid
    i32 items;  // of the work list that have tiles
    i32 empty;  // items behind them without any
    i32 shared_items;  // rows to be merged, or columns that items share
    i32 list_batch;  // lists from one sequence to the next, 0 if all share theirs
    i32 joins;  // 1: results hold those of other keys, and are joined with them
    float spacing;  // the distance from one token to the next
    float scale;  // factor of q . k
    float softcap;  // of the options; read only where they are built in
    float alpha_minus_1;  // of entmax; read only by kernels built WITH_ENTMAX
    i32 further;  // deterministic: most further tiles of dq of a list
    const i32 *row_sums;  // [lists][tile_rows + 1] of them before a row, or null: none
};

#ifndef WITH_SOFTCAP
#define WITH_SOFTCAP 0
#endif
#ifndef WITH_ALIBI
#define WITH_ALIBI 0
#endif
#ifndef WITH_SINKS
#define WITH_SINKS 0
#endif
#ifndef WITH_ENTMAX
#define WITH_ENTMAX 0
#endif
#ifndef WITH_NAN_SAFE
#define WITH_NAN_SAFE 0
#endif
#ifndef WITH_WIDE
#define WITH_WIDE 0
#endif
#include "common/lib/score_facts.h"

#include "common/lib/element_bf16.cuh"
#include "common/lib/device.cuh"

#include "common/lib/unpack.cuh"

// From the score q . k of a pair to its logit.
// What stands between them is the formula of the score, or that of the options of a call, see
// score_facts.h, which also says SCORED, SCORE_BENDS, HEAD_GRADIENT. The kernels ask for these
// and for the facts below, and call what follows.
// Needs: device.cuh, Attention. Gives: the facts; left_scale, HeadLogit, head_logit_of, bend.
//
// `where` tells which pairs a thread's elements are of. Each kernel has a type of its own for it,
// with what follows; nothing is computed of what is not asked for:
//     void refresh(p)                     called before many elements are asked about
//     float distance(int i)               between the positions of query and key of element i
//     struct HeadLogit head_logit(int i)  what the head of element i has
//     i32 query(p, int i), key(p, int i)  tokens, inside the sequence
//     i32 head(int i), batch()            a query head, a sequence
//     float apart(p, int i)               the query's token minus the key's

// Facts:
//     BENT           a logit is more than its score times the scale. Otherwise nothing is done to
//                    scores, and what reads them next applies the scale.
//     HAS_SLOPE      the derivative of a logit by scale * score is not 1 everywhere.
//     NEEDS_WHERE    a logit depends on where its pair is.
//     LONG_LOGITS    logits take so many registers that less can wait beside them.
//     SHIFTED        the kernel itself adds what follows from distance, by diagonals of its tiles,
//                    see shifts.cuh, and to the facts above that is nothing.
//     CAPPED         a logit is height * tanh(rate * s), see cap.cuh, before anything is added.
#include "common/lib/score_options.cuh"

FN float score_rate(i32 head, i32 batch, const struct Attention &p) {
    return fast_reciprocal(score_height(head, batch, p));
}
FN float score_shift(i32 far, i32 head, i32, const struct Attention &p) {
    return -head_slope(p, head) * fabsf((float)(far + p.n_kv - p.n_q));
}
#ifndef PACKED
#define PACKED 0
#endif
#define SHIFTED (SCORE_SHIFTS && !(WITH_ENTMAX || PACKED))  // heads have distances of their own
#define CAPPED SCORE_CAPS
#define BENT (SCORED && !SHIFTED)
#define HAS_SLOPE SCORE_BENDS
#define NEEDS_WHERE (BENT && (HEAD_GRADIENT || !CAPPED))
#define LONG_LOGITS SCORE_BENDS

// What scores are still to be multiplied by when `bend` is through, to be logits.
FN float left_scale(const struct Attention &p) { return BENT ? 1.0f : p.scale; }

// What the logits of one head are made of.
struct HeadLogit {
    float slope;  // by which a logit falls with every step of distance
};
FN struct HeadLogit head_logit_of(const struct Attention &p, i32 head) {
    return {head_slope(p, head)};
}

#if CAPPED
#include "sm90a/lib/cap.cuh"

#endif
// Scores become logits, where they are bent at all. FOLDED: see cap.cuh.
template <bool FOLDED = false, int N, typename Where>
FN void bend(float (&s)[N], const struct Attention &p, Where where) {
#if BENT
    if (NEEDS_WHERE) where.refresh(p);
#if CAPPED
    cap_scores(s, cap_of<FOLDED>(p, where.head(0), where.batch()));
#endif
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (!CAPPED) s[i] *= p.scale;
        if (NEEDS_WHERE) s[i] -= where.head_logit(i).slope * where.distance(i);
    }
#endif
}

#include "sm90a/lib/logit_slope.cuh"

constexpr int HEAD_DIM = 128;  // elements of a row of any tensor
// Pieces of 16 bytes of a row of q or k, and of v or out, in memory. Where rows are PADDED copies
// fill up the rest of HEAD_DIM with zeros, and nothing is stored behind them.
[[maybe_unused]] constexpr bool PADDED = 0;
[[maybe_unused]] constexpr int PIECES_QK = 16;
[[maybe_unused]] constexpr int PIECES_V = 16;
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
// A warp's rows of q and dout stay in registers where dq has a launch of its own.
constexpr bool KEEP_ROWS = 1;
// The warpgroups that compute divide the keys of a column, or else the columns of gradients.
#define SPLIT_KEYS 1
// Shares of dq leave through shared memory and bulk copies that add, or straight from registers.
#define STAGED (0 && !ONCE && !APART)
// Key/value heads come in groups whose queries are so many tokens.
constexpr i32 GROUP_TOKENS = 32768;
// Blocks that add up a column which items share.
constexpr int KEY_BLOCKS = 4;
// Shares of a tile of dq in memory, and pieces of eight columns of a share.
constexpr int SHARES = 2;
constexpr int DQ_PIECES = HEAD_DIM / 8 / SHARES;
// Pairs are kept by their scores and thresholds, on top of the mask.
#define THRESHOLDS 0
// Tiles come as lists in memory, or as ranges of consecutive ones.
constexpr bool TILE_LISTS = 1;
// Delta is found once more where a call has few pairs.
#define SETTLES_DELTA 1

#include "sm90a/lib/backward_constants.cuh"

#include "common/lib/integers.h"
#include "common/lib/formulas.h"

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

// A constant of the mask: one word, or two.
FN Integer constant(const i32 *args, i32 i) {
#if WITH_WIDE
    return (Integer)args[2 * i + 1] * 4294967296 + (unsigned)args[2 * i];
#else
    return args[i];
#endif
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

struct Tile {
    i32 index;  // tile column of a row's list, tile row of a column's list
    i32 full;   // every pair of it is live: no predicate
};

#include "common/lib/tiles_csr.h"

#include "common/lib/tokens_even.cuh"

#include "sm90a/lib/ptx.cuh"

#include "sm90a/lib/tokens.cuh"

// Tiles lie as slabs of 64 columns: a slab has a row of 128 bytes per token, and the 16-byte pieces
// of a row trade places with row % 8. This is what box copies write and what products read. Every
// tile starts at a multiple of 1024 bytes.
constexpr u32 SLAB_ROW = 128;
FN u32 swizzled(u32 row, u32 piece) { return row * SLAB_ROW + ((piece ^ (row % 8)) << 4); }

// An operand whose reduction runs along the columns (K-major): a step of 32 bytes, which are 16
// columns of two bytes.
FN u64 along_columns(u32 tile) { return (u64)(tile >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
// An operand whose reduction runs along the tokens: 16 tokens on are 2048 bytes on; the next slab
// lies `slab` bytes behind.
FN u64 along_tokens(u32 tile, u32 slab) {
    return (u64)(tile >> 4) | (u64)(slab >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
// Where step `i` begins: four steps a slab.
FN u32 column_step(int i, u32 slab) { return (i % 4 * 32 + i / 4 * slab) >> 4; }
FN u32 token_step(int i) { return i * 16 * SLAB_ROW >> 4; }

// Ordinary writes to accumulators and register operands come before the products that follow.
FN void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
FN void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}
// Keeps accesses to registers that products use on their side of this line.
template <int N>
FN void pin(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i]) :: "memory");
}
template <int N>
FN void pin(u32 (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i]) :: "memory");
}
template <int N>
FN void clear(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = 0.0f;
}

// 64 x 64 and 16 deep, a in shared memory: d = a b, or d += a b where `add`.
FN void multiply_scores(float (&d)[32], u64 a, u64 b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." ELEMENT "." ELEMENT " {"
        " %0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31},"
        " %32, %33, add, 1, 1, 0, 0;\n"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"((int)add));
}

// 64 x 64 and 16 deep, a in registers: d = a b, or d += a b where `add`.
FN void multiply_pieces(float (&d)[32], const u32 *a, u64 b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        " %0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31},"
        " { %32, %33, %34, %35}, %36, add,"
        " 1, 1, 0;\n"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

// 64 x 128 and 16 deep, a in registers: d = a b, or d += a b where `add`.
FN void multiply_gradient(float (&d)[64], const u32 *a, u64 b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." ELEMENT "." ELEMENT " {"
        " %0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39,"
        " %40, %41, %42, %43, %44, %45, %46, %47,"
        " %48, %49, %50, %51, %52, %53, %54, %55,"
        " %56, %57, %58, %59, %60, %61, %62, %63},"
        " { %64, %65, %66, %67}, %68, add,"
        " 1, 1, 1;\n"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
          "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

// 64 x 64 and 16 deep, a in shared memory: d = a b, or d += a b where `add`.
FN void multiply_dq(float (&d)[32], u64 a, u64 b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." ELEMENT "." ELEMENT " {"
        " %0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31},"
        " %32, %33, add, 1, 1, 0, 1;\n"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(a), "l"(b), "r"((int)add));
}

// 64 x 64 and 16 deep, a in registers: d = a b, or d += a b where `add`.
FN void multiply_kept_scores(float (&d)[32], const u32 *a, u64 b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." ELEMENT "." ELEMENT " {"
        " %0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31},"
        " { %32, %33, %34, %35}, %36, add,"
        " 1, 1, 0;\n"
        "}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

#include "sm90a/lib/work.cuh"

#include "common/lib/keep_all.cuh"

struct Maps {
    TensorMap q, dout, k, v, dk, dv, out;
};

#include "sm90a/lib/backward_workspace.cuh"

#include "sm90a/lib/backward_rows.cuh"

#if !APART
#include "common/lib/backward_few.cuh"

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_few(const __grid_constant__ struct Attention p,
                       const __grid_constant__ struct Maps) {
    settle_rows(p);
}
#endif

// Scores lie transposed: a warpgroup has 64 keys as rows, and QUERIES columns. A thread's element
// 4 i + 2 r + e is of key 16 warp + lane / 4 + 8 r and query 8 i + 2 (lane % 4) + e.
typedef float Scores[QUERIES / 2];
typedef u32 Pairs[QUERIES / 4];  // two scores each, in storage precision
// Numbers of a thread's queries. They lie as threads read them, four in one go, as shared memory is
// what limits a step: of 16 queries first those of lane 0, which are 0, 1, 8 and 9.
typedef float4 Rows[QUERIES / 16];

#if FOLDED
// They are in what the products made.
FN void read_rows(Rows &, const float *) {}
FN float2 pair_of(const Rows &, int) { return make_float2(0.0f, 0.0f); }
FN float4 row_four(const float *, int) { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
#else
FN float4 row_four(const float *from, int i) {
    return *(const float4 *)(from + 16 * i + threadIdx.x % 4 * 4);
}
FN void read_rows(Rows &rows, const float *from) {
#pragma unroll
    for (int i = 0; i < QUERIES / 16; i++) rows[i] = row_four(from, i);
}
FN float2 pair_of(const Rows &rows, int i) {  // of queries 8 i + 2 (lane % 4)
    return i % 2 ? make_float2(rows[i / 2].z, rows[i / 2].w)
                 : make_float2(rows[i / 2].x, rows[i / 2].y);
}
#endif

// What scores are in.
struct Logit {
    float unit;    // of what `bend` leaves, in powers of two; with entmax, times alpha - 1
    float hidden;  // the score of a dead pair: its weight is 0
};
FN struct Logit logit_of(const struct Attention &p) {
    struct Logit logit;
    logit.unit = score_unit(p);
    logit.hidden = logit.unit < 0.0f ? PLUS_INFINITY : MINUS_INFINITY;
    return logit;
}

// Which pairs a thread's scores of a step are of; see logit.cuh.
struct Where {
    struct Place place;
    i32 query_place, key_place;  // of the first element
    struct HeadLogit own;
    struct Steps steps;
    FN void refresh(const struct Attention &) { anew_steps(steps); }
    FN float distance(int i) const {
        return fabsf(steps.at(i / 4 * 8 + i % 2, i / 2 % 2 * 8));
    }
    FN struct HeadLogit head_logit(int) const { return own; }
    FN i32 query(const struct Attention &p, int i) const {
        return query_token(p, place.batch, query_row(i));
    }
    FN i32 key(const struct Attention &p, int i) const {
        return key_token(p, place.batch, key_at(key_place + i / 2 % 2 * 8));
    }
    FN float apart(const struct Attention &p, int i) const {
        if (GRID_TILES) return (float)(query(p, i) - key(p, i));
        return steps.at(i / 4 * 8 + i % 2, i / 2 % 2 * 8);
    }
    FN i32 query_row(int i) const { return query_at(query_place + i / 4 * 8 + i % 2); }
    FN i32 head(int) const { return place.head; }
    FN i32 batch() const { return place.batch; }
};

#include "common/lib/plain_rows.cuh"

#include "common/lib/bits.cuh"

#include "common/lib/quad_columns.cuh"

#include "common/lib/mask_sides.cuh"

#include "sm90a/lib/mask_policy.cuh"

#include "sm90a/lib/visible.cuh"

#include "sm90a/lib/hide_keys.cuh"

// Beside distances small heads leave too few registers for runs.
[[maybe_unused]] constexpr bool DATA_FIT = !(HEAD_GRADIENT && HEAD_DIM <= 64);

// Aligned runs of so many keys, or queries, are alike.
constexpr int KEY_RUN = 1, QUERY_RUN = 1;
// Columns of a turn of the loop: keys of queries, and queries of keys.
constexpr int KEYS_AT_ONCE = 16, QUERIES_AT_ONCE = 2;
constexpr bool LONG_FORMULA = 0;  // that takes many registers

#include "common/lib/pairs.cuh"

// What rows see of the tile that begins with column `first`, as bits of a thread's own columns.
// Rows lie inside the lengths. Bits of keys past the last one are 0, those past the tile anything.
template <class Side, class Own, int R>
FN void see_rows(u32 (&word)[R][Own::WORDS], const struct Mask &mask, const i32 (&rows)[R],
                 i32 first, i32 n_q, i32 n_kv) {
    add_tested<Side, Own>(word, mask, rows, first, n_q, n_kv);
}

constexpr bool MASK_EARLY = true;
constexpr bool MASK_HEAVY = LONG_FORMULA || QUERY_RUN < 8;

#include "sm90a/lib/mask_rows.cuh"

#include "sm90a/lib/apply_mask.cuh"

#if WITH_ENTMAX
#include "common/lib/entmax_weights.cuh"
#else
#include "common/lib/softmax_weights.cuh"
#endif

// A step keeps u, the weight's derivative by its logit, times that of the logit, from the weights
// until dp is there: in s, or where registers are short, in storage precision.
constexpr bool KEEP_U = QUERIES <= 64 && !HEAD_GRADIENT && !(CROWDED && HAS_SLOPE);
struct Kept {
    Pairs p;  // without the derivative
#if WITH_ENTMAX
    Pairs u;  // with it, but where a head's own gradient is to be found first
#endif
    struct Slopes<QUERIES / 2> slopes;
    struct Staying<QUERIES / 2> stay;
};

#include "sm90a/lib/shifts.cuh"

// What distance adds to a warpgroup's scores, in powers of two.
typedef struct Shifts<QUERIES, 64> StepShifts;
FN float *shifts_of(i32 group) {
    __shared__ float all[GROUPS][StepShifts::COUNT];
    return all[group];
}
// What a score in powers of two, of element i, is to lose.
FN float base_of(float lse, int i) {
    if (!SHIFTED) return lse;
    const i32 thread = threadIdx.x % 128;
    const float *const own = shifts_of(threadIdx.x / 128 - 1) + StepShifts::ORIGIN
                             + thread % 4 * 2 - thread / 32 * 16 - thread % 32 / 4;
    const float shift = own[i / 4 * 8 + i % 2 - i / 2 % 2 * 8];
    return FOLDED ? -shift : lse - shift;
}

// Logits become weights. Past the last query lse is infinite and weights are 0.
template <Alpha ALPHA>
FN void weigh_all(Scores &s, Kept &kept, const Rows &lse, const struct Attention &p,
                  const struct Logit &logit, struct Where where) {
    if (HAS_SLOPE && NEEDS_WHERE) where.refresh(p);
#pragma unroll
    for (int i = 0; i < QUERIES / 8; i++) {
        const float2 base = pair_of(lse, i);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = 4 * i + 2 * r;
            const float x = s[at], y = s[at + 1];
            const float low = base_of(base.x, at), high = base_of(base.y, at + 1);
            const struct Weight v = weigh<ALPHA>(x, logit.unit, low, p.alpha_minus_1);
            const struct Weight w = weigh<ALPHA>(y, logit.unit, high, p.alpha_minus_1);
            s[at] = v.u, s[at + 1] = w.u;
            kept.p[2 * i + r] = pack(v.p, w.p);
#if HAS_SLOPE
            const float2 slope = take_slopes(kept.slopes, 2 * i + r, x, y, p, where);
            s[at] *= slope.x, s[at + 1] *= slope.y;
#endif
#if WITH_ENTMAX
            kept.u[2 * i + r] = HEAD_GRADIENT ? pack(v.u, w.u) : pack(s[at], s[at + 1]);
#endif
        }
    }
}
FN void to_weights(Scores &s, Kept &kept, const Rows &lse, const struct Attention &p,
                   const struct Logit &logit, const struct Where &where) {
    by_alpha(p.alpha_minus_1, [&](auto kind) {
        weigh_all<decltype(kind)::value>(s, kept, lse, p, logit, where);
    });
}

// A thread's share of the gradient of what its head has, from those of logits.
FN float head_gradient(const Pairs &ds, const struct Where &where) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < QUERIES / 4; i++) {
        const float2 x = unpack(ds[i]);
        sum -= x.x * where.distance(2 * i) + x.y * where.distance(2 * i + 1);
    }
    return sum;
}

// dp = dout . v becomes ds = u (dp - delta), where delta is yet to be read if there is a `rest`.
// Returns the thread's share of the head's own gradient.
FN float to_gradients(Scores &dp, const Scores &s, const Kept &kept, Pairs &ds, Rows &delta,
                      const float *rest, const struct Attention &p, struct Where where) {
    float share = 0.0f;
#if WITH_ENTMAX
    const Pairs &slopes = kept.u;
#else
    const Pairs &slopes = kept.p;
#endif
#pragma unroll
    for (int i = 0; i < QUERIES / 8; i++) {
        if (rest && i % 2 == 0) delta[i / 2] = row_four(rest, i / 2);
        const float2 base = pair_of(delta, i);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = 4 * i + 2 * r;
            const float a = dp[at] - base.x, b = dp[at + 1] - base.y;
            float2 u = unpack(slopes[2 * i + r]);
#if HAS_SLOPE && !HEAD_GRADIENT && !WITH_ENTMAX
            const float2 slope = kept_slopes(kept.slopes, 2 * i + r);
            u.x *= slope.x, u.y *= slope.y;
#endif
            ds[2 * i + r] = KEEP_U ? pack(s[at] * a, s[at + 1] * b) : pack(u.x * a, u.y * b);
        }
    }
#if HEAD_GRADIENT
    pin(ds);  // one after the other: registers are short
    where.refresh(p);
    share = head_gradient(ds, where);
#if HAS_SLOPE
#pragma unroll
    for (int i = 0; i < QUERIES / 4; i++) {
        const float2 x = unpack(ds[i]), slope = kept_slopes(kept.slopes, i);
        ds[i] = pack(x.x * slope.x, x.y * slope.y);
    }
#endif
#endif
    return share;
}

#include "sm90a/lib/backward_products.cuh"

#include "sm90a/lib/split_keys.cuh"

#include "sm90a/lib/order_csr.cuh"

#include "sm90a/lib/backward_order.cuh"

// What the thread that loads keeps of a head: all that its tiles have in common.
struct Source {
    List list;
    struct Place q, dout;     // as coordinates; 0 where all share a dimension
    const float *lse, *delta;  // of the first query
    i32 tail;                 // MASKED where the column ends past the last key
};

// A block's shared memory; its size is in maskc/plan/families/sm90a_backward.py.
struct Shared {
    unsigned char k[K_BYTES], v[K_BYTES];
    unsigned char q[STAGES][Q_BYTES], dout[STAGES][Q_BYTES];
#if FOLDED
    // Pieces of lse and delta. Not at the end: products read them as if they were twice as long.
    unsigned char rows[STAGES][PIECE_BYTES];
#endif
    // ds, and p where it is exchanged; between two warpgroups then, in the same place, dk and dv.
    unsigned char ds[DS_STAGES][PAIR_BYTES];
#if !SPLIT_KEYS
    unsigned char weights[STAGES][PAIR_BYTES];
#endif
#if STAGED
    float dq[TILE_FLOATS];
#endif
#if ZEROES
    unsigned char zeros[ZERO_BYTES];
#endif
#if !FOLDED
    float lse[STAGES][TILE_Q], delta[STAGES][TILE_Q];
#endif
    u64 column_full, column_free;
    u64 q_full[STAGES], q_free[STAGES], dout_full[STAGES], dout_free[STAGES];
    u64 dq_full[GROUPS], dq_free[GROUPS], dq_added, dq_seen, column_settled;
    struct Item item[ITEMS];
    struct Source source;  // of the head whose steps are loaded
    i32 word[STAGES], head[STAGES];  // of the query tile in this stage
    struct Turn turn[STAGES], dq_turn;  // of a step, and of the tile in dq
    i32 *dq_counter;                    // of additions to what a step adds to
    u32 holds, settled;  // whether the last turn of the item that is loaded is held; parity
};
static_assert(sizeof(struct Shared) <= MEMORY, "planned memory");

#include "common/lib/memory.cuh"

// Turns through a ring of places in shared memory, one or two.
template <u32 COUNT>
struct Ring {
    u32 steps = 0;
    FN u32 at() const { return steps % COUNT; }
    FN u32 turn() const { return steps / COUNT % 2; }  // parity
    FN void next() { steps++; }
};

FN void initialize(struct Shared &shared) {
    shared.holds = shared.settled = 0;
    barrier_init(shared.column_full, 1);
    barrier_init(shared.column_free, GROUPS);
    barrier_init(shared.dq_added, 1);
    barrier_init(shared.dq_seen, 1);
    barrier_init(shared.column_settled, 1);
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared.q_full[i], 1);
        barrier_init(shared.dout_full[i], 1);
        barrier_init(shared.q_free[i], GROUPS);
        barrier_init(shared.dout_free[i], GROUPS);
    }
    for (int i = 0; i < GROUPS; i++) {
        barrier_init(shared.dq_full[i], 4);  // warps
        barrier_init(shared.dq_free[i], 1);
    }
    barriers_ready();
}

// The query tile of a step.
struct Step {
    i32 word;
    i32 row;  // the tile row's number
};

#include "sm90a/lib/backward_load.cuh"

#include "sm90a/lib/backward_dq.cuh"

// ---------------------------------------------------------------- warpgroups that compute

FN i32 first_row(i32 group) { return SPLIT_KEYS ? 0 : QUERIES * group; }
FN i32 first_query(i32 word, i32 group) { return (word & INDEX) * TILE_Q + first_row(group); }
FN struct Step step_in(const struct Shared &shared, i32 at, const struct Attention &p) {
    const i32 word = uniform(shared.word[at]);
    return {word, uniform(shared.head[at]) * p.tile_rows + (word & INDEX)};
}
// The place of a thread's first key; the other is 8 behind. Computed where it is used.
FN i32 first_key(i32 tile, i32 group) {
    const i32 thread = threadIdx.x % 128;
    return anew(tile) * TILE_K + key_of(group) + thread / 32 * 16 + thread % 32 / 4;
}
FN struct Where where_of(const struct Place &place, const struct Step &step,
                         const struct Attention &p, i32 tile, i32 group) {
    const struct HeadLogit own = head_logit_of(p, place.head);
    const i32 query = first_query(step.word, group) + (i32)threadIdx.x % 4 * 2;
    const i32 key = first_key(tile, group);
    return {place, query, key, own, steps_from(p, place.batch, query, key)};
}

// dp = dout . v begins before scores become weights, where registers are at hand.
constexpr bool FEW = QUERIES <= 64;
constexpr bool EARLY =
    !LONG_LOGITS && (THRESHOLDS ? FEW : !(BENT || WITH_ENTMAX) || (FEW && !CROWDED));
// Numbers of the rows that are read are so before the products begin, behind whose operands they
// would wait.
constexpr bool LSE_EARLY =
    EARLY && !BENT && !MASK_HEAVY && (DROPS ? FEW : !THRESHOLDS && !WITH_ENTMAX);
constexpr bool DELTA_EARLY = LSE_EARLY && QUERIES <= 64 && !CROWDED;

#if FOLDED
FN const float *lse_in(const struct Shared &, u32, i32) { return nullptr; }
FN const float *delta_in(const struct Shared &, u32, i32) { return nullptr; }
#else
FN const float *lse_in(const struct Shared &shared, u32 at, i32 group) {
    return shared.lse[at] + first_row(group);
}
FN const float *delta_in(const struct Shared &shared, u32 at, i32 group) {
    return shared.delta[at] + first_row(group);
}
#endif

FN void begin_dp(Scores &dp, Rows &delta, struct Shared &shared, const struct Operands &tiles,
                 const Ring<STAGES> &stage, i32 group) {
    const u32 at = stage.at();
    wait(shared.dout_full[at], stage.turn());
    if (DELTA_EARLY) read_rows(delta, delta_in(shared, at, group));
    begin_scores(dp, tiles.k + TO_V, tiles.q + TO_DOUT + q_stage(at), tiles, at, true);
}

// Scores of a step, under way, become weights: p and dp are then in registers.
FN void finish_scores(Scores &s, Scores &dp, Kept &kept, Rows &lse, Rows &delta,
                      struct Shared &shared, const struct Operands &tiles,
                      const struct Attention &p, const struct Step &step,
                      const Ring<STAGES> &stage, i32 tile, i32 group) {
    struct Visible seen;
    struct MaskRow mask_rows;
    if (step.word & MASKED)
        seen = visible<ByKey>(p, place_of_row(p, step.row), first_key(tile, group),
                              first_query(step.word, group), mask_rows, {});
    products_wait<EARLY ? 1 : 0>();
    pin(s);
    const struct Place place = place_of_row(p, step.row);
    const struct Logit logit = logit_of(p);
    const struct Where where = where_of(place, step, p, tile, group);
    bend(s, kept.slopes, p, where);
    if (step.word & MASKED) apply_mask(s, seen, logit.hidden);
    if (!LSE_EARLY) {
        pin(s);
        read_rows(lse, lse_in(shared, stage.at(), group));
    }
    to_weights(s, kept, lse, p, logit, where);
#if !SPLIT_KEYS
    Pairs staying;
#pragma unroll
    for (int i = 0; i < QUERIES / 4; i++) staying[i] = kept.p[i];
    drop_pairs(staying, kept.stay);
    store_pairs(shared_address(shared.weights[stage.at()]), staying, group);
#endif
    if (!EARLY) begin_dp(dp, delta, shared, tiles, stage, group);
    products_wait<0>();
    pin(dp);
}

// The tile column that a block is at.
struct Column {
    i32 tile, head, shared, steps;
};
FN struct Column column_in(const struct Item &item) {
    return {uniform(item.work.tile), uniform(item.work.head), uniform(item.work.shared),
            uniform(item.steps)};
}

#include "sm90a/lib/backward_store.cuh"

// One query tile: shares of dk, dv and dq. Around it no product is under way. A place that is kept
// is not given back to the thread that loads.
FN void take_step(Gradient &dv, Gradient &dk, const Ring<STAGES> &stage, Ring<1> &staged,
                  const struct Column &column, const struct Attention &p, i32 group, bool keeps) {
    struct Shared &shared = shared_memory();
    struct Operands tiles = operands(shared_address(shared.k), shared_address(shared.q),
                                     shared_address(shared.ds), group);
#if FOLDED
    tiles.rows = along_pieces(shared_address(shared.rows) + 16 * first_row(group));
#endif
    const u32 at = stage.at();
    Scores s, dp;
    Rows lse, delta;
    Kept kept;
    Pairs ds;
    QueryGradient dq;
    wait(shared.q_full[at], stage.turn());
    const struct Step step = step_in(shared, at, p);
    if (LSE_EARLY) read_rows(lse, lse_in(shared, at, group));
    StepShifts shifts;
    if (SHIFTED) {
        const struct Place own = place_of_row(p, step.row);
        const i32 first = first_query(step.word, group) - column.tile * TILE_K - key_of(group);
        find_shifts(shifts, first, own.head, own.batch, p, LOG2E);
    }
    begin_scores(s, tiles.k, tiles.q + q_stage(at), tiles, at, false);
    if (EARLY) begin_dp(dp, delta, shared, tiles, stage, group);
    if (SHIFTED) {
        lay_shifts<true>(shifts_of(group), shifts);
        sync_group(group);
    }
    if (DROPS) {
        const struct Place own = place_of_row(p, step.row);
        draw_by_key(kept.stay, dropout_of(p),
                    first_query(step.word, group) + (i32)threadIdx.x % 4 * 2,
                    first_key(column.tile, group), own.head, own.batch);
    }
    finish_scores(s, dp, kept, lse, delta, shared, tiles, p, step, stage, column.tile, group);
    drop(dp, kept.stay, kept_scale(p));
    const struct Where where =
        where_of(place_of_row(p, step.row), step, p, anew(column.tile), anew(group));
    const float *const rest = DELTA_EARLY ? nullptr : delta_in(shared, at, group);
    const float slope = to_gradients(dp, s, kept, ds, delta, rest, p, where);
#if APART
    sync_both();  // nobody reads numbers of this step any more
    begin_gradient(dv, kept.p, tiles.q_tokens + TO_DOUT + q_stage(at));
    begin_gradient(dk, ds, tiles.q_tokens + q_stage(at));
    products_wait<1>();
    pin(dv);
    pin(kept.p);
    if (threadIdx.x % 128 == 0 && !keeps) arrive(shared.dout_free[at]);
    products_wait<0>();
    pin(dk);
    pin(ds);
    (void)slope, (void)dq, (void)staged;
#else
    store_pairs(shared_address(shared.ds[at % DS_STAGES]), ds, group);
#if SPLIT_KEYS
    drop_pairs(kept.p, kept.stay);
    begin_gradient(dv, kept.p, tiles.q_tokens + TO_DOUT + q_stage(at));
#endif
    publish_writes();
    const struct Turn turn = turn_in(shared, at, step);
    sync_both();
    begin_dq(dq, tiles, at, 0);
#if SPLIT_KEYS
    products_wait<1>();
    pin(dv);
    pin(kept.p);
    if (threadIdx.x % 128 == 0 && !keeps) arrive(shared.dout_free[at]);
    begin_gradient(dk, ds, tiles.q_tokens + q_stage(at));
    products_wait<1>();
#else
    begin_gradient(dv, tiles, TO_P + ds_stage(at), TO_DOUT + q_stage(at));
    begin_gradient(dk, tiles, ds_stage(at), q_stage(at));
    products_wait<2>();
#endif
    pin(dq);
    await_dq(shared, turn, group, staged);
    add_dq(dq, slope, shared, p, step, turn, ALONE ? 0 : group);
#pragma unroll
    for (int share = 1; share < OWN_SHARES; share++) {
        begin_dq(dq, tiles, at, share);
        products_wait<0>();
        pin(dq);
        add_dq(dq, 0.0f, shared, p, step, turn, share);
    }
    publish_dq(shared, group);
    products_wait<0>();
    pin(dk);
#if SPLIT_KEYS
    pin(ds);
#else
    pin(dv);
    if (threadIdx.x % 128 == 0) arrive(shared.dout_free[at]);
#endif
#endif
    if (threadIdx.x % 128 == 0 && !keeps) arrive(shared.q_free[at]);
}

FN void compute(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                i32 group) {
    const i32 thread = threadIdx.x % 128;
    Ring<STAGES> stage;
    Ring<1> staged;
#pragma unroll 1
    for (Ring<1> filled;; filled.next()) {
        wait(shared.column_full, filled.turn());
        const struct Column column = column_in(shared.item[filled.steps % ITEMS]);
        if (column.steps < 0) break;
        Gradient dk, dv;
        clear(dk);
        clear(dv);
#pragma unroll 1
        for (i32 left = column.steps; left > 0; left--, stage.next())
            take_step(dv, dk, stage, staged, column, p, group, ALONE && left == 1);
        if (column.steps > 0 && thread == 0) arrive(shared.column_free);
        const u32 last = (stage.steps - 1) % STAGES;
        if (column.shared) add_column(dk, dv, column, p, group);
        else store_column(dk, dv, column, last, shared, p, maps, group);
        // Not before all warps, which met in store_column, have read what the column is.
        if (column.steps == 0 && thread == 0) arrive(shared.column_free);
        if (ALONE && column.steps > 0 && thread == 0)
            arrive(shared.dout_free[last]), arrive(shared.q_free[last]);
    }
#if STAGED
    wait(shared.dq_free[group], staged.turn() ^ 1);
    if (threadIdx.x == 128) shared.dq_turn.sum = -1;
    publish_dq(shared, group);
#elif DETERMINISTIC
    if (threadIdx.x == 128) {  // a step that adds nothing
        shared.turn[stage.at()].sum = -1;
        arrive(shared.q_full[stage.at()]);
    }
    wait(shared.dq_free[group], staged.turn());
    publish_dq(shared, group);
#endif
    if (thread == 0) stores_done<0>();
}

#if WITH_ENTMAX
#include "sm90a/lib/backward_mean.cuh"
#endif

#if APART
#include "sm90a/lib/logit_tanh.cuh"

// ---------------------------------------------------------------- gradients of queries

namespace by_rows {

// A warp's rows of q and dout stay in registers, and their place is free at once; else they lie in
// two places in turn.
constexpr int ROW_PLACES = KEEP_ROWS ? 1 : 2;
static_assert(ALONE && TILE_Q == 64 && TILE_K == 64 && QUERIES == 64, "one kind of scores");

// A tile row of a head.
struct alignas(16) Row {
    i32 number;  // among those of all heads
    i32 tile, batch, head;
};

// A block's shared memory; its size is in maskc/plan/families/sm90a_backward.py.
struct Shared {
    unsigned char q[ROW_PLACES][Q_BYTES], dout[ROW_PLACES][Q_BYTES], out[ROW_PLACES][Q_BYTES];
    unsigned char k[STAGES][K_BYTES], v[STAGES][K_BYTES];
    u64 row_full[ROW_PLACES], row_free[ROW_PLACES], full[STAGES], free[STAGES];
    struct Row row[2];  // the one that is computed, and the next
    i32 count[2];       // of their tiles
    i32 word[STAGES];   // of the tile in this stage
};
static_assert(sizeof(struct Shared) <= ROW_MEMORY, "planned memory");
FN struct Shared &shared_memory() {
    u32 address;
    asm volatile("mov.u32 %0, memory;" : "=r"(address));
    return *(struct Shared *)__cvta_shared_to_generic(address);
}

FN struct Row row_of(const struct Attention &p, i32 number) {
    const struct Place at = place_of_row(p, number);
    return {number, number % p.tile_rows, at.batch, at.head};
}
FN struct Row row_in(u32 at) {
    const int4 row = *(const int4 *)&by_rows::shared_memory().row[at];
    return {uniform(row.x), uniform(row.y), uniform(row.z), uniform(row.w)};
}
FN struct Place place_in(const struct Row &row) { return {row.batch, row.head}; }

FN void initialize(struct Shared &shared) {
    constexpr int WARPS = 4;  // that compute
    for (int i = 0; i < ROW_PLACES; i++) {
        barrier_init(shared.row_full[i], 1);
        barrier_init(shared.row_free[i], WARPS);
    }
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared.full[i], 1);
        barrier_init(shared.free[i], WARPS);
    }
    barriers_ready();
}

// The thread that loads. A block takes every so-manieth tile row; past the last one there is one
// with a negative number.
FN void load_rows(struct Shared &shared, const struct Attention &p, const struct Maps &maps) {
    const i32 rows = p.batch * p.heads_q * p.tile_rows;
    Ring<STAGES> stage;
    Ring<ROW_PLACES> place;
    Ring<2> known;
#pragma unroll 1
    for (i32 number = blockIdx.x;; number += gridDim.x, place.next(), known.next()) {
        const u32 own = place.at(), info = known.at();
        u64 &full = shared.row_full[own];
        if (number >= rows) {
            wait_asleep(shared.row_free[own], place.turn() ^ 1);
            shared.row[info].number = -1;
            arrive(full);
            return;
        }
        const struct Row row = row_of(p, number);
        const struct Place at_q = place_in(row);
        const struct Place at_k = {row.batch, row.head / (p.heads_q / p.heads_kv)};
        const struct Place q = coordinates(p.q_stride, at_q), k = coordinates(p.k_stride, at_k);
        const struct Place v = coordinates(p.v_stride, at_k);
        const struct Place out = coordinates(p.out_stride, at_q);
        const struct Place dout = coordinates(p.dout_stride, at_q);
        const struct TileList list = row_tiles(&p, load_mask(&p, row.batch, row.head), row.batch,
                                               row.head, row.tile);
        wait_asleep(shared.row_free[own], place.turn() ^ 1);
        shared.row[info] = row;
        shared.count[info] = list.count;
        const Point first = query_point(row.tile * TILE_Q);
        arrive_expecting(full, 3 * Q_BYTES);
        load_tile<TILE_Q>(shared.q[own], maps.q, full, first, q);
        load_tile<TILE_Q>(shared.dout[own], maps.dout, full, first, dout);
        load_tile<TILE_Q>(shared.out[own], maps.out, full, first, out);
#pragma unroll 1
        for (i32 i = 0; i < list.count; i++, stage.next()) {
            const struct Tile tile = tile_at(list, i);
            const bool inside = (tile.index + 1) * TILE_K <= p.n_kv;
            const u32 at = stage.at();
            wait_asleep(shared.free[at], stage.turn() ^ 1);
            shared.word[at] = tile.index | (tile.full && inside ? 0 : MASKED);
            arrive_expecting(shared.full[at], 2 * K_BYTES);
            const Point key = key_point(tile.index * TILE_K);
            load_tile<TILE_K>(shared.k[at], maps.k, shared.full[at], key, k);
            load_tile<TILE_K>(shared.v[at], maps.v, shared.full[at], key, v);
        }
    }
}

// Rows of q or dout as the left operand of products, and what a thread knows of its two.
struct Rows {
    u64 tile;
    u32 fragment[KEEP_ROWS ? STEPS * 4 : 4];
};
struct Known {
    float level[2];  // lse, times log2(e); infinite past the end and where there is no key
    float delta[2];
};

// Where a lane points ldmatrix for 16 columns of its warp's rows.
FN void take_rows(u32 *x, const unsigned char *tile, int step) {
    const u32 thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    load_matrices(x[0], x[1], x[2], x[3], shared_address(tile) + step / 4 * Q_SLAB
                                              + swizzled(row, step % 4 * 2 + lane / 16));
}
FN void free_row(struct Shared &shared, u32 place) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.row_free[place]);
}
FN float both(u32 a, u32 b) {
    const float2 x = unpack(a), y = unpack(b);
    return fmaf(x.x, y.x, x.y * y.y);
}
// The place of the thread's first query of a tile row; the other one is 8 behind.
FN i32 own_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

FN struct Visible seen_in(const struct Attention &p, u32 info, i32 word) {
    const struct Row row = row_in(info);
    struct MaskRow mask_rows;
    return visible<ByQuery>(p, place_in(row), row.tile * TILE_Q + own_row(),
                            (word & INDEX) * TILE_K, mask_rows, {});
}

FN struct Known take_row(struct Rows &q, struct Rows &dout, struct Shared &shared, u32 place,
                         const struct Attention &p, const struct Row &row) {
    struct Known known = {};
    float lse[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 query = row.tile * TILE_Q + own_row() + 8 * r;
        const float *const at = p.lse + row_offset(p.lse_stride, place_in(row), query);
        lse[r] = query < p.n_q ? __ldg(at) : MINUS_INFINITY;
    }
    q.tile = along_columns(shared_address(shared.q[place]));
    dout.tile = along_columns(shared_address(shared.dout[place]));
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        u32 out[4], *const own = dout.fragment + (KEEP_ROWS ? 4 * i : 0);
        if (KEEP_ROWS) take_rows(q.fragment + 4 * i, shared.q[place], i);
        take_rows(own, shared.dout[place], i);
        take_rows(out, shared.out[place], i);
#pragma unroll
        for (int j = 0; j < 4; j++) known.delta[j % 2] += both(out[j], own[j]);
    }
    if (KEEP_ROWS) free_row(shared, place);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool dead = lse[r] == MINUS_INFINITY;
        const float delta = quad_sum(known.delta[r]);
        known.delta[r] = dead ? 0.0f : delta;
        known.level[r] = dead ? PLUS_INFINITY : lse[r] * LOG2E;
        if (threadIdx.x % 4 == 0)
            leave_row(p, row.number, own_row() + 8 * r, lse[r], known.delta[r]);
    }
    return known;
}

// s = q k^T, begun; likewise dout v^T.
FN void begin_product(Scores &s, struct Rows &rows, u64 tile) {
    if (KEEP_ROWS) pin(rows.fragment);
    pin(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const u64 step = tile + column_step(i, K_SLAB);
        if (KEEP_ROWS) multiply_kept_scores(s, rows.fragment + 4 * i, step, i > 0);
        else multiply_scores(s, rows.tile + column_step(i, Q_SLAB), step, i > 0);
    }
    products_commit();
}

// Which pairs a thread's scores of a tile are of; see logit.cuh.
struct Where {
    u32 info;  // the place of the tile row
    i32 word;
    FN i32 first_query() const { return row_in(info).tile * TILE_Q + own_row(); }
    FN i32 first_key() const { return (word & INDEX) * TILE_K + threadIdx.x % 4 * 2; }
    FN i32 query(const struct Attention &p, int i) const {
        return query_token(p, batch(), mask_row(p, first_query() + i / 2 % 2 * 8));
    }
    FN i32 key(const struct Attention &p, int i) const {
        return key_token(p, batch(), first_key() + i / 4 * 8 + i % 2);
    }
    FN float apart(const struct Attention &p, int i) const {
        const struct Steps steps = steps_from(p, batch(), first_query(), first_key());
        return steps.at(i / 2 % 2 * 8, i / 4 * 8 + i % 2);
    }
    FN i32 head(int) const { return row_in(info).head; }
    FN i32 batch() const { return row_in(info).batch; }
};

// Scores of a tile become weights, times the derivatives of logits.
FN void weigh(Scores &s, const struct Visible &seen, const struct Where &where,
              const struct Known &known, const struct Attention &p) {
    const float unit = score_unit(p);
    const float sharpness = sharpness_of(p);
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++) {
        const float half = tanh_halfway(s[i], sharpness), level = known.level[i / 2 % 2];
        s[i] = fast_exp2(fmaf(tanh_logit(half, p, where, i), unit, -level))
             * tanh_slope(half, p, where, i);
    }
    if (!(where.word & MASKED)) return;
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++)
        if (!(word_of(seen, i / 2 % 2, 0) & 1u << (i / 4 * 2 + i % 2))) s[i] = 0.0f;
}

FN u32 sum_of_pairs(u32 a, u32 b) {
    const float2 x = unpack(a), y = unpack(b);
    return pack(x.x + y.x, x.y + y.y);
}

// Stores a tile row of dq.
FN void store_dq(const Gradient &dq, const struct Attention &p, const struct Row &row) {
    const i32 odd = threadIdx.x % 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 token = row.tile * TILE_Q + own_row() + 8 * r;
        u32 *const line = (u32 *)p.dq + row_offset(p.dq_stride, place_in(row), token) / 2
                          + threadIdx.x % 4 / 2 * 2;
#pragma unroll
        for (int i = 0; i < PIECES; i += 2) {
            const float *const x = dq + 4 * i + 2 * r;
            uint2 both = traded_halves(x, x + 4, p.scale);
            if (token >= p.n_q) continue;
            if (PADDED && i + odd >= PIECES_QK) continue;
            uint2 *const to = (uint2 *)(line + 4 * (i + odd));
            if (p.joins)
                both = make_uint2(sum_of_pairs(both.x, to->x), sum_of_pairs(both.y, to->y));
            *to = both;
        }
    }
}

// Pairs are looked at before products begin where what follows needs the registers.
constexpr bool EARLY_LOOK = MASK_EARLY || LONG_LOGITS;

FN void compute(struct Shared &shared, const struct Attention &p) {
    Ring<STAGES> stage;
    Ring<2> info;
#pragma unroll 1
    for (Ring<ROW_PLACES> place;; place.next(), info.next()) {
        const u32 own = place.at();
        wait(shared.row_full[own], place.turn());
        const i32 count = uniform(shared.count[info.at()]);
        if (row_in(info.at()).number < 0) break;
        struct Rows q, dout;
        const struct Known known = take_row(q, dout, shared, own, p, row_in(info.at()));
        Gradient dq;
        clear(dq);
#pragma unroll 1
        for (i32 left = count; left > 0; left--, stage.next()) {
            const u32 at = stage.at(), step = at * (K_BYTES >> 4);
            const u32 k = shared_address(by_rows::shared_memory().k[0]);
            const u64 tile = along_columns(k) + step;
            Scores s, dp;
            Pairs ds;
            wait(shared.full[at], stage.turn());
            const i32 word = uniform(shared.word[at]);
            struct Visible seen = {};
            if (EARLY_LOOK && word & MASKED) seen = seen_in(p, info.at(), word);
            begin_product(s, q, tile);
            begin_product(dp, dout, tile + (STAGES * K_BYTES >> 4));
            if (!EARLY_LOOK && word & MASKED) seen = seen_in(p, info.at(), word);
            products_wait<1>();
            pin(s);
            weigh(s, seen, {info.at(), word}, known, p);
            products_wait<0>();
            pin(dp);
#pragma unroll
            for (int i = 0; i < QUERIES / 4; i++) {
                const float base = known.delta[i % 2];
                ds[i] = pack(s[2 * i] * (dp[2 * i] - base), s[2 * i + 1] * (dp[2 * i + 1] - base));
            }
            begin_gradient(dq, ds, along_tokens(k, K_SLAB) + step);
            products_wait<0>();
            pin(dq);
            pin(ds);
            if (KEEP_ROWS) pin(q.fragment), pin(dout.fragment);
            if (threadIdx.x % 32 == 0) arrive(shared.free[at]);
        }
        const struct Row row = row_in(info.at());  // while nobody writes there
        if (!KEEP_ROWS) free_row(shared, own);
        if (count > 0 || !p.joins) store_dq(dq, p, row);
    }
}

}  // namespace by_rows

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_backward_rows(const __grid_constant__ struct Attention p,
                        const __grid_constant__ struct Maps maps) {
    struct by_rows::Shared &shared = *(struct by_rows::Shared *)memory;
    if (threadIdx.x == 0) by_rows::initialize(shared);
    __syncthreads();
    if (uniform(threadIdx.x / 128) == 0) {
        give_registers<COPY_REGISTERS>();
        if (uniform(threadIdx.x / 32) == 0 && elected()) by_rows::load_rows(shared, p, maps);
    } else {
        take_registers<COMPUTE_REGISTERS>();
        by_rows::compute(shared, p);
    }
}

#endif
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_backward(const __grid_constant__ struct Attention p,
                   const __grid_constant__ struct Maps maps) {
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) initialize(shared);
    __syncthreads();
    const i32 group = uniform(threadIdx.x / 128);
    if (group == 0) {
        give_registers<COPY_REGISTERS>();
        const i32 warp = uniform(threadIdx.x / 32);
        if (warp == 3) {  // with 0 for it ptxas makes a switch of all, and spills
            if (elected()) load_items(shared, p, maps);
        } else if (warp == 1) {
#if STAGED
            if (elected()) add_dq_tiles(shared, p);
#elif DETERMINISTIC
            if (elected()) await_turns(shared, p);
#endif
        } else if (warp == 2) {
#if ZEROES
            zero_tiles(shared, p);
#elif DETERMINISTIC
            if (elected()) pass_turns_on(shared);
#endif
        }
    } else {
        take_registers<COMPUTE_REGISTERS>();
        compute(shared, p, maps, group - 1);
    }
}
