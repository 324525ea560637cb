// Attention for one mask: sm_80, bfloat16, head_dim 128, tiles of 64 queries x 64 keys.
// Written by `maskc compile`; change the pattern, not this file.

constexpr int HEAD_DIM = 128;  // elements of a row of q, k, v and out
constexpr int TILE_Q = 64;  // queries per block
constexpr int TILE_K = 64;  // keys per step
constexpr int WARPS = 4;
constexpr int MIN_BLOCKS = 2;  // resident per multiprocessor
// A warp's q stays in registers.
constexpr bool KEEP_Q = false;
// Tops and sums wait in shared memory between uses.
constexpr bool PARK_ROWS = false;
// Keys and values of so many tokens fit the L2 cache.
constexpr int GROUP_KEYS = 1;
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

FN i32 min_i32(i32 a, i32 b) { return a < b ? a : b; }
FN i32 max_i32(i32 a, i32 b) { return a > b ? a : b; }
// Division and remainder that round towards minus infinity, as the mask's formulas mean them.
FN i32 floor_div(i32 a, i32 b) { return a / b - (a % b < 0); }
FN i32 floor_mod(i32 a, i32 b) { return a % b + (a % b < 0 ? b : 0); }

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

// c += a b: 16 x 16 times 16 x 8, accumulated in fp32.
FN void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32." ELEMENT "." ELEMENT ".f32 "
        "{ %0, %1, %2, %3}, { %4, %5, %6, %7}, { %8, %9}, { %0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

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

// Whether features need registers that the plain kernel fills with what it loads early.
constexpr bool SHORT_OF_REGISTERS = PARK_ROWS && (WITH_ALIBI || WITH_NAN_SAFE || WITH_ENTMAX);

// What the logits of one head are made of.
struct Logit {
    float unit;       // of what make_logits leaves, in powers of two; with entmax, times alpha - 1
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

// One query and up to TILE_Q of the heads that share its keys: the rows of a tile.
struct Item {
    i32 query, kv_head, batch;
    i32 head, heads;  // the first of them, and how many there are
};
FN struct Item item_at(const struct Attention &p, i32 index) {
    const u32 group = (u32)p.heads_q / (u32)p.heads_kv, tiles = (group + TILE_Q - 1) / TILE_Q;
    const u32 tile = (u32)index % tiles, rest = (u32)index / tiles;
    const u32 list = rest / (u32)p.n_q, first = tile * TILE_Q;
    struct Item item;
    item.query = rest - list * (u32)p.n_q;
    item.batch = list / (u32)p.heads_kv;
    item.kv_head = list - item.batch * (u32)p.heads_kv;
    item.head = item.kv_head * group + first;
    item.heads = min_i32(group - first, TILE_Q);
    return item;
}

// The keys of its query, ascending: `array` holds the lists, and how long they are.
FN const i32 *keys_of(const struct Attention &p, const struct Item &item) {
    return p.array[0] + item.batch * p.array_batch[0] + item.kv_head * p.array_head[0]
        + item.query * p.array_row[0];
}
FN i32 count_of(const struct Attention &p, const struct Item &item) {
    return p.array[1][item.batch * p.array_batch[1] + item.kv_head * p.array_head[1] + item.query];
}
FN i32 tiles_of(i32 count) { return (count + TILE_K - 1) / TILE_K; }

FN const unsigned char *row_of(const void *tensor, const i64 (&stride)[3], i32 batch, i32 head,
                               i32 token) {
    return (const unsigned char *)tensor
        + 2 * (batch * stride[0] + head * stride[1] + token * stride[2]);
}

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

// A block's shared memory; its size is in maskc/plan/gather.py.
struct Shared {
    unsigned char q[TILE_Q * PITCH];
    unsigned char k[TILE_K * PITCH];
    unsigned char v[TILE_K * PITCH];
    float top[PARK_ROWS ? THREADS : 1][ROWS], sum[PARK_ROWS ? THREADS : 1][ROWS];
    float slope[TILE_Q], steps[TILE_K];  // ALiBi: of heads; from the query to the tile's keys
};
static_assert(sizeof(struct Shared) <= 50176, "planned memory");

FN i32 first_row() { return threadIdx.x / 32 * 16 * FRAGMENTS; }

// ---------------------------------------------------------------- copies

// SPAN threads copy a row, from where `at` says that row `i` of the tile begins; rows from `end` on
// become zeros, for which it is not asked.
template <int COUNT, typename F>
FN void copy_rows(u32 tile, i32 end, const F &at) {
    const i32 row = threadIdx.x / SPAN, chunk = threadIdx.x % SPAN;
#pragma unroll
    for (int i = 0; i < COUNT; i += COPY_ROWS) {
        const bool inside = row + i < end;
        const unsigned char *const from = at(inside ? row + i : end - 1) + 16 * chunk;
#pragma unroll
        for (int j = 0; j < CHUNKS; j += SPAN)
            copy_async(tile + place(row + i, chunk + j), from + 16 * j, inside);
    }
    copy_commit();
}
FN void copy_heads(u32 tile, const struct Attention &p, const struct Item &item) {
    copy_rows<TILE_Q>(tile, item.heads, [&](i32 row) {
        return row_of(p.q, p.q_stride, item.batch, item.head + row, item.query);
    });
}
FN void copy_keys(u32 tile, const void *tensor, const i64 (&stride)[3], const struct Item &item,
                  const i32 *keys, i32 count) {
    copy_rows<TILE_K>(tile, min_i32(count, TILE_K), [&](i32 row) {
        return row_of(tensor, stride, item.batch, item.kv_head, __ldg(keys + row));
    });
}

FN void measure_steps(struct Shared &shared, const struct Attention &p, const struct Item &item,
                      const i32 *keys, i32 count) {
    if (!WITH_ALIBI || threadIdx.x >= TILE_K) return;
    const i32 key = __ldg(keys + min_i32(threadIdx.x, count - 1));
    shared.steps[threadIdx.x] = fabsf((float)(item.query + p.n_kv - p.n_q - key));
}

// ---------------------------------------------------------------- one item

// Scores q . k become logits up to the factor `unit`: rows are heads, and the keys of columns are
// anywhere.
FN void make_logits(Scores &s, const struct Attention &p, const struct Logit &logit,
                    const struct Shared &shared) {
    (void)logit, (void)shared;
#if WITH_SOFTCAP || WITH_ALIBI
    const i32 thread = anew(threadIdx.x);
    const float *const slope = shared.slope + first_row() + thread % 32 / 4;
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++) {
        if (i % 4 == 0) __syncwarp();  // steps are not all read at once: registers are short
        const float far = shared.steps[i / 2 * 8 + thread % 4 * 2 + i % 2];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float &x = s[r / 2][i / 2][r % 2 * 2 + i % 2];
#if WITH_SOFTCAP
            // tanh by one exponential: the approximate instruction is too coarse for logits.
            x = 1.0f - 2.0f * fast_reciprocal(fast_exp2(x * logit.sharpness) + 1.0f);
#endif
            if (WITH_ALIBI)
                x = x * (WITH_SOFTCAP ? p.softcap : p.scale) - slope[8 * r] * far;
        }
    }
