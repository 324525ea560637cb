// Attention for one mask: cpu, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.
#include <sched.h>
#include <stdlib.h>

// ---------------------------------------------------------------- constants

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
#ifndef WITH_WIDE
#define WITH_WIDE 0
#endif

enum {
    HEAD_DIM = 128,  // elements of a row of q and k
    HEAD_DIM_V = 128,  // elements of a row of v and out
    TILE_Q = 64,  // queries per tile
    TILE_K = 64,  // keys per tile
};

// Floats in one vector register, and how many registers wide the block of sums is that multiply()
// keeps. Six rows of sums, a row of its operand and one factor fill the register file.
#if defined(__AVX512F__)
enum { LANES = 16, BLOCK_VECTORS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, BLOCK_VECTORS = 2 };
#elif defined(__aarch64__)
enum { LANES = 4, BLOCK_VECTORS = 4 };
#else
enum { LANES = 4, BLOCK_VECTORS = 2 };
#endif
enum {
    BLOCK_ROWS = 6,
    QK_VECTORS = (HEAD_DIM + LANES - 1) / LANES,  // a row of q or k, padded with zeros
    V_VECTORS = (HEAD_DIM_V + LANES - 1) / LANES,
    QK_LD = QK_VECTORS * LANES,  // floats from one row of a tile to the next
    V_LD = V_VECTORS * LANES,
    MAX_LD = QK_LD > V_LD ? QK_LD : V_LD,
};
_Static_assert(TILE_Q % LANES == 0, "the lanes of a vector are queries of one tile");

#define FN static inline
#define INLINE static inline __attribute__((always_inline))  // for constants to reach the body
#define INFINITE __builtin_inff()
#define LOG2E 1.44269504088896341f
#define LN2 0.693147180559945309f
// Softmax sees scores times log2(e), so that 2^x replaces e^x; entmax sees them as they are.
#define UNIT (WITH_ENTMAX ? 1.0f : LOG2E)

// ---------------------------------------------------------------- arguments

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
    float *dalibi;  // backward: [heads_q] to add to, or null
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
    i64 array_row[8];  // elements from one row of a table to the next
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
    float spacing;  // ALiBi's distance from one token to the next
    float scale;  // factor of q . k
    float softcap;  // read only by kernels built WITH_SOFTCAP
    float alpha_minus_1;  // of entmax; read only by kernels built WITH_ENTMAX
    i32 further;  // deterministic: most further tiles of dq of a list
    const i32 *row_sums;  // [lists][tile_rows + 1] of them before a row, or null: none
};

// ---------------------------------------------------------------- the mask

// Arithmetic of indices and of formulas. The includer defines FN.

FN i32 min_i32(i32 a, i32 b) { return a < b ? a : b; }
FN i32 max_i32(i32 a, i32 b) { return a > b ? a : b; }
// What formulas of masks are computed in: 32 bits, or 64 where a call's lengths, numbers or data
// could take something beyond. The includer defines FN.

#ifndef WITH_WIDE
#define WITH_WIDE 0
#endif
#if WITH_WIDE
typedef i64 Integer;
#else
typedef i32 Integer;
#endif
FN Integer min_int(Integer a, Integer b) { return a < b ? a : b; }
FN Integer max_int(Integer a, Integer b) { return a > b ? a : b; }
// Division and remainder that round towards minus infinity, as the mask's formulas mean them.
FN Integer floor_div(Integer a, Integer b) { return a / b - (a % b < 0); }
FN Integer floor_mod(Integer a, Integer b) { return a % b + (a % b < 0 ? b : 0); }
// An end of tiles or tokens: what lies beyond all of them may be anything beyond them.
FN i32 range_end(Integer x) {
#if WITH_WIDE
    const Integer most = 1 << 30;
    x = x < -most ? -most : x > most ? most : x;
#endif
    return x;
}

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
        k % 64 + m.c5 >= max_int(min_int(q % 64, m.c3), m.c4) &&
        k / 64 + m.c6 >= max_int(min_int(q / 64, m.c0), m.c1) &&
        max_int(min_int(q % 64, m.c3), m.c4) + m.c7 >= k % 64;
}

FN i32 keep(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

// ---------------------------------------------------------------- its tiles

struct Tile {
    i32 index;  // tile column of a row's list, tile row of a column's list
    i32 full;   // every pair of it is live: no predicate
};

// The live tiles of a tile row or column, ascending: lists in memory. Needs: FN, Attention, Mask.

struct TileList {
    i32 count;
    const i32 *tiles;  // index * 2 + full
};

FN struct TileList row_tiles(const struct Attention *p, struct Mask m, i32 batch, i32 head,
                             Integer ti) {
    struct TileList list = {0};
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i64 number = (i64)batch * p->list_batch + variant;
    const i32 *ptr = p->row_ptr + number * (p->tile_rows + 1) + ti;
    list.tiles = p->row_tiles + ptr[0];
    list.count = ptr[1] - ptr[0];
    (void)m;
    return list;
}
FN struct TileList column_tiles(const struct Attention *p, struct Mask m, i32 batch, i32 head,
                                Integer tj) {
    struct TileList list = {0};
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i64 number = (i64)batch * p->list_batch + variant;
    const i32 *ptr = p->col_ptr + number * (p->tile_cols + 1) + tj;
    list.tiles = p->col_tiles + ptr[0];
    list.count = ptr[1] - ptr[0];
    (void)m;
    return list;
}

FN struct Tile tile_at(struct TileList list, i32 i) {
    struct Tile tile;
    const i32 entry = list.tiles[i];
    tile.index = entry >> 1;
    tile.full = entry & 1;
    return tile;
}

// ---------------------------------------------------------------- vectors

// Vector types and the elementary functions on them.
// Needs: LANES.

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef i32 ivec __attribute__((vector_size(4 * LANES)));
typedef vec vec_in_memory __attribute__((aligned(4), may_alias));
typedef ivec ivec_in_memory __attribute__((aligned(4), may_alias));

FN vec load(const float *at) { return *(const vec_in_memory *)at; }
FN void store(float *at, vec x) { *(vec_in_memory *)at = x; }
FN vec splat(float x) { return x - (vec){0}; }
FN vec either(ivec which, vec a, vec b) { return (vec)((which & (ivec)a) | (~which & (ivec)b)); }
FN vec zero_where(ivec which, vec x) { return (vec)(~which & (ivec)x); }
FN vec max_vec(vec a, vec b) { return either(a > b, a, b); }

FN float sum_lanes(vec x) {
    float sum = 0.0f;
    for (i32 i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

// (2^f - 1) / f for f in -0.5 .. 0.5: a minimax polynomial of relative error 2e-9.
FN vec exp2_slope(vec f) {
    vec y = splat(1.5353363e-4f);
    y = y * f + 1.3398875e-3f;
    y = y * f + 9.6184369e-3f;
    y = y * f + 5.5503324e-2f;
    y = y * f + 2.4022648e-1f;
    return y * f + 6.9314718e-1f;
}

// 2^x for x below 127, within a relative 1e-7: exactly 1 at 0, exactly 0 below -125 and at -inf.
// NaN stays NaN.
FN vec exp2_vec(vec x) {
    const float round = 12582912.0f;  // 1.5 * 2^23: a sum with it has no bits for a fraction
    const vec shifted = x + round;
    const vec f = x - (shifted - round);  // -0.5 .. 0.5
    const vec y = exp2_slope(f) * f + 1.0f;
    const ivec power = ((ivec)shifted + 127) << 23;  // its low bits are the integer part of x
    return zero_where(x < -125.0f, y * (vec)power);
}

// The exponent of a normal positive number whose fraction lies in sqrt(1/2) .. sqrt(2).
FN ivec exponent_of(vec x) {
    const i32 half_root = 0x3f3504f3;  // the bits of sqrt(1/2)
    return ((ivec)x - half_root) >> 23;
}

FN vec fraction_of(vec x, ivec exponent) { return (vec)((ivec)x - (exponent << 23)); }

// log(2^exponent * (1 + f)) for f in sqrt(1/2) - 1 .. sqrt(2) - 1.
FN vec log_of_parts(ivec exponent, vec f) {
    const vec s = f / (f + 2.0f);  // log(1 + f) = 2 artanh(f / (2 + f))
    const vec z = s * s;
    const vec series = 1.0f + z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z * (1.0f / 9))));
    return __builtin_convertvector(exponent, vec) * LN2 + 2.0f * s * series;
}

