// Attention for one mask: sm_90a, bfloat16, head_dim 128, tiles of 128 queries x 128 keys.
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

#ifndef STREAM
#define STREAM 0  // blocks stream through tile rows instead of computing one each
#endif
#ifndef PACKED
#define PACKED 0  // the queries of the heads of a key/value head are rows of one tile
#endif
constexpr int HEAD_DIM = 128;  // elements of a row of q, k, v and out
// Pieces of 16 bytes of a row of q or k, and of v or out, in memory. Where rows are PADDED copies
// fill up the rest of HEAD_DIM with zeros, and nothing is stored behind them.
[[maybe_unused]] constexpr bool PADDED = 0;
[[maybe_unused]] constexpr int PIECES_QK = 16;
[[maybe_unused]] constexpr int PIECES_V = 16;
constexpr int TILE_Q = 128;  // queries per tile row
constexpr int TILE_K = 128;  // keys per step
// Of an index in a list of tiles, in keys; by documents tiles begin at any key.
constexpr int KEY_STEP = 1;
constexpr int SLABS = 2;  // of 64 columns, in every tile
constexpr int GROUPS = 2;  // warpgroups that compute 64 queries each
constexpr int STAGES = 2;  // tiles of k, and of v, in flight
constexpr int BLOCKS = 1;  // that a multiprocessor runs at once
// Packed heads: blocks go on to further items, for which the thread that copies needs registers.
constexpr int MOVED_REGISTERS = PACKED ? 8 : 0;
constexpr bool ROUNDS = MOVED_REGISTERS > 0;
constexpr int COMPUTE_REGISTERS = 240 - MOVED_REGISTERS;
constexpr int COPY_REGISTERS = 24 + GROUPS * MOVED_REGISTERS;
// A warpgroup's q stays in registers, where the logits leave room for it.
#define KEEP_Q (1 && !BENT && !WITH_ENTMAX)
// A step waits for p v before the logits where they need the registers (0), after the maxima (1),
// or after half of the exponentials (2).
constexpr int SETTLE =
    0 || (LONG_LOGITS && GROUPS == 3) ? 0
    : 0 && BENT ? 0
    : STREAM ? 1 : 2;
// Tiles come as lists in memory, or as ranges of consecutive ones.
[[maybe_unused]] constexpr bool TILE_LISTS = 1;
// Pairs are kept by their scores, in tiles whose pairs the predicate tests.
[[maybe_unused]] constexpr bool FILTERS_PAIRS = 0;

#include "sm90a/lib/constants.cuh"

#include "sm90a/lib/operands_halves.cuh"

#include "common/lib/integers.h"
#include "common/lib/formulas.h"

// The constants and arrays of one head's mask, held in registers.
struct Mask {
    i32 shape;  // which formula, where heads have different ones
    Integer c0;  // n_kv - n_q
    const i32 *a0;  // document ids, k
    const i32 *a1;  // document ids, q
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

// Whether query q sees key k. Evaluated in partial tiles only.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 18: documents(...)
        (Integer)m.a0[k] == (Integer)m.a1[q] &&
        // line 19: causal()
        k <= q + m.c0;
}

