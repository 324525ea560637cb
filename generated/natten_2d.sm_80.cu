// Attention for one mask: sm_80, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

constexpr int HEAD_DIM = 128;  // elements of a row of q, k, v and out
constexpr int TILE_Q = 64;  // queries per block
constexpr int TILE_K = 64;  // keys per step
constexpr int WARPS = 2;
constexpr int MIN_BLOCKS = 4;  // resident per multiprocessor
// A warp's q stays in registers.
constexpr bool KEEP_Q = 0;
// Tops and sums wait in shared memory between uses.
constexpr bool PARK_ROWS = 1;
// Keys and values of so many tokens fit the L2 cache.
constexpr int GROUP_KEYS = 65536;
// Bytes that struct Block may take, and of all shared memory.
[[maybe_unused]] constexpr int BLOCK_BYTES = 1024;
[[maybe_unused]] constexpr int MEMORY = 52224;
// Tiles come as lists in memory, or as ranges of consecutive ones.
[[maybe_unused]] constexpr bool TILE_LISTS = 1;

// What follows from the numbers of a schedule, see gen/constants.cuh.j2.

constexpr int UNROLL = 4;  // columns of a partial tile that one turn of a loop tests

constexpr int THREADS = 32 * WARPS;
constexpr int FRAGMENTS = TILE_Q / (16 * WARPS);  // 16-row fragments per warp
constexpr int ROWS = 2 * FRAGMENTS;               // rows per thread: lane / 4 + 8 * r
constexpr int DEPTH = HEAD_DIM / 16;              // 16-column steps along a row
constexpr int PITCH = 2 * HEAD_DIM;               // bytes of a row in shared memory
constexpr int CHUNKS = HEAD_DIM / 8;              // 16-byte pieces of a row
constexpr int SPAN = CHUNKS % 8 ? 4 : 8;          // pieces that trade places, see place()
constexpr int COPY_ROWS = THREADS / SPAN;         // rows that all threads copy at once

static_assert(TILE_Q % (16 * WARPS) == 0 && TILE_K % 16 == 0 && HEAD_DIM % 32 == 0,
              "tiles are made of 16 x 16 fragments");
static_assert(TILE_K <= 64, "the bits of two rows fit one word");
static_assert(COPY_ROWS % 8 == 0 && TILE_Q % COPY_ROWS == 0 && TILE_K % COPY_ROWS == 0,
              "every thread copies the same number of rows, eight or more apart");

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

// Numbers in memory are bfloat16. Gives ELEMENT, the type's name in PTX, and what depends on it.

#define ELEMENT "bf16"
[[maybe_unused]] constexpr bool BFLOAT16 = true;
[[maybe_unused]] constexpr float ROUNDING = 0x1p-8f;  // of a stored number, relative
[[maybe_unused]] constexpr unsigned EXPONENT = 0x7f80;  // all ones: infinity or NaN
[[maybe_unused]] constexpr unsigned ONE = 0x3f80;
// What every CUDA family needs of the machine: short type names, numbers, instructions.
// Needs: FN, common/lib/element_*.cuh.

typedef unsigned int u32;
typedef unsigned long long u64;
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

// Two numbers in storage precision as fp32. Needs: common/lib/device.cuh.

FN float2 unpack(u32 pair) {
    if (BFLOAT16)
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
    float2 x;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;\n"
        "}" : "=f"(x.x), "=f"(x.y) : "r"(pair));
    return x;
}

// The instructions of sm_80, one wrapper each.

// 16 bytes from global to shared memory, in the background; zeros instead where `inside` is false.
FN void copy_async(u32 to, const void *from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
FN void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
FN void copy_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }

// Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
FN void load_matrices(u32 (&x)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from));
}
FN void load_matrices_transposed(u32 (&x)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 { %0, %1, %2, %3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3]) : "r"(from));
}

// The matrix product of a warp. The includer defines FN and ELEMENT.

// c += a b: 16 x 16 times 16 x 8, accumulated in fp32.
FN void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT "." ELEMENT ".f32 "
        "{ %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rows of a tensor in shared memory: where they lie, and how they get there.
// Needs: ptx.cuh; PITCH, CHUNKS, SPAN, COPY_ROWS, THREADS.

// Where a 16-byte piece of a row lies in a tile. SPAN neighbouring pieces of a row trade places, so
// that the same piece of eight consecutive rows lies in eight different groups of banks.
FN u32 place(u32 row, u32 chunk) {
    return row * PITCH + 16 * (chunk ^ (row / (8 / SPAN) % SPAN));
}

// Where a lane points ldmatrix for the first 16 x 16 block of a tile: at its rows in order (operand
// A, or B transposed), or at its two halves of eight rows (operand B).
FN u32 lane_in_rows() {
    const u32 lane = anew(threadIdx.x) % 32;
    return place(lane % 16, lane / 16);
}
FN u32 lane_in_halves() {
    const u32 lane = anew(threadIdx.x) % 32;
    return place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}
// From there, the block `down` blocks below and `right` blocks to the right.
FN u32 fragment_at(u32 lane_address, int down, int right) {
    const u32 pieces = 2 * right;
    const u32 swapped = lane_address ^ (16 * (pieces % SPAN));
    return swapped + down * 16 * PITCH + 16 * (pieces - pieces % SPAN);
}

// The first row of one head of one sequence.
FN unsigned char *head_rows(const void *tensor, const i64 (&stride)[3], i32 batch, i32 head) {
    return (unsigned char *)tensor + 2 * (batch * stride[0] + head * stride[1]);
}

