// Attention for one mask: sm_90a, bfloat16, head_dim 64, tiles of 16 queries x 16 keys.
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
    float *dalibi;  // backward: [heads_q] to add to, or null
    const float *alibi_slopes;  // [heads_q], or null
    const float *sink_logits;  // [heads_q], or null
    const i32 *row_ptr;  // [lists][tile_rows + 1] offsets into row_tiles
    const i32 *row_tiles;  // tile column * 2 + (1 if every pair is live), ascending
    const i32 *col_ptr;  // backward: [lists][tile_cols + 1] offsets into col_tiles
    const i32 *col_tiles;  // backward: tile row * 2 + (1 if full), ascending
    const i32 *work;  // [items + empty + merges][WORK_FIELDS], see maskc/core/abi.py
    i32 *counter;  // [2], zero before and after every launch: the next work item
    const i32 *head_variant;  // [heads_q] which mask each head has, or null: mask 0
    const i32 *mask_args;  // [variants][1 + N_ARGS]: the formula's shape, its constants
    const i32 *distances;  // [variants] bits of partial tiles, see maskc/layout/
    const i32 *col_turns;  // of each of col_tiles, or null: see maskc/layout/ordered.py
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

FN i32 min_i32(i32 a, i32 b) { return a < b ? a : b; }
FN i32 max_i32(i32 a, i32 b) { return a > b ? a : b; }
// Division and remainder that round towards minus infinity, as the mask's formulas mean them.
FN i32 floor_div(i32 a, i32 b) { return a / b - (a % b < 0); }
FN i32 floor_mod(i32 a, i32 b) { return a % b + (a % b < 0 ? b : 0); }

// The constants and arrays of one head's mask, held in registers.
struct Mask {
    i32 shape;  // which formula, where heads have different ones
    i32 c0;  // n_kv - n_q
};

FN struct Mask load_mask(const struct Attention *p, i32 batch, i32 head) {
    struct Mask m;
    const i32 variant = p->head_variant ? p->head_variant[head] : 0;
    const i32 *args = p->mask_args + variant * 2;
    m.shape = args[0];
    m.c0 = args[1];
    return m;
}

// Whether query q sees key k. Evaluated in partial tiles only.
FN i32 keep_0(struct Mask m, i32 q, i32 k, i32 n_q, i32 n_kv) {
    return
        // line 98: block_diagonal(16)
        floor_div(q + m.c0, 16) == k / 16;
}

