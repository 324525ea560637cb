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

// From the score q . k of a pair to its logit.
// Only here, in logit_slope.cuh and in logit_tanh.cuh stands what features make of scores: the soft
// cap bends them, then ALiBi subtracts what distance costs. The kernels ask for the facts below and
// call what follows; none names a feature.
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
//     HEAD_GRADIENT  heads have a number of their own, the slope of distances, and that has a
//                    gradient: the sum of gradients of logits times minus the distance.
//     LONG_LOGITS    logits take so many registers that less can wait beside them.
#define BENT (WITH_SOFTCAP || WITH_ALIBI)
#define HAS_SLOPE WITH_SOFTCAP
#define NEEDS_WHERE WITH_ALIBI
#define HEAD_GRADIENT WITH_ALIBI
#define LONG_LOGITS WITH_SOFTCAP

// What scores are still to be multiplied by when `bend` is through, to be logits.
FN float left_scale(const struct Attention &p) { return BENT ? 1.0f : p.scale; }

// What the logits of one head are made of.
struct HeadLogit {
    float slope;  // by which a logit falls with every step of distance
};
FN struct HeadLogit head_logit_of(const struct Attention &p, i32 head) {
    return {WITH_ALIBI ? p.alibi_slopes[head] * p.spacing : 0.0f};
}

// cap * tanh(x / cap), where tanh is 1 - 2 / (2^(sharpness x) + 1), by one exponential: the
// approximate instruction is too coarse for logits.
FN float capped(float x, float cap, float sharpness) {
    x = fast_exp2(x * sharpness);
    return cap - 2.0f * cap * fast_reciprocal(x + 1.0f);
}

// Scores become logits, where they are bent at all.
template <int N, typename Where>
FN void bend(float (&s)[N], const struct Attention &p, Where where) {
#if BENT
    const float cap = p.softcap, sharpness = 2.0f * LOG2E * fast_reciprocal(cap);
    (void)sharpness;
    where.refresh(p);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float x = s[i] * p.scale;
#if WITH_SOFTCAP
        x = capped(x, cap, sharpness);
#endif
#if WITH_ALIBI
        x -= where.head_logit(i).slope * where.distance(i);
#endif
        s[i] = x;
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
constexpr int TILE_Q = 128;  // queries per tile row
constexpr int TILE_K = 128;  // keys per step
// Of an index in a list of tiles, in keys; by documents tiles begin at any key.
constexpr int KEY_STEP = TILE_K;
constexpr int SLABS = 2;  // of 64 columns, in every tile
constexpr int GROUPS = 2;  // warpgroups that compute 64 queries each
constexpr int STAGES = 2;  // tiles of k, and of v, in flight
constexpr int BLOCKS = 1;  // that a multiprocessor runs at once
constexpr int COMPUTE_REGISTERS = 240;
constexpr int COPY_REGISTERS = 24;
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

// What follows from the numbers of a schedule, see gen/constants.cuh.j2.

constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int Q_TILES = STREAM ? 2 : 1;
constexpr int STEPS = HEAD_DIM / 16;  // of q k^T
constexpr int OWN = TILE_K / 4;       // columns of a tile that a thread has in each of two rows
constexpr u32 Q_SLAB = TILE_Q * 128, K_SLAB = TILE_K * 128;  // bytes
constexpr u32 Q_BYTES = SLABS * Q_SLAB, K_BYTES = SLABS * K_SLAB;

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
    Integer c0;  // n_kv - n_q
    Integer c1;  // 1
    Integer c2;  // 63
    const i32 *a0;  // chosen blocks of keys
    i32 row0;
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
    const i32 words = 1 + 3 * (1 + WITH_WIDE);
    const i32 *args = p->mask_args + variant * words;
    m.shape = args[0];
    m.c0 = constant(args + 1, 0);
    m.c1 = constant(args + 1, 1);
    m.c2 = constant(args + 1, 2);
    m.a0 = p->array[0]
        + batch * p->array_batch[0] + head * p->array_head[0];
    m.row0 = (i32)p->array_row[0];
    return m;
}

// Whether query q sees key k. Evaluated in partial tiles only.
FN i32 keep_0(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return
        // line 26: where(lambda q, k: k // 64 >= (q + n_kv - n_q) // 64 - 1)
        ((k / 64 + m.c1 >= floor_div(q + m.c0, 64) ||
        // line 27: prefix(64)
        k <= m.c2) &&
        // line 27: causal()
        k <= q + m.c0) ||
        // line 28: topk(13, of=causal() - (causal() & (prefix(64) | where(lambda q, k: k...
        ((m.a0[(q) * m.row0 + k / 64 / 32] >> k / 64 % 32 & 1) != 0 &&
        // line 27: causal()
        k <= q + m.c0);
}

FN i32 keep(struct Mask m, Integer q, Integer k, Integer n_q, Integer n_kv) {
    return keep_0(m, q, k, n_q, n_kv);
}

// Hopper's instructions, one wrapper each: barriers, box copies, register quotas, stmatrix.

// ---- barriers in shared memory. A phase ends when all arrivals and all announced bytes are in.
FN void barrier_init(u64 &barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(&barrier)), "r"(arrivals) : "memory");
}
// Makes fresh barriers visible to the copy engine.
FN void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
FN void arrive(u64 &barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :: "r"(shared_address(&barrier)) : "memory");
}
FN void arrive_expecting(u64 &barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(&barrier)), "r"(bytes) : "memory");
}
// Waits until the phase of this parity is over.
FN void wait(u64 &barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
        "@over bra done;\n"
        "bra again;\n"
        "done:\n"
        "}" :: "r"(shared_address(&barrier)), "r"(parity) : "memory");
}

// The same for threads that wait long: asleep, as their polls would cost the warps that compute.
FN void wait_asleep(u64 &barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred over;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1, %2;\n"
        "@over bra done;\n"
        "bra again;\n"
        "done:\n"
        "}" :: "r"(shared_address(&barrier)), "r"(parity), "r"(10000000) : "memory");  // ns
}

// ---- named barriers, 1 to 15: `threads` counts those that wait and those that only arrive.
FN void sync_threads(int name, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(name), "r"(threads) : "memory");
}
FN void arrive_threads(int name, int threads) {
    asm volatile("bar.arrive %0, %1;" :: "r"(name), "r"(threads) : "memory");
}

// ---- box copies. Coordinates: element, token, head, sequence.
struct alignas(64) TensorMap {
    u64 opaque[16];
};

FN void load_box(u32 to, const TensorMap &map, u64 &barrier, i32 d, i32 token, i32 head,
                 i32 batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, { %3, %4, %5, %6}], [%2];"
        :: "r"(to), "l"(&map), "r"(shared_address(&barrier)), "r"(d), "r"(token), "r"(head),
           "r"(batch) : "memory");
}
FN void store_box(const TensorMap &map, u32 from, i32 d, i32 token, i32 head, i32 batch) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group "
                 "[%0, { %2, %3, %4, %5}], [%1];"
                 :: "l"(&map), "r"(from), "r"(d), "r"(token), "r"(head), "r"(batch) : "memory");
}
// The same, added to what is there.
FN void add_box(const TensorMap &map, u32 from, i32 d, i32 token, i32 head, i32 batch) {
    asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group "
                 "[%0, { %2, %3, %4, %5}], [%1];"
                 :: "l"(&map), "r"(from), "r"(d), "r"(token), "r"(head), "r"(batch) : "memory");
}
// `bytes` consecutive ones; addresses and size are multiples of 16.
FN void load_bytes(u32 to, const void *from, u32 bytes, u64 &barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(from), "r"(bytes), "r"(shared_address(&barrier)) : "memory");
}
constexpr u64 EVICT_LAST = 0x14f0000000000000ull;
// Copies fp32 numbers in shared memory to global memory, where they are to stay in the L2 cache.
FN void put_floats(float *to, u32 from, u32 bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;"
                 :: "l"(to), "r"(from), "r"(bytes), "l"(EVICT_LAST) : "memory");
}
// The same, added to those that are there.
FN void add_floats(float *to, u32 from, u32 bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 "
                 "[%0], [%1], %2, %3;"
                 :: "l"(to), "r"(from), "r"(bytes), "l"(EVICT_LAST) : "memory");
}
FN void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// At most PENDING groups of this thread's stores still read shared memory.
template <int PENDING>
FN void stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
}
template <int PENDING>
FN void stores_done() {
    asm volatile("cp.async.bulk.wait_group %0;" :: "n"(PENDING) : "memory");
}
// This thread's writes to shared memory become visible to copies and matrix products.
FN void publish_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers move from the warpgroup that copies to those that compute.
template <int COUNT>
FN void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT>
FN void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}
FN bool elected() {
    u32 mine;
    asm volatile("{\n"
                 ".reg .pred chosen;\n"
                 "elect.sync _|chosen, 0xffffffff;\n"
                 "selp.u32 %0, 1, 0, chosen;\n"
                 "}" : "=r"(mine));
    return mine;
}

// ---- 8 x 8 matrices: lane l gives the address of row l % 8 of matrix l / 8.
FN void store_matrices(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], { %1, %2, %3, %4};"
                 :: "r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
FN void store_matrices_transposed(u32 to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], { %1, %2, %3, %4};"
                 :: "r"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
FN void load_matrices(u32 &a, u32 &b, u32 &c, u32 &d, u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 { %0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(from) : "memory");
}

// Which tokens a tile has: consecutive ones. Gives Point, query_point, key_point, query_at, key_at,
// keys_end; gen/grid_tiles.cuh.j2 gives the same for boxes of a grid.

[[maybe_unused]] constexpr bool GRID_TILES = false;
// Places count the tokens of tiles, one tile after another.
// They are tokens, and where copies find them.
typedef i32 Point;
FN Point query_point(i32 place) { return place; }
FN Point key_point(i32 place) { return place; }
FN i32 query_at(i32 place) { return place; }
FN i32 key_at(i32 place) { return place; }
FN i32 keys_end(const struct Attention &p) { return p.n_kv; }

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

// Who computes what. Work items come from the host, longest first. Needs: TILE_LISTS.

// One item of the work list; maskc/core/abi.py says what its fields mean.
struct alignas(16) Work {
    i32 tile, head, first, count, full_first, full_last, heads, shared;
};

FN struct Work work_at(const struct Attention &p, i32 index) {
    struct Work work;
    const int4 *from = (const int4 *)(p.work + 8 * (i64)index);
    const int4 low = __ldg(from), high = __ldg(from + 1);
    work.tile = low.x, work.head = low.y, work.first = low.z, work.count = low.w;
    work.full_first = high.x, work.full_last = high.y, work.heads = high.z, work.shared = high.w;
    return work;
}

struct Place {
    i32 batch, head;
};
FN struct Place place_of(i32 head, i32 heads) {
    const i32 batch = (u32)head / (u32)heads;
    return {batch, head - batch * heads};
}
// Elements before a token's row.
FN i64 row_offset(const i64 (&stride)[3], struct Place at, i32 token) {
    return at.batch * stride[0] + at.head * stride[1] + token * stride[2];
}

// What the copying warp tells of a tile: its index, and whether anything about it is special.
constexpr i32 MASKED = 1 << 28;  // some of its pairs are dead or lie past the end
constexpr i32 INDEX = MASKED - 1;

// The word of tile `i` of an item; `end` counts the tokens along the list, of which a tile has
// `size`.
FN i32 word_of(const struct Work &work, i32 i, const i32 *tiles, i32 size, i32 end) {
    const i32 entry = TILE_LISTS ? __ldg(tiles + work.first + i) : 0;
    const i32 index = TILE_LISTS ? entry >> 1 : work.first + i;
    const bool full = TILE_LISTS ? entry & 1 : index >= work.full_first && index < work.full_last;
    return index | (full && (index + 1) * size <= end ? 0 : MASKED);
}

// A thread's part of an accumulator of a warpgroup: element 4 i + 2 r + e lies in row
// 16 warp + lane / 4 + 8 r and in column 8 i + 2 (lane % 4) + e.
typedef float Scores[TILE_K / 2];
typedef float Output[HEAD_DIM / 2];
typedef u32 Weights[TILE_K / 4];  // p in storage precision, as the left operand of p v

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
// kept until a score of the warp passes it by STALE powers of two: p stays below 2^8. Tops are the
// same in a quad; sums are each lane's own share.
constexpr float STALE = 8.0f;
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
        x.base[r] = -finite * unit;
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

FN void to_weights(Weights &weights, const Scores &s) {
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++) weights[i] = pack(s[2 * i], s[2 * i + 1]);
}