// Starts to copy rows first, first + 1, ... to a tile of COUNT rows; rows past `end` become zeros.
template <int COUNT>
FN void load_tile(u32 tile, const unsigned char *rows, const i64 (&stride)[3], i32 first, i32 end) {
    const i32 row = threadIdx.x / SPAN, chunk = threadIdx.x % SPAN;
    const unsigned char *from = rows + (first + row) * stride[2] * 2 + 16 * chunk;
    const u32 to = tile + place(row, chunk);
    const i32 left = end - first - row;
#pragma unroll
    for (int i = 0; i < COUNT; i += COPY_ROWS) {
#pragma unroll
        for (int j = 0; j < CHUNKS; j += SPAN)
            copy_async(to + i * PITCH + 16 * j, from + 16 * j, i < left);
        from += COPY_ROWS * stride[2] * 2;
    }
    copy_commit();
}

// Which rows a block computes, and what its threads share.
// Needs: load.cuh; Mask and lists of tiles. Gives: Block.

// What the logits of one head are made of: the soft cap bends a score, then ALiBi adds to it; or a
// formula of the score takes their place, see common/gen/score.h.j2.
// Gives: Logit, logit_of, BENT, to_logit, logit_slope.

// Whether features need registers that the plain kernel fills with what it loads early.
constexpr bool SHORT_OF_REGISTERS = PARK_ROWS && (WITH_ALIBI || WITH_NAN_SAFE || WITH_ENTMAX);

// Whether a logit is more than its score times a factor.
constexpr bool BENT = WITH_SOFTCAP || WITH_ALIBI;

struct Logit {
    float unit;       // of what `to_logit` leaves, in powers of two; with entmax, times alpha - 1
    float slope;      // of ALiBi
    float sharpness;  // of the soft cap: tanh(scale x / cap) is 1 - 2 / (2^(sharpness x) + 1)
};

FN struct Logit logit_of(const struct Attention *p, i32 head) {
    struct Logit logit;
    // A scale of zero must not turn the mask's -inf into NaN.
    const float whole = WITH_ENTMAX ? p->alpha_minus_1 : LOG2E;
    logit.unit = WITH_ALIBI ? whole
               : WITH_SOFTCAP ? p->softcap * whole
                              : fmaxf(fabsf(p->scale) * whole, 1e-30f);
    logit.slope = WITH_ALIBI ? p->alibi_slopes[head] * p->spacing : 0.0f;
    logit.sharpness = WITH_SOFTCAP ? 2.0f * LOG2E * p->scale * fast_reciprocal(p->softcap) : 0.0f;
    return logit;
}

// The logit of a score q . k, up to `unit`, which the exponential applies. `slope` is ALiBi's of
// the row, and `steps` tells how far its query is from the key.
FN float to_logit(float x, const struct Attention *p, float sharpness, float slope, float steps) {
#if WITH_SOFTCAP
    // tanh by one exponential: the approximate instruction is too coarse for logits.
    x = 1.0f - 2.0f * fast_reciprocal(fast_exp2(x * sharpness) + 1.0f);
#endif
#if WITH_ALIBI
    x = x * (WITH_SOFTCAP ? p->softcap : p->scale) - slope * steps;
#endif
    return x;
}

// The derivative of a logit by scale times its score.
FN float logit_slope(float x, const struct Attention *p, float slope, float steps) {
#if WITH_SOFTCAP
    if (WITH_ALIBI) x = (x + slope * steps) * fast_reciprocal(p->softcap);
    return fmaxf(1.0f - x * x, 0.0f);
#else
    return 1.0f;
#endif
}

struct Work {
    i32 row, head, batch;  // row of tiles
};

// Heads run in groups whose keys and values fit the L2 cache; inside a group the last tile rows,
// which are the longest ones of a causal mask, come first. A grid has at most 2^31 - 1 blocks, so
// that 32 bits count them.
FN struct Work work_of(const struct Attention *p, u32 index) {
    const u32 heads = p->batch * p->heads_q, rows = p->tile_rows;
    const u32 kv_heads = GROUP_KEYS / max_i32(1, p->n_kv);
    const i64 fit = (i64)kv_heads * (p->heads_q / p->heads_kv);
    const u32 size = fit < 1 ? 1 : fit < heads ? (u32)fit : heads;
    const u32 group = index / (size * rows), rest = index % (size * rows);
    const u32 here = heads - group * size < size ? heads - group * size : size;
    const u32 head = group * size + rest % here;
    return {(i32)(rows - 1 - rest / here), (i32)(head % p->heads_q), (i32)(head / p->heads_q)};
}

// What the threads of a block share. It lies in shared memory because registers are short.
struct Block {
    struct Work work;
    struct Mask mask;
    struct TileList list;
    struct Logit logit;
    const unsigned char *k, *v;  // first rows of the head
};

FN void start_block(struct Block &block, const struct Attention *p) {
    const struct Work work = block.work;
    const i32 kv_head = work.head / (p->heads_q / p->heads_kv);
    block.mask = load_mask(p, work.batch, work.head);
    block.list = row_tiles(p, block.mask, work.batch, work.head, work.row);
    block.logit = logit_of(p, work.head);
    block.k = head_rows(p->k, p->k_stride, work.batch, kv_head);
    block.v = head_rows(p->v, p->v_stride, work.batch, kv_head);
}

static_assert(sizeof(struct Block) <= BLOCK_BYTES,
              "the mask has too many constants");

// Rows and columns of a tile that a warp and a lane hold; see Scores for the others.
FN i32 first_row() { return threadIdx.x / 32 * 16 * FRAGMENTS; }
FN i32 warp_query(struct Work work, i32 warp) {
    return work.row * TILE_Q + warp * 16 * FRAGMENTS;
}
FN i32 lane_query(struct Work work) {
    return warp_query(work, threadIdx.x / 32) + threadIdx.x % 32 / 4;
}
FN i32 lane_key(i32 first) { return first + anew(threadIdx.x) % 4 * 2; }