// The natural logarithm of normal positive numbers, within 3e-7.
FN vec log_vec(vec x) {
    const ivec exponent = exponent_of(x);
    return log_of_parts(exponent, fraction_of(x, exponent) - 1.0f);
}

#if WITH_ENTMAX
// log(1 + y) for y above -1, to a relative 3e-7 also where y is small.
FN vec log1p_vec(vec y) {
    const vec x = 1.0f + y;
    const ivec exponent = exponent_of(x);
    return log_of_parts(exponent, either(exponent == 0, y, fraction_of(x, exponent) - 1.0f));
}

// 1 - e^-x for x not below 0, to a relative 3e-7 also where x is small.
FN vec one_less_exp(vec x) {
    const vec f = x * -LOG2E;
    return either(f > -0.5f, -f * exp2_slope(f), 1.0f - exp2_vec(f));
}
#endif

#if WITH_SOFTCAP
// Within a relative 2e-7: an odd polynomial near 0, where 1 - e^-2x would cancel.
FN vec tanh_vec(vec x) {
    const ivec sign = (ivec)x & (i32)0x80000000;
    const vec size = (vec)((ivec)x ^ sign);
    const vec z = x * x;
    vec y = splat(-5.7049803e-3f);  // minimax for (tanh(x) / x - 1) / x^2 up to 0.625
    y = y * z + 2.0639081e-2f;
    y = y * z - 5.3739712e-2f;
    y = y * z + 1.3331442e-1f;
    y = y * z - 3.3333281e-1f;
    const vec e = exp2_vec(size * (-2.0f * LOG2E));
    const vec far = (vec)((ivec)((1.0f - e) / (1.0f + e)) | sign);
    return either(size < 0.625f, x + x * z * y, far);
}
#endif