FN i32 keep(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

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

// 64 x 128 and 16 deep, a in shared memory: d = a b, or d += a b where `add`.
FN void multiply_qk(float (&d)[64], u64 a, u64 b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32." ELEMENT "." ELEMENT " {"
        " %0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39,"
        " %40, %41, %42, %43, %44, %45, %46, %47,"
        " %48, %49, %50, %51, %52, %53, %54, %55,"
        " %56, %57, %58, %59, %60, %61, %62, %63},"
        " %64, %65, add, 1, 1, 0, 0;\n"
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
        : "l"(a), "l"(b), "r"((int)add));
}

// 64 x 128 and 16 deep, a in registers: d = a b, or d += a b where `add`.
FN void multiply_kept_qk(float (&d)[64], const u32 *a, u64 b, bool add) {
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
        " 1, 1, 0;\n"
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

// 64 x 128 and 16 deep, a in registers: d = a b, or d += a b where `add`.
FN void multiply_pv(float (&d)[64], const u32 *a, u64 b, bool add) {
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

#include "sm90a/lib/work.cuh"

#include "common/lib/keep_all.cuh"

// A thread's part of an accumulator of a warpgroup: element 4 i + 2 r + e lies in row
// 16 warp + lane / 4 + 8 r and in column 8 i + 2 (lane % 4) + e.
typedef float Scores[TILE_K / 2];
typedef float Output[HEAD_DIM / 2];

// Of scores (or of logits, where they are made of scores) in powers of two. A scale of zero must
// not turn the mask's -inf into NaN.
FN float unit_of(const struct Attention &p) {
    return fmaxf(fabsf(left_scale(p)) * LOG2E, 1e-30f);
}

// A negative scale turns the order of scores around: they are negated first, in every tile.
FN bool flips(const struct Attention &p) { return left_scale(p) < 0.0f; }
FN void negate(Scores &s) {
#pragma unroll
    for (int i = 0; i < TILE_K / 2; i++) s[i] = -s[i];
}

// The running softmax of a thread's two rows. Exponentials are relative to a row's top, which is
// kept until a score of the warp passes it by STALE powers of two. Tops are the same in a quad;
// sums are each lane's own share.
struct Softmax {
    float top[2], sum[2];
    float base[2];    // -top * unit, or 0 where nothing was seen
    float factor[2];  // what the last raise asks of the output
};

FN void start(struct Softmax &x) {
#pragma unroll
    for (int r = 0; r < 2; r++) x.top[r] = MINUS_INFINITY, x.sum[r] = 0.0f, x.base[r] = 0.0f;
}

// Whether tops were raised, so that what was summed under the old ones is to be rescaled.
FN bool raise_tops(const Scores &s, float unit, float stale, struct Softmax &x) {
    float peak[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float part[4];
#pragma unroll
        for (int i = 0; i < 4; i++) part[i] = fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]);
#pragma unroll
        for (int i = 4; i < TILE_K / 8; i++)
            part[i % 4] = fmaxf(part[i % 4], fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
        peak[r] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    }
    const bool far = peak[0] > x.top[0] + stale || peak[1] > x.top[1] + stale;
    x.factor[0] = x.factor[1] = 1.0f;
    if (!__any_sync(0xffffffff, far)) return false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        peak[r] = quad_max(peak[r]);
        const float top = peak[r] > x.top[r] + stale ? peak[r] : x.top[r];
        const float finite = top == MINUS_INFINITY ? 0.0f : top;
        x.factor[r] = fast_exp2((x.top[r] - finite) * unit);
        x.top[r] = top;
        x.base[r] = base_of(finite, unit);
        x.sum[r] = __fmul_rn(x.sum[r], x.factor[r]);
    }
    return true;
}

// Scores of one row become exponentials.
FN void exponentials(Scores &s, int r, float unit, struct Softmax &x) {
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int i = 0; i < TILE_K / 8; i++) {
        float *y = &s[4 * i + 2 * r];
        y[0] = fast_exp2(fmaf(y[0], unit, x.base[r]));
        y[1] = fast_exp2(fmaf(y[1], unit, x.base[r]));
        even += y[0];
        odd += y[1];
    }
    x.sum[r] += even + odd;
}

FN void rescale(Output &o, const struct Softmax &x) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) o[i] *= x.factor[i / 2 % 2];
}

#include "sm90a/lib/packed_rows.cuh"

#include "common/lib/bits.cuh"

#include "common/lib/quad_columns.cuh"

#include "common/lib/mask_sides.cuh"

#include "sm90a/lib/mask_policy.cuh"

#include "sm90a/lib/visible.cuh"

// The live pairs of a row (or column) lie in a few intervals, which may overlap or be empty.
constexpr int INTERVALS = 1;
#include "common/lib/bounds.h"

// The keys of query ti.
FN void row_bounds(ByQuery, struct Bounds (&bounds)[INTERVALS], struct Mask m,
                Integer ti, Integer n_q, Integer n_kv) {
    (void)n_q; (void)n_kv;
#pragma unroll
    for (int i = 0; i < INTERVALS; i++) bounds[i] = {0, 0};
    bounds[0].first = range_end(0);
    bounds[0].last = range_end(min_int(n_kv - 1, m.c0 + ti) + 1);
}

#include "common/lib/intervals.cuh"