// The shared memory of a block; its size is in maskc/plan/families/sm80.py.
struct Shared {
    unsigned char q[TILE_Q * PITCH];
    unsigned char k[TILE_K * PITCH];
    unsigned char v[TILE_K * PITCH];
    float top[PARK_ROWS ? THREADS : 1][ROWS], sum[PARK_ROWS ? THREADS : 1][ROWS];
    struct Block block;
};

// Between the two products: what is seen, the running softmax.
// Needs: constants.cuh. Gives: Scores, Seen, Output.

// A warp's accumulators: [fragment][8-column group][row lane / 4 and + 8, columns 2 * (lane % 4)
// and + 1].
typedef float Scores[FRAGMENTS][TILE_K / 8][4];
typedef float Output[FRAGMENTS][HEAD_DIM / 8][4];

template <int GROUPS>
FN void clear(float (&x)[FRAGMENTS][GROUPS][4]) {
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
        for (int n = 0; n < GROUPS; n++) x[m][n][0] = x[m][n][1] = x[m][n][2] = x[m][n][3] = 0.0f;
}

// What a running softmax is relative to.

// A row's exponentials are relative to its top, a logit in powers of two. The top is kept until a
// logit passes it by STALE: P stays below 2^8. NO_TOP is below every logit, and -inf minus it is
// -inf.
constexpr float STALE = 8.0f;
constexpr float NO_TOP = -1e30f;

// Which keys of a tile the thread's rows see, sixteen bits a row and two rows a word: bit
// 16 * (r % 2) + 2 * n + e of word[r / 2] is of row r, column 2 * (lane % 4) + 8 * n + e.
struct Seen {
    u32 word[ROWS / 2];
};

FN struct Seen everything() {
    struct Seen seen;
#pragma unroll
    for (int m = 0; m < ROWS / 2; m++) seen.word[m] = 0xffffffff;
    return seen;
}

FN void hide_rest(Scores &s, struct Seen seen) {
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
        for (int n = 0; n < TILE_K / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!(seen.word[m] >> (16 * (e / 2) + 2 * n + e % 2) & 1))
                    s[m][n][e] = MINUS_INFINITY;
}

// A factor for out. With nan_safe it never underflows to zero, so that infinities outlive it.
FN float not_zero(float factor) {
    constexpr float LEAST = 0x1p-126f;
    return WITH_NAN_SAFE && factor < LEAST ? LEAST : factor;
}

// Raises the rows' tops where a logit is far above, and rescales what was summed under the old
// ones.
// Tops are the same in a quad; sums and out are each lane's own share.
FN void raise_tops(const Scores &s, float unit, float (&top)[ROWS], float (&sum)[ROWS], Output &o) {
    float peak[ROWS], base[ROWS];
    bool far = false;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        base[r] = top[r];
        peak[r] = MINUS_INFINITY;
#pragma unroll
        for (int n = 0; n < TILE_K / 8; n++)
            peak[r] = fmaxf(peak[r], fmaxf(s[r / 2][n][r % 2 * 2], s[r / 2][n][r % 2 * 2 + 1]));
        peak[r] *= unit;
        far |= peak[r] - base[r] > STALE;
    }
    if (!__any_sync(0xffffffff, far)) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        top[r] = fmaxf(base[r], quad_max(peak[r]));
        const float factor = not_zero(fast_exp2(base[r] - top[r]));
        sum[r] *= factor;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            o[r / 2][n][r % 2 * 2] *= factor;
            o[r / 2][n][r % 2 * 2 + 1] *= factor;
        }
    }
}

// Tiles of consecutive queries and keys: scores to logits, the mask.
// Needs: logit.cuh, softmax.cuh, work.cuh; keep of the mask.

// Scores q . k become logits up to the factor `unit`, which the exponential applies.
FN void make_logits(Scores &s, const struct Attention *p, const struct Block &block, i32 first_k) {
#if WITH_SOFTCAP || WITH_ALIBI
    const struct Logit logit = block.logit;
    const i32 thread = anew(threadIdx.x), q = warp_query(block.work, thread / 32) + thread % 32 / 4;
    const float distance = (float)(q + (p->n_kv - p->n_q) - (first_k + thread % 4 * 2));
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
        for (int n = 0; n < TILE_K / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float steps =
                    WITH_ALIBI ? fabsf(distance + (16 * m + 8 * (e / 2) - 8 * n - e % 2)) : 0.0f;
                s[m][n][e] = to_logit(s[m][n][e], p, logit.sharpness, logit.slope, steps);
            }
#else
    if (p->scale < 0.0f)
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
            for (int n = 0; n < TILE_K / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[m][n][e] = -s[m][n][e];
#endif
}

// What queries lane / 4 + 8 r of a warp see of a tile's keys.
FN struct Seen seen_by(const struct Attention *p, const struct Block &block, struct Tile tile) {
    const struct Mask mask = block.mask;
    const i32 n_q = p->n_q, n_kv = p->n_kv;
    const i32 q = lane_query(block.work), k = lane_key(tile.index * TILE_K);
    struct Seen seen = {};
#pragma unroll UNROLL
    for (int i = 0; i < TILE_K / 4; i++) {
        const i32 column = k + i / 2 * 8 + i % 2, inside = min_i32(column, n_kv - 1);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const i32 row = min_i32(q + 8 * r, n_q - 1);
            const u32 live = tile.full | (keep(mask, row, inside, n_q, n_kv) != 0);
            seen.word[r / 2] |= (live & (column < n_kv)) << (16 * (r % 2) + i);
        }
    }
    return seen;
}