FN void rescale(Output &o, const struct Softmax &x) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 2; i++) o[i] *= x.factor[i / 2 % 2];
}

// The query at a row of the tiles: heads that are packed have theirs one after another.

[[maybe_unused]] constexpr bool ROWS_PACKED = PACKED;
FN i32 mask_row(const struct Attention &p, i32 row) {
    return min_i32(PACKED ? (u32)row % (u32)p.queries : row, p.queries - 1);
}
// The head of a row of head `head` of the launch.
FN i32 head_of_row(const struct Attention &p, i32 head, i32 row) {
    if (!PACKED) return head;
    const u32 packed = (u32)p.n_q / (u32)p.queries;  // heads
    return head * packed + min_i32((u32)row / (u32)p.queries, packed - 1);
}

// Intervals of a thread's own columns as bits.

FN u32 bits_from(i32 first) {  // all from bit `first` on; none from 32 on, unlike <<
    u32 y;
    asm("shl.b32 %0, %1, %2;" : "=r"(y) : "r"(~0u), "r"(max_i32(first, 0)));
    return y;
}
FN u32 bits_before(i32 end) {
    u32 y;
    asm("shr.u32 %0, %1, %2;" : "=r"(y) : "r"(~0u), "r"(max_i32(32 - end, 0)));
    return y;
}
// How many of a thread's columns lie before `column`, counted from its first one.
FN i32 own_before(i32 column) {
    const i32 x = max_i32(column, 0);
    return x / 8 * 2 + min_i32(x % 8, 2);
}

// The two sides from which kernels look at a mask, and the interface of a mask policy.
// Needs: mask_row, the query at a row of the tiles.
//
// Every mask_*.cuh is a policy and gives, with a Side that is ByQuery or ByKey:
//   MaskRow, begin_row(kept)         what a thread keeps of its two rows from tile to tile; a new
//                                    one has begun a row
//   prefetch_mask<Side>(p, at, row, first)                  what visible needs from memory early;
//                                    nothing unless MASK_FETCHED
//   visible<Side>(p, at, row, first, kept, prefetched)      what rows `row` and `row` + 8 see of
//                                    the tile that begins with column `first`; `at`: which head
//   MASK_EARLY                       forward passes look before a product begins, while scores
//                                    need no registers; else the product runs meanwhile
//   MASK_HEAVY                       looking takes the registers in which other numbers could wait
// Visible is the answer, and apply_mask, of apply_mask.cuh, hides the rest.

// Rows are queries, columns are keys. Keys past the last one are never visible.
struct ByQuery {
    static constexpr bool KEY_ROWS = false;
    FN static i32 queries(const struct Attention &p) { return p.queries; }
    FN static i32 row(const struct Attention &p, i32 place) { return mask_row(p, place); }
    FN static i32 inside(i32 row, i32) { return row; }
    FN static i32 last_column(i32, i32 n_kv) { return n_kv - 1; }
    FN static i32 query(i32 row, i32) { return row; }
    FN static i32 key(i32, i32 column) { return column; }
    FN static i32 column_end(i32 end, i32 n_kv) { return min_i32(end, n_kv); }
};
// Rows are keys, columns are queries. Keys past the last one see nothing; of queries past the last
// one anything is true, as their lse is infinite.
struct ByKey {
    static constexpr bool KEY_ROWS = true;
    FN static i32 queries(const struct Attention &p) { return p.n_q; }
    FN static i32 row(const struct Attention &, i32 place) { return place; }
    FN static i32 inside(i32 row, i32 n_kv) { return min_i32(row, n_kv - 1); }
    FN static i32 last_column(i32 n_q, i32) { return n_q - 1; }
    FN static i32 query(i32, i32 column) { return column; }
    FN static i32 key(i32 row, i32) { return row; }
    FN static i32 column_end(i32 end, i32) { return end; }
};

// Which columns of a tile a thread's two rows see: bit 2 i + e of a row is column
// 8 i + 2 (lane % 4) + e. Needs: OWN, the columns of a tile that a thread has in each row.

constexpr int WORDS = (OWN + 31) / 32;
struct Visible {
    u32 word[2][WORDS];
};
FN u32 word_of(const struct Visible &seen, int r, int w) { return seen.word[r][w]; }
// Where rows are keys, those past the last one see nothing. Needs: visible.cuh.

template <class Side>
FN void hide_keys_past(struct Visible &seen, const i32 (&rows)[2], i32 n_kv) {
    if (!Side::KEY_ROWS) return;
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            if (rows[r] >= n_kv) seen.word[r][w] = 0;
}

// The live pairs of a row (or column) lie in a few intervals, which may overlap or be empty.
constexpr int INTERVALS = 3;
struct Bounds {
    i32 first, last;  // past the end
};

// The keys of query ti.
FN void row_bounds(ByQuery, struct Bounds (&bounds)[INTERVALS], struct Mask m,
                Integer ti, Integer n_q, Integer n_kv) {
    (void)n_q; (void)n_kv;
#pragma unroll
    for (int i = 0; i < INTERVALS; i++) bounds[i] = {0, 0};
    bounds[0].first = range_end(max_int(64 * floor_div(m.c0 + ti, 64) - 64 * m.c1, 0));
    bounds[0].last = range_end(min_int(n_kv - 1, m.c0 + ti) + 1);
    bounds[1].first = range_end(0);
    bounds[1].last = range_end(min_int(min_int(n_kv - 1, m.c0 + ti), m.c2) + 1);
    bounds[2].first = range_end(0);
    bounds[2].last = range_end(min_int(n_kv - 1, m.c0 + ti) + 1);
}

// The live columns of a row as bits, where they lie in a few intervals.
// Needs: bits.cuh, mask_sides.cuh, visible.cuh; Bounds, INTERVALS and row_bounds of the mask.

// Those before `end`, which counts keys; `only` tells of interval i which bits of word w count.
template <class Side, class Only>
FN void add_intervals(u32 (&word)[WORDS], const struct Mask &mask, i32 row, i32 column, i32 end,
                      i32 n_q, i32 n_kv, const Only &only) {
    struct Bounds own[INTERVALS];
    row_bounds(Side(), own, mask, Side::inside(row, n_kv), n_q, n_kv);
#pragma unroll
    for (int i = 0; i < INTERVALS; i++) {
        const i32 from = own_before(own[i].first - column);
        const i32 to = own_before(Side::column_end(own[i].last, end) - column);
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            word[w] |= bits_from(from - 32 * w) & bits_before(to - 32 * w) & only(i, w);
    }
}
template <class Side>
FN void add_intervals(u32 (&word)[WORDS], const struct Mask &mask, i32 row, i32 column, i32 end,
                      i32 n_q, i32 n_kv) {
    add_intervals<Side>(word, mask, row, column, end, n_q, n_kv, [](int, int) { return ~0u; });
}

// The table of what was chosen: a row for CHOSEN_Q queries, in it a bit for CHOSEN_K keys.
constexpr i32 CHOSEN_Q = 1, CHOSEN_K = 64;
constexpr i32 CELL_KEYS = 64;  // of a tile that are chosen together
constexpr i32 CELL_QUERIES = 1;  // of a tile that choose together
// The intervals of pairs that are chosen, and of those that are seen without.
constexpr u32 OF_CHOSEN = 4, OF_OTHERS = 0;
constexpr bool BLOCKS_EARLY = 0;  // registers are too few to wait
FN const i32 *chosen_table(const struct Mask &m) { return m.a0; }
FN i32 chosen_pitch(const struct Mask &m) { return m.row0; }

// What a selection has chosen, as bits of a thread's columns: a table has a row for CHOSEN_Q
// queries, and in it a bit for CHOSEN_K keys.
// Needs: visible.cuh; CHOSEN_Q, CHOSEN_K, CELL_KEYS, CELL_QUERIES, OF_CHOSEN, OF_OTHERS,
// chosen_table, chosen_pitch of the mask.

// The pairs that count of interval i: those that were chosen, those that were not, or all.
FN u32 of_interval(int i, u32 chosen) {
    return OF_CHOSEN >> i & 1 ? chosen : OF_OTHERS >> i & 1 ? ~chosen : ~0u;
}

// The blocks of a tile that a query has chosen: bit 0 is the one with the tile's first key.
FN u32 blocks_of(const struct Mask &m, i32 query, i32 first_k, i32 n_kv) {
    const i32 *const words = chosen_table(m) + query / CHOSEN_Q * chosen_pitch(m);
    const u32 first = (u32)first_k / CHOSEN_K, low = words[first / 32];
    if (32 * CHOSEN_K % TILE_K == 0) return low >> first % 32;  // a word has them all
    const u32 last = (u32)(min_i32(first_k + TILE_K, n_kv) - 1) / CHOSEN_K;
    return __funnelshift_r(low, words[last / 32], first % 32);
}
// Which of a thread's keys lie in them.
FN void cover(u32 (&own)[WORDS], u32 blocks, i32 first_k) {
    constexpr bool ALIGNED = TILE_K % CHOSEN_K == 0 || CHOSEN_K % TILE_K == 0;
    const i32 offset = ALIGNED ? 0 : (u32)first_k % CHOSEN_K;
#pragma unroll
    for (int w = 0; w < WORDS; w++) own[w] = 0;
#pragma unroll
    for (int i = 0; i < TILE_K / CELL_KEYS; i++) {
        const u32 chosen = blocks >> (offset + CELL_KEYS * i) / CHOSEN_K & 1;
        const u64 columns = (((u64)1 << CELL_KEYS / 4) - 1) << CELL_KEYS / 4 * i;
#pragma unroll
        for (int w = 0; w < WORDS; w++) own[w] |= chosen ? (u32)(columns >> 32 * w) : 0;
    }
}

// Which of a thread's queries have chosen a key. Past the last query they may be any.
FN u32 choosing(const struct Mask &m, i32 key, i32 first_q, i32 n_q) {
    const u32 block = (u32)key / CHOSEN_K;
    const i32 *const words = chosen_table(m) + block / 32;
    u32 own = 0;
    if (CELL_QUERIES % 8 == 0) {
#pragma unroll
        for (int i = 0; i < 4 * OWN / CELL_QUERIES; i++) {
            const u32 row = (u32)min_i32(first_q + CELL_QUERIES * i, n_q - 1) / CHOSEN_Q;
            const u32 chosen = (u32)words[row * chosen_pitch(m)] >> block % 32 & 1;
            own |= chosen ? (u32)(((u64)1 << CELL_QUERIES / 4) - 1) << CELL_QUERIES / 4 * i : 0;
        }
    } else {
        const i32 q = first_q + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const u32 row = (u32)min_i32(q + i / 2 * 8 + i % 2, n_q - 1) / CHOSEN_Q;
            own |= ((u32)words[row * chosen_pitch(m)] >> block % 32 & 1) << i;
        }
    }
    return own;
}

// Mask policy: the live columns of a row are a few intervals, in some of which blocks of keys were
// chosen at run time. See mask_sides.cuh.
// Needs: intervals.cuh, chosen_blocks.cuh; BLOCKS_EARLY.

constexpr bool MASK_EARLY = BLOCKS_EARLY;
constexpr bool MASK_HEAVY = true;
constexpr bool MASK_FETCHED = true;
struct MaskRow {};
FN void begin_row(struct MaskRow &) {}

constexpr bool ROWS_ALIKE = !ROWS_PACKED && CHOSEN_Q % 16 == 0;  // both queries of a thread
constexpr bool KEYS_ALIKE = CHOSEN_K % 16 == 0;

// The words of blocks, in the first words: they are fetched long before they are needed.
template <class Side>
FN struct Visible prefetch_mask(const struct Attention &p, struct Place at, i32 row, i32 first) {
    struct Visible blocks = {};
    if (Side::KEY_ROWS) return blocks;
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    const i32 n_kv = p.n_kv;
    blocks.word[0][0] = blocks_of(mask, Side::row(p, row), first, n_kv);
    if (!ROWS_ALIKE) blocks.word[1][0] = blocks_of(mask, Side::row(p, row + 8), first, n_kv);
    return blocks;
}