// Aligned runs of so many keys, or queries, are alike.
constexpr int KEY_RUN = 1, QUERY_RUN = 1;
// Columns of a turn of the loop: keys of queries, and queries of keys.
constexpr int KEYS_AT_ONCE = 4, QUERIES_AT_ONCE = 2;
constexpr bool LONG_FORMULA = 0;  // that takes many registers

#include "common/lib/pairs.cuh"

constexpr int ENDS = 2;  // of documents, among the data arrays
FN const i32 *query_documents(const struct Mask &m) { return m.a1; }
FN const i32 *key_documents(const struct Mask &m) { return m.a0; }

#include "sm90a/lib/mask_documents.cuh"

#include "sm90a/lib/apply_mask.cuh"

// What a warpgroup works on.
struct alignas(16) Row {
    i32 tile, head, batch;
    i32 part;   // 1 + its number where the row is cut; read when it is needed, but of packed heads
    i32 merge;  // of packed heads: the number of the row among those that are cut; likewise
};

// A block's shared memory; its size is in maskc/plan/families/sm90a.py.
struct Shared {
    unsigned char q[Q_TILES][Q_BYTES];  // then, in the same place, out
    unsigned char k[STAGES][K_BYTES];
    unsigned char v[STAGES][K_BYTES];
#if WITH_ENTMAX
    unsigned char lists[65536];  // they begin in v
#endif
    u64 q_full[Q_TILES], q_free[Q_TILES];
    u64 k_full[STAGES], k_free[STAGES], v_full[STAGES], v_free[STAGES];
    u64 started;
    i32 item;                 // that the block begins with
    i32 first_word;           // of its first tile
    i32 next[STAGES];         // the word of the tile after the one in this stage
    struct Row row[Q_TILES];  // whose q is in this place
#if PACKED
    i32 stored[GROUPS];       // parts of the row, before the item's own
#endif
#if WITH_ENTMAX
    u64 decided;
    i32 wishes[2][4 * GROUPS];  // of every warp: the pass that is to follow
#endif
};

#include "common/lib/memory.cuh"

#include "sm90a/lib/ring.cuh"

FN void initialize(struct Shared &shared) {
    barrier_init(shared.started, 1);
#if WITH_ENTMAX
    barrier_init(shared.decided, 4 * GROUPS + 1);
#endif
    for (int i = 0; i < Q_TILES; i++) {
        barrier_init(shared.q_full[i], 1);
        barrier_init(shared.q_free[i], GROUPS);
    }
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared.k_full[i], 1);
        barrier_init(shared.v_full[i], 1);
        barrier_init(shared.k_free[i], GROUPS);
        barrier_init(shared.v_free[i], GROUPS);
    }
    barriers_ready();
}
// Those of a block that has computed an item, for another one.
FN void initialize_again(struct Shared &shared) {
    for (u64 *barrier = shared.q_full; barrier <= &shared.started; barrier++) barrier_end(*barrier);
    initialize(shared);
}

// ---------------------------------------------------------------- the warp that copies

#include "sm90a/lib/items.cuh"

#include "sm90a/lib/keys_boxes.cuh"

#include "sm90a/lib/values_halves.cuh"

#include "sm90a/lib/short_sums.cuh"

#include "sm90a/lib/forward_load.cuh"

// ---------------------------------------------------------------- warpgroups that compute

FN struct Row row_in(const struct Shared &shared, i32 place) {
    const int4 row = *(const int4 *)&shared.row[place];
    return {uniform(row.x), uniform(row.y), uniform(row.z), PACKED ? uniform(row.w) : 0};
}
// The place of the thread's first query; the other one is 8 behind.
FN i32 query_of(const struct Row &row, i32 group) {
    const i32 thread = threadIdx.x % 128;
    return row.tile * TILE_Q + 64 * group + thread / 32 * 16 + thread % 32 / 4;
}