// nan_safe: rows of v that are not finite reach only the queries that see their keys.
// Needs: load.cuh, softmax.cuh.

#if WITH_NAN_SAFE
FN bool is_finite(u32 bits) { return (bits & EXPONENT) != EXPONENT; }
FN u32 only_finite(u32 pair) {
    return (is_finite(pair) ? pair & 0xffff : 0) | (is_finite(pair >> 16) ? pair & 0xffff0000 : 0);
}
// The fp32 infinity or NaN that stands for 16 bits, zero for a finite value.
FN float not_finite(u32 bits) {
    const u32 sign = (bits & 0x8000) << 16, nan = (bits & 0x7fff) > EXPONENT ? 0x400000 : 0;
    return is_finite(bits) ? 0.0f : __int_as_float(sign | 0x7f800000 | nan);
}

// Zero times a v that is not finite is NaN, be p zero because the mask hides the key or because it
// underflowed, which no exponential does. So those values leave the tile, zeros stay, and the
// queries that see their key get them here as they are; not_zero() keeps them in out.
FN void quarantine(Output &o, unsigned char *v_tile, struct Seen seen) {
    bool found = false;
#pragma unroll 1
    for (i32 i = anew(threadIdx.x); i < TILE_K * CHUNKS; i += THREADS) {
        const uint4 x = ((const uint4 *)v_tile)[i];
        found |= only_finite(x.x) != x.x || only_finite(x.y) != x.y || only_finite(x.z) != x.z
            || only_finite(x.w) != x.w;
    }
    if (!__syncthreads_or(found)) return;
    const i32 lane = anew(threadIdx.x) % 32;
#pragma unroll 1
    for (i32 i = 0; i < TILE_K; i++) {
        u32 sees[ROWS / 2];  // bits 0 and 16, from the lane of the quad that has the key's column
#pragma unroll
        for (int m = 0; m < ROWS / 2; m++)
            sees[m] = __shfl_sync(0xffffffff, seen.word[m], lane / 4 * 4 + i % 8 / 2)
                >> (i / 8 * 2 + i % 2);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            const u32 pair = *(const u32 *)(v_tile + place(i, n) + 4 * (lane % 4));
            if (only_finite(pair) == pair) continue;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const bool sees_it = sees[r / 2] >> (16 * (r % 2)) & 1;
                o[r / 2][n][r % 2 * 2] += sees_it ? not_finite(pair) : 0.0f;
                o[r / 2][n][r % 2 * 2 + 1] += sees_it ? not_finite(pair >> 16) : 0.0f;
            }
        }
    }
    __syncthreads();
#pragma unroll 1
    for (i32 i = anew(threadIdx.x); i < TILE_K * CHUNKS; i += THREADS) {
        uint4 &x = ((uint4 *)v_tile)[i];
        x = {only_finite(x.x), only_finite(x.y), only_finite(x.z), only_finite(x.w)};
    }
    __syncthreads();
}
#endif

// The first product.
// Needs: load.cuh, logit.cuh, softmax.cuh, mma.cuh. Gives: Query, score.

// A warp's rows of q: where they lie, and, where registers allow, their fragments.
struct Query {
    u32 at;
    u32 fragment[KEEP_Q ? DEPTH : 1][FRAGMENTS][4];
};

FN void keep_query(struct Query &q) {
#pragma unroll
    for (int d = 0; d < (KEEP_Q ? DEPTH : 0); d++)
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++)
            load_matrices(q.fragment[d][m], fragment_at(q.at, m, d));
}

// s = q k^T
FN void score(Scores &s, const struct Query &q, u32 k_tile) {
    const u32 k = k_tile + lane_in_halves();
    clear(s);
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        if (SHORT_OF_REGISTERS && d == DEPTH / 2) __syncwarp();  // no load passes it
        u32 a[FRAGMENTS][4], b[4];
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++)
            if constexpr (KEEP_Q)
#pragma unroll
                for (int e = 0; e < 4; e++) a[m][e] = q.fragment[d][m][e];
            else
                load_matrices(a[m], fragment_at(q.at, m, d));