typedef float quad __attribute__((vector_size(16)));
typedef quad quad_in_memory __attribute__((aligned(4), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) \
    __builtin_shuffle(a, b, (i32 __attribute__((vector_size(16)))){__VA_ARGS__})
#endif

// to[j][i] = factor * from[i][j]; both counts are multiples of four.
FN void transpose(float *to, i32 to_ld, const float *from, i32 from_ld, i32 rows, i32 columns,
                  float factor) {
    for (i32 i = 0; i < rows; i += 4) {
        for (i32 j = 0; j < columns; j += 4) {
            const float *in = from + i * from_ld + j;
            const quad a = *(const quad_in_memory *)in;
            const quad b = *(const quad_in_memory *)(in + from_ld);
            const quad c = *(const quad_in_memory *)(in + 2 * from_ld);
            const quad d = *(const quad_in_memory *)(in + 3 * from_ld);
            const quad ab = SHUFFLE(a, b, 0, 4, 1, 5), AB = SHUFFLE(a, b, 2, 6, 3, 7);
            const quad cd = SHUFFLE(c, d, 0, 4, 1, 5), CD = SHUFFLE(c, d, 2, 6, 3, 7);
            float *out = to + j * to_ld + i;
            *(quad_in_memory *)out = factor * SHUFFLE(ab, cd, 0, 1, 4, 5);
            *(quad_in_memory *)(out + to_ld) = factor * SHUFFLE(ab, cd, 2, 3, 6, 7);
            *(quad_in_memory *)(out + 2 * to_ld) = factor * SHUFFLE(AB, CD, 0, 1, 4, 5);
            *(quad_in_memory *)(out + 3 * to_ld) = factor * SHUFFLE(AB, CD, 2, 3, 6, 7);
        }
    }
}

// ---------------------------------------------------------------- storage

// Numbers in memory are bfloat16.

#define ROUNDED_OUT 1
#define OUT_ROUNDING 0x1p-8f  // of a stored number
// Numbers of two bytes in memory; a file of their own says how they become fp32.

typedef unsigned short element;
typedef unsigned u32;
typedef u32 uvec __attribute__((vector_size(4 * LANES)));
typedef element halves __attribute__((vector_size(2 * LANES)));
typedef halves stored __attribute__((aligned(2), may_alias));  // LANES elements

FN vec widen(stored x) { return (vec)(__builtin_convertvector((halves)x, uvec) << 16); }

// To the nearest bfloat16, ties to even; a NaN stays one even if all its low bits go.
FN stored narrow(vec x) {
    const uvec bits = (uvec)x;
    const uvec rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uvec nan = (uvec)(x != x);
    return __builtin_convertvector((nan & (bits >> 16 | 0x40)) | (~nan & rounded), halves);
}

// Rows and tiles of tensors in memory; arithmetic is fp32. Needs: cpu/lib/storage_*.h.

// Where a row of a [batch, heads, tokens, dim] tensor starts, in elements.
FN i64 row_offset(const i64 *stride, i32 batch, i32 head, i32 token) {
    return batch * stride[0] + head * stride[1] + token * stride[2];
}

FN void clear(float *at, i32 floats) {
    for (i32 i = 0; i < floats; i += LANES) store(at + i, (vec){0});
}

// `columns` elements as floats, then zeros up to a whole vector. Returns x * 0 summed in each
// lane: NaN if an element was NaN or infinite.
FN vec load_row(float *to, const element *from, i32 columns) {
    vec trace = {0};
    i32 j = 0;
    for (; j + LANES <= columns; j += LANES) {
        const vec x = widen(*(const stored *)(from + j));
        trace += x * 0.0f;
        store(to + j, x);
    }
    if (columns % LANES) {
        element rest[LANES] = {0};
        for (i32 i = 0; j + i < columns; i++) rest[i] = from[j + i];
        const vec x = widen(*(const stored *)rest);
        trace += x * 0.0f;
        store(to + j, x);
    }
    return trace;
}

FN void store_row(element *to, const float *from, i32 columns, float factor) {
    i32 j = 0;
    for (; j + LANES <= columns; j += LANES) {
        *(stored *)(to + j) = narrow(load(from + j) * factor);
    }
    if (columns % LANES) {
        element rest[LANES];
        *(stored *)rest = narrow(load(from + j) * factor);
        for (i32 i = 0; j + i < columns; i++) to[j + i] = rest[i];
    }
}

// `rows` tokens of a tensor, packed `ld` floats apart. Returns whether every element is finite.
FN i32 load_tile(float *to, i32 ld, const void *tensor, const i64 *stride, i32 batch, i32 head,
                 i32 token, i32 rows, i32 columns) {
    const element *from = (const element *)tensor + row_offset(stride, batch, head, token);
    vec trace = {0};
    for (i32 i = 0; i < rows; i++) trace += load_row(to + i * ld, from + i * stride[2], columns);
    return sum_lanes(trace) == 0.0f;
}

// The way back, times `factor`.
FN void store_tile(void *tensor, const i64 *stride, i32 batch, i32 head, i32 token,
                   const float *from, i32 ld, i32 rows, i32 columns, float factor) {
    element *to = (element *)tensor + row_offset(stride, batch, head, token);
    for (i32 i = 0; i < rows; i++) store_row(to + i * stride[2], from + i * ld, columns, factor);
}

// The same, added to what the rows hold.
FN void add_tile(void *tensor, const i64 *stride, i32 batch, i32 head, i32 token,
                 const float *from, i32 ld, i32 rows, i32 columns, float factor) {
    element *to = (element *)tensor + row_offset(stride, batch, head, token);
    float sum[MAX_LD];
    for (i32 i = 0; i < rows; i++) {
        load_row(sum, to + i * stride[2], columns);
        for (i32 j = 0; j < columns; j += LANES) {
            store(sum + j, load(sum + j) + load(from + i * ld + j) * factor);
        }
        store_row(to + i * stride[2], sum, columns, 1.0f);
    }
}

// ---------------------------------------------------------------- products of tiles

// Products of tiles held in fp32.
// Needs: vector.h.

// A left operand: element (i, t) is at[i * row + t * step], so either tile may lie transposed.
struct Left {
    const float *at;
    i64 row, step;
};

// c[i][:] += sum over t < depth of a(i, t) * b[t][:], for one block of sums kept in registers.
// `rows` and `vectors` are constants wherever this is inlined.
INLINE void multiply_block(float *c, i32 c_ld, struct Left a, const float *b, i32 b_ld, i32 depth,
                           const i32 rows, const i32 vectors) {
    vec sum[BLOCK_ROWS][BLOCK_VECTORS];
#pragma GCC unroll 8
    for (i32 i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (i32 j = 0; j < vectors; j++) sum[i][j] = load(c + i * c_ld + j * LANES);
    for (i32 t = 0; t < depth; t++) {
        vec line[BLOCK_VECTORS];
#pragma GCC unroll 8
        for (i32 j = 0; j < vectors; j++) line[j] = load(b + t * b_ld + j * LANES);
#pragma GCC unroll 8
        for (i32 i = 0; i < rows; i++) {
            const float weight = a.at[i * a.row + t * a.step];
#pragma GCC unroll 8
            for (i32 j = 0; j < vectors; j++) sum[i][j] += weight * line[j];
        }
    }
#pragma GCC unroll 8
    for (i32 i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (i32 j = 0; j < vectors; j++) store(c + i * c_ld + j * LANES, sum[i][j]);
}

// One column of blocks, `vectors` wide.
INLINE void multiply_strip(float *c, i32 c_ld, struct Left a, const float *b, i32 b_ld, i32 rows,
                           i32 depth, const i32 vectors) {
    for (; rows >= BLOCK_ROWS; rows -= BLOCK_ROWS) {
        multiply_block(c, c_ld, a, b, b_ld, depth, BLOCK_ROWS, vectors);
        c += BLOCK_ROWS * c_ld;
        a.at += BLOCK_ROWS * a.row;
    }
    switch (rows) {
    case 5: multiply_block(c, c_ld, a, b, b_ld, depth, 5, vectors); break;
    case 4: multiply_block(c, c_ld, a, b, b_ld, depth, 4, vectors); break;
    case 3: multiply_block(c, c_ld, a, b, b_ld, depth, 3, vectors); break;
    case 2: multiply_block(c, c_ld, a, b, b_ld, depth, 2, vectors); break;
    case 1: multiply_block(c, c_ld, a, b, b_ld, depth, 1, vectors); break;
    }
}

// c[i][:] += sum over t of a(i, t) * b[t][:] for `rows` rows of `vectors` vectors. Each sum runs
// over t in ascending order whatever the shape, so a row's bits do not depend on its neighbours.
static void multiply(float *c, i32 c_ld, struct Left a, const float *b, i32 b_ld, i32 rows,
                     i32 vectors, i32 depth) {
    i32 j = 0;
    for (; j + BLOCK_VECTORS <= vectors; j += BLOCK_VECTORS) {
        multiply_strip(c + j * LANES, c_ld, a, b + j * LANES, b_ld, rows, depth, BLOCK_VECTORS);
    }
    if (j + 2 <= vectors) {
        multiply_strip(c + j * LANES, c_ld, a, b + j * LANES, b_ld, rows, depth, 2);
        j += 2;
    }
    if (j < vectors) multiply_strip(c + j * LANES, c_ld, a, b + j * LANES, b_ld, rows, depth, 1);
}

// The same sums over live pairs only, for a partial tile whose b has a NaN or an infinity: there
// a weight of zero is not enough to keep a row out. `live` is laid out like a.
static void multiply_live(float *c, i32 c_ld, struct Left a, const float *b, i32 b_ld, i32 rows,
                          i32 vectors, i32 depth, const i32 *live) {
    for (i32 i = 0; i < rows; i++) {
        for (i32 t = 0; t < depth; t++) {
            const i64 at = i * a.row + t * a.step;
            if (!live[at]) continue;
            for (i32 j = 0; j < vectors; j++) {
                float *sum = c + i * c_ld + j * LANES;
                store(sum, load(sum) + a.at[at] * load(b + t * b_ld + j * LANES));
            }
        }
    }
}

FN void add_product(float *c, i32 c_ld, struct Left a, const float *b, i32 b_ld, i32 rows,
                    i32 vectors, i32 depth, const i32 *live) {
    if (live) {
        multiply_live(c, c_ld, a, b, b_ld, rows, vectors, depth, live);
    } else {
        multiply(c, c_ld, a, b, b_ld, rows, vectors, depth);
    }
}

// ---------------------------------------------------------------- scores

// A tile lies transposed, scores[k][q]: the lanes of a vector are queries, so what softmax needs
// (maxima and sums over keys) is plain vector arithmetic, and a NaN in one query stays in it.
typedef float Scores[TILE_K][TILE_Q];
typedef i32 Live[TILE_K][TILE_Q];  // the mask of a partial tile: 0 or 1

// One tile of one head: where it starts and how much of it lies inside the lengths.
struct Place {
    i32 q0, k0;
    i32 queries, keys;
    i32 vectors;  // of queries; lanes past the last query hold numbers nobody reads
};

FN struct Place place(const struct Attention *p, i32 ti, i32 tj) {
    struct Place at = {.q0 = ti * TILE_Q, .k0 = tj * TILE_K};
    at.queries = min_i32(TILE_Q, p->n_q - at.q0);
    at.keys = min_i32(TILE_K, p->n_kv - at.k0);
    at.vectors = (at.queries + LANES - 1) / LANES;
    return at;
}

// The factor of scores goes into the transposed q.
FN float query_factor(const struct Attention *p) {
    return WITH_SOFTCAP ? p->scale / p->softcap : p->scale * UNIT;
}

#if WITH_SOFTCAP
// softcap * tanh(score / softcap). `tanhs`, where given, receives the tanh for the backward pass.
FN void cap_scores(const struct Attention *p, struct Place at, Scores scores, Scores tanhs) {
    const float cap = p->softcap * UNIT;
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 j = 0; j < at.vectors; j++) {
            const vec t = tanh_vec(load(&scores[k][j * LANES]));
            if (tanhs) store(&tanhs[k][j * LANES], t);
            store(&scores[k][j * LANES], cap * t);
        }
    }
}
#endif

#if WITH_ALIBI
FN vec lane_numbers(void) {
    vec lanes;
    for (i32 i = 0; i < LANES; i++) lanes[i] = (float)i;
    return lanes;
}

// |p - k| for LANES queries and one key, p being the query's position with both ends aligned.
FN vec distance(const struct Attention *p, struct Place at, i32 k, i32 j) {
    const i32 first = at.q0 + j * LANES + p->n_kv - p->n_q - (at.k0 + k);
    const vec d = lane_numbers() + (float)first;
    return max_vec(d, -d);
}

FN void slope_scores(const struct Attention *p, i32 head, struct Place at, Scores scores) {
    const float slope = p->alibi_slopes[head] * p->spacing * UNIT;
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 j = 0; j < at.vectors; j++) {
            float *s = &scores[k][j * LANES];
            store(s, load(s) - slope * distance(p, at, k, j));
        }
    }
}
#endif

// The mask of a partial tile, in a pass of its own: whatever the formula, a compiler sees a plain
// loop and vectorises it.
static __attribute__((noinline)) void live_pairs(const struct Attention *p, struct Mask m,
                                                 struct Place at, Live live) {
    const i32 n_q = p->n_q, n_kv = p->n_kv;
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 q = 0; q < at.queries; q++) {
            live[k][q] = keep(m, at.q0 + q, at.k0 + k, n_q, n_kv);
        }
    }
}