#if PACKED
#include "sm90a/lib/where_packed.cuh"
#else
// Which pairs a thread's scores of a tile are of; see logit.cuh.
struct Where {
    struct Row row;
    i32 query_place, key_place;  // of the first element
    struct HeadLogit own;
    struct Steps steps;
    FN void refresh(const struct Attention &) {}
    FN float distance(int i) const {
        return fabsf(steps.at(i / 2 % 2 * 8, i / 4 * 8 + i % 2));
    }
    FN struct HeadLogit head_logit(int) const { return own; }
    FN i32 query(const struct Attention &p, int i) const {
        return query_token(p, row.batch, mask_row(p, query_at(query_place + i / 2 % 2 * 8)));
    }
    FN i32 key(const struct Attention &p, int i) const {
        return key_token(p, row.batch, key_at(key_place + i / 4 * 8 + i % 2));
    }
    FN float apart(const struct Attention &p, int i) const {
        if (GRID_TILES) return (float)(query(p, i) - key(p, i));
        return steps.at(i / 2 % 2 * 8, i / 4 * 8 + i % 2);
    }
    FN i32 head(int) const { return row.head; }
    FN i32 batch() const { return row.batch; }
};
FN struct Where where_of(const struct Attention &p, const struct Row &row, i32 query, i32 word) {
    const i32 key = (word & INDEX) * KEY_STEP + threadIdx.x % 4 * 2;
    return {row, query, key, head_logit_of(p, row.head), steps_from(p, row.batch, query, key)};
}
#endif

#include "sm90a/lib/look.cuh"

#include "sm90a/lib/finish_masked.cuh"

#include "sm90a/lib/query.cuh"

#include "sm90a/lib/shifts.cuh"

// What distance adds to a warpgroup's scores of the tile in a stage, in the unit of scores.
typedef struct Shifts<64, TILE_K> TileShifts;
FN float *shifts_in(i32 stage, i32 group) {
    __shared__ float all[STAGES * GROUPS][TileShifts::COUNT];
    return all[stage * GROUPS + group];
}
FN void lay_tile(const struct Attention &p, const struct Row &row, i32 word, i32 stage, i32 group) {
    if (!SHIFTED) return;
    const float unit = flips(p) ? -unit_of(p) : unit_of(p);
    const i32 first = row.tile * TILE_Q + 64 * group - (word & INDEX) * KEY_STEP;
    TileShifts shifts;
    find_shifts(shifts, first, row.head, row.batch, p, LOG2E / unit);
    lay_shifts<false>(shifts_in(stage, group), shifts);
    sync_threads(8 + group, 128);
}
FN void add_shifts(Scores &s, i32 stage, i32 group) {
    if (!SHIFTED) return;
    const i32 thread = threadIdx.x % 128;
    const float *const own = shifts_in(stage, group) + TileShifts::ORIGIN + thread / 32 * 16
                             + thread % 32 / 4 - thread % 4 * 2;
#pragma unroll
    for (int i = 0; i < TILE_K / 2; i++) s[i] += own[i / 2 % 2 * 8 - i / 4 * 8 - i % 2];
}

// o += p v, begun
FN void begin_output(Output &o, Weights &weights, u64 v) {
    pin(weights);
    pin(o);
    products_begin();
#pragma unroll
    for (int i = 0; i < PV_STEPS; i++)
        multiply_pv(o, weights + 4 * i, v + values_step(i), true);
    products_commit();
}

#include "sm90a/lib/forward_store.cuh"

// Which of a thread's pairs of a tile dropout keeps.
FN void draw_tile(struct Staying<TILE_K / 2> &stay, const struct Dropout &d, const struct Row &row,
                  i32 query, i32 word) {
    const i32 key = (word & INDEX) * TILE_K + threadIdx.x % 4 * 2;
    draw_by_query(stay, d, query, key, row.head, row.batch);
}

// Warpgroups take turns at starting products, so that the softmax of one runs under those of the
// next. Named barriers 1 .. GROUPS. One that is alone has other blocks beside it.
FN void take_turn(i32 group) {
    if (GROUPS > 1) sync_threads(1 + group, 256);
}
FN void pass_turn(i32 group) {
    if (GROUPS > 1) arrive_threads(1 + (group + 1 == GROUPS ? 0 : group + 1), 256);
}