#pragma unroll
        for (int n = 0; n < TILE_K / 16; n++) {
            load_matrices(b, fragment_at(k, n, d));
#pragma unroll
            for (int m = 0; m < FRAGMENTS; m++) {
                multiply(s[m][2 * n], a[m], b[0], b[1]);
                multiply(s[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// The second product.
// Needs: load.cuh, softmax.cuh, mma.cuh. Gives: add_values.

// o += p v, sixteen keys at a time: `pair(m, n, i)` makes two weights, register i of fragment m,
// between the products. `v` is where the lane finds them, in rows.
template <typename F>
FN void add_values(Output &o, u32 v, const F &pair) {
#pragma unroll
    for (int n = 0; n < TILE_K / 16; n++) {
        u32 a[FRAGMENTS][4], b[4];
#pragma unroll
        for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
            for (int i = 0; i < 4; i++) a[m][i] = pair(m, n, i);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            load_matrices_transposed(b, fragment_at(v, n, d));
#pragma unroll
            for (int m = 0; m < FRAGMENTS; m++) {
                multiply(o[m][2 * d], a[m], b[0], b[1]);
                multiply(o[m][2 * d + 1], a[m], b[2], b[3]);
            }
        }
    }
}

// The same with p = 2^(s unit - top), whose sums grow.
FN void accumulate(Output &o, float (&sum)[ROWS], const Scores &s, const float (&top)[ROWS],
                   float unit, u32 v_tile) {
    const u32 v = v_tile + lane_in_rows();
    float base[ROWS], share[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) base[r] = top[r], share[r] = 0.0f;
    add_values(o, v, [&](int m, int n, int i) {
        const int r = 2 * m + i % 2;
        const float *x = &s[m][2 * n + i / 2][i % 2 * 2];
        const float low = fast_exp2(x[0] * unit - base[r]);
        const float high = fast_exp2(x[1] * unit - base[r]);
        share[r] += low + high;
        return pack(low, high);
    });
#pragma unroll
    for (int r = 0; r < ROWS; r++) sum[r] += share[r];
}

// A row's sum, joined with that of other keys.

// What a row's other keys gave before becomes one key more: its lse is that key's logit, out its
// value. Returns its weight.
FN float join_sum(float lse, float &total, float &base, float &factor) {
    const float before = lse * LOG2E, higher = fmaxf(base, before);
    const float shrink = fast_exp2(base - higher), weight = fast_exp2(before - higher);
    factor *= shrink;
    total = total * shrink + weight;
    base = higher;
    return weight;
}

// Where a query's lse and out are.
FN float &lse_of(const struct Attention *p, struct Work work, i32 q) {
    return p->lse[work.batch * p->lse_stride[0] + work.head * p->lse_stride[1]
                  + q * p->lse_stride[2]];
}
FN unsigned char *out_of(const struct Attention *p, struct Work work, i32 q) {
    return head_rows(p->out, p->out_stride, work.batch, work.head) + q * p->out_stride[2] * 2;
}

// Divides by the rows' sums; writes lse, which with entmax is in `top`, and out through the warp's
// own rows of the q tile.
FN void store(const Output &o, const float (&top)[ROWS], const float (&sum)[ROWS],
              const struct Attention *p, struct Shared &shared) {
    const struct Work work = shared.block.work;
    const i32 lane = threadIdx.x % 32, first = work.row * TILE_Q + first_row();
    unsigned char *const tile = shared.q + first_row() * PITCH;
    float joined[ROWS];  // lse of what a row's other keys gave
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const i32 q = first + lane / 4 + 8 * r;
        joined[r] = p->joins && q < p->n_q ? lse_of(p, work, q) : MINUS_INFINITY;
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float total = WITH_ENTMAX ? sum[r] : quad_sum(sum[r]), base = top[r], factor = 1.0f;
#if WITH_SINKS
        const float sink = p->sink_logits[work.head] * LOG2E;
        base = fmaxf(base, sink);
        factor = fast_exp2(top[r] - base);
        total = total * factor + fast_exp2(sink - base);
#endif
        const i32 row = lane / 4 + 8 * r, q = first + row;
        const bool joins = p->joins && q < p->n_q;
        const float weight = joins ? join_sum(joined[r], total, base, factor) : 0.0f;
        const bool empty = total == 0.0f;
        const float scale = not_zero(factor * fast_reciprocal(total));
        const float share = not_zero(weight * fast_reciprocal(total));
        if (lane % 4 == 0 && q < p->n_q)
            lse_of(p, work, q) =
                WITH_ENTMAX ? base : (base + fast_log2(total)) * LN2;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            const float *x = &o[r / 2][n][r % 2 * 2];
            u32 *to = (u32 *)(tile + place(row, n)) + lane % 4;
            *to = empty ? 0 : pack(x[0] * scale, x[1] * scale);
        }
        if (!joins || empty) continue;
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            const float *x = &o[r / 2][n][r % 2 * 2];
            const float2 before = unpack(((const u32 *)out_of(p, work, q))[4 * n + lane % 4]);
            u32 *to = (u32 *)(tile + place(row, n)) + lane % 4;
            *to = pack(x[0] * scale + before.x * share, x[1] * scale + before.y * share);
        }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * FRAGMENTS; i += 32 / SPAN) {
        const i32 row = i + lane / SPAN;
        uint4 *const to = (uint4 *)out_of(p, work, first + row);
#pragma unroll
        for (int j = 0; j < CHUNKS; j += SPAN) {
            const i32 chunk = j + lane % SPAN;
            if (first + row < p->n_q) to[chunk] = *(const uint4 *)(tile + place(row, chunk));
        }
    }
}

// The tile to come, in one register where they are short, or where a list's entry is just that.
constexpr bool PACKED = TILE_LISTS || SHORT_OF_REGISTERS;
FN void pack(struct Tile &tile) {
    if constexpr (PACKED) tile.index = tile.index * 2 + tile.full;
}
FN void unpack(struct Tile &tile) {
    if constexpr (PACKED) tile.full = tile.index & 1, tile.index >>= 1;
}
FN i32 first_key(const struct Tile &packed) {
    return (PACKED ? packed.index >> 1 : packed.index) * TILE_K;
}

#if WITH_ENTMAX
// alpha-entmax instead of softmax: passes over a row of tiles until its lse is found.
// Needs: scores.cuh, values.cuh, work.cuh.

// alpha-entmax: from a score to its weight, once the row's level is known.
// Gives: Alpha, Weight, by_alpha, power.

// alpha-entmax (Peters, Niculae and Martins, 2019), with a = alpha - 1: a row's weights are
//     p = x^(1/a),  u = x^(1/a - 1) = dp/dscore,  x = max(0, 1 + a * score - level)
// for the one level = a * lse that makes them sum to 1.
// Alpha 1.5 and 2 need no powers; below 1 + 2^-7 the logarithm of x = 1 + y would lose y.
enum Alpha { ANY, NEAR_SOFTMAX, HALF_MORE, SPARSEMAX };
template <Alpha VALUE>
struct Kind {
    static constexpr Alpha value = VALUE;
};
// Calls `f` with the kind of alpha: code that takes one is there four times.
template <typename F>
FN void by_alpha(float a, const F &f) {
    if (a == 0.5f)
        f(Kind<HALF_MORE>());
    else if (a == 1.0f)
        f(Kind<SPARSEMAX>());
    else if (a < 0x1p-7f)
        f(Kind<NEAR_SOFTMAX>());
    else
        f(Kind<ANY>());
}