// -inf where the mask says no, so that a dead pair's weight is exactly 0 whatever its score was.
FN void mask_scores(struct Place at, Live live, Scores scores) {
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
            const ivec seen = *(const ivec_in_memory *)&live[k][j] != 0;
            store(&scores[k][j], either(seen, load(&scores[k][j]), splat(-INFINITE)));
        }
    }
}

// scores = UNIT * (the scores of q and k as softmax will see them). `q` is transposed and holds
// query_factor() already. `live` is filled if the tile is partial.
FN void tile_scores(const struct Attention *p, struct Mask m, i32 head, struct Place at, i32 full,
                    const float *q, struct Left k, Scores scores, Scores tanhs, Live live) {
    clear(&scores[0][0], at.keys * TILE_Q);
    multiply(&scores[0][0], TILE_Q, k, q, TILE_Q, at.keys, at.vectors, HEAD_DIM);
#if WITH_SOFTCAP
    cap_scores(p, at, scores, tanhs);
#endif
#if WITH_ALIBI
    slope_scores(p, head, at, scores);
#endif
    (void)head;
    (void)tanhs;
    if (full) return;
    live_pairs(p, m, at, live);
    mask_scores(at, live, scores);
}

// ---------------------------------------------------------------- weights

// From scores to weights, once lse is known.
// Needs: vector.h, gen/scores.h.j2. Gives: Weight, weigh.

struct Weight {
    vec p;  // of v in out
    vec u;  // dp/dscore where lse stays
};

#if WITH_ENTMAX
// alpha-entmax (Peters, Niculae and Martins, 2019), with a = alpha - 1:
//     p = x^(1/a),  u = x^(1/a - 1),  x = max(0, 1 + a * (score - lse)),
// lse being the number that makes the weights of a row sum to 1. The paper's threshold tau is
// a * lse - 1; lse itself does not lose its digits as alpha falls to 1, where it becomes softmax's.
FN struct Weight weigh(const struct Attention *p, vec score, vec lse) {
    const float a = p->alpha_minus_1;
    const vec y = a * (score - lse);
    const ivec none = 1.0f + y <= 0.0f;
    const vec x = zero_where(none, 1.0f + y);
    vec u = x;                // alpha 1.5
    if (a == 1.0f) {          // alpha 2, sparsemax
        u = 1.0f + 0.0f * x;  // NaN where x is
    } else if (a != 0.5f) {
        u = exp2_vec(log1p_vec(y) * ((1.0f - a) / a * LOG2E));
    }
    u = zero_where(none, u);
    return (struct Weight){u * x, u};
}

// Whether some weight of a tile is above zero, or not a number.
static i32 any_weight(const struct Attention *p, struct Place at, Scores scores,
                      const float *lse) {
    for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
        ivec none = (ivec){0} == 0;
        for (i32 k = 0; k < at.keys; k++) {
            none &= 1.0f + p->alpha_minus_1 * (load(&scores[k][j]) - load(lse + j)) <= 0.0f;
        }
        for (i32 i = 0; i < LANES; i++) {
            if (!none[i]) return 1;
        }
    }
    return 0;
}

// Pairs that contribute, instead of those that the mask keeps: what has no weight is not touched.
FN void live_weights(struct Place at, Scores weights, Live live) {
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 q = 0; q < TILE_Q; q++) live[k][q] = weights[k][q] != 0.0f;
    }
}
#else
FN struct Weight weigh(const struct Attention *p, vec score, vec lse) {
    const vec weight = exp2_vec(score - lse);
    (void)p;
    return (struct Weight){weight, weight};
}
#endif

// ---------------------------------------------------------------- forward

// The forward pass.
// Needs: multiply.h, storage.h, vector.h, gen/scores.h.j2; Mask and lists of tiles.

#if WITH_ENTMAX
// The scores of a tile, kept from one pass over its row to the next.
struct Kept {
    Scores scores;
    i32 live;  // whether some weight may be above zero
} __attribute__((aligned(64)));
#endif

// What one thread works on: tiles widened to fp32 and packed, so that strides and storage types
// are met once per tile.
struct Forward {
    float q[TILE_Q * QK_LD];
    float q_t[QK_LD * TILE_Q];  // transposed, times query_factor()
    float k[TILE_K * QK_LD];
    float v[TILE_K * V_LD];
    float out[TILE_Q * V_LD];   // sums of weight * v, not yet divided by total
    Scores scores;
    Live live;
    float top[TILE_Q];     // the largest score so far; where entmax's search for lse starts
    float total[TILE_Q];   // the weights so far, relative to 2^top
    float shrink[TILE_Q];  // by how much the current tile shrinks what came before
#if WITH_ENTMAX
    struct Kept *kept;     // of the row's first tiles
    i32 most_kept;
#endif
} __attribute__((aligned(64)));

// One tile row of one head.
struct Row {
    struct Mask m;
    struct TileList tiles;
    i32 batch, head, head_kv, ti;
};

// A sink is a key seen by all whose value is zero: softmax simply starts from it.
FN void start_rows(const struct Attention *p, struct Forward *f, i32 head) {
    const float sink = WITH_SINKS ? p->sink_logits[head] * LOG2E : -INFINITE;
    for (i32 q = 0; q < TILE_Q; q++) {
        f->top[q] = sink;
        f->total[q] = sink == -INFINITE ? 0.0f : 1.0f;
        f->shrink[q] = 1.0f;
    }
    clear(f->out, TILE_Q * V_LD);
}

FN void load_queries(const struct Attention *p, struct Forward *f, struct Place at, i32 batch,
                     i32 head) {
    clear(f->q + at.queries * QK_LD, (TILE_Q - at.queries) * QK_LD);
    load_tile(f->q, QK_LD, p->q, p->q_stride, batch, head, at.q0, at.queries, HEAD_DIM);
    transpose(f->q_t, TILE_Q, f->q, QK_LD, TILE_Q, QK_LD, query_factor(p));
}

// The largest of `before` and a column of scores. Four maxima side by side, as each step waits
// for the one before it; the last row may count twice.
FN vec largest(Scores scores, i32 keys, i32 j, vec before) {
    vec top[4] = {before, before, before, before};
    for (i32 k = 0; k < keys; k += 4) {
#pragma GCC unroll 4
        for (i32 i = 0; i < 4; i++) {
            top[i] = max_vec(load(&scores[min_i32(k + i, keys - 1)][j]), top[i]);
        }
    }
    return max_vec(max_vec(top[0], top[1]), max_vec(top[2], top[3]));
}

// The tile's keys. fp32 ones are read where they lie: each is met once, so packing would not pay.
FN struct Left load_keys(const struct Attention *p, struct Forward *f, struct Place at, i32 batch,
                         i32 head) {
    if (sizeof(element) == sizeof(float)) {
        const float *k = (const float *)p->k + row_offset(p->k_stride, batch, head, at.k0);
        return (struct Left){k, p->k_stride[2], 1};
    }
    load_tile(f->k, QK_LD, p->k, p->k_stride, batch, head, at.k0, at.keys, HEAD_DIM);
    return (struct Left){f->k, QK_LD, 1};
}

FN void row_scores(const struct Attention *p, struct Forward *f, struct Row r, struct Tile tile,
                   struct Place at, Scores scores) {
    const struct Left keys = load_keys(p, f, at, r.batch, r.head_kv);
    tile_scores(p, r.m, r.head, at, tile.full, f->q_t, keys, scores, 0, f->live);
}

// The tile's values. Returns whether all are finite.
FN i32 load_values(const struct Attention *p, struct Forward *f, struct Place at, struct Row r) {
    return load_tile(f->v, V_LD, p->v, p->v_stride, r.batch, r.head_kv, at.k0, at.keys,
                     HEAD_DIM_V);
}