FN i32 keep(struct Mask m, i32 q, i32 k, i32 n_q, i32 n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

// The live tiles of one tile row (or, transposed, of one tile column).
struct TileList {
    i32 count;
    i32 first, full_first, full_last;
};

struct Tile {
    i32 index;  // tile column of a row's list, tile row of a column's list
    i32 full;   // every pair of it is live: no predicate
};

FN struct TileList row_tiles(const struct Attention *p, struct Mask m, i32 batch, i32 head,
                                  i32 ti) {
    struct TileList list = {0};
    const i32 n_q = p->n_q, n_kv = p->n_kv;
    (void)n_q; (void)n_kv; (void)batch; (void)head;
    i32 last = 0;
    list.first = max_i32(floor_div(m.c0, 16) + ti, 0);
    last = min_i32(min_i32(floor_div(m.c0 + n_q + 15, 16) - 1, (n_kv + 15) / 16 -
            1), floor_div(m.c0 + 15, 16) + ti) + 1;
    list.full_first = floor_div(m.c0, 16) + ti;
    list.full_last = floor_mod(m.c0, 16) == 0 && n_kv > m.c0 + 16 * ti && m.c0 + 16 * ti >= 0
            ? floor_div(m.c0, 16) + ti + 1 : list.full_first;
    list.count = max_i32(0, last - list.first);
    return list;
}

FN struct TileList column_tiles(const struct Attention *p, struct Mask m, i32 batch, i32 head,
                                  i32 tj) {
    struct TileList list = {0};
    const i32 n_q = p->n_q, n_kv = p->n_kv;
    (void)n_q; (void)n_kv; (void)batch; (void)head;
    i32 last = 0;
    list.first = max_i32(floor_div(-m.c0, 16) + tj, 0);
    last = m.c0 + n_q > 16 * tj ? min_i32((n_q + 15) / 16 - 1, floor_div(-m.c0 +
            15, 16) + tj) + 1 : list.first;
    list.full_first = floor_div(-m.c0, 16) + tj;
    list.full_last = floor_mod(m.c0, 16) == 0 && m.c0 + n_q > 16 * tj && 16 * tj >= m.c0 ?
            floor_div(-m.c0, 16) + tj + 1 : list.full_first;
    list.count = max_i32(0, last - list.first);
    return list;
}

FN struct Tile tile_at(struct TileList list, i32 i) {
    struct Tile tile;
    tile.index = list.first + i;
    tile.full = tile.index >= list.full_first && tile.index < list.full_last;
    return tile;
}

typedef unsigned int u32;
typedef unsigned long long u64;
#define ELEMENT "bf16"
#define MINUS_INFINITY __int_as_float(0xff800000)
#define PLUS_INFINITY __int_as_float(0x7f800000)
constexpr float LOG2E = 1.4426950408889634f;
[[maybe_unused]] constexpr float LN2 = 0.6931471805599453f;

FN u32 shared_address(const void *pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Two numbers in storage precision, the first in the low half.
FN u32 pack(float low, float high) {
    u32 pair;
    asm("cvt.rn." ELEMENT "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

FN float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float fast_log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
FN float fast_reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The same value of unknown origin: what follows from it is computed where it is used, and does not
// wait in registers from before a loop.
FN i32 anew(i32 x) {
    asm volatile("" : "+r"(x));
    return x;
}

FN float anew_float(float x) {
    asm volatile("" : "+f"(x));
    return x;
}

// Over the four lanes that share a row of an accumulator.
FN float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
FN float quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffff, x, 1);
    return x + __shfl_xor_sync(0xffffffff, x, 2);
}
// The first lane's value, which all lanes then share: branches on it are uniform.
FN i32 uniform(i32 x) { return __shfl_sync(0xffffffff, x, 0); }

FN float2 unpack(u32 pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// c += a b: 16 x 16 times 16 x 8, accumulated in fp32.
FN void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT "." ELEMENT ".f32 "
        "{ %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

FN float dot(uint4 a, uint4 b) {
    const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 u = unpack(x[i]), v = unpack(y[i]);
        sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
    }
    return sum;
}

constexpr int HEAD_DIM = 64;  // elements of a row of q, k, v and out
constexpr int TILE_Q = 16;  // queries of a tile
constexpr int TILE_K = 16;  // keys of a tile
constexpr int WARPS = 4;  // of a block: each has tiles of its own
constexpr int BLOCKS = 2;  // that a multiprocessor runs at once

constexpr int THREADS = 32 * WARPS;
constexpr int SLICES = HEAD_DIM / 32;  // of a row, in products along rows
constexpr int SPANS = HEAD_DIM / 64;   // of a row, in products across rows
static_assert(TILE_Q == 16 && TILE_K == 16 && HEAD_DIM % 64 == 0, "a tile is one fragment");

// A warp's accumulators. Scores: [8 keys][row lane / 4, and + 8; keys 2 * (lane % 4), and + 1].
// Output: the same rows, 64 columns a span; of these, numbers 2 i and 2 i + 1 hold elements 2 i and
// 2 i + 1 of two pieces of 8, the ones at lane % 4 and at lane % 4 + 4.
typedef float Scores[2][4];
typedef float Span[8][4];

template <int COUNT>
FN void clear(float (&x)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.0f;
}

FN i32 lane_row() { return threadIdx.x % 32 / 4; }  // of an accumulator; the other is 8 below
FN i32 lane_column() { return threadIdx.x % 4 * 2; }

// The rows of one head of a tensor.
struct Rows {
    const unsigned char *first;
    i64 pitch;  // bytes from one to the next
    i32 count;
};
FN struct Rows rows_of(const void *tensor, const i64 (&stride)[3], i32 batch, i32 head,
                       i32 count) {
    const i64 start = batch * stride[0] + head * stride[1];
    return {(const unsigned char *)tensor + 2 * start, 2 * stride[2], count};
}
// Eight elements of a row; of one past the end those of the last row, whose weights are zeros. No
// load by the read-only path: it would leave its loop, and wait in registers.
FN uint4 load_piece(const struct Rows &rows, i32 row, i32 column) {
    const i64 inside = min_i32(row, rows.count - 1);
    return *(const uint4 *)(rows.first + inside * rows.pitch + 2 * column);
}
FN uint4 *piece_at(void *tensor, const i64 (&stride)[3], i32 batch, i32 head, i32 row,
                   i32 column) {
    const i64 start = batch * stride[0] + head * stride[1] + row * stride[2];
    return (uint4 *)((unsigned char *)tensor + 2 * (start + column));
}

// Sixteen rows as operands of products along them, 32 elements of each. A lane has 8 consecutive
// ones of rows lane / 4 and + 8: another order than the instruction's, but the same in both
// operands, and sums do not depend on it.
struct Slice {
    uint4 low, high;
};
FN struct Slice load_slice(const struct Rows &rows, i32 first, int slice) {
    const i32 row = first + lane_row(), column = 32 * slice + threadIdx.x % 4 * 8;
    return {load_piece(rows, row, column), load_piece(rows, row + 8, column)};
}
// s += a b^T
FN void multiply_along(Scores &s, const struct Slice &a, const struct Slice &b) {
    const u32 left[4] = {a.low.x, a.high.x, a.low.y, a.high.y};
    const u32 right[4] = {a.low.z, a.high.z, a.low.w, a.high.w};
    multiply(s[0], left, b.low.x, b.low.y);
    multiply(s[1], left, b.high.x, b.high.y);
    multiply(s[0], right, b.low.z, b.low.w);
    multiply(s[1], right, b.high.z, b.high.w);
}

// A span of sixteen rows as the operand of a product across them. A lane has 8 elements of four
// rows, such that what four lanes hold of a row of the result is 64 bytes in a row.
typedef u32 Across[4][4];
FN void load_span(Across &x, const struct Rows &rows, i32 first, int u) {
    const i32 row = first + lane_column();
    const i32 column = 64 * u + (lane_row() / 2 + lane_row() % 2 * 4) * 8;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const uint4 own = load_piece(rows, row + r % 2 + r / 2 * 8, column);
        x[r][0] = own.x, x[r][1] = own.y, x[r][2] = own.z, x[r][3] = own.w;
    }
}
// o += w x
FN void multiply_span(Span &o, const u32 (&w)[4], const Across &x) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        constexpr u32 LOW = 0x5410, HIGH = 0x7632;  // halves of two words
        multiply(o[2 * i], w, __byte_perm(x[0][i], x[1][i], LOW),
                 __byte_perm(x[2][i], x[3][i], LOW));
        multiply(o[2 * i + 1], w, __byte_perm(x[0][i], x[1][i], HIGH),
                 __byte_perm(x[2][i], x[3][i], HIGH));
    }
}