FN float power(float x, float exponent) { return fast_exp2(exponent * fast_log2(x)); }

// log(1 + y) of a y that is small, or so far below 0 that its weight is nothing.
FN float log_near_1(float y) {
    return y * (1.0f - y * (0.5f - y * (1.0f / 3 - y * (0.25f - y * 0.2f))));
}

struct Weight {
    float p, u;
};
// A score times `unit` is a * score. Hidden scores are minus infinity, and levels of rows without
// keys infinite: such weights are 0.
template <Alpha ALPHA>
FN struct Weight weigh(float score, float unit, float level, float a) {
    if (ALPHA == NEAR_SOFTMAX) {
        const float log = log_near_1(fmaf(score, unit, -level)) * (LOG2E / a);
        return {fast_exp2(log), fast_exp2(log * (1.0f - a))};
    }
    const float x = __saturatef(fmaf(score, unit, 1.0f - level));  // no weight is above 1
    if (ALPHA == HALF_MORE) return {x * x, x};
    if (ALPHA == SPARSEMAX) return {x, x > 0.0f ? 1.0f : 0.0f};
    const float u = power(x, 1.0f / a - 1.0f);
    return {u * x, u};
}

// A block passes over its keys: once for levels that are close from below, then for sums at these
// levels until they are right but for a last step, and over values too when they seem to be.
enum Pass { DONE, VALUES, SUMS, START };
typedef float RowScores[TILE_K / 2];  // of the two rows of a fragment
// alpha-entmax: sums over a row's scores, and the steps by which its level rises until they are 1.
// The includer says what `RowScores` are, and names the passes DONE < VALUES < SUMS.
// Needs: entmax_weights.cuh. Gives: Search.

// Two rows of a thread. The levels are the same in a quad; so are sums, once a pass is over.
struct Search {
    float level[2];
    float p[2], u[2], count[2];  // sums; count: weights above 0, with alpha 1.5
};

// A score that is not a number makes the level one that is none.
FN float max_or_nan(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
FN float quad_max_or_nan(float x) {
    x = max_or_nan(x, __shfl_xor_sync(0xffffffff, x, 1));
    return max_or_nan(x, __shfl_xor_sync(0xffffffff, x, 2));
}

// 1 - e^-x, also where x is small.
FN float one_less_exp(float x) {
    const float near = x * (1.0f - x * (0.5f - x * (1.0f / 6 - x * (1.0f / 24))));
    return fabsf(x) < 0.1f ? near : 1.0f - fast_exp2(-LOG2E * x);
}

// Adds row r of a tile to the sums of a thread. Scores become weights where they are kept.
template <Alpha ALPHA, bool KEEP>
FN void add_row(RowScores &s, int r, float unit, float a, struct Search &sums) {
    // Without a key so far all scores are minus infinity, and weights nothing at any level. What
    // this makes of a level does not wait in a register beside it.
    const float met = anew_float(sums.level[r]), level = met == MINUS_INFINITY ? 0.0f : met;
    const float offset = 1.0f - level, exponent = 1.0f / a - 1.0f;
    const float sharpness = LOG2E / a;
    float p = 0.0f, u = 0.0f, count = 0.0f;
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++) {
        float &y = s[i / 2 * 4 + 2 * r + i % 2];
        const float x = __saturatef(fmaf(y, unit, offset));
        if (ALPHA == HALF_MORE) {
            u += x;
            p = fmaf(x, x, p);
            if (!KEEP) count += x > 0.0f ? 1.0f : 0.0f;
            if (KEEP) y = x * x;
        } else if (ALPHA == SPARSEMAX) {
            u += x > 0.0f ? 1.0f : 0.0f;
            p += x;
            if (KEEP) y = x;
        } else if (ALPHA == NEAR_SOFTMAX) {  // where u is almost p
            const float weight = fast_exp2(sharpness * log_near_1(fmaf(y, unit, -level)));
            p += weight;
            if (KEEP) y = weight;
        } else {
            const float slope = power(x, exponent);
            u += slope;
            p = fmaf(slope, x, p);
            if (KEEP) y = slope * x;
        }
    }
    sums.p[r] += p, sums.u[r] += ALPHA == NEAR_SOFTMAX ? p : u, sums.count[r] += count;
}

template <bool KEEP>
FN void add_tile(RowScores &s, float unit, float a, struct Search &sums) {
#pragma unroll
    for (int r = 0; r < 2; r++)
        by_alpha(a, [&](auto kind) { add_row<decltype(kind)::value, KEEP>(s, r, unit, a, sums); });
}

FN void clear_sums(struct Search &x) {
#pragma unroll
    for (int r = 0; r < 2; r++) x.p[r] = x.u[r] = x.count[r] = 0.0f;
}
FN void sum_over_quads(struct Search &x) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        x.p[r] = quad_sum(x.p[r]);
        x.u[r] = quad_sum(x.u[r]);
        x.count[r] = quad_sum(x.count[r]);
    }
}

// Newton's step for the 1/a-norm of x, which falls with the level and is convex: from below, it
// does not pass the root. Nothing where there are no weights.
FN float newton_step(float a, float p, float u) {
    return p > 0.0f ? p * one_less_exp(a * LN2 * fast_log2(p)) * fast_reciprocal(u) : 0.0f;
}
// With alpha 1.5 and the weights above 0 known, the level solves a quadratic equation. Weights that
// it makes 0, or that would come, change it by the square of their distance only.
FN float closed_step(float a, float p, float u, float count) {
    const float square = fmaf(u, u, -count * (p - 1.0f));
    if (a != 0.5f || count == 0.0f || square < 0.0f) return newton_step(a, p, u);
    return (p - 1.0f) * fast_reciprocal(u + sqrtf(square));
}