// Scores become weights 2^(score - top), and top and total move on to include them.
FN void online_softmax(struct Forward *f, struct Place at) {
    for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
        const vec before = load(f->top + j);
        const vec top = largest(f->scores, at.keys, j, before);
        // A row that has seen no key yet: 0 instead of -inf, whose difference with itself is NaN.
        const vec base = zero_where(top == -INFINITE, top);
        const vec shrink = exp2_vec(before - base);
        vec total = load(f->total + j) * shrink;
        for (i32 k = 0; k < at.keys; k++) {
            const vec weight = exp2_vec(load(&f->scores[k][j]) - base);
            store(&f->scores[k][j], weight);
            total += weight;
        }
        store(f->top + j, top);
        store(f->total + j, total);
        store(f->shrink + j, shrink);
    }
}

FN void add_values(struct Forward *f, struct Place at, const i32 *live) {
    for (i32 q = 0; q < at.queries; q++) {
        for (i32 j = 0; j < V_LD; j += LANES) {
            float *sum = f->out + q * V_LD + j;
            store(sum, load(sum) * f->shrink[q]);
        }
    }
    const struct Left weights = {&f->scores[0][0], 1, TILE_Q};
    add_product(f->out, V_LD, weights, f->v, V_LD, at.queries, V_VECTORS, at.keys, live);
}

FN void finish_rows(const struct Attention *p, struct Forward *f, struct Place at, i32 batch,
                    i32 head) {
    float lse[TILE_Q];
    for (i32 j = 0; j < TILE_Q; j += LANES) {
        const vec top = load(f->top + j);
        store(lse + j, WITH_ENTMAX ? top : top * LN2 + log_vec(load(f->total + j)));
    }
    float *lse_out = p->lse + row_offset(p->lse_stride, batch, head, at.q0);
    for (i32 q = 0; q < at.queries; q++) {
        const float total = f->total[q];
        const float factor = total == 0.0f ? 0.0f : 1.0f / total;
        store_tile(p->out, p->out_stride, batch, head, at.q0 + q, f->out + q * V_LD, V_LD, 1,
                   HEAD_DIM_V, factor);
        lse_out[q * p->lse_stride[2]] = total > 0.0f ? lse[q] : total == 0.0f ? -INFINITE : total;
    }
}

// The rows have results from other keys: what they stand for joins as if it were one key more, its
// logit their lse and its value their out.
FN void join_rows(const struct Attention *p, struct Forward *f, struct Place at, i32 batch,
                  i32 head) {
    const float *lse = p->lse + row_offset(p->lse_stride, batch, head, at.q0);
    float before[TILE_Q], share[TILE_Q], shrink[TILE_Q];
    for (i32 q = 0; q < TILE_Q; q++) {
        before[q] = q < at.queries ? lse[q * p->lse_stride[2]] * LOG2E : -INFINITE;
    }
    for (i32 j = 0; j < TILE_Q; j += LANES) {
        const vec top = max_vec(load(f->top + j), load(before + j));
        const vec base = zero_where(top == -INFINITE, top);
        const vec weight = exp2_vec(load(before + j) - base);
        store(shrink + j, exp2_vec(load(f->top + j) - base));
        store(share + j, weight);
        store(f->total + j, load(f->total + j) * load(shrink + j) + weight);
        store(f->top + j, top);
    }
    for (i32 q = 0; q < at.queries; q++) {
        float out[V_LD];
        load_row(out, (element *)p->out + row_offset(p->out_stride, batch, head, at.q0 + q),
                 HEAD_DIM_V);
        float *sum = f->out + q * V_LD;
        for (i32 j = 0; j < V_LD; j += LANES) {
            store(sum + j, load(sum + j) * shrink[q] + load(out + j) * share[q]);
        }
    }
}

#if WITH_ENTMAX
// The forward pass over a row with entmax.
// A part of forward.h.

// A row takes several passes: one for the scores, as many as lse needs, and one with the values of
// the tiles that have a weight above zero. Scores are kept meanwhile, in longer rows those of the
// first tiles only: the others' are computed again.
enum { KEPT_TILES = 2048 };

FN void keep_scores(const struct Attention *p, struct Forward *f) {
    f->most_kept = min_i32(p->tile_cols, KEPT_TILES);
    f->kept = aligned_alloc(64, (size_t)f->most_kept * sizeof(struct Kept));
    if (!f->kept) f->most_kept = 0;
}

// What the search for lse knows of every query.
struct Search {
    float p[TILE_Q], u[TILE_Q];  // sums over the row
    i32 moves[TILE_Q];           // -1 until lse is found
};

FN i32 any_lane(ivec x) {
    i32 any = 0;
    for (i32 i = 0; i < LANES; i++) any |= x[i];
    return any;
}

// The largest scores: below lse unless they are all a row has, as no weight is above 1.
FN void find_tops(const struct Attention *p, struct Forward *f, struct Row r) {
    for (i32 i = 0; i < r.tiles.count; i++) {
        const struct Tile tile = tile_at(r.tiles, i);
        const struct Place at = place(p, r.ti, tile.index);
        Scores *scores = i < f->most_kept ? &f->kept[i].scores : &f->scores;
        row_scores(p, f, r, tile, at, *scores);
        if (i < f->most_kept) f->kept[i].live = 1;
        for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
            store(f->top + j, largest(*scores, at.keys, j, load(f->top + j)));
        }
    }
}

// Tile i of the row again; null where it has no weight above zero, and never will: lse only grows.
FN Scores *kept_scores(const struct Attention *p, struct Forward *f, struct Row r, i32 i,
                       struct Place *at) {
    const struct Tile tile = tile_at(r.tiles, i);
    *at = place(p, r.ti, tile.index);
    if (i < f->most_kept) return f->kept[i].live ? &f->kept[i].scores : 0;
    row_scores(p, f, r, tile, *at, f->scores);
    return &f->scores;
}

// Adds up a tile's weights. Returns whether one is above zero, or not a number.
FN i32 add_sums(const struct Attention *p, struct Forward *f, struct Place at, Scores scores,
                struct Search *s) {
    i32 any = 0;
    for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
        const vec lse = load(f->top + j);
        vec sum_p = {0}, sum_u = {0};
        for (i32 k = 0; k < at.keys; k++) {
            const struct Weight w = weigh(p, load(&scores[k][j]), lse);
            sum_p += w.p;
            sum_u += w.u;
        }
        store(s->p + j, load(s->p + j) + sum_p);
        store(s->u + j, load(s->u + j) + sum_u);
        any |= any_lane(sum_u != 0.0f);
    }
    return any;
}

// One step towards sum(p) = 1: Newton's for the 1/a-norm of x, which falls with lse and is convex,
// so that the steps from the largest score upwards do not pass the root. The first is the last
// where all scores are equal, and as alpha falls to 1. A row stops on its own, whatever its
// neighbours do. Returns whether one goes on.
FN i32 step(const struct Attention *p, struct Forward *f, struct Search *s) {
    const float a = p->alpha_minus_1;
    ivec going = {0};
    for (i32 j = 0; j < TILE_Q; j += LANES) {
        const vec sum = load(s->p + j), lse = load(f->top + j);
        const vec by = sum * one_less_exp(a * log_vec(sum)) / (a * load(s->u + j));
        const ivec moves = *(const ivec_in_memory *)&s->moves[j];
        const ivec on = moves & (by > 2e-7f * max_vec(splat(1.0f), max_vec(lse, -lse)));
        store(f->top + j, either(moves, lse + by, lse));
        *(ivec_in_memory *)&s->moves[j] = on;
        going |= on;
    }
    return any_lane(going);
}