template <class Side>
FN struct Visible visible(const struct Attention &p, struct Place at, i32 row, i32 first,
                          struct MaskRow &, const struct Visible &blocks) {
    const i32 n_q = Side::queries(p), n_kv = p.n_kv, column = first + threadIdx.x % 4 * 2;
    struct Visible seen = {};
    const i32 rows[2] = {Side::row(p, row), Side::row(p, row + 8)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    u32 own[2][WORDS];
    if (Side::KEY_ROWS) {
        own[0][0] = choosing(mask, Side::inside(rows[0], n_kv), first, n_q);
        own[1][0] = KEYS_ALIKE ? own[0][0]
                               : choosing(mask, Side::inside(rows[1], n_kv), first, n_q);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (!Side::KEY_ROWS) cover(own[r], blocks.word[ROWS_ALIKE ? 0 : r][0], first);
        add_intervals<Side>(seen.word[r], mask, rows[r], column, n_kv, n_q, n_kv,
                            [&](int i, int w) { return of_interval(i, own[r][w]); });
    }
    hide_keys_past<Side>(seen, rows, n_kv);
    return seen;
}

// Scores of pairs that are not visible become `hidden`; element 4 (i / 2) + 2 r + i % 2 is of a
// thread's row r and column i. Needs: Scores, Visible, word_of.

FN void apply_mask(Scores &s, const struct Visible &seen, int r, float hidden) {
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        float &x = s[i / 2 * 4 + 2 * r + i % 2];
        x = word_of(seen, r, i / 32) & 1u << i % 32 ? x : hidden;
    }
}
FN void apply_mask(Scores &s, const struct Visible &seen, float hidden) {
#pragma unroll
    for (int r = 0; r < 2; r++) apply_mask(s, seen, r, hidden);
}

struct Maps {
    TensorMap q, k, v, out;
};

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
    i32 first_word;           // of the block's first tile
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

// The block's shared memory, once `struct Shared` is known.
// Gives: shared_memory.

// Asked for where it is used: an address kept over a loop lies in an ordinary register, and with it
// the operands of all products, which then take two moves each.
extern __shared__ __align__(1024) unsigned char memory[];
FN struct Shared &shared_memory() {
    u32 address;
    asm volatile("mov.u32 %0, memory;" : "=r"(address));
    return *(struct Shared *)__cvta_shared_to_generic(address);
}

// Turns through a ring of places in shared memory.
// Gives: Ring.
template <int COUNT>
struct Ring {
    i32 at = 0;
    u32 turn = 0;  // parity
    FN void next() {
        at = at + 1 == COUNT ? 0 : at + 1;
        turn ^= at == 0;
    }
};

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

// The thread that loads the tiles of items.
// Needs: ring.cuh, ptx.cuh; Shared and Maps of the includer.

// ---------------------------------------------------------------- the warp that copies

// Items of the work list, and copies of their tiles.
// Needs: work.cuh, ptx.cuh, tokens.cuh or gen/grid_tiles.cuh.j2.

constexpr i32 FIRST = 1 << 29;  // in a word: the tile is the first of its item, or part
constexpr i32 END = 1 << 30;    // there is no tile, and none will come

// The word of a tile of an item, the last of the row first; END where there is no item.
FN i32 word_at(const struct Attention &p, const struct Work &work, i32 left) {
    if (work.count == 0) return END;
    const i32 end = keys_end(p) - (TILE_K - KEY_STEP);
    return word_of(work, left, p.row_tiles, KEY_STEP, end) | (flips(p) ? MASKED : 0);
}
FN struct Work item(const struct Attention &p, i32 index) {
    struct Work none = {};
    return index < p.items ? work_at(p, index) : none;
}

// Where a tensor has the rows of one head. A dimension without a stride is one that all share.
struct Slice {
    i32 head, batch;
};
FN struct Slice slice_of(const i64 (&stride)[3], i32 head, i32 batch) {
    return {stride[1] ? head : 0, stride[0] ? batch : 0};
}
template <int ROWS>
FN void load_tile(unsigned char *tile, const TensorMap &map, u64 &full, const Point &at,
                  struct Slice from) {
    arrive_expecting(full, SLABS * ROWS * 128);
#pragma unroll
    for (int i = 0; i < SLABS; i++)
        load_box(shared_address(tile) + i * ROWS * 128, map, full, 64 * i, at, from.head,
                 from.batch);
}

// The first one that no block of a stream has taken: each begins with that of its own number.
FN struct Work next_item(const struct Attention &p) {
    return item(p, (i32)gridDim.x + atomicAdd(p.counter, 1));
}

// Packed heads: FIRST where the tile at position left - 1 is the last one of a part of its item.
FN i32 part_ends(const struct Work &work, i32 left) {
    return PACKED && (left & (work.tile - 1)) == 0 ? FIRST : 0;
}

// One thread. It shares its scheduler with warps that compute: what it does per tile is little.
FN void copy_tiles(struct Shared &shared, const struct Attention &p, const struct Maps &maps) {
    const u32 group = (u32)p.heads_q / (u32)p.heads_kv;
    Ring<STAGES> stage;
    Ring<Q_TILES> q_place;
    struct Work work = item(p, blockIdx.x), coming = {};
    i32 word = word_at(p, work, work.count - 1);
    shared.first_word = word;
    arrive(shared.started);
#pragma unroll 1
    while (work.count > 0) {
        const struct Place place = place_of(work.head, p.heads_q);
        const i32 kv_head = (u32)place.head / group;
        const struct Slice k = slice_of(p.k_stride, kv_head, place.batch);
        const struct Slice v = slice_of(p.v_stride, kv_head, place.batch);
        // The next item is fetched under the first tile of this one, unless that is the only one.
        if (STREAM && work.count == 1) coming = next_item(p);
#pragma unroll 1
        for (i32 left = work.count - 1; left >= 0; left--) {
            const Point first_k = key_point((word & INDEX) * KEY_STEP);
            if (left > 0)
                word = word_at(p, work, left - 1) | part_ends(work, left);
            else
                word = word_at(p, coming, coming.count - 1) | (STREAM ? FIRST : 0);
            wait(shared.k_free[stage.at], stage.turn ^ 1);
            shared.next[stage.at] = word;
            load_tile<TILE_K>(shared.k[stage.at], maps.k, shared.k_full[stage.at], first_k, k);
            if (left + 1 == work.count) {
                wait(shared.q_free[q_place.at], q_place.turn ^ 1);
                const i32 tile = PACKED ? 0 : work.tile;
                shared.row[q_place.at] = {tile, place.head, place.batch, work.shared,
                                          PACKED ? work.heads : 0};
                load_tile<TILE_Q>(shared.q[q_place.at], maps.q, shared.q_full[q_place.at],
                                  query_point(tile * TILE_Q),
                                  slice_of(p.q_stride, place.head, place.batch));
                q_place.next();
                if (STREAM && left > 0) coming = next_item(p);
            }
            wait(shared.v_free[stage.at], stage.turn ^ 1);
            load_tile<TILE_K>(shared.v[stage.at], maps.v, shared.v_full[stage.at], first_k, v);
            stage.next();
        }
        work = coming;
        coming = {};
    }
    // The last block leaves the counter as it found it.
    if (STREAM && atomicAdd(p.counter + 1, 1) == gridDim.x - 1) p.counter[0] = p.counter[1] = 0;
}

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
// Which pairs a thread's scores of a tile are of, where rows are of several heads; see logit.cuh.
// Needs: packed_rows.cuh, logit.cuh, Row of the includer.

// Of one of the thread's rows.
struct RowWhere {
    i32 sequence, key_place;  // of the first element
    i32 token, of_head;
    struct HeadLogit own;
    float far;  // the query's position minus the first key's
    FN void refresh(const struct Attention &) {}
    FN float distance(int i) const { return fabsf(far - (i / 2 * 8 + i % 2)); }
    FN struct HeadLogit head_logit(int) const { return own; }
    FN i32 query(const struct Attention &, int) const { return token; }
    FN i32 key(const struct Attention &, int i) const { return key_place + i / 2 * 8 + i % 2; }
    FN float apart(const struct Attention &, int i) const {
        return (float)(token - key_place) - (i / 2 * 8 + i % 2);
    }
    FN i32 head(int) const { return of_head; }
    FN i32 batch() const { return sequence; }
};
struct Where {
    struct RowWhere row[2];
    bool any[2];  // whether some lane of the warp has such a row at all
};
FN struct Where where_of(const struct Attention &p, const struct Row &row, i32 query, i32 word) {
    struct Where where;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        struct RowWhere &own = where.row[r];
        own.sequence = row.batch;
        own.key_place = (word & INDEX) * KEY_STEP + threadIdx.x % 4 * 2;
        own.token = mask_row(p, query + 8 * r);
        own.of_head = head_of_row(p, row.head, query + 8 * r);
        own.own = head_logit_of(p, own.of_head);
        own.far = (float)(own.token + p.n_kv - p.queries - own.key_place);
        where.any[r] = query - (i32)threadIdx.x % 32 / 4 + 8 * r < p.n_q;
    }
    return where;
}

// Scores become logits, row by row: few rows of a tile are any, and others are left alone.
template <int N>
FN void bend(float (&s)[N], const struct Attention &p, const struct Where &where) {
#if BENT
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (!where.any[r]) continue;
        float part[N / 2];
#pragma unroll
        for (int i = 0; i < N / 2; i++) part[i] = s[i / 2 * 4 + 2 * r + i % 2];
        bend(part, p, where.row[r]);
#pragma unroll
        for (int i = 0; i < N / 2; i++) s[i / 2 * 4 + 2 * r + i % 2] = part[i];
    }
#endif
}
#else
// Which pairs a thread's scores of a tile are of; see logit.cuh.
struct Where {
    struct Row row;
    i32 query_place, key_place;  // of the first element
    struct HeadLogit own;
    float far;  // the query's position minus the key's
    FN void refresh(const struct Attention &) {}
    FN float distance(int i) const {
        return fabsf(far + (i / 2 % 2 * 8 - i / 4 * 8 - i % 2));
    }
    FN struct HeadLogit head_logit(int) const { return own; }
    FN i32 query(const struct Attention &p, int i) const {
        return mask_row(p, query_at(query_place + i / 2 % 2 * 8));
    }
    FN i32 key(const struct Attention &p, int i) const {
        return min_i32(key_at(key_place + i / 4 * 8 + i % 2), p.n_kv - 1);
    }
    FN i32 head(int) const { return row.head; }
    FN i32 batch() const { return row.batch; }
};
FN struct Where where_of(const struct Attention &p, const struct Row &row, i32 query, i32 word) {
    const i32 position = query + p.n_kv - p.n_q;
    const i32 key = (word & INDEX) * KEY_STEP + threadIdx.x % 4 * 2, far = position - key;
    return {row, query, key, head_logit_of(p, row.head), (float)far};
}
#endif

// When a forward pass looks at the mask of a tile.
// Needs: Row and words of the includer; a mask policy.

// What is known before the product begins: all of it, or what is fetched for it.
FN struct Visible look_early(const struct Attention &p, const struct Row &row, i32 query, i32 word,
                             struct MaskRow &kept) {
    struct Visible seen;
    if ((MASK_EARLY || MASK_FETCHED) && word & MASKED) {
        const struct Place at = {row.batch, row.head};
        const i32 first_k = (word & INDEX) * KEY_STEP;
        if (MASK_FETCHED) seen = prefetch_mask<ByQuery>(p, at, query, first_k);
        if (MASK_EARLY) seen = visible<ByQuery>(p, at, query, first_k, kept, seen);
    }
    return seen;
}
// All of it, behind the product.
FN struct Visible look_late(const struct Attention &p, const struct Row &row, i32 query, i32 word,
                            struct MaskRow &kept, const struct Visible &seen) {
    if (MASK_EARLY) return seen;
    const i32 first_k = (word & INDEX) * KEY_STEP;
    return visible<ByQuery>(p, {row.batch, row.head}, query, first_k, kept, seen);
}

// Scores of a tile become logits, and those of dead pairs -inf.
// Needs: look.cuh, logit.cuh, apply_mask.cuh.

FN void finish_scores(Scores &s, const struct Attention &p, const struct Row &row, i32 query,
                      i32 word, struct MaskRow &kept, struct Visible seen) {
    bend(s, p, where_of(p, row, query, word));
    if (word & MASKED) {
        if (flips(p)) negate(s);
        seen = look_late(p, row, query, word, kept, seen);
        apply_mask(s, seen, MINUS_INFINITY);
    }
}

// A warpgroup's q, and its products with keys.
// Needs: ptx.cuh, gen/wgmma.cuh.j2; Shared and Scores of the includer.

// Where a lane points ldmatrix and stmatrix for 16 columns of its warp's rows of q or out.
FN u32 warp_rows(u32 tile, i32 group, int step) {
    const u32 thread = threadIdx.x % 128, lane = thread % 32;
    const u32 row = 64 * group + thread / 32 * 16 + lane % 16;
    return tile + step / 4 * Q_SLAB + swizzled(row, step % 4 * 2 + lane / 16);
}