// Where the pieces of an accumulator's row are: `c` tells two apart.
FN i32 piece_column(int u, int c) { return 64 * u + 8 * (threadIdx.x % 4 + 4 * c); }
// One of them in storage precision, times `scale`, and `share` of what is there already.
FN uint4 pack_piece(const Span &o, int r, int c, float scale, float share, uint4 there) {
    const u32 before[4] = {there.x, there.y, there.z, there.w};
    u32 made[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 y = unpack(before[i]);
        const float low = o[2 * i][2 * r + c], high = o[2 * i + 1][2 * r + c];
        made[i] = pack(fmaf(y.x, share, low * scale), fmaf(y.y, share, high * scale));
    }
    return make_uint4(made[0], made[1], made[2], made[3]);
}

// Scores and weights as the left operand of a product.
FN void pack_weights(u32 (&w)[4], const Scores &s) {
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = pack(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
}

struct Logit {
    float unit;       // of a score, or of what the soft cap makes of it
    float sharpness;  // of the soft cap: tanh(scale x / cap) is 1 - 2 / (2^(sharpness x) + 1)
    float slope;      // of ALiBi
};
FN struct Logit logit_of(const struct Attention &p, i32 head) {
    struct Logit logit;
    logit.unit = (WITH_SOFTCAP ? p.softcap : p.scale) * LOG2E;
    logit.sharpness = WITH_SOFTCAP ? 2.0f * LOG2E * p.scale * fast_reciprocal(p.softcap) : 0.0f;
    logit.slope = WITH_ALIBI ? p.alibi_slopes[head] * p.spacing * LOG2E : 0.0f;
    return logit;
}

// Of queries first_q + lane / 4, and + 8.
FN void make_logits(Scores &s, const struct Attention &p, const struct Logit &logit, i32 first_q,
                    i32 first_k) {
    const i32 q = first_q + lane_row(), k = first_k + lane_column();
    const float distance = (float)(q + (p.n_kv - p.n_q) - k);
    (void)distance;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float x = s[n][e];
#if WITH_SOFTCAP
            // tanh by one exponential: the approximate instruction is too coarse for logits.
            x = 1.0f - 2.0f * fast_reciprocal(fast_exp2(x * logit.sharpness) + 1.0f);
#endif
            x *= logit.unit;
#if WITH_ALIBI
            x -= logit.slope * fabsf(distance + (8 * (e / 2) - 8 * n - e % 2));
#endif
            s[n][e] = x;
        }
}