// From the largest score to lse; 0 where a row has no key.
FN void find_lse(const struct Attention *p, struct Forward *f, struct Row r) {
    struct Search s;
    const i32 queries = place(p, r.ti, 0).queries;
    for (i32 q = 0; q < TILE_Q; q++) {
        s.moves[q] = -(q < queries && f->top[q] != -INFINITE);
        if (f->top[q] == -INFINITE) f->top[q] = 0.0f;
    }
    do {
        clear(s.p, TILE_Q);
        clear(s.u, TILE_Q);
        for (i32 i = 0; i < r.tiles.count; i++) {
            struct Place at;
            Scores *scores = kept_scores(p, f, r, i, &at);
            if (!scores) continue;
            const i32 any = add_sums(p, f, at, *scores, &s);
            if (i < f->most_kept) f->kept[i].live = any;
        }
    } while (step(p, f, &s));
}

// Scores become weights, and total moves on to include them.
FN void take_weights(const struct Attention *p, struct Forward *f, struct Place at, Scores scores) {
    for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
        const vec lse = load(f->top + j);
        vec sum = {0};
        for (i32 k = 0; k < at.keys; k++) {
            const struct Weight w = weigh(p, load(&scores[k][j]), lse);
            store(&f->scores[k][j], w.p);
            sum += w.p;
        }
        store(f->total + j, load(f->total + j) + sum);
    }
}

FN void add_tiles(const struct Attention *p, struct Forward *f, struct Row r) {
    find_tops(p, f, r);
    find_lse(p, f, r);
    for (i32 i = 0; i < r.tiles.count; i++) {
        struct Place at;
        Scores *scores = kept_scores(p, f, r, i, &at);
        if (!scores || !any_weight(p, at, *scores, f->top)) continue;
        take_weights(p, f, at, *scores);
        const i32 finite = load_values(p, f, at, r);
        if (!finite) live_weights(at, f->scores, f->live);
        add_values(f, at, finite ? 0 : &f->live[0][0]);
    }
}
#else
// Over the row's live tiles from left to right.
FN void add_tiles(const struct Attention *p, struct Forward *f, struct Row r) {
    for (i32 i = 0; i < r.tiles.count; i++) {
        const struct Tile tile = tile_at(r.tiles, i);
        const struct Place at = place(p, r.ti, tile.index);
        const i32 finite = load_values(p, f, at, r);
        row_scores(p, f, r, tile, at, f->scores);
        online_softmax(f, at);
        add_values(f, at, tile.full || finite ? 0 : &f->live[0][0]);
    }
}
#endif

static void forward_row(const struct Attention *p, struct Forward *f, i32 batch, i32 head, i32 ti) {
    const struct Mask m = load_mask(p, batch, head);
    const struct Row row = {m, row_tiles(p, m, batch, head, ti), batch, head,
                            head / (p->heads_q / p->heads_kv), ti};
    start_rows(p, f, head);
    load_queries(p, f, place(p, ti, 0), batch, head);
    add_tiles(p, f, row);
    if (p->joins) join_rows(p, f, place(p, ti, 0), batch, head);
    finish_rows(p, f, place(p, ti, 0), batch, head);
}

// Rows are handed out one by one; none depends on another, so no bit depends on `threads`. Heads
// that share keys and values take turns, and long causal rows come first.
void attention_forward(const struct Attention *p, i32 threads) {
    const i32 group = p->heads_q / max_i32(1, p->heads_kv);
    const i64 items = (i64)p->batch * p->heads_q * p->tile_rows;
#pragma omp parallel num_threads(max_i32(1, threads))
    {
        struct Forward f;
#if WITH_ENTMAX
        keep_scores(p, &f);
#endif
#pragma omp for schedule(dynamic) nowait
        for (i64 item = 0; item < items; item++) {
            const i64 row = item / group;
            const i64 pair = row / p->tile_rows;  // of a sequence and a key/value head
            const i32 ti = p->tile_rows - 1 - (i32)(row % p->tile_rows);
            const i32 head = (i32)(pair % p->heads_kv) * group + (i32)(item % group);
            forward_row(p, &f, (i32)(pair / p->heads_kv), head, ti);
        }
#if WITH_ENTMAX
        free(f.kept);
#endif
    }
}

// ---------------------------------------------------------------- backward

// The backward pass.
// Needs: forward.h, weights.h, multiply.h, storage.h, vector.h, gen/scores.h.j2; Mask and lists of
// tiles.

// A tile is visited once, by the thread that owns its tile column, and gives its share of dk, dv
// and dq. dk and dv stay with the thread. dq is added up in memory by one thread after another,
// in the order of the row's list: any number of threads gives the same bits.
struct Workspace {
    float *delta;   // [batch, heads_q, n_q] mean of dout . v, by u: rowsum(out * dout) with softmax
    float *dsink;   // [batch, heads_q, tile_rows] shares of each tile row
    float *dalibi;  // likewise
    i32 *turn;      // likewise: how many of the row's tiles have been added to dq
    float *dq;      // [batch, heads_q, tile_rows][TILE_Q][QK_LD]
};

FN i64 all_rows(const struct Attention *p) { return (i64)p->batch * p->heads_q * p->tile_rows; }

// Floats before dq, up to a whole vector.
FN i64 small_parts(const struct Attention *p) {
    const i64 floats = (i64)p->batch * p->heads_q * p->n_q + 3 * all_rows(p);
    return (floats + LANES - 1) / LANES * LANES;
}

FN struct Workspace workspace(const struct Attention *p) {
    struct Workspace w = {.delta = p->delta, .dq = p->delta + small_parts(p)};
    w.dsink = w.delta + (i64)p->batch * p->heads_q * p->n_q;
    w.dalibi = w.dsink + all_rows(p);
    w.turn = (i32 *)(w.dalibi + all_rows(p));
    return w;
}

// How many floats `delta` must have room for.
i64 attention_workspace(const struct Attention *p) {
    return small_parts(p) + all_rows(p) * TILE_Q * QK_LD;
}

struct Backward {
    float k[TILE_K * QK_LD];
    float v[TILE_K * V_LD];
    float dk[TILE_K * QK_LD];
    float dv[TILE_K * V_LD];
    float q[TILE_Q * QK_LD];
    float q_t[QK_LD * TILE_Q];  // transposed, times query_factor()
    float dout[TILE_Q * V_LD];
    float dout_t[V_LD * TILE_Q];
    Scores weights;
    Scores dscores;
    Scores tanhs;
    float lse[TILE_Q];    // times UNIT; +inf where there is no key, so that weights are 0
    float delta[TILE_Q];
    i32 k_finite;
    Live live;
} __attribute__((aligned(64)));

// One tile of one head, and what belongs to its row.
struct Visit {
    struct Mask m;
    struct Place at;
    i64 line;  // batch * heads_q + head
    i32 batch, head, ti, tj, full;
};

FN void load_lse(const struct Attention *p, i32 batch, i32 head, struct Place at, float *lse) {
    const float *from = p->lse + row_offset(p->lse_stride, batch, head, at.q0);
    for (i32 q = 0; q < TILE_Q; q++) lse[q] = INFINITE;
    for (i32 q = 0; q < at.queries; q++) {
        const float value = from[q * p->lse_stride[2]];
        if (value != -INFINITE) lse[q] = value * UNIT;
    }
}

// q, dout and lse of a tile row. Returns whether q and dout are finite.
FN i32 load_rows(const struct Attention *p, struct Backward *b, struct Place at, i32 batch,
                 i32 head) {
    const i32 queries = at.queries;
    clear(b->q + queries * QK_LD, (TILE_Q - queries) * QK_LD);
    clear(b->dout + queries * V_LD, (TILE_Q - queries) * V_LD);
    const i32 q_finite = load_tile(b->q, QK_LD, p->q, p->q_stride, batch, head, at.q0, queries,
                                   HEAD_DIM);
    const i32 dout_finite = load_tile(b->dout, V_LD, p->dout, p->dout_stride, batch, head, at.q0,
                                      queries, HEAD_DIM_V);
    transpose(b->q_t, TILE_Q, b->q, QK_LD, TILE_Q, QK_LD, query_factor(p));
    transpose(b->dout_t, TILE_Q, b->dout, V_LD, TILE_Q, V_LD, 1.0f);
    load_lse(p, batch, head, at, b->lse);
    return q_finite && dout_finite;
}