// A warpgroup's q: in shared memory, or its fragments.
struct Query {
    u64 operand;
#if KEEP_Q
    u32 fragment[STEPS * 4];
#endif
};

FN u64 q_operand(const struct Shared &shared, i32 at, i32 group) {
    return along_columns(shared_address(shared.q[at]) + group * 64 * SLAB_ROW);
}
FN void take_q(struct Query &q, struct Shared &shared, i32 at, i32 group) {
    const u32 tile = shared_address(shared.q[at]);
    q.operand = q_operand(shared, at, group);
#if KEEP_Q
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        u32 *x = q.fragment + 4 * i;
        load_matrices(x[0], x[1], x[2], x[3], warp_rows(tile, group, i));
    }
#endif
}

// s = q k^T, begun
FN void begin_scores(Scores &s, struct Query &q, u64 k) {
    pin(s);
#if KEEP_Q
    pin(q.fragment);
#endif
    products_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
#if KEEP_Q
        multiply_kept_qk(s, q.fragment + 4 * i, k + column_step(i, K_SLAB), i > 0);
#else
        multiply_qk(s, q.operand + column_step(i, Q_SLAB), k + column_step(i, K_SLAB), i > 0);
#endif
    products_commit();
}

// o += p v, begun
FN void begin_output(Output &o, Weights &weights, u64 v) {
    pin(weights);
    pin(o);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++)
        multiply_pv(o, weights + 4 * i, v + token_step(i), true);
    products_commit();
}

// The end of a row: sinks, other keys' results, lse, and out.
// Needs: query.cuh, ptx.cuh, unpack.cuh, work.cuh.

// The logit of a sink; of packed heads each has its own.
FN float sink_of(const struct Attention &p, i32 head, i32 row) {
    return p.sink_logits[head_of_row(p, head, row)];
}

// What a row's other keys gave before, in powers of two; -inf where there is none.
FN float lse_before(const struct Attention &p, const float *lse, i32 token) {
    return p.joins && token < p.n_q ? __fmul_rn(lse[token * p.lse_stride[2]], LOG2E)
                                    : MINUS_INFINITY;
}

#if PACKED
// Packed heads, whose only tile row is cut along the keys: its parts, of which an item has several,
// and their merge by the last item that is done.
// Needs: work.cuh, unpack.cuh; lse_before and sink_of of forward_store.cuh.

// An item leaves parts instead of results, in fp32, where p.delta points: outputs of the rows that
// there are, and then of each the level that they are relative to, in powers of two, and the sum of
// its exponentials. Parts begin at multiples of 16 bytes, and do not tell which item they are of.
FN i32 part_rows(const struct Attention &p) { return p.n_q + p.n_q % 2; }
FN float *part_at(const struct Attention &p, i32 part) {
    return p.delta + (i64)part * (part_rows(p) * (HEAD_DIM + 2));
}
FN float2 *sums_of(const struct Attention &p, float *part) {
    return (float2 *)(part + part_rows(p) * HEAD_DIM);
}

FN void store_part(const Output &o, const float (&top)[2], const float (&sum)[2], float unit,
                   const struct Attention &p, i32 part, i32 group) {
    const i32 lane = threadIdx.x % 32, first = 64 * group + threadIdx.x % 128 / 32 * 16;
    if (first >= p.n_q) return;  // the whole warp
    float *const to = part_at(p, part);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = first + lane / 4 + 8 * r;
        const float total = quad_sum(sum[r]);
        if (row >= p.n_q) continue;
        float2 *const output = (float2 *)(to + row * HEAD_DIM) + lane % 4;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++)
            output[4 * i] = make_float2(o[4 * i + 2 * r], o[4 * i + 2 * r + 1]);
        if (lane % 4 == 0) sums_of(p, to)[row] = make_float2(__fmul_rn(top[r], unit), total);
    }
}

// One warpgroup: a warp has a row, whose columns its lanes share by fours. Parts are added in the
// order of their keys, whoever was last, and the sink's logit behind them.
constexpr int FOURS = HEAD_DIM / 4, OWN_FOURS = (FOURS + 31) / 32;

FN void merge_parts(const struct Attention &p, const struct Work &work) {
    const struct Place at = place_of(work.head, p.heads_q);
    const i32 lane = threadIdx.x % 32, step = part_rows(p) * (HEAD_DIM + 2);
    const float *const parts = part_at(p, work.first);
#pragma unroll 1
    for (i32 row = threadIdx.x % 128 / 32; row < p.n_q; row += 4) {
        const float *const from = parts + row * HEAD_DIM;
        const float *const sums = parts + part_rows(p) * HEAD_DIM + 2 * row;
        float *const lse = p.lse + row_offset(p.lse_stride, at, 0);
        const float before = lse_before(p, lse, row);
        const float sink =
            WITH_SINKS ? __fmul_rn(sink_of(p, at.head, row), LOG2E) : MINUS_INFINITY;
        float top = fmaxf(before, sink);
#pragma unroll 4
        for (i32 i = lane; i < work.count; i += 32)
            top = fmaxf(top, __ldcg((const float2 *)(sums + (i64)i * step)).x);
#pragma unroll
        for (int by = 16; by; by /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, by));
        top = top == MINUS_INFINITY ? 0.0f : top;

        float total = 0.0f, o[4 * OWN_FOURS] = {};
#pragma unroll 1
        for (i32 first = 0; first < work.count; first += 32) {
            const i32 count = min_i32(work.count - first, 32), own = min_i32(lane, count - 1);
            const float2 sum = __ldcg((const float2 *)(sums + (i64)(first + own) * step));
            const float weight = lane < count ? fast_exp2(__fsub_rn(sum.x, top)) : 0.0f;
            total = fmaf(weight, sum.y, total);
#pragma unroll 16
            for (i32 i = 0; i < count; i++) {
                const float share = __shfl_sync(0xffffffff, weight, i);
                const float4 *const part = (const float4 *)(from + (i64)(first + i) * step);
#pragma unroll
                for (int j = 0; j < OWN_FOURS; j++) {
                    if (FOURS % 32 && lane + 32 * j >= FOURS) continue;
                    const float4 x = __ldcg(part + lane + 32 * j);
                    float *const y = o + 4 * j;
                    y[0] = fmaf(share, x.x, y[0]), y[1] = fmaf(share, x.y, y[1]);
                    y[2] = fmaf(share, x.z, y[2]), y[3] = fmaf(share, x.w, y[3]);
                }
            }
        }
#pragma unroll
        for (int by = 16; by; by /= 2) total += __shfl_xor_sync(0xffffffff, total, by);
        const float share = fast_exp2(__fsub_rn(before, top));
        total += share + fast_exp2(__fsub_rn(sink, top));
        const bool empty = total == 0.0f;
        const float scale = empty ? 0.0f : fast_reciprocal(total);
        uint2 *const out = (uint2 *)p.out + row_offset(p.out_stride, at, row) / 4;
#pragma unroll
        for (int j = 0; j < OWN_FOURS; j++) {
            if (FOURS % 32 && lane + 32 * j >= FOURS) continue;
            const uint2 old = p.joins ? out[lane + 32 * j] : make_uint2(0, 0);
            const float2 low = unpack(old.x), high = unpack(old.y);
            const float *const x = o + 4 * j;
            out[lane + 32 * j] = make_uint2(
                pack(fmaf(low.x, share, x[0]) * scale, fmaf(low.y, share, x[1]) * scale),
                pack(fmaf(high.x, share, x[2]) * scale, fmaf(high.y, share, x[3]) * scale));
        }
        if (lane == 0)
            lse[row * p.lse_stride[2]] =
                empty ? MINUS_INFINITY : __fmul_rn(__fadd_rn(top, fast_log2(total)), LN2);
    }
}

// An item's parts are stored, `count` of them; the last warpgroup of all that store parts of a row
// merges them. It leaves the row's counter as it found it.
FN void finish_parts(struct Shared &shared, const struct Attention &p, i32 count, i32 group) {
    const i32 merge = uniform(shared.row[0].merge);
    const struct Work work = work_at(p, p.items + p.empty + merge);
    i32 &done = p.counter[2 + merge];
    sync_threads(8 + group, 128);
    if (threadIdx.x % 128 == 0) {
        __threadfence();
        shared.stored[group] = atomicAdd(&done, count);
    }
    sync_threads(8 + group, 128);
    if (uniform(shared.stored[group]) + count != work.count * GROUPS) return;
    if (threadIdx.x % 128 == 0) done = 0;
    __threadfence();
    merge_parts(p, work);
}
#else
// Tile rows cut along the keys: what their items leave, and the launch that merges it.
// Needs: work.cuh, unpack.cuh.

// An item of a row that is cut leaves a part instead of results, in fp32, where p.delta points: of
// each warpgroup its accumulators, four numbers of every thread at a time, and then of each query
// the level that they are relative to, in powers of two, and the sum of its exponentials.
constexpr i32 PART_FLOATS = TILE_Q * (HEAD_DIM + 2);

FN float *part_at(const struct Attention &p, i32 part) { return p.delta + (i64)part * PART_FLOATS; }
FN float4 *output_of(float *part, i32 group) {
    return (float4 *)part + group * (HEAD_DIM / 8 * 128);
}
FN float2 *sums_of(float *part) { return (float2 *)(part + TILE_Q * HEAD_DIM); }

FN void store_part(const Output &o, const float (&top)[2], const float (&sum)[2], float unit,
                   float *part, i32 group) {
    const i32 thread = threadIdx.x % 128;
    float4 *const output = output_of(part, group) + thread;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; i++)
        output[i * 128] = make_float4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
    float2 *const sums = sums_of(part) + 64 * group + thread / 32 * 16 + thread % 32 / 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float total = quad_sum(sum[r]);
        if (thread % 4 == 0) sums[8 * r] = make_float2(__fmul_rn(top[r], unit), total);
    }
}

// After: a block has 16 queries of a row, which were one warp's; each of its warps has a quarter of
// the columns. Parts are added in the order of their keys, and the sink's logit last.
constexpr int MERGE_ROWS = 16, MERGE_PIECES = HEAD_DIM / 32;  // of eight columns
constexpr int PARTS_AT_ONCE = HEAD_DIM > 128 ? 2 : 4;