// What sums of other tiles become as the level rises: p from below and u from above, so that steps
// by them do not pass the root either.
FN void raise_level(struct Search &x, int r, float by, float a) {
    x.level[r] += by;
    if (!(x.p[r] > 0.0f)) return;
    const float shrink = fmaxf(1.0f - by * x.u[r] * fast_reciprocal(x.p[r]), 0.0f);
    if (a == 0.5f) {
        x.p[r] *= shrink * shrink;
        x.u[r] = fminf(x.u[r], sqrtf(x.count[r] * x.p[r]));
    } else {
        x.p[r] *= power(shrink, 1.0f / a);
    }
    if (x.p[r] == 0.0f) x.u[r] = x.count[r] = 0.0f;
}

FN float largest_score(const RowScores &s, int r) {
    float peak = MINUS_INFINITY;
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++) peak = max_or_nan(peak, s[i / 2 * 4 + 2 * r + i % 2]);
    return quad_max_or_nan(peak);
}

// Levels rise towards those of the keys met so far, whose sums are known.
FN void start_levels(RowScores &s, float unit, float a, struct Search &x) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float peak = largest_score(s, r) * unit;  // no weight is above 1
        if (x.level[r] > MINUS_INFINITY)
            raise_level(x, r, max_or_nan(peak - x.level[r], 0.0f), a);
        x.level[r] = max_or_nan(x.level[r], peak);  // rounded down, a weight of 1 would hide it
    }
#pragma unroll 1
    for (int sweep = 0; sweep < 2; sweep++) {
        struct Search tile = x;
        clear_sums(tile);
        add_tile<false>(s, unit, a, tile);
        sum_over_quads(tile);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float p = x.p[r] + tile.p[r], u = x.u[r] + tile.u[r];
            const float by = p > 1.0f ? newton_step(a, p, u) : 0.0f;
            if (sweep) x.p[r] = p, x.u[r] = u, x.count[r] += tile.count[r];
            raise_level(x, r, by, a);
        }
    }
}

// How far a level may be off before its last step, which corrects it once more: with alpha 1.5 an
// error of d becomes one of about d^2.
FN float close_enough(float a, float level) {
    return fmaf(1e-6f, fmaxf(fabsf(level), a), a == 0.5f ? 0x1p-13f : 0.0f);
}

// And before a pass without values: the next one will be close enough, most likely.
FN float coarse(float a) { return a == 0.5f ? 0x1p-5f : 0x1p-9f * a; }

constexpr i32 MOST_PASSES = 40;  // should rounding keep a level from rest

// The levels take the step that the sums of a pass ask for. Returns the pass that these rows need.
FN Pass take_step(struct Search &x, float a, Pass now, i32 passes) {
    a = anew_float(a);  // what follows from it does not wait in registers
    Pass next = DONE;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float by = now == VALUES || passes > 8 ? newton_step(a, x.p[r], x.u[r])
                                                     : closed_step(a, x.p[r], x.u[r], x.count[r]);
        const float size = fabsf(by);
        Pass wish = now == VALUES && !(size > close_enough(a, x.level[r])) ? DONE : VALUES;
        if (size > coarse(a)) wish = SUMS;
        x.level[r] += by;
        next = wish > next ? wish : next;
    }
    return passes < MOST_PASSES ? next : now == VALUES ? DONE : VALUES;
}

typedef struct Search Searches[FRAGMENTS];

FN RowScores &rows_of(Scores &s, int m) { return *(RowScores *)&s[m]; }

template <Pass NOW>
FN void take_scores(Scores &s, Searches &x, float unit, float a) {
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
        if constexpr (NOW == START) start_levels(rows_of(s, m), unit, a, x[m]);
        else add_tile<NOW == VALUES>(rows_of(s, m), unit, a, x[m]);
}

// The first keys of a pass come alone; values come under the scores, the next keys under values.
template <Pass NOW>
FN void pass_over(Output &o, Searches &x, const struct Query &query, const struct Attention *p,
                  struct Shared &shared) {
    const struct Block &block = shared.block;
    const u32 k_tile = shared_address(shared.k), v_tile = shared_address(shared.v);
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) clear_sums(x[m]);
    if (NOW == VALUES) clear(o);
    load_tile<TILE_K>(k_tile, block.k, p->k_stride, tile_at(block.list, 0).index * TILE_K, p->n_kv);
#pragma unroll 1
    for (i32 i = 0; i < block.list.count; i++) {
        const struct Tile tile = tile_at(block.list, i);
        const i32 first_k = tile.index * TILE_K;
        Scores s;
        copy_wait<0>();
        __syncthreads();
        if (NOW == VALUES) load_tile<TILE_K>(v_tile, block.v, p->v_stride, first_k, p->n_kv);
        score(s, query, k_tile);
        copy_wait<0>();
        __syncthreads();  // k is no longer read
        if (i + 1 < block.list.count) {
            const i32 next_k = tile_at(block.list, i + 1).index * TILE_K;
            load_tile<TILE_K>(k_tile, block.k, p->k_stride, next_k, p->n_kv);
        }
        make_logits(s, p, block, first_k);
        if (!tile.full || p->n_kv - first_k < TILE_K) hide_rest(s, seen_by(p, block, tile));
        take_scores<NOW>(s, x, block.logit.unit, p->alpha_minus_1);
        if (NOW == VALUES)
            add_values(o, v_tile + lane_in_rows(), [&](int m, int n, int i) {
                const float *const w = &s[m][2 * n + i / 2][i % 2 * 2];
                return pack(w[0], w[1]);
            });
    }
    __syncthreads();  // nor are the last tiles
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
        if (NOW != START) sum_over_quads(x[m]);
}