FN void compute(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                i32 group, bool begun) {
    const bool leader = threadIdx.x % 128 == 0;
    const u64 k_tiles = along_columns(shared_address(shared.k[0]));
    const u64 v_tiles = values_operand(shared_address(shared.v[0]));
    struct Factors factors = factors_of(p);
    LongSum long_sum;
    Ring<STAGES> stage;
    Ring<Q_TILES> q_place;
    struct Query q;
    Scores s;
    Output o;
    Weights weights;
    struct Softmax softmax;
    start(softmax);
    clear(o);
    if (GROUPS > 1 && group == 0 && !begun) arrive_threads(1, 256);

    wait(shared.started, 0);
    i32 word = uniform(shared.first_word);
    if (word & END) return;
    wait(shared.k_full[0], 0);
    i32 next = shared.next[0];
    wait(shared.q_full[0], 0);
    struct Row row = row_in(shared, 0);
    begin_row(factors, p, row);
    begin_row(long_sum);
    i32 query = query_of(row, group);
    take_q(q, shared, 0, group);
    struct MaskRow kept;
    struct Visible seen = look_early(p, row, query, word, kept);
    begin_scores(s, q, k_tiles);
    lay_tile(p, row, word, 0, group);
    const struct Dropout dropout = dropout_of(p);
    struct Staying<TILE_K / 2> stay;
    draw_tile(stay, dropout, row, query, word);
    products_wait<0>();
    pin(s);
    if (leader) arrive(shared.k_free[0]);
    multiply_scores(s, factors);
    add_shifts(s, 0, group);
    finish_scores(s, p, row, query, word, kept, seen);
    raise_tops(s, factors.unit, factors.stale, softmax);
    exponentials(s, 0, factors.unit, softmax);
    exponentials(s, 1, factors.unit, softmax);
    drop(s, stay);
    to_weights(weights, s);
    Ring<STAGES> last = stage;
    stage.next();
    // Computed before they are needed, under the exponentials.
    u64 k_tile = k_tiles + stage.at * (K_BYTES >> 4), v_tile = v_tiles;

    bool storing = false;  // out still leaves through the place of q before this one
#pragma unroll 1
    while (true) {
        if (STREAM && storing) {
            if (leader) {
                stores_read<0>();
                arrive(shared.q_free[1 - q_place.at]);
            }
            storing = false;
        }
        word = uniform(next);
        if (word & END) break;
        wait(shared.k_full[stage.at], stage.turn);
        next = shared.next[stage.at];
#if PACKED
        if (word & FIRST) {  // another part of the row: few beside tiles, nothing overlaps
            wait(shared.v_full[last.at], last.turn);
            begin_output(o, weights, v_tile);
            products_wait<0>();
            pin(o);
            if (leader) arrive(shared.v_free[last.at]);
            store_part(o, softmax.top, softmax.sum, factors.unit, p, --row.part, group);
            start(softmax);
            clear(o);
            seen = look_early(p, row, query, word, kept);
            begin_scores(s, q, k_tile);
            products_wait<0>();
            pin(s);
            if (leader) arrive(shared.k_free[stage.at]);
            finish_scores(s, p, row, query, word, kept, seen);
            raise_tops(s, factors.unit, factors.stale, softmax);
            exponentials(s, 0, factors.unit, softmax);
            exponentials(s, 1, factors.unit, softmax);
            to_weights(weights, s);
            last = stage;
            stage.next();
            k_tile = k_tiles + stage.at * (K_BYTES >> 4);
            v_tile = v_tiles + last.at * (K_BYTES >> 4);
            continue;
        }
#endif

        // A new row: its first product begins before the last one of the row before.
        const bool first = STREAM && word & FIRST;
        const struct Row old = row;
        const float old_top[2] = {softmax.top[0], softmax.top[1]};
        float old_sum[2] = {softmax.sum[0], softmax.sum[1]};
        const u32 old_tile = shared_address(shared.q[q_place.at]);
        const struct Factors old_factors = factors;
        if (first) {
            q_place.next();
            wait(shared.q_full[q_place.at], q_place.turn);
            row = row_in(shared, q_place.at);
            begin_row(factors, p, row);
            query = query_of(row, group);
            take_q(q, shared, q_place.at, group);
            start(softmax);
            begin_row(kept);
        }
        seen = look_early(p, row, query, word, kept);
        if (HEAD_DIM > 128) q.operand = q_operand(shared_memory(), q_place.at, group);
        take_turn(group);
        begin_scores(s, q, k_tile);
        wait(shared.v_full[last.at], last.turn);
        begin_output(o, weights, v_tile);
        pass_turn(group);
        lay_tile(p, row, word, stage.at, group);
        draw_tile(stay, dropout, row, query, word);
        products_wait<1>();
        pin(s);
        if (leader) arrive(shared.k_free[stage.at]);
        if (SETTLE == 0) {
            products_wait<0>();
            pin(weights);
        }
        multiply_scores(s, factors);
        add_shifts(s, stage.at, group);
        finish_scores(s, p, row, query, word, kept, seen);
        const bool raised = raise_tops(s, factors.unit, factors.stale, softmax);
        if (SETTLE > 1) {
            exponentials(s, 0, factors.unit, softmax);
            pin(s);
        }
        // The wait for p v stands in two branches: without them ptxas moves it up, before the
        // maxima and the exponentials that are to run under the product.
        if (first) {
            products_wait<0>();
            pin(o);
            if (SETTLE) pin(weights);
            if (leader) arrive(shared.v_free[last.at]);
            collect(o, long_sum, group);
            begin_row(long_sum);
            lower(o, old_sum, old_factors);
            store(o, old_top, old_sum, old_factors.unit, old, p, maps, old_tile, group);
            storing = true;
            clear(o);
        } else if (raised) {
            asm volatile("wgmma.wait_group.sync.aligned 0;  // raised" ::: "memory");
            pin(o);
            if (SETTLE) pin(weights);
            if (leader) arrive(shared.v_free[last.at]);
            rescale(o, softmax);
            rescale(long_sum, softmax);
        } else {
            asm volatile("wgmma.wait_group.sync.aligned 0;  // as before" ::: "memory");
            pin(o);
            if (SETTLE) pin(weights);
            if (leader) arrive(shared.v_free[last.at]);
        }
        if (!first) tile_added(o, long_sum, group);
        last = stage;
        stage.next();
        k_tile = k_tiles + stage.at * (K_BYTES >> 4);
        v_tile = v_tiles + last.at * (K_BYTES >> 4);
        if (SETTLE < 2) exponentials(s, 0, factors.unit, softmax);
        exponentials(s, 1, factors.unit, softmax);
        drop(s, stay);
        to_weights(weights, s);
    }
    wait(shared.v_full[last.at], last.turn);
    begin_output(o, weights, v_tile);
    products_wait<0>();
    pin(o);
    const u32 tile = shared_address(shared.q[q_place.at]);
    collect(o, long_sum, group);
    lower(o, softmax.sum, factors);
    store(o, softmax.top, softmax.sum, factors.unit, row, p, maps, tile, group);
    if (leader) stores_done<0>();
}