extern "C" __global__ void __launch_bounds__(128)
attention_merge(const __grid_constant__ struct Attention p, const __grid_constant__ struct Maps) {
    constexpr u32 STRIPS = TILE_Q / MERGE_ROWS;
    const struct Work work = work_at(p, p.items + p.empty + blockIdx.x / STRIPS);
    const i32 strip = blockIdx.x % STRIPS, lane = threadIdx.x % 32;
    const i32 row = strip * MERGE_ROWS + lane / 4, query = work.tile * TILE_Q + row;
    if (!GRID_TILES && work.tile * TILE_Q + strip * MERGE_ROWS >= p.n_q) return;  // nobody is here
    const i32 first = threadIdx.x / 32 * MERGE_PIECES;
    const i32 place = first * 128 + strip % 4 * 32 + lane;

    const struct Place at = place_of(work.head, p.heads_q);
    float *const lse = p.lse + row_offset(p.lse_stride, at, 0);
    const i32 token[2] = {query_at(query), query_at(query + 8)};
    const float before[2] = {lse_before(p, lse, token[0]), lse_before(p, lse, token[1])};
    __syncthreads();  // all have read what one warp will write

    float top[2] = {before[0], before[1]};
#pragma unroll 8
    for (i32 i = 0; i < work.count; i++) {
        const float2 *const sums = sums_of(part_at(p, work.first + i)) + row;
        top[0] = fmaxf(top[0], sums[0].x), top[1] = fmaxf(top[1], sums[8].x);
    }
    float sink[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sink[r] = WITH_SINKS ? __fmul_rn(sink_of(p, at.head, token[r]), LOG2E) : MINUS_INFINITY;
        top[r] = fmaxf(top[r], sink[r]);
        top[r] = top[r] == MINUS_INFINITY ? 0.0f : top[r];
    }

    float total[2] = {}, o[4 * MERGE_PIECES] = {};
#pragma unroll PARTS_AT_ONCE
    for (i32 i = 0; i < work.count; i++) {
        float *const part = part_at(p, work.first + i);
        const float2 *const sums = sums_of(part) + row;
        const float low = fast_exp2(__fsub_rn(sums[0].x, top[0]));
        const float high = fast_exp2(__fsub_rn(sums[8].x, top[1]));
        total[0] = fmaf(low, sums[0].y, total[0]), total[1] = fmaf(high, sums[8].y, total[1]);
#pragma unroll
        for (int j = 0; j < MERGE_PIECES; j++) {
            const float4 x = output_of(part, strip / 4)[place + j * 128];
            float *const y = o + 4 * j;
            y[0] = fmaf(low, x.x, y[0]), y[1] = fmaf(low, x.y, y[1]);
            y[2] = fmaf(high, x.z, y[2]), y[3] = fmaf(high, x.w, y[3]);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float share = fast_exp2(__fsub_rn(before[r], top[r]));
        total[r] += share + fast_exp2(__fsub_rn(sink[r], top[r]));
        const bool empty = total[r] == 0.0f;
        const float scale = empty ? 0.0f : fast_reciprocal(total[r]);
        const i32 q = token[r];
        if (q >= p.n_q) continue;
        u32 *const out = (u32 *)p.out + row_offset(p.out_stride, at, q) / 2 + lane % 4;
#pragma unroll
        for (int j = 0; j < MERGE_PIECES; j++) {
            u32 &to = out[4 * (first + j)];
            const float *const x = o + 4 * j + 2 * r;
            const float2 y = p.joins ? unpack(to) : make_float2(0.0f, 0.0f);
            to = pack(fmaf(y.x, share, x[0]) * scale, fmaf(y.y, share, x[1]) * scale);
        }
        if (threadIdx.x < 32 && lane % 4 == 0)
            lse[q * p.lse_stride[2]] =
                empty ? MINUS_INFINITY : __fmul_rn(__fadd_rn(top[r], fast_log2(total[r])), LN2);
    }
}
#endif

// Adds that, or a sink, to a row's sum, as if it were one more key's logit; both it and all others
// may be -inf. Returns its weight.
FN float join_sum(float before, float &total, float &base, float &factor) {
    const float higher = fmaxf(base, before), finite = higher == MINUS_INFINITY ? 0.0f : higher;
    const float shrink = fast_exp2(__fsub_rn(base, finite));
    const float weight = fast_exp2(__fsub_rn(before, finite));
    factor = __fmul_rn(factor, shrink);
    total = fmaf(total, shrink, weight);
    base = higher;
    return weight;
}
// And its output to theirs, which is then divided.
FN void join_rows(Output &o, float (&scale)[2], const float (&share)[2], const struct Row &row,
                  i32 query, const struct Attention &p) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 token = min_i32(query_at(query + 8 * r), p.n_q - 1);
        const u32 *const before = (const u32 *)p.out + threadIdx.x % 4
            + row_offset(p.out_stride, {row.batch, row.head}, token) / 2;
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            const float2 x = unpack(before[4 * i]);
            float *const y = o + 4 * i + 2 * r;
            y[0] = fmaf(x.x, share[r], __fmul_rn(y[0], scale[r]));
            y[1] = fmaf(x.y, share[r], __fmul_rn(y[1], scale[r]));
        }
        scale[r] = 1.0f;
    }
}

// Which part of its row the item has whose q lies, or lay, in this place; 0 where it has all.
FN i32 part_in(u32 tile) {
    const struct Shared &shared = shared_memory();
    return uniform(shared.row[STREAM && tile != shared_address(shared.q)].part);
}

// Divides by the rows' sums; writes lse, and starts to write out through the place of q. Roundings
// are spelled out: a stream stores in two places, whose bits are to be the same.
FN void store(Output &o, const float (&top)[2], const float (&sum)[2], float unit,
              const struct Row &row, const struct Attention &p, const struct Maps &maps, u32 tile,
              i32 group) {
    if (const i32 part = part_in(tile)) {
#if PACKED
        store_part(o, top, sum, unit, p, row.part - 1, group);
        finish_parts(shared_memory(), p, part - row.part + 1, group);
#else
        store_part(o, top, sum, unit, part_at(p, part - 1), group);
        sync_threads(8 + group, 128);  // all have read which part, before the place is free
#endif
        return;
    }
    const i32 lane = threadIdx.x % 32, query = query_of(row, group);
    float *const lse = p.lse + row_offset(p.lse_stride, {row.batch, row.head}, 0);
    const i32 token[2] = {query_at(query), query_at(query + 8)};
    const float before[2] = {lse_before(p, lse, token[0]), lse_before(p, lse, token[1])};
    float scale[2], share[2] = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float total = WITH_ENTMAX ? sum[r] : quad_sum(sum[r]);
        float base = __fmul_rn(top[r], unit), factor = 1.0f;
#if WITH_SINKS
        join_sum(__fmul_rn(sink_of(p, row.head, token[r]), LOG2E), total, base, factor);
#endif
        if (p.joins) share[r] = join_sum(before[r], total, base, factor);
        const bool empty = total == 0.0f;
        const float inverse = empty ? 0.0f : fast_reciprocal(total);
        scale[r] = __fmul_rn(factor, inverse);
        share[r] = __fmul_rn(share[r], inverse);
        if (lane % 4 == 0 && token[r] < p.n_q)
            lse[token[r] * p.lse_stride[2]] =
                empty ? MINUS_INFINITY
                : WITH_ENTMAX ? base
                              : __fmul_rn(__fadd_rn(base, fast_log2(total)), LN2);
    }
    if (p.joins) join_rows(o, scale, share, row, query, p);
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const float *const x = o + 8 * i;
        store_matrices(warp_rows(tile, group, i), pack(x[0] * scale[0], x[1] * scale[0]),
                       pack(x[2] * scale[1], x[3] * scale[1]),
                       pack(x[4] * scale[0], x[5] * scale[0]),
                       pack(x[6] * scale[1], x[7] * scale[1]));
    }
    publish_writes();
    sync_threads(8 + group, 128);
    if (threadIdx.x % 128 == 0) {
        const i32 first = 64 * group;
#pragma unroll
        for (int i = 0; i < SLABS; i++)
            store_box(maps.out, tile + i * Q_SLAB + first * SLAB_ROW, 64 * i,
                      query_point(row.tile * TILE_Q + first), row.head, row.batch);
        commit_stores();
    }
}

// Rows of tiles without a live pair: the end of the work list.
FN void store_empty(const struct Attention &p) {
    if (p.joins) return;  // they keep what they have
    const i32 thread = threadIdx.x - 128;
    for (i32 index = p.items + p.empty - 1 - blockIdx.x; index >= 0; index -= gridDim.x) {
        const struct Work work = work_at(p, index);
        if (work.count > 0) return;
        const struct Place at = place_of(work.head, p.heads_q);
        const i32 first = work.tile * TILE_Q;
        for (i32 i = thread; i < TILE_Q * (HEAD_DIM / 8); i += 128 * GROUPS) {
            const i32 token = query_at(first + i / (HEAD_DIM / 8));
            if (token >= p.n_q) continue;
            const i64 place = row_offset(p.out_stride, at, token);
            ((uint4 *)p.out)[place / 8 + i % (HEAD_DIM / 8)] = make_uint4(0, 0, 0, 0);
        }
        for (i32 i = thread; i < TILE_Q; i += 128 * GROUPS) {
            const i32 token = query_at(first + i);
            if (token < p.n_q)
                p.lse[row_offset(p.lse_stride, at, token)] =
                    WITH_SINKS ? sink_of(p, at.head, token) : MINUS_INFINITY;
        }
    }
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
                i32 group) {
    const bool leader = threadIdx.x % 128 == 0;
    const u64 k_tiles = along_columns(shared_address(shared.k[0]));
    const u64 v_tiles = along_tokens(shared_address(shared.v[0]), K_SLAB);
    const float unit = unit_of(p), stale = STALE * fast_reciprocal(unit);
    Ring<STAGES> stage;
    Ring<Q_TILES> q_place;
    struct Query q;
    Scores s;
    Output o;
    Weights weights;
    struct Softmax softmax;
    start(softmax);
    clear(o);
    if (GROUPS > 1 && group == 0) arrive_threads(1, 256);

    wait(shared.started, 0);
    i32 word = uniform(shared.first_word);
    if (word & END) return;
    wait(shared.k_full[0], 0);
    i32 next = shared.next[0];
    wait(shared.q_full[0], 0);
    struct Row row = row_in(shared, 0);
    i32 query = query_of(row, group);
    take_q(q, shared, 0, group);
    struct MaskRow kept;
    struct Visible seen = look_early(p, row, query, word, kept);
    begin_scores(s, q, k_tiles);
    products_wait<0>();
    pin(s);
    if (leader) arrive(shared.k_free[0]);
    finish_scores(s, p, row, query, word, kept, seen);
    raise_tops(s, unit, stale, softmax);
    exponentials(s, 0, unit, softmax);
    exponentials(s, 1, unit, softmax);
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
            store_part(o, softmax.top, softmax.sum, unit, p, --row.part, group);
            start(softmax);
            clear(o);
            seen = look_early(p, row, query, word, kept);
            begin_scores(s, q, k_tile);
            products_wait<0>();
            pin(s);
            if (leader) arrive(shared.k_free[stage.at]);
            finish_scores(s, p, row, query, word, kept, seen);
            raise_tops(s, unit, stale, softmax);
            exponentials(s, 0, unit, softmax);
            exponentials(s, 1, unit, softmax);
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
        const float old_sum[2] = {softmax.sum[0], softmax.sum[1]};
        const u32 old_tile = shared_address(shared.q[q_place.at]);
        if (first) {
            q_place.next();
            wait(shared.q_full[q_place.at], q_place.turn);
            row = row_in(shared, q_place.at);
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
        products_wait<1>();
        pin(s);
        if (leader) arrive(shared.k_free[stage.at]);
        if (SETTLE == 0) {
            products_wait<0>();
            pin(weights);
        }
        finish_scores(s, p, row, query, word, kept, seen);
        const bool raised = raise_tops(s, unit, stale, softmax);
        if (SETTLE > 1) {
            exponentials(s, 0, unit, softmax);
            pin(s);
        }
        // The wait for p v stands in two branches: without them ptxas moves it up, before the
        // maxima and the exponentials that are to run under the product.
        if (first) {
            products_wait<0>();
            pin(o);
            if (SETTLE) pin(weights);
            if (leader) arrive(shared.v_free[last.at]);
            store(o, old_top, old_sum, unit, old, p, maps, old_tile, group);
            storing = true;
            clear(o);
        } else if (raised) {
            asm volatile("wgmma.wait_group.sync.aligned 0;  // raised" ::: "memory");
            pin(o);
            if (SETTLE) pin(weights);
            if (leader) arrive(shared.v_free[last.at]);
            rescale(o, softmax);
        } else {
            asm volatile("wgmma.wait_group.sync.aligned 0;  // as before" ::: "memory");
            pin(o);
            if (SETTLE) pin(weights);
            if (leader) arrive(shared.v_free[last.at]);
        }
        last = stage;
        stage.next();
        k_tile = k_tiles + stage.at * (K_BYTES >> 4);
        v_tile = v_tiles + last.at * (K_BYTES >> 4);
        if (SETTLE < 2) exponentials(s, 0, unit, softmax);
        exponentials(s, 1, unit, softmax);
        to_weights(weights, s);
    }
    wait(shared.v_full[last.at], last.turn);
    begin_output(o, weights, v_tile);
    products_wait<0>();
    pin(o);
    const u32 tile = shared_address(shared.q[q_place.at]);
    store(o, softmax.top, softmax.sum, unit, row, p, maps, tile, group);
    if (leader) stores_done<0>();
}

#if WITH_ENTMAX
// alpha-entmax instead of softmax: passes over a row until its lse is found.
// Needs: items.cuh, ptx.cuh.

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

// Blocks stream through tile rows. A block passes once over the tiles of one for the keys that may
// have a weight: the level of these is the row's. Where they are few, their values are all that it
// takes then; where they are more, a pass over values alone. Where they were too many to be
// remembered it passes over keys until their level is close, and over both until it is right.
// Wishes of warps are joined bit by bit: one that cannot have values alone, UNLISTED, may have few.
enum Pass { DONE = 0, LISTED = 1, UNLISTED = 2, VALUES = 3, SUMS = 7, START = 8 };

// Of scores, as finish_scores leaves them, in units of a * score.
FN float unit_of_entmax(const struct Attention &p) {
    return p.alpha_minus_1 * fmaxf(fabsf(left_scale(p)), 1e-30f);
}

typedef Scores RowScores;
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

// alpha-entmax: the keys of a row that may have a weight, as lists.
// Needs: entmax_levels.cuh, entmax_weights.cuh. Gives: Lists.