// Whether some pairs of a tile are dead, or lie past the end.
FN bool is_masked(const struct Attention &p, struct Tile tile, i32 first_q, i32 first_k) {
    return !tile.full || p.n_q - first_q < TILE_Q || p.n_kv - first_k < TILE_K;
}
FN void hide_rest(Scores &s, const struct Attention &p, const struct Mask &mask, i32 full,
                  i32 first_q, i32 first_k) {
    const i32 n_q = p.n_q, n_kv = p.n_kv;
    const i32 q = first_q + lane_row(), k = first_k + lane_column();
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const i32 row = q + 8 * (e / 2), column = k + 8 * n + e % 2;
            const bool inside = row < n_q && column < n_kv;
            if (!inside || !(full || keep(mask, row, column, n_q, n_kv)))
                s[n][e] = MINUS_INFINITY;
        }
}

// A matrix of 8 x 8, transposed: lane l holds elements 2 (l % 4) and + 1 of row l / 4.
FN u32 transposed(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
// Weights by keys instead of queries.
FN void transpose_weights(u32 (&to)[4], const u32 (&w)[4]) {
    to[0] = transposed(w[0]);
    to[1] = transposed(w[2]);
    to[2] = transposed(w[1]);
    to[3] = transposed(w[3]);
}

// A row of tiles (or, for keys and values, a column) of one head, and a span of its elements: warps
// side by side have those of one row.
struct Place {
    i32 tile, head, batch, span;
};
FN struct Place place_of(u32 index, u32 tiles, u32 heads) {
    const u32 row = index / SPANS, line = row / tiles;
    return {(i32)(row % tiles), (i32)(line % heads), (i32)(line / heads), (i32)(index % SPANS)};
}

FN void store_span(void *tensor, const i64 (&stride)[3], struct Place at, i32 count, const Span &x,
                   float scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = 16 * at.tile + lane_row() + 8 * r;
        if (row >= count) continue;
#pragma unroll
        for (int c = 0; c < 2; c++)
            *piece_at(tensor, stride, at.batch, at.head, row, piece_column(at.span, c)) =
                pack_piece(x, r, c, scale, 0.0f, make_uint4(0, 0, 0, 0));
    }
}

// dq of the queries of a tile row that has no tile: nobody else writes what is zero.
FN void clear_lonely(const struct Attention &p, u32 index) {
    const struct Place at = place_of(index, p.tile_rows, p.heads_q);
    if (at.batch >= p.batch) return;
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    if (row_tiles(&p, mask, at.batch, at.head, at.tile).count > 0) return;
    Span nothing;
    clear(nothing);
    store_span(p.dq, p.dq_stride, at, p.n_q, nothing, 1.0f);
}

// lse in powers of two of a lane's two rows.
FN void read_levels(float (&level)[2], const struct Attention &p, struct Place at) {
    const float *const lse = p.lse + at.batch * p.lse_stride[0] + at.head * p.lse_stride[1];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 q = min_i32(at.tile * TILE_Q + lane_row() + 8 * r, p.n_q - 1);
        const float own = __ldg(lse + q * p.lse_stride[2]);
        level[r] = own == MINUS_INFINITY ? 0.0f : own * LOG2E;  // all pairs of such a row are dead
    }
}