#else
    if (p.scale < 0.0f)
#pragma unroll
        for (int i = 0; i < TILE_K / 4 * ROWS; i++) {
            float &x = s[i / (TILE_K / 2)][i % (TILE_K / 2) / 4][i % 4];
            x = -x;
        }
#endif
}

// Columns past the last key become -inf.
FN void hide_tail(Scores &s, i32 count) {
    const i32 own = count - anew(threadIdx.x) % 4 * 2;
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
        for (int n = 0; n < TILE_K / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (8 * n + e % 2 >= own) s[m][n][e] = MINUS_INFINITY;
}

// Divides by the rows' sums, and writes out and lse of the heads that are there.
FN void store(const Output &o, const float (&top)[ROWS], const float (&sum)[ROWS],
              const struct Item &item, const struct Attention &p) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const i32 row = first_row() + lane / 4 + 8 * r;
        const i32 head = item.head + min_i32(row, item.heads - 1);
        float total = quad_sum(sum[r]), base = top[r], factor = 1.0f;
#if WITH_SINKS
        const float sink = p.sink_logits[head] * LOG2E;
        base = fmaxf(base, sink);
        factor = fast_exp2(top[r] - base);
        total = total * factor + fast_exp2(sink - base);
#endif
        if (row >= item.heads) continue;
        const bool empty = total == 0.0f;
        const float scale = not_zero(factor * fast_reciprocal(total));
        if (lane % 4 == 0)
            p.lse[item.batch * p.lse_stride[0] + head * p.lse_stride[1]
                  + item.query * p.lse_stride[2]] =
                empty ? MINUS_INFINITY : (base + fast_log2(total)) * LN2;
        u32 *const to = (u32 *)row_of(p.out, p.out_stride, item.batch, head, item.query);
#pragma unroll
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            const float *x = &o[r / 2][n][r % 2 * 2];
            to[4 * n + lane % 4] = empty ? 0 : pack(x[0] * scale, x[1] * scale);
        }
    }
}

FN void attend(struct Shared &shared, const struct Attention &p, const struct Item &item) {
    const u32 q_tile = shared_address(shared.q);
    const u32 k_tile = shared_address(shared.k), v_tile = shared_address(shared.v);
    const i32 *const keys = keys_of(p, item);
    const i32 count = count_of(p, item);
    const struct Logit logit = logit_of(&p, item.head);
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
    if (WITH_ALIBI && threadIdx.x < TILE_Q)
        shared.slope[threadIdx.x] =
            p.alibi_slopes[item.head + min_i32(threadIdx.x, item.heads - 1)] * p.spacing;
    if (count > 0) {
        copy_heads(q_tile, p, item);
        copy_keys(k_tile, p.k, p.k_stride, item, keys, count);
    }
#pragma unroll 1
    for (i32 first = 0; first < count; first += TILE_K) {
        const i32 left = count - first;
        copy_wait<0>();   // k has arrived, and
        __syncthreads();  // the last v is no longer read
        copy_keys(v_tile, p.v, p.v_stride, item, keys + first, left);
        measure_steps(shared, p, item, keys + first, left);
        if (KEEP_Q && first == 0) keep_query(query);
        score(s, query, k_tile);

        copy_wait<0>();   // v has arrived, and
        __syncthreads();  // k is no longer read
        if (left > TILE_K)
            copy_keys(k_tile, p.k, p.k_stride, item, keys + first + TILE_K, left - TILE_K);
        make_logits(s, p, logit, shared);
        if (left < TILE_K) hide_tail(s, left);
        raise_tops(s, logit.unit, top, sum, o);
        accumulate(o, sum, s, top, logit.unit, v_tile);
    }
    store(o, top, sum, item, p);
    __syncthreads();  // q and v are no longer read
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_forward(const __grid_constant__ struct Attention p) {
    extern __shared__ __align__(128) unsigned char memory[];
    struct Shared &shared = *(struct Shared *)memory;
#pragma unroll 1
    for (i32 index = blockIdx.x; index < p.items; index += gridDim.x)
        attend(shared, p, item_at(p, index));
}