#if WITH_ENTMAX
#include "sm90a/lib/entmax.cuh"
#endif

// Whether a block has another item. Of packed heads a list made on the device has room for many
// more than are live: to start a block for each would take longer than their work.
FN bool goes_on(struct Shared &shared, const struct Attention &p) {
    if (!ROUNDS) return false;
    const i32 next = shared.item + gridDim.x;
    if (next >= p.items || work_at(p, next).count == 0) return false;
    __syncthreads();
    if (threadIdx.x == 0) {
        initialize_again(shared);
        shared.item = next;
    }
    __syncthreads();
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_forward(const __grid_constant__ struct Attention p,
                  const __grid_constant__ struct Maps maps) {
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) {
        initialize(shared);
        shared.item = blockIdx.x;
    }
    __syncthreads();
    const i32 group = uniform(threadIdx.x / 128);
    if (group == 0) {
        give_registers<COPY_REGISTERS>();
#if WITH_ENTMAX
        if (threadIdx.x / 32 == 0 && elected()) copy_passes(shared, p, maps);
#else
        do {
            if (threadIdx.x / 32 == 0 && elected()) copy_tiles(shared, p, maps);
        } while (goes_on(shared, p));
#endif
    } else {
        take_registers<COMPUTE_REGISTERS>();
#if WITH_ENTMAX
        compute_passes(shared, p, maps, group - 1);
#else
        bool begun = false;
        do compute(shared, p, maps, group - 1, begun);
        while (begun = goes_on(shared, p), begun);
#endif
        store_empty(p);
    }
}