// ---- before: delta, the sinks' share, and rows that no tile will visit

// The sink's gradient is its weight times (0 - delta), as its value is zero.
FN float sink_share(const struct Attention *p, struct Place at, i32 batch, i32 head,
                    const float *delta) {
    float lse[TILE_Q], weight[TILE_Q];
    load_lse(p, batch, head, at, lse);
    const float sink = p->sink_logits[head] * LOG2E;
    for (i32 j = 0; j < TILE_Q; j += LANES) store(weight + j, exp2_vec(sink - load(lse + j)));
    float sum = 0.0f;
    for (i32 q = 0; q < at.queries; q++) sum -= weight[q] * delta[q];
    return sum;
}

// What a row's gradients are relative to: delta. ROUNDED_OUT tells whether `out` was rounded.
// A part of backward.h.

// Sums over a row's keys, each with its u: of u * (dout . v), and of u. It takes a walk over the
// row's tiles. Loads q and dout.
FN void sum_over_keys(const struct Attention *p, struct Backward *b, struct Row r, float *sum,
                      float *sum_u) {
    clear(sum, TILE_Q);
    clear(sum_u, TILE_Q);
    load_rows(p, b, place(p, r.ti, 0), r.batch, r.head);
    for (i32 i = 0; i < r.tiles.count; i++) {
        const struct Tile tile = tile_at(r.tiles, i);
        const struct Place at = place(p, r.ti, tile.index);
        const struct Left k = {b->k, QK_LD, 1}, v = {b->v, V_LD, 1};
        load_tile(b->k, QK_LD, p->k, p->k_stride, r.batch, r.head_kv, at.k0, at.keys, HEAD_DIM);
        tile_scores(p, r.m, r.head, at, tile.full, b->q_t, k, b->weights, b->tanhs, b->live);
#if WITH_ENTMAX
        if (!any_weight(p, at, b->weights, b->lse)) continue;
#endif
        load_tile(b->v, V_LD, p->v, p->v_stride, r.batch, r.head_kv, at.k0, at.keys, HEAD_DIM_V);
        clear(&b->dscores[0][0], at.keys * TILE_Q);
        multiply(&b->dscores[0][0], TILE_Q, v, b->dout_t, TILE_Q, at.keys, at.vectors, HEAD_DIM_V);
        for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
            vec part = {0}, part_u = {0};
            for (i32 n = 0; n < at.keys; n++) {
                const vec u = weigh(p, load(&b->weights[n][j]), load(b->lse + j)).u;
                part += zero_where(u == 0.0f, u * load(&b->dscores[n][j]));
                part_u += u;
            }
            store(sum + j, load(sum + j) + part);
            store(sum_u + j, load(sum_u + j) + part_u);
        }
    }
}

#if WITH_ENTMAX
// The mean of dout . v over a row's keys, each with its u: so that the gradients of the scores add
// up to 0, as the weights add up to 1 whatever the scores.
FN void find_delta(const struct Attention *p, struct Backward *b, struct Row r, float *delta) {
    const i32 queries = place(p, r.ti, 0).queries;
    float sum[TILE_Q], sum_u[TILE_Q];
    sum_over_keys(p, b, r, sum, sum_u);
    for (i32 q = 0; q < queries; q++) delta[q] = sum_u[q] == 0.0f ? 0.0f : sum[q] / sum_u[q];
}
#else
// dout . out of a query, and the sum of |dout * out|.
FN float row_product(const struct Attention *p, i32 batch, i32 head, i32 token, float *size) {
    float out[V_LD], dout[V_LD];
    load_row(out, (const element *)p->out + row_offset(p->out_stride, batch, head, token),
             HEAD_DIM_V);
    load_row(dout, (const element *)p->dout + row_offset(p->dout_stride, batch, head, token),
             HEAD_DIM_V);
    vec sum = {0}, sizes = {0};
    for (i32 j = 0; j < V_LD; j += LANES) {
        const vec x = load(out + j) * load(dout + j);
        sum += x;
        sizes += max_vec(x, -x);
    }
    *size = sum_lanes(sizes);
    return sum_lanes(sum);
}

#if !ROUNDED_OUT
FN void find_delta(const struct Attention *p, struct Backward *b, struct Row r, float *delta) {
    const struct Place at = place(p, r.ti, 0);
    float size;
    for (i32 q = 0; q < at.queries; q++)
        delta[q] = row_product(p, r.batch, r.head, at.q0 + q, &size);
    (void)b;
}
#else
// `out` was rounded to storage precision, and a row of few keys, or whose weights are those of few,
// shows that in dq and dk: there delta is all that its largest terms leave. The sum over keys in
// fp32 is without that error. Where the weights of these keys and of the sink do not add up to 1,
// or the sum differs by more than a rounding explains, `out` is not of these keys alone, as of a
// mask in parts, and decides.
FN void find_delta(const struct Attention *p, struct Backward *b, struct Row r, float *delta) {
    const float WHOLE = 0x1p-12f;  // weights that are missing change delta by less than `out` did
    const float ROUNDING = OUT_ROUNDING;
    const struct Place at = place(p, r.ti, 0);
    float sum[TILE_Q], sum_u[TILE_Q];
    sum_over_keys(p, b, r, sum, sum_u);
    for (i32 q = 0; q < at.queries; q++) {
        float size;
        const float rounded = row_product(p, r.batch, r.head, at.q0 + q, &size);
        const float error = sum[q] - rounded, most = ROUNDING * size;
        float missing = 1.0f - sum_u[q];
        if (WITH_SINKS) missing -= exp2_vec(splat(p->sink_logits[r.head] * LOG2E - b->lse[q]))[0];
        const i32 whole = -WHOLE <= missing && missing <= WHOLE;
        delta[q] = whole && -most <= error && error <= most ? sum[q] : rounded;
    }
}
#endif
#endif

FN void prepare_row(const struct Attention *p, struct Workspace w, struct Backward *b, i64 line,
                    i32 ti) {
    const i32 batch = (i32)(line / p->heads_q), head = (i32)(line % p->heads_q);
    const i64 row = line * p->tile_rows + ti;
    const struct Place at = place(p, ti, 0);
    const i64 first = line * p->n_q + at.q0;
    const struct Mask m = load_mask(p, batch, head);
    const struct Row r = {m, row_tiles(p, m, batch, head, ti), batch, head,
                          head / (p->heads_q / p->heads_kv), ti};
    find_delta(p, b, r, w.delta + first);
    w.turn[row] = 0;
    w.dalibi[row] = 0.0f;
    w.dsink[row] = WITH_SINKS ? sink_share(p, at, batch, head, w.delta + first) : 0.0f;
    if (p->joins || r.tiles.count) return;
    clear(b->q, at.queries * QK_LD);
    store_tile(p->dq, p->dq_stride, batch, head, at.q0, b->q, QK_LD, at.queries, HEAD_DIM, 1.0f);
}

// ---- one tile

FN void load_delta(const struct Attention *p, struct Workspace w, struct Backward *b,
                   struct Visit t) {
    const i64 first = t.line * p->n_q + t.at.q0;
    for (i32 q = 0; q < TILE_Q; q++) b->delta[q] = q < t.at.queries ? w.delta[first + q] : 0.0f;
}