// With alpha from 1.5 on most rows have few keys with a weight, if in many tiles. The first pass
// keeps the scores of those that have one at the level of the keys met so far, which only rises:
// the level of the row is that of its list. Lists lie where values will, and behind: a thread has
// one place for both rows' shares, the first's growing from below, the second's from above. Where
// they meet, the level takes passes over the row's keys.
constexpr u32 PLACE = sizeof(float2);  // of a score and the number of its key
constexpr u32 LIST_STEP = PLACE * 128 * GROUPS;  // bytes from one place of a thread to its next
constexpr u32 LIST = (sizeof(Shared::v) + sizeof(Shared::lists)) / LIST_STEP;
// Numbers of keys are fp32: what adds to them runs beside the instructions on integers that lists
// take anyway. They are exact, and tiles have numbers of 16 bits, up to so many keys.
constexpr i32 MOST_KEYS = 1 << 22;

struct Lists {
    u32 free[2];     // the first place of each row that is, in shared memory
    float least[2];  // what a score must be above to have a weight
    bool full;       // the same in a warp, and for good
};

// Where the lists of a thread's rows begin. Computed where it is used.
FN u32 first_place(int r) {
    return shared_address(shared_memory().v[0]) + PLACE * (threadIdx.x - 128)
        + r * (LIST - 1) * LIST_STEP;
}
FN float2 &kept(u32 at) { return *(float2 *)__cvta_shared_to_generic(at); }
FN float &kept_score(u32 at) { return *(float *)__cvta_shared_to_generic(at); }
FN u32 next_in_list(int r, u32 at) { return r ? at - LIST_STEP : at + LIST_STEP; }

// Calls f(row, score, key) for the lists, both rows at once: a loop waits for shared memory once a
// turn. Only some ask for keys.
// Behind a list lie so many places with minus infinity, which has no weight, that a turn needs not
// ask where it ends; one that has ended reads them again. Both lists may have the same ones, and
// `f` may write to places that were read.
constexpr u32 AT_ONCE = 2;
template <bool ASKED = false, typename F>
FN void for_lists(const struct Lists &lists, const F &f) {
    const u32 end[2] = {lists.free[0], lists.free[1]};
    u32 at[2] = {first_place(0), first_place(1)};
#pragma unroll
    for (u32 i = 0; i < AT_ONCE; i++) {
        kept_score(end[0] + i * LIST_STEP) = MINUS_INFINITY;
        kept_score(end[1] - i * LIST_STEP) = MINUS_INFINITY;
    }
#pragma unroll 1
    while (at[0] < end[0] || at[1] > end[1]) {
        float2 x[2][AT_ONCE];
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++) {
            const u32 from[2] = {at[0] + i * LIST_STEP, at[1] - i * LIST_STEP};
#pragma unroll
            for (int r = 0; r < 2; r++) {
                if (ASKED)
                    x[r][i] = kept(from[r]);
                else
                    x[r][i].x = kept_score(from[r]);
            }
        }
        at[0] = min(at[0] + AT_ONCE * LIST_STEP, end[0]);
        at[1] = max(at[1] - AT_ONCE * LIST_STEP, end[1]);
#pragma unroll
        for (u32 i = 0; i < AT_ONCE; i++)
#pragma unroll
            for (int r = 0; r < 2; r++) f(r, x[r][i].x, x[r][i].y);
    }
}

// Where the level is no number the row needs no scores any more.
FN void set_least(struct Lists &lists, const struct Search &x, float unit) {
#pragma unroll
    for (int r = 0; r < 2; r++) lists.least[r] = fminf((x.level[r] - 1.0f) / unit, PLUS_INFINITY);
}

// With alpha near 1 every key has a weight.
FN void start_lists(struct Lists &lists, const struct Search &x, float unit, float a) {
    lists.free[0] = first_place(0), lists.free[1] = first_place(1);
    lists.full = a < 0x1p-7f;
    set_least(lists, x, unit);
}

// The places that are free beyond those behind the lists.
constexpr u32 BEHIND = (AT_ONCE - 1) * LIST_STEP;

// Keeps the scores of a tile; `key` is the thread's first one. What is not a number is kept too.
// The rows take turns, as a store holds up what finds its row's next place. Some scores share what
// keeps the lists apart: where there is no place left the last one is written again and again.
constexpr u32 TOGETHER = 2;
FN void keep_scores(const Scores &s, float key, struct Lists &x) {
#pragma unroll
    for (int first = 0; first < OWN; first += TOGETHER) {
        const u32 low = x.free[0], high = x.free[1];
        const u32 last[2] = {(u32)anew(max(low, high - BEHIND - TOGETHER * LIST_STEP)),
                             (u32)anew(low + BEHIND)};
#pragma unroll
        for (int i = first; i < first + TOGETHER; i++) {
            const float own = key + (float)(i / 2 * 8 + i % 2);
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const float y = s[i / 2 * 4 + 2 * r + i % 2];
                if (y <= x.least[r]) continue;
                const u32 free = x.free[r], next = next_in_list(r, free);
                kept(free) = make_float2(y, own);
                x.free[r] = r ? max(next, last[r]) : min(next, last[r]);
            }
        }
    }
}

FN void keep_score(u32 (&free)[2], int r, float y, float key) {
    kept(free[r]) = make_float2(y, key);
    free[r] = next_in_list(r, free[r]);
}

// Forgets those that have no weight any more, and nothing that is no number.
FN void drop_scores(struct Lists &x) {
    u32 free[2] = {first_place(0), first_place(1)};
    for_lists<true>(x, [&](int r, float y, float key) {
        if (!(y <= x.least[r] || y == MINUS_INFINITY)) keep_score(free, r, y, key);
    });
    x.free[0] = free[0], x.free[1] = free[1];
}

FN void add_lists(const struct Lists &lists, float unit, float a, struct Search &x) {
    clear_sums(x);
    by_alpha(a, [&](auto kind) {
        constexpr Alpha ALPHA = decltype(kind)::value;
        if (ALPHA == NEAR_SOFTMAX) return;  // has no lists
        for_lists(lists, [&](int r, float y, float) {
            const struct Weight w = weigh<ALPHA>(y, unit, x.level[r], a);
            x.p[r] += w.p, x.u[r] += w.u;
            if (ALPHA == HALF_MORE) x.count[r] += w.u > 0.0f ? 1.0f : 0.0f;
        });
    });
    sum_over_quads(x);
}

// Rises towards the level of the lists, but not past it: what has no weight then has none for good.
// The lists are read once: on the way they lose what had no weight at the level before, and scores
// too far above that count as 1, as if they were lower, which only makes the step smaller. No
// weight is above 1: the level is not below the largest score either.
FN void raise_and_drop(struct Lists &lists, float unit, float a, struct Search &x) {
    u32 free[2] = {first_place(0), first_place(1)};
    float peak[2] = {MINUS_INFINITY, MINUS_INFINITY};
    clear_sums(x);
    by_alpha(a, [&](auto kind) {
        constexpr Alpha ALPHA = decltype(kind)::value;
        if (ALPHA == NEAR_SOFTMAX) return;
        for_lists<true>(lists, [&](int r, float y, float key) {
            const struct Weight w = weigh<ALPHA>(y, unit, x.level[r], a);
            x.p[r] += w.p, x.u[r] += w.u;
            peak[r] = max_or_nan(peak[r], y);
            if (y > lists.least[r]) keep_score(free, r, y, key);
        });
    });
    sum_over_quads(x);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float raised = x.level[r] + newton_step(a, x.p[r], x.u[r]);
        x.level[r] = max_or_nan(raised, quad_max_or_nan(peak[r]) * unit);
        lists.free[r] = free[r];
    }
    set_least(lists, x, unit);
}

constexpr int MOST_STEPS = 12;  // of a search

// The levels become those of the lists, which then hold just what has a weight. Returns whether
// they are close enough.
FN bool search_lists(struct Lists &lists, float unit, float a, struct Search &x) {
    raise_and_drop(lists, unit, a, x);
    bool moves = true;
#pragma unroll 1
    for (int step = 0; moves && step < MOST_STEPS; step++) {
        add_lists(lists, unit, a, x);
        moves = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float by = closed_step(a, x.p[r], x.u[r], x.count[r]);
            moves = moves || fabsf(by) > close_enough(a, x.level[r]);
            x.level[r] += by;
        }
        moves = __any_sync(0xffffffff, moves);
    }
    set_least(lists, x, unit);
    drop_scores(lists);
    return !moves;
}

// Whether a warp's lists have room for less than so many scores.
FN bool fewer_places(const struct Lists &lists, u32 places) {
    const u32 room = lists.free[1] - lists.free[0] - BEHIND;
    return __any_sync(0xffffffff, room < places * LIST_STEP);
}

// Whether scores may have been without one.
FN bool too_few_places(const struct Lists &lists) { return fewer_places(lists, TOGETHER + 1); }

// Levels are raised after 2, 3, 5, 8, 16, 32, ... tiles, which is early enough for most lists and
// finds all warps at it together, and where places get few.
FN bool time_to_raise(const struct Lists &lists, i32 tiles) {
    const bool power = (tiles & (tiles - 1)) == 0 && tiles != 1 && tiles != 4;
    return power || tiles == 3 || tiles == 5 || fewer_places(lists, LIST / 6);
}

// The first pass over a tile; `tiles` counts it, `key` is the thread's first one. Its own scores
// raise the level before they are kept where a row has none, where there are no places for them,
// and where lists were given up.
FN void list_scores(Scores &s, i32 tiles, float key, float unit, float a, struct Lists &lists,
                    struct Search &x) {
    const u32 before[2] = {lists.free[0], lists.free[1]};
    const bool begins = x.level[0] == MINUS_INFINITY || x.level[1] == MINUS_INFINITY;
    bool carefully = lists.full || __any_sync(0xffffffff, begins);
    if (!carefully) {
        keep_scores(s, key, lists);
        carefully = too_few_places(lists);
    }
    if (carefully) {
        lists.free[0] = before[0], lists.free[1] = before[1];
        if (!lists.full) add_lists(lists, unit, a, x);
        start_levels(s, unit, a, x);
        if (lists.full) return;
        set_least(lists, x, unit);
        drop_scores(lists);
        keep_scores(s, key, lists);
        lists.full = too_few_places(lists);
    } else if (time_to_raise(lists, tiles)) {
        raise_and_drop(lists, unit, a, x);
    }
}

// alpha-entmax: out from the lists of keys, without another pass.
// Needs: entmax_lists.cuh, unpack.cuh, work.cuh.

// Where all rows of a block have few keys in their lists, only the values of these are read, from
// global memory. A quad has two rows of queries, and four keys of each a turn: each of its threads
// weighs one, and all take a quarter of its values, 16 bytes of every 64.
constexpr int PIECES = HEAD_DIM / 32;  // of 16 bytes, of a thread
constexpr int FETCHED = HEAD_DIM > 128 ? 1 : HEAD_DIM > 64 ? 2 : 4;  // keys of a row at once

// The lists of a quad's rows, one after another.
struct Joined {
    u32 end[2][4];  // where each ends, in bytes
};
FN struct Joined join_lists(const struct Lists &lists) {
    struct Joined x;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u32 own = r ? first_place(1) - lists.free[1] : lists.free[0] - first_place(0);
        u32 end = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) x.end[r][i] = end += __shfl_sync(0xffffffff, own, i, 4);
    }
    __syncwarp();  // now all threads see them
    return x;
}
FN u32 longest(const struct Joined &x) { return max(x.end[0][3], x.end[1][3]); }
// Beyond so many keys a pass over tiles of values is faster: it reads them once for all rows, and
// single ones come through a bandwidth that all blocks share.
FN u32 most_fetched(i32 tiles) { return (3 * (u32)tiles / 2 + 8) * LIST_STEP; }

// Where the score lies that has so many bytes before it.
FN u32 joined_at(const struct Joined &x, int r, u32 before) {
    u32 begin = 0, thread = 0;
#pragma unroll
    for (int i = 0; i < 3; i++)
        if (before >= x.end[r][i]) begin = x.end[r][i], thread = PLACE * (i + 1);
    const u32 first = first_place(r) - threadIdx.x % 4 * PLACE + thread;
    return r ? first - (before - begin) : first + (before - begin);
}