// What all rows of the block need.
FN Pass agreed(Searches &x, float a, Pass now, i32 passes) {
    Pass wish = DONE;
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) {
        const Pass own = take_step(x[m], a, now, passes);
        wish = own > wish ? own : wish;
    }
    if (__syncthreads_or(wish == SUMS)) return SUMS;
    return __syncthreads_or(wish == VALUES) ? VALUES : DONE;
}

// Weights times values, their sums, and lse. Rows without keys have no weights; a level that is no
// number makes all of a row not a number.
FN void find_weights(Output &o, float (&lse)[ROWS], float (&sum)[ROWS], const struct Query &query,
                     const struct Attention *p, struct Shared &shared) {
    const float a = p->alpha_minus_1;
    __shared__ Searches parked[PARK_ROWS ? THREADS : 1];
    Searches own, &x = PARK_ROWS ? parked[threadIdx.x] : own;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {  // past the end there are no weights to look for
        const bool inside = lane_query(shared.block.work) + 8 * r < p->n_q;
        x[r / 2].level[r % 2] = inside ? MINUS_INFINITY : PLUS_INFINITY;
        x[r / 2].p[r % 2] = 0.0f;
    }
    if (shared.block.list.count > 0) {
        pass_over<START>(o, x, query, p, shared);
        Pass now = SUMS;
#pragma unroll 1
        for (i32 passes = 1; now != DONE; passes++) {
            if (now == SUMS) pass_over<SUMS>(o, x, query, p, shared);
            else pass_over<VALUES>(o, x, query, p, shared);
            now = agreed(x, a, now, passes);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float level = x[r / 2].level[r % 2];
        lse[r] = level / a, sum[r] = x[r / 2].p[r % 2];
        if (!(level < PLUS_INFINITY)) lse[r] = sum[r] = __int_as_float(0x7fffffff);
    }
}

#endif
// Of more than two blocks none has the registers that entmax takes.
constexpr int RESIDENT = WITH_ENTMAX && MIN_BLOCKS > 2 ? 2 : MIN_BLOCKS;

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)
attention_forward(const __grid_constant__ struct Attention p) {
    extern __shared__ __align__(128) unsigned char memory[];
    struct Shared &shared = *(struct Shared *)memory;
    const struct Block &block = shared.block;
    const u32 q_tile = shared_address(shared.q);
    const u32 k_tile = shared_address(shared.k), v_tile = shared_address(shared.v);
    if (threadIdx.x == 0) shared.block.work = work_of(&p, blockIdx.x);
    __syncthreads();
    load_tile<TILE_Q>(q_tile, head_rows(p.q, p.q_stride, block.work.batch, block.work.head),
                      p.q_stride, block.work.row * TILE_Q, p.n_q);
    if (threadIdx.x == 0) start_block(shared.block, &p);
    __syncthreads();

    struct Query query;
    query.at = q_tile + first_row() * PITCH + lane_in_rows();
    Scores s;
    Output o;
    float own[2][ROWS];  // of each row its top and this lane's share of the sum
    float (&top)[ROWS] = PARK_ROWS ? shared.top[threadIdx.x] : own[0];
    float (&sum)[ROWS] = PARK_ROWS ? shared.sum[threadIdx.x] : own[1];
#pragma unroll
    for (int r = 0; r < ROWS; r++) top[r] = NO_TOP, sum[r] = 0.0f;
    clear(o);
#if WITH_ENTMAX
    copy_wait<0>();
    __syncthreads();
    keep_query(query);
    find_weights(o, top, sum, query, &p, shared);
    store(o, top, sum, &p, shared);
#else
    struct Tile next = {0, 0};
    if (block.list.count > 0) {
        next = tile_at(block.list, 0);
        pack(next);
        load_tile<TILE_K>(k_tile, block.k, p.k_stride, first_key(next), p.n_kv);
    } else {
        copy_wait<0>();  // q, in whose place zeros go out
        __syncthreads();
        if (p.joins) return;  // its rows keep what they have
    }
#pragma unroll 1
    for (i32 i = 0; i < block.list.count; i++) {
        struct Tile tile = next;
        unpack(tile);
        const i32 first_k = tile.index * TILE_K;
        bool masked = !tile.full || p.n_kv - first_k < TILE_K;
        struct Seen seen = {};
        if (masked) seen = seen_by(&p, block, tile);

        copy_wait<0>();   // k has arrived, and
        __syncthreads();  // the last v is no longer read
        load_tile<TILE_K>(v_tile, block.v, p.v_stride, first_k, p.n_kv);
        next = tile_at(block.list, min_i32(i + 1, block.list.count - 1));
        pack(next);
        if (KEEP_Q && i == 0) keep_query(query);
        score(s, query, k_tile);

        copy_wait<0>();   // v has arrived, and
        __syncthreads();  // k is no longer read
        if (i + 1 < block.list.count)
            load_tile<TILE_K>(k_tile, block.k, p.k_stride, first_key(next), p.n_kv);
        make_logits(s, &p, block, first_k);
        if (masked) hide_rest(s, seen);
        raise_tops(s, block.logit.unit, top, sum, o);
#if WITH_NAN_SAFE
        quarantine(o, shared.v, masked ? seen : everything());
#endif
        accumulate(o, sum, s, top, block.logit.unit, v_tile);
    }
    store(o, top, sum, &p, shared);
#endif
}