// Scores and dp = dout . v become weights p and gradients ds = p (dp - delta) of logits.
FN void make_gradients(Scores &s, Scores &dp, const float (&level)[2], const float (&delta)[2],
                       const struct Attention &p, const struct Logit &logit,
                       const struct Mask &mask, struct Tile tile, i32 first_q, i32 first_k) {
    make_logits(s, p, logit, first_q, first_k);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            dp[n][e] -= delta[e / 2];
#if WITH_SOFTCAP
            const float bend = s[n][e] * fast_reciprocal(logit.unit);  // the tanh
            dp[n][e] *= 1.0f - bend * bend;
#endif
        }
    if (is_masked(p, tile, first_q, first_k))
        hide_rest(s, p, mask, tile.full, first_q, first_k);
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[n][e] = fast_exp2(s[n][e] - level[e / 2]);
            dp[n][e] *= s[n][e];
        }
}

// One tile of a query head: stores a span of its rows of dq, and adds to dk and dv of its column.
FN void add_tile(Span &dk, Span &dv, const struct Attention &p, struct Tile tile, struct Place at,
                 i32 head, const struct Mask &mask) {
    const i32 first_q = tile.index * TILE_Q, first_k = at.tile * TILE_K;
    const struct Place row = {tile.index, head, at.batch, at.span};
    const struct Rows q = rows_of(p.q, p.q_stride, at.batch, head, p.n_q);
    const struct Rows k = rows_of(p.k, p.k_stride, at.batch, at.head, p.n_kv);
    const struct Rows v = rows_of(p.v, p.v_stride, at.batch, at.head, p.n_kv);
    const struct Rows out = rows_of(p.out, p.out_stride, at.batch, head, p.n_q);
    const struct Rows dout = rows_of(p.dout, p.dout_stride, at.batch, head, p.n_q);
    Scores s, dp;
    float level[2], delta[2] = {0.0f, 0.0f};
    read_levels(level, p, row);
    clear(s);
    clear(dp);
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        const struct Slice x = load_slice(dout, first_q, i), y = load_slice(out, first_q, i);
        multiply_along(s, load_slice(q, first_q, i), load_slice(k, first_k, i));
        multiply_along(dp, x, load_slice(v, first_k, i));
        delta[0] += dot(x.low, y.low);
        delta[1] += dot(x.high, y.high);
    }
    delta[0] = quad_sum(delta[0]);
    delta[1] = quad_sum(delta[1]);
    make_gradients(s, dp, level, delta, p, logit_of(p, head), mask, tile, first_q, first_k);
    u32 w[4], by_key[4];
    Across x;
    pack_weights(w, s);
    transpose_weights(by_key, w);
    load_span(x, dout, first_q, at.span);
    multiply_span(dv, by_key, x);
    pack_weights(w, dp);
    transpose_weights(by_key, w);
    load_span(x, q, first_q, at.span);
    multiply_span(dk, by_key, x);
    Span dq;
    clear(dq);
    load_span(x, k, first_k, at.span);
    multiply_span(dq, w, x);
    store_span(p.dq, p.dq_stride, row, p.n_q, dq, p.scale);
}

// All of a column: the tiles of every query head that shares its keys and values.
FN void take_column(const struct Attention &p, struct Place at) {
    Span dk, dv;
    clear(dk);
    clear(dv);
    const i32 group = p.heads_q / p.heads_kv;
#pragma unroll 1
    for (i32 head = at.head * group; head < (at.head + 1) * group; head++) {
        const struct Mask mask = load_mask(&p, at.batch, head);
        const struct TileList list = column_tiles(&p, mask, at.batch, head, at.tile);
#pragma unroll 1
        for (i32 i = 0; i < list.count; i++)
            add_tile(dk, dv, p, tile_at(list, i), at, head, mask);
    }
    store_span(p.dk, p.dk_stride, at, p.n_kv, dk, p.scale);
    store_span(p.dv, p.dv_stride, at, p.n_kv, dv, 1.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_backward(const __grid_constant__ struct Attention p) {
    const u32 index = blockIdx.x * WARPS + uniform(threadIdx.x / 32);
    const struct Place at = place_of(index, p.tile_cols, p.heads_kv);
    if (at.batch < p.batch) take_column(p, at);
    clear_lonely(p, index);  // last, as what it reads is then near
}