// Piece n of row r: in an output those of a thread lie one after another.
FN void add_piece(Output &o, int r, int piece, float weight, const uint4 &x) {
    const u32 pairs[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 y = unpack(pairs[i]);
        float *const to = o + 16 * piece + 4 * i + 2 * r;
        to[0] = fmaf(weight, y.x, to[0]), to[1] = fmaf(weight, y.y, to[1]);
    }
}
// Of four keys of each row one is the thread's: its weight, and where its values lie.
FN void add_keys(Output &o, const float (&own)[2], const u32 (&own_at)[2], const uint4 *values) {
#pragma unroll (HEAD_DIM > 192 ? 1 : 4)  // where values take no more registers than there are
    for (int first = 0; first < 4; first += FETCHED) {
        float weight[FETCHED][2];
        uint4 x[FETCHED][2][PIECES];
#pragma unroll
        for (int i = 0; i < 2 * FETCHED; i++) {
            const float y = __shfl_sync(0xffffffff, own[i % 2], first + i / 2, 4);
            const u32 at = __shfl_sync(0xffffffff, own_at[i % 2], first + i / 2, 4);
            weight[i / 2][i % 2] = y;
#pragma unroll
            for (int n = 0; n < PIECES; n++) x[i / 2][i % 2][n] = __ldg(values + at + 4 * n);
        }
#pragma unroll
        for (int i = 0; i < 2 * FETCHED; i++)
#pragma unroll
            for (int n = 0; n < PIECES; n++)
                add_piece(o, i % 2, n, weight[i / 2][i % 2], x[i / 2][i % 2][n]);
    }
}

// A thread has pieces of a row's output, not columns as a product leaves them.
FN void store_pieces(const Output &o, const float (&lse)[2], const float (&sum)[2],
                     const struct Row &row, i32 query, const struct Attention &p) {
    const struct Place place = {row.batch, row.head};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 token = query_at(query + 8 * r);
        if (token >= p.n_q) continue;
        const bool empty = sum[r] == 0.0f;
        const float scale = fast_reciprocal(sum[r]);
        uint4 *const to =
            (uint4 *)p.out + row_offset(p.out_stride, place, token) / 8 + threadIdx.x % 4;
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            u32 pairs[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *const x = o + 16 * n + 4 * i + 2 * r;
                pairs[i] = empty ? 0 : pack(x[0] * scale, x[1] * scale);
            }
            to[4 * n] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
        }
        if (threadIdx.x % 4 == 0)
            p.lse[row_offset(p.lse_stride, place, token)] = empty ? MINUS_INFINITY : lse[r];
    }
}

// Where the values of a score's key lie, in 16 bytes: 32 bits reach over 64 GiB.
FN u32 values_of(const struct Attention &p, u32 place) {
    return (i64)(i32)kept(place).y * p.v_stride[2] / 8;
}

// Of rows whose levels are found: sums of their weights, and the output that these are to divide.
// A row that has no more keys, but others have, reads values of one again: no others, which might
// not be numbers.
FN void fetch_values(Output &o, const struct Lists &lists, const struct Attention &p,
                     const struct Row &row, float unit, float a, struct Search &x) {
    const i32 kv_head = (u32)row.head / ((u32)p.heads_q / (u32)p.heads_kv);
    const uint4 *const values = (const uint4 *)p.v + threadIdx.x % 4
        + row_offset(p.v_stride, {row.batch, kv_head}, 0) / 8;
    const struct Joined joined = join_lists(lists);
    const u32 most = __reduce_max_sync(0xffffffff, longest(joined));
    u32 at[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        at[r] = joined.end[r][3] ? values_of(p, joined_at(joined, r, 0)) : 0;
    clear(o);
    clear_sums(x);
#pragma unroll 1
    for (u32 first = 0; first < most; first += 4 * LIST_STEP) {
        const u32 before = first + threadIdx.x % 4 * LIST_STEP;
        float weight[2] = {};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (before >= joined.end[r][3]) continue;
            const u32 place = joined_at(joined, r, before);
            const float y = kept_score(place);
            at[r] = values_of(p, place);
            by_alpha(a, [&](auto kind) {
                constexpr Alpha ALPHA = decltype(kind)::value;
                if (ALPHA != NEAR_SOFTMAX) weight[r] = weigh<ALPHA>(y, unit, x.level[r], a).p;
            });
            x.p[r] += weight[r];
        }
        add_keys(o, weight, at, values);
    }
    sum_over_quads(x);
}

// alpha-entmax: out from the lists of keys, by products.
// Needs: entmax_lists.cuh.

// Where lists tell all about rows, but of too many keys to read the values of each, a pass over the
// tiles of v is all that it takes. A thread has the keys of just those columns that the product
// wants of it: weights take no way through other threads. Those of a tile are put behind the lists
// that they are in, a place for a pair of columns of each row.
constexpr u32 PAIRS = TILE_K / 8;  // of columns, in a row of a thread

FN uint2 &kept_words(u32 at) { return *(uint2 *)__cvta_shared_to_generic(at); }
FN u32 &kept_word(u32 at) { return *(u32 *)__cvta_shared_to_generic(at); }

// Not where tiles begin at any key: then a key may be in several lists, which are to be in the
// order of tiles; nor where registers lack.
constexpr bool BY_PRODUCTS = !FILTERS_PAIRS && KEY_STEP == TILE_K && HEAD_DIM <= 192;

// A weight, which is at most 1, takes 14 bits of a word: the others number its column, two for each
// pair. Behind the weights of a row lies a word of no column.
constexpr u32 COLUMN = (1 << 18) - 1, NO_COLUMN = COLUMN;
constexpr i32 MOST_COLUMNS = 4 * (NO_COLUMN + 1) - TILE_K;  // of keys
// Both rows' words begin at the same place: one row has its lower half, the other its upper one.
FN u32 first_weight(int r) { return first_place(0) + 4 * r; }
// Whether all lists of a warp leave room for their pairs, and the second row's for its words.
FN bool room_for_pairs(const struct Lists &lists) {
    const u32 low = lists.free[0] - first_place(0), high = first_place(1) - lists.free[1];
    const u32 most = min(LIST - PAIRS - 1, LIST / 2) * LIST_STEP;
    return BY_PRODUCTS && __all_sync(0xffffffff, max(low, high) <= most);
}

// The next two weights of each row that have no product yet, and where pairs lie.
struct Cursor {
    u32 pairs, at[2], next[2][2];
};
FN void look(struct Cursor &c, int r) {
    c.next[r][0] = kept_word(c.at[r]), c.next[r][1] = kept_word(c.at[r] + LIST_STEP);
}

// Scores become weights, as the product wants them. A turn has read what its words lie over.
FN struct Cursor weigh_lists(const struct Lists &lists, float unit, float a, struct Search &x) {
    u32 free[2] = {first_weight(0), first_weight(1)};
    clear_sums(x);
    by_alpha(a, [&](auto kind) {
        constexpr Alpha ALPHA = decltype(kind)::value;
        if (ALPHA == NEAR_SOFTMAX) return;  // has no lists
        for_lists<true>(lists, [&](int r, float y, float key) {
            const float weight = weigh<ALPHA>(y, unit, x.level[r], a).p;
            x.p[r] += weight;
            // Computed whether there is a weight or not, so that only the store depends on it.
            const u32 whole = (u32)key, column = whole / 8 * 2 + whole % 2;
            const i32 word = anew((i32)(pack(weight, 0.0f) << 18 | column));
            if (!(weight > 0.0f)) return;
            kept_word(free[r]) = (u32)word;
            free[r] += LIST_STEP;
        });
    });
    struct Cursor c;
    c.pairs = (max(free[0], free[1]) & ~7u) + LIST_STEP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        x.p[r] = quad_sum(x.p[r]);
        kept_word(free[r]) = NO_COLUMN;
        c.at[r] = first_weight(r);
        look(c, r);
    }
#pragma unroll
    for (u32 i = 0; i < PAIRS; i++) kept_words(c.pairs + i * LIST_STEP) = make_uint2(0, 0);
    return c;
}

// Puts the weights of a tile in place, which holds zeros: two of a row a turn, as few have more.
// What lies past the end of a row's may look like a column of the tile.
FN void put_weights(struct Cursor &c, u32 tile) {
    bool more = true;
#pragma unroll 1
    while (more) {
        more = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            bool own = true;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const u32 column = (c.next[r][n] & COLUMN) - tile * (2 * PAIRS);
                own = own && column < 2 * PAIRS;
                if (!own) continue;
                const u32 place = column / 2 * LIST_STEP + column % 2 * 2 + 4 * r;
                *(unsigned short *)__cvta_shared_to_generic(c.pairs + place) =
                    (unsigned short)(c.next[r][n] >> 18);
                c.at[r] += LIST_STEP;
            }
            look(c, r);
            more = more || own;
        }
        more = __any_sync(0xffffffff, more);
    }
}
// Takes them from there, and leaves zeros.
FN void take_weights(Weights &weights, const struct Cursor &c) {
#pragma unroll
    for (u32 i = 0; i < PAIRS; i++) {
        const uint2 pair = kept_words(c.pairs + i * LIST_STEP);
        weights[i / 2 * 4 + i % 2 * 2] = pair.x, weights[i / 2 * 4 + i % 2 * 2 + 1] = pair.y;
    }
#pragma unroll
    for (u32 i = 0; i < PAIRS; i++) kept_words(c.pairs + i * LIST_STEP) = make_uint2(0, 0);
}

// ---------------------------------------------------------------- what comes next

// All warps agree on the next pass, and the thread that copies hears of it. It arrives as well, as
// the others might else be through with two passes before it asks about the first. Decisions are
// counted, over all items of a block.
FN Pass heard(struct Shared &shared, i32 number) {
    wait(shared.decided, number & 1);
    i32 next = DONE;
#pragma unroll
    for (int i = 0; i < 4 * GROUPS; i++) next |= shared.wishes[number & 1][i];
    return next == UNLISTED ? DONE : (Pass)next;
}
FN Pass agreed(struct Shared &shared, Pass wish, i32 number) {
    const i32 next = (i32)__reduce_or_sync(0xffffffff, (u32)wish);
    if (threadIdx.x % 32 == 0) {
        shared.wishes[number & 1][threadIdx.x / 32 - 4] = next;
        arrive(shared.decided);
    }
    return (Pass)uniform(heard(shared, number));
}

// ---------------------------------------------------------------- the warp that copies

// Tile i of a pass: it begins in the middle of the list, where most masks hide nothing and every
// row finds a level.
FN i32 tile_of_pass(const struct Attention &p, const struct Work &work, i32 i) {
    const i32 place = i + work.count / 2;
    return word_at(p, work, place < work.count ? place : place - work.count);
}

// What the thread that copies has throughout.
struct Copier {
    Ring<STAGES> k_stage, v_stage;
    i32 decisions = 0;     // heard of
    bool storing = false;  // the last item's output leaves through the place of q
    u32 stored = 0;        // parity of items whose output did
};

// q of an item, whose place must be free, as must be what is known of the item before.
FN void copy_q(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
               const struct Work &work, struct Copier &c) {
    if (c.storing) {
        wait(shared.q_free[0], c.stored);
        c.stored ^= 1;
    }
    const struct Place place = place_of(work.head, p.heads_q);
    shared.first_word = work.count;
    shared.row[0] = {work.tile, place.head, place.batch, 0};
    load_tile<TILE_Q>(shared.q[0], maps.q, shared.q_full[0], work.tile * TILE_Q,
                      slice_of(p.q_stride, place.head, place.batch));
}

// All passes over one item; `coming` is fetched on the way. The first keys are on their way before
// q, whose place may still be taken. A pass over keys alone is followed by another one for sure:
// the first of its keys come before it is known which one that is. After other passes most items
// are done, and those of the next one come. Values alone take the places of keys, as their own have
// the lists.
FN void copy_item(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                  const struct Work &work, struct Work &coming, struct Copier &c) {
    const struct Place place = place_of(work.head, p.heads_q);
    const i32 kv_head = (u32)place.head / ((u32)p.heads_q / (u32)p.heads_kv);
    const struct Slice k = slice_of(p.k_stride, kv_head, place.batch);
    const struct Slice v = slice_of(p.v_stride, kv_head, place.batch);
    const i32 first = min_i32(work.count, STAGES);  // tiles for which there is a place
    i32 ahead = 0;  // tiles of k of this pass that were asked for in the last one
    Pass now = START, next;
#pragma unroll 1
    while (true) {
        const i32 next_ahead = now == SUMS ? first : 0;
#pragma unroll 1
        for (i32 i = 0; i < work.count + next_ahead; i++) {
            const bool next_pass = i >= work.count;
            const i32 word = tile_of_pass(p, work, next_pass ? i - work.count : i);
            const Point first_k = key_point((word & INDEX) * KEY_STEP);
            if (next_pass || i >= ahead) {
                wait(shared.k_free[c.k_stage.at], c.k_stage.turn ^ 1);
                shared.next[c.k_stage.at] = word;
                unsigned char *const tile = shared.k[c.k_stage.at];
                if (BY_PRODUCTS && now == LISTED)
                    load_tile<TILE_K>(tile, maps.v, shared.k_full[c.k_stage.at], first_k, v);
                else
                    load_tile<TILE_K>(tile, maps.k, shared.k_full[c.k_stage.at], first_k, k);
                c.k_stage.next();
            }
            if (now == START && i + 1 == first) copy_q(shared, p, maps, work, c);
            if (now == VALUES && !next_pass) {
                wait(shared.v_free[c.v_stage.at], c.v_stage.turn ^ 1);
                load_tile<TILE_K>(shared.v[c.v_stage.at], maps.v, shared.v_full[c.v_stage.at],
                                  first_k, v);
                c.v_stage.next();
            }
        }
        if (BY_PRODUCTS && now == LISTED) break;
        if (now == START) coming = item(p, atomicAdd(p.counter, 1));
        arrive(shared.decided);
        next = heard(shared, c.decisions++);
        if (next == DONE) break;
        ahead = next_ahead, now = next;
    }
    c.storing = now != START;
}