// weights: from scores to shares of v. dscores: from dout . v to the gradient of scale * q . k.
// Returns the tile's share of dalibi.
FN float score_gradients(const struct Attention *p, struct Backward *b, struct Place at) {
    vec slope = {0};
    for (i32 j = 0; j < at.vectors; j++) {
        const vec lse = load(b->lse + j * LANES), delta = load(b->delta + j * LANES);
        for (i32 k = 0; k < at.keys; k++) {
            const vec score = load(&b->weights[k][j * LANES]);
            const struct Weight weight = weigh(p, score, lse);
            const ivec dead = WITH_ENTMAX ? weight.u == 0.0f : score == -INFINITE;
            vec d = weight.u * (load(&b->dscores[k][j * LANES]) - delta);
            d = zero_where(dead, d);  // 0 * NaN would not be 0
            store(&b->weights[k][j * LANES], weight.p);
#if WITH_ALIBI
            const ivec outside = lane_numbers() >= (float)(at.queries - j * LANES);
            slope -= zero_where(outside, d * distance(p, at, k, j));
#endif
#if WITH_SOFTCAP
            const vec tanh = load(&b->tanhs[k][j * LANES]);
            d *= 1.0f - tanh * tanh;
#endif
            store(&b->dscores[k][j * LANES], d);
        }
    }
    return sum_lanes(slope);
}

FN void store_gradient(const struct Attention *p, void *tensor, const i64 *stride, i32 batch,
                       i32 head, i32 token, const float *from, i32 ld, i32 rows, i32 columns,
                       float factor) {
    if (p->joins) {
        add_tile(tensor, stride, batch, head, token, from, ld, rows, columns, factor);
    } else {
        store_tile(tensor, stride, batch, head, token, from, ld, rows, columns, factor);
    }
}

// Adds this tile's part of dq after its left neighbours', and writes dq after the last. The part
// is nothing where `keys` is 0.
FN void add_dq(const struct Attention *p, struct Workspace w, struct Backward *b, struct Visit t,
               i32 keys, float slope, const i32 *live) {
    const struct TileList tiles = row_tiles(p, t.m, t.batch, t.head, t.ti);
    const i64 row = t.line * p->tile_rows + t.ti;
    i32 done = __atomic_load_n(w.turn + row, __ATOMIC_ACQUIRE);
    for (i32 tries = 1; tile_at(tiles, done).index != t.tj; tries++) {
        if (tries % 64 == 0) sched_yield();
        done = __atomic_load_n(w.turn + row, __ATOMIC_ACQUIRE);
    }
    float *dq = w.dq + row * TILE_Q * QK_LD;
    if (!done) clear(dq, t.at.queries * QK_LD);
    const struct Left dscores = {&b->dscores[0][0], 1, TILE_Q};
    if (keys) add_product(dq, QK_LD, dscores, b->k, QK_LD, t.at.queries, QK_VECTORS, keys, live);
    w.dalibi[row] += slope;
    if (done + 1 == tiles.count) {
        store_gradient(p, p->dq, p->dq_stride, t.batch, t.head, t.at.q0, dq, QK_LD, t.at.queries,
                       HEAD_DIM, p->scale);
    }
    __atomic_store_n(w.turn + row, done + 1, __ATOMIC_RELEASE);
}

FN void backward_tile(const struct Attention *p, struct Workspace w, struct Backward *b,
                      struct Visit t) {
    const i32 finite = load_rows(p, b, t.at, t.batch, t.head) && b->k_finite;
    const i32 keys = t.at.keys, queries = t.at.queries;
    const struct Left k = {b->k, QK_LD, 1}, v = {b->v, V_LD, 1};
    tile_scores(p, t.m, t.head, t.at, t.full, b->q_t, k, b->weights, b->tanhs, b->live);
#if WITH_ENTMAX
    if (!any_weight(p, t.at, b->weights, b->lse)) {
        add_dq(p, w, b, t, 0, 0.0f, 0);
        return;
    }
#endif
    load_delta(p, w, b, t);
    clear(&b->dscores[0][0], keys * TILE_Q);
    multiply(&b->dscores[0][0], TILE_Q, v, b->dout_t, TILE_Q, keys, t.at.vectors, HEAD_DIM_V);
    const float slope = score_gradients(p, b, t.at);
#if WITH_ENTMAX
    if (!finite) live_weights(t.at, b->weights, b->live);
    const i32 *live = finite ? 0 : &b->live[0][0];
#else
    const i32 *live = t.full || finite ? 0 : &b->live[0][0];
#endif
    const struct Left weights = {&b->weights[0][0], TILE_Q, 1};
    const struct Left dscores = {&b->dscores[0][0], TILE_Q, 1};
    add_product(b->dv, V_LD, weights, b->dout, V_LD, keys, V_VECTORS, queries, live);
    add_product(b->dk, QK_LD, dscores, b->q, QK_LD, keys, QK_VECTORS, queries, live);
    add_dq(p, w, b, t, keys, slope, live);
}

// One tile column of one key/value head, over the query heads that share it.
static void backward_column(const struct Attention *p, struct Workspace w, struct Backward *b,
                            i32 batch, i32 head_kv, i32 tj) {
    const i32 group = p->heads_q / p->heads_kv;
    const struct Place at = place(p, 0, tj);
    b->k_finite = load_tile(b->k, QK_LD, p->k, p->k_stride, batch, head_kv, at.k0, at.keys,
                            HEAD_DIM);
    load_tile(b->v, V_LD, p->v, p->v_stride, batch, head_kv, at.k0, at.keys, HEAD_DIM_V);
    clear(b->dk, at.keys * QK_LD);
    clear(b->dv, at.keys * V_LD);
    for (i32 head = head_kv * group; head < (head_kv + 1) * group; head++) {
        const struct Mask m = load_mask(p, batch, head);
        const struct TileList tiles = column_tiles(p, m, batch, head, tj);
        for (i32 i = 0; i < tiles.count; i++) {
            const struct Tile tile = tile_at(tiles, i);
            const struct Visit visit = {m, place(p, tile.index, tj), (i64)batch * p->heads_q + head,
                                        batch, head, tile.index, tj, tile.full};
            backward_tile(p, w, b, visit);
        }
    }
    store_gradient(p, p->dk, p->dk_stride, batch, head_kv, at.k0, b->dk, QK_LD, at.keys, HEAD_DIM,
                   p->scale);
    store_gradient(p, p->dv, p->dv_stride, batch, head_kv, at.k0, b->dv, V_LD, at.keys, HEAD_DIM_V,
                   1.0f);
}

// ---- after: sums over rows, in one order

FN void sum_shares(const struct Attention *p, float *to, const float *shares, i32 head,
                   float factor) {
    float sum = 0.0f;
    for (i32 batch = 0; batch < p->batch; batch++) {
        const float *rows = shares + ((i64)batch * p->heads_q + head) * p->tile_rows;
        for (i32 ti = 0; ti < p->tile_rows; ti++) sum += rows[ti];
    }
    to[head] += factor * sum;
}

// Columns are handed out from left to right, so that whoever waits in add_dq() waits for a column
// already under way; neighbours of one list go to different heads first, so that few wait.
void attention_backward(const struct Attention *p, i32 threads) {
    const struct Workspace w = workspace(p);
    const i64 pairs = (i64)p->batch * p->heads_kv;
    i64 next = 0;
#pragma omp parallel num_threads(max_i32(1, threads))
    {
        struct Backward b;
#pragma omp for schedule(static, 1)  // with entmax, long causal rows lie side by side
        for (i64 row = 0; row < all_rows(p); row++) {
            prepare_row(p, w, &b, row / p->tile_rows, (i32)(row % p->tile_rows));
        }
        for (;;) {
            const i64 item = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (item >= pairs * p->tile_cols) break;
            const i64 pair = item % pairs;
            backward_column(p, w, &b, (i32)(pair / p->heads_kv), (i32)(pair % p->heads_kv),
                            (i32)(item / pairs));
        }
#pragma omp barrier
#pragma omp for schedule(static)
        for (i32 head = 0; head < p->heads_q; head++) {
            if (WITH_SINKS && p->dsink) sum_shares(p, p->dsink, w.dsink, head, 1.0f);
            if (WITH_ALIBI && p->dalibi) sum_shares(p, p->dalibi, w.dalibi, head, p->spacing);
        }
    }
}