// One thread. The next item's first tiles come while the output of this one is made.
FN void copy_passes(struct Shared &shared, const struct Attention &p, const struct Maps &maps) {
    struct Copier c;
    struct Work work = item(p, atomicAdd(p.counter, 1)), coming;
#pragma unroll 1
    while (work.count > 0) {
        copy_item(shared, p, maps, work, coming, c);
        work = coming;
    }
    if (c.storing) wait(shared.q_free[0], c.stored);
    shared.first_word = 0;
    arrive(shared.q_full[0]);
    // The last block leaves the counter as it found it.
    if (atomicAdd(p.counter + 1, 1) == gridDim.x - 1) p.counter[0] = p.counter[1] = 0;
}

// ---------------------------------------------------------------- warpgroups that compute

// alpha-entmax: passes over a row, as a warpgroup runs them.
// A part of entmax.cuh. Needs: entmax_lists.cuh, entmax_products.cuh, entmax_values.cuh, query.cuh.

// What a warpgroup has throughout.
struct Rows {
    struct Row row;
    i32 query, group, tiles, decisions;
    float unit, a;
    struct MaskRow kept;
    struct Query q;
    Ring<STAGES> k_stage, v_stage;
    struct Search x;
};

// A tile whose scores are being computed.
struct Tile {
    i32 word, query;
    struct Visible seen;
};
// TURNS: whether warpgroups take turns at products. Lists keep them busy for unequal times, and a
// warpgroup that is through with its own does not wait for others.
template <bool TURNS>
FN struct Tile begin_tile(Scores &s, struct Shared &shared, const struct Attention &p,
                          struct Rows &w) {
    const u64 k_tiles = along_columns(shared_address(shared.k[0]));
    wait(shared.k_full[w.k_stage.at], w.k_stage.turn);
    struct Tile tile;
    tile.word = uniform(shared.next[w.k_stage.at]);
    tile.query = anew(w.query);
    tile.seen = look_early(p, w.row, tile.query, tile.word, w.kept);
    if (HEAD_DIM > 128) w.q.operand = q_operand(shared_memory(), 0, w.group);
    if (TURNS) take_turn(w.group);
    begin_scores(s, w.q, k_tiles + w.k_stage.at * (K_BYTES >> 4));
    return tile;
}
// Its product is done.
FN void finish_tile(Scores &s, const struct Tile &tile, struct Shared &shared,
                    const struct Attention &p, struct Rows &w) {
    pin(s);
    if (threadIdx.x % 128 == 0) arrive(shared.k_free[w.k_stage.at]);
    w.k_stage.next();
    finish_scores(s, p, w.row, tile.query, tile.word, w.kept, tile.seen);
}
// Returns the thread's first key.
FN i32 take_scores(Scores &s, struct Shared &shared, const struct Attention &p, struct Rows &w) {
    const struct Tile tile = begin_tile<false>(s, shared, p, w);
    products_wait<0>();
    finish_tile(s, tile, shared, p, w);
    return (tile.word & INDEX) * KEY_STEP + threadIdx.x % 4 * 2;
}

// The first pass. Returns the one that these rows need next: none over keys where the lists that it
// made tell all about them.
FN Pass pass_to_start(struct Lists &lists, struct Shared &shared, const struct Attention &p,
                      struct Rows &w) {
    start_lists(lists, w.x, w.unit, w.a);
    clear_sums(w.x);
#pragma unroll 1
    for (i32 i = 0; i < w.tiles; i++) {
        Scores s;
        const i32 key = take_scores(s, shared, p, w);
        list_scores(s, i + 1, key, w.unit, w.a, lists, w.x);
    }
    const bool found = !lists.full && search_lists(lists, w.unit, w.a, w.x);
    publish_writes();  // before values are copied to where lists were
    if (!found || p.n_kv > MOST_KEYS) return lists.full ? SUMS : VALUES;
    const i32 listed = longest(join_lists(lists)) <= most_fetched(w.tiles) ? DONE : LISTED;
    const bool room = room_for_pairs(lists) && p.n_kv <= MOST_COLUMNS;
    return (Pass)(room ? listed : listed | UNLISTED);
}

FN void pass_over_keys(struct Shared &shared, const struct Attention &p, struct Rows &w) {
    clear_sums(w.x);
#pragma unroll 1
    for (i32 i = 0; i < w.tiles; i++) {
        Scores s;
        take_scores(s, shared, p, w);
        add_tile<false>(s, w.unit, w.a, w.x);
    }
}

FN void begin_values(Output &o, Weights &weights, struct Shared &shared, const struct Rows &w) {
    const u64 v_tiles = along_tokens(shared_address(shared.v[0]), K_SLAB);
    wait(shared.v_full[w.v_stage.at], w.v_stage.turn);
    begin_output(o, weights, v_tiles + w.v_stage.at * (K_BYTES >> 4));
}
FN void finish_values(Output &o, Weights &weights, struct Shared &shared, struct Rows &w) {
    products_wait<0>();
    pin(weights);
    pin(o);
    if (threadIdx.x % 128 == 0) arrive(shared.v_free[w.v_stage.at]);
    w.v_stage.next();
}

// The scores of a tile are computed before the product of the last one's weights, under which they
// become weights themselves: but not where logits need the registers.
constexpr bool CROWDED = GROUPS == 3 && BENT;
FN void pass_over_values(Output &o, struct Shared &shared, const struct Attention &p,
                         struct Rows &w) {
    Scores s;
    Weights weights;
    clear_sums(w.x);
    clear(o);
    take_scores(s, shared, p, w);
    add_tile<true>(s, w.unit, w.a, w.x);
    to_weights(weights, s);
#pragma unroll 1
    for (i32 i = 1; i < w.tiles; i++) {
        const struct Tile tile = begin_tile<true>(s, shared, p, w);
        begin_values(o, weights, shared, w);
        pass_turn(w.group);
        products_wait<1>();
        if (CROWDED) finish_values(o, weights, shared, w);
        finish_tile(s, tile, shared, p, w);
        add_tile<true>(s, w.unit, w.a, w.x);
        if (!CROWDED) finish_values(o, weights, shared, w);
        to_weights(weights, s);
    }
    begin_values(o, weights, shared, w);
    finish_values(o, weights, shared, w);
}

// Rows without keys have no weights; a level that is no number makes all of a row not a number.
FN void take_lse(float (&lse)[2], struct Search &x, float a) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        lse[r] = x.level[r] / a;
        if (!(x.level[r] < PLUS_INFINITY)) x.p[r] = lse[r] = __int_as_float(0x7fffffff);
    }
}
FN void finish_by_lists(const struct Lists &lists, const struct Attention &p, struct Rows &w) {
    Output o;
    float lse[2];
    fetch_values(o, lists, p, w.row, w.unit, w.a, w.x);
    take_lse(lse, w.x, w.a);
    store_pieces(o, lse, w.x.p, w.row, w.query, p);
}
// The pass over values alone. Weights are put in place under the products of other warpgroups.
FN void pass_by_lists(Output &o, struct Lists &lists, struct Shared &shared, struct Rows &w) {
    const u64 tiles = along_tokens(shared_address(shared.k[0]), K_SLAB);
    struct Cursor cursor = weigh_lists(lists, w.unit, w.a, w.x);
    clear(o);
#pragma unroll 1
    for (i32 i = 0; i < w.tiles; i++) {
        Weights weights;
        wait(shared.k_full[w.k_stage.at], w.k_stage.turn);
        put_weights(cursor, uniform(shared.next[w.k_stage.at]) & INDEX);
        take_weights(weights, cursor);
        begin_output(o, weights, tiles + w.k_stage.at * (K_BYTES >> 4));
        products_wait<0>();
        pin(weights);
        pin(o);
        if (threadIdx.x % 128 == 0) arrive(shared.k_free[w.k_stage.at]);
        w.k_stage.next();
    }
}

// Through the place of q, which is free then.
FN void store_rows(Output &o, struct Shared &shared, const struct Attention &p,
                   const struct Maps &maps, struct Rows &w) {
    float lse[2];
    take_lse(lse, w.x, w.a);
    store(o, lse, w.x.p, 1.0f, w.row, p, maps, shared_address(shared.q[0]), w.group);
    if (threadIdx.x % 128 == 0) {
        stores_read<0>();
        arrive(shared.q_free[0]);
    }
}
FN void finish_by_products(struct Lists &lists, struct Shared &shared, const struct Attention &p,
                           const struct Maps &maps, struct Rows &w) {
    Output o;
    pass_by_lists(o, lists, shared, w);
    store_rows(o, shared, p, maps, w);
}
// Passes over tiles, from the second on, until a level is found with which they have the output.
FN void finish_by_tiles(Pass next, struct Shared &shared, const struct Attention &p,
                        const struct Maps &maps, struct Rows &w) {
#pragma unroll 1
    for (i32 passes = 1;; passes++) {
        if (next == SUMS) {
            pass_over_keys(shared, p, w);
            sum_over_quads(w.x);
            next = agreed(shared, take_step(w.x, w.a, SUMS, passes), w.decisions++);
        } else {
            Output o;
            pass_over_values(o, shared, p, w);
            sum_over_quads(w.x);
            next = agreed(shared, take_step(w.x, w.a, VALUES, passes), w.decisions++);
            if (next != DONE) continue;
            store_rows(o, shared, p, maps, w);
            break;
        }
    }
}

FN void compute_passes(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                       i32 group) {
    struct Rows w;
    if (GROUPS > 1 && group == 0) arrive_threads(1, 256);
    w.unit = unit_of_entmax(p), w.a = p.alpha_minus_1, w.group = group, w.decisions = 0;
#pragma unroll 1
    for (u32 turn = 0;; turn ^= 1) {
        wait(shared.q_full[0], turn);
        w.tiles = uniform(shared.first_word);
        if (w.tiles == 0) break;
        w.row = row_in(shared, 0);
        w.query = query_of(w.row, anew(group));
        begin_row(w.kept);
        take_q(w.q, shared, 0, group);
#pragma unroll
        for (int r = 0; r < 2; r++)  // past the end there are no weights to look for
            w.x.level[r] = query_at(w.query + 8 * r) < p.n_q ? MINUS_INFINITY : PLUS_INFINITY;
        struct Lists lists;
        const Pass next = agreed(shared, pass_to_start(lists, shared, p, w), w.decisions++);
        if (next == DONE)
            finish_by_lists(lists, p, w);
        else if (BY_PRODUCTS && next == LISTED)
            finish_by_products(lists, shared, p, maps, w);
        else
            finish_by_tiles(next, shared, p, maps, w);
    }
    if (threadIdx.x % 128 == 0) stores_done<0>();
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_forward(const __grid_constant__ struct Attention p,
                  const __grid_constant__ struct Maps maps) {
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) initialize(shared);
    __syncthreads();
    const i32 group = uniform(threadIdx.x / 128);
    if (group == 0) {
        give_registers<COPY_REGISTERS>();
#if WITH_ENTMAX
        if (threadIdx.x / 32 == 0 && elected()) copy_passes(shared, p, maps);
#else
        if (threadIdx.x / 32 == 0 && elected()) copy_tiles(shared, p, maps);
#endif
    } else {
        take_registers<COMPUTE_REGISTERS>();
#if WITH_ENTMAX
        compute_passes(shared, p, maps, group - 1);
#else
        compute(shared, p, maps, group - 1);
#endif
        store_empty(p);
    }
}
