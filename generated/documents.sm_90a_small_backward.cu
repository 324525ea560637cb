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

// Derivatives of logits by scores, for backward passes.
// Needs: logit.cuh, unpack.cuh. Gives: bend, Slopes, take_slopes, kept_slopes; Halfway, halfway_of,
// halfway, logit_from, slope_from.

// The derivatives of N logits by scale * score, in storage precision.
template <int N>
struct Slopes {
#if HAS_SLOPE
    u32 pair[N / 2];
#endif
};
// Scores become logits, with which a pass goes on to gradients. Where derivatives cannot be told
// from logits, they are found here.
template <int N, typename Where>
FN void bend(float (&s)[N], struct Slopes<N> &, const struct Attention &p, const Where &where) {
    bend(s, p, where);
}
#if HAS_SLOPE
// The derivative at the logit of element i; 0 where it is minus infinity.
template <typename Where>
FN float slope_at(float logit, const struct Attention &p, const Where &where, int i) {
    if (WITH_ALIBI) logit += where.head_logit(i).slope * where.distance(i);
    logit *= fast_reciprocal(p.softcap);
    return fmaxf(1.0f - logit * logit, 0.0f);
}
// The derivatives at the logits x and y of elements 2 i and 2 i + 1; `slopes` has them from now on.
template <int N, typename Where>
FN float2 take_slopes(struct Slopes<N> &slopes, int i, float x, float y,
                      const struct Attention &p, const Where &where) {
    const float a = slope_at(x, p, where, 2 * i), b = slope_at(y, p, where, 2 * i + 1);
    slopes.pair[i] = pack(a, b);
    return make_float2(a, b);
}
template <int N>
FN float2 kept_slopes(const struct Slopes<N> &slopes, int i) {
    return unpack(slopes.pair[i]);
}
#endif

// Half the way to logits, from where both they and their derivatives can be told.
struct Halfway {
    float unit, steep;
};
FN struct Halfway halfway_of(const struct Attention &p) {
    return {WITH_SOFTCAP ? 1.0f : p.scale, WITH_SOFTCAP ? fast_reciprocal(p.softcap) : 0.0f};
}
template <int N>
FN void halfway(float (&s)[N], const struct Attention &p) {
#if WITH_SOFTCAP
    const float cap = p.softcap, sharpness = 2.0f * LOG2E * fast_reciprocal(cap);
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = capped(s[i] * p.scale, cap, sharpness);
#endif
}
template <typename Where>
FN float logit_from(float half, struct Halfway way, const struct Attention &, const Where &where,
                    int i) {
    const float logit = half * way.unit;
    return WITH_ALIBI ? fmaf(-where.head_logit(i).slope, where.distance(i), logit) : logit;
}
template <typename Where>
FN float slope_from(float half, struct Halfway way, const struct Attention &, const Where &,
                    int) {
    const float part = half * way.steep;
    return fmaf(-part, part, 1.0f);
}

constexpr int HEAD_DIM = 128;  // elements of a row of any tensor
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
constexpr unsigned ROW_MEMORY = 0;
// A warp's rows of q and dout stay in registers where dq has a launch of its own.
constexpr bool KEEP_ROWS = 0;
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

// Modes of a backward pass, and what follows from the numbers of its schedule, see
// gen/backward_constants.cuh.j2.

#ifndef DETERMINISTIC
#define DETERMINISTIC 0  // the same bits on every run
#endif
#ifndef ONCE
#define ONCE 0  // no tile of dq has shares of more than one tile column: it is stored, not added up
#endif
#ifndef APART
#define APART 0  // a launch of its own makes dq, by tile rows; the main one, dk and dv
#endif
constexpr int THREADS = 128 * (GROUPS + 1);
// Tiles of dq of all heads but the first ones get their zeros while these are computed.
#define ZEROES (STAGED && !DETERMINISTIC)
// lse and delta are one more step of the products that make scores and dp, instead of numbers that
// are read: with plain softmax, whose scores nothing else looks at.
#define FOLDED (!(THRESHOLDS || BENT || WITH_ENTMAX))
constexpr int PLAIN_THREADS = 256;  // of a block of the passes before and after
constexpr int STEPS = HEAD_DIM / 16;  // of a product along the head dimension
constexpr int OWN = QUERIES / 4;      // queries of a tile that a thread has for each of two keys
constexpr u32 Q_SLAB = TILE_Q * 128, K_SLAB = TILE_K * 128;  // bytes
constexpr u32 Q_BYTES = SLABS * Q_SLAB, K_BYTES = SLABS * K_SLAB;
constexpr u32 PAIR_BYTES = TILE_Q * TILE_K * 2;  // of a tile of p or ds
// A warpgroup alone waits for nobody: it needs one tile of ds, and stages dk and dv where the
// queries of its last step were, so that the next column can come meanwhile.
constexpr bool ALONE = GROUPS == 1;
constexpr u32 DS_STAGES = ALONE ? 1 : STAGES;

// A tile of dq in memory is in shares: one for each warpgroup, or as many as a warpgroup alone
// makes one after another. They are in the order of its threads: DQ_PIECES times four numbers each
// (fewer in share 1 if the columns are no whole slabs), and a sum for the head's own gradient.
constexpr int OWN_SHARES = SHARES / GROUPS;
constexpr bool CROWDED = OWN_SHARES > 1;  // registers: fewer numbers wait in them
constexpr int SLOPE_SUMS = HEAD_GRADIENT ? 128 : 0;
constexpr int TILE_FLOATS = TILE_Q * HEAD_DIM + SHARES * SLOPE_SUMS;
constexpr int SHARE = 512 * DQ_PIECES + SLOPE_SUMS;  // where share 1 begins
constexpr u32 ZERO_BYTES = TILE_FLOATS;  // a quarter of a tile

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

struct Maps {
    TensorMap q, dout, k, v, dk, dv;
};

// Memory between the launches of a backward pass, and where a warpgroup's numbers belong.
// Needs: backward_constants.cuh, work.cuh, SPLIT_KEYS. Gives: Workspace, Further, column_of.

// For every tile row, head and sequence: TILE_Q numbers of each of the first three, the first two
// as `Rows` reads them, or instead of these two a row of pieces for every query, then a tile of dq.
// In deterministic mode a tile row may have further tiles of dq, with TILE_Q numbers of control
// each: they lie behind those of all rows, head by head.
// For every tile column that several items add to, or in deterministic mode for each of these
// items: tiles of dk and dv.
struct Workspace {
    float *lse;      // times log2(e), or the level; infinite past the end and where there is no key
    float *delta;    // mean of dout . v, by u: rowsum(out * dout) with softmax
    float *control;  // of the tile; see below
    float *dq;
    float *keys;
};
constexpr int ROW_FLOATS = 4;  // of lse and delta, in either form
// Where `Rows` looks for the number of a query of the tile.
FN i32 place_in_rows(i32 query) {
    return query / 16 * 16 + query % 8 / 2 * 4 + query / 8 % 2 * 2 + query % 2;
}

// In the control numbers of a tile row: its shares; then, integers, of the first tile how many
// blocks are through, and of all tiles how many tile columns added to dq; of a head's first tile
// how many of the head's have zeros to add to; of the first tile how many were taken up.
enum { SINK_SUM = 0, SLOPE_SUM = 1, DONE = 2, TURN = 4, ZEROED = 5, TAKEN = 6 };
constexpr int KEY_TILE_FLOATS = 2 * TILE_K * HEAD_DIM;

FN struct Workspace workspace(const struct Attention &p) {
    const i64 heads = p.batch * p.heads_q, rows = heads * p.tile_rows;
    const i64 sums = DETERMINISTIC ? rows + heads * p.further : rows;
    struct Workspace w;
    w.lse = p.delta;
    w.delta = w.lse + rows * TILE_Q;
    w.control = w.lse + ROW_FLOATS * rows * TILE_Q;
    w.dq = w.control + sums * TILE_Q;
    w.keys = APART ? w.control : w.dq + sums * TILE_FLOATS;  // then there are no others
    return w;
}

// Of a tile row, or of another tile of dq.
FN i32 *control_of(const struct Attention &p, i64 row, int which) {
    return (i32 *)(workspace(p).control + row * TILE_Q) + which;
}

// The further tiles of dq that a tile row of a head has.
struct Further {
    i32 first, count;
};
FN struct Further further_of(const struct Attention &p, i32 head, i32 row) {
    if (!TILE_LISTS || !p.further) return {0, 0};
    const struct Place at = place_of(head, p.heads_q);
    const i64 list = (i64)at.batch * p.list_batch + (p.head_variant ? p.head_variant[at.head] : 0);
    const i32 *const before = p.row_sums + list * (p.tile_rows + 1) + row;
    const i32 first = __ldg(before), rows = p.batch * p.heads_q * p.tile_rows;
    return {rows + head * p.further + first, __ldg(before + 1) - first};
}
#if ZEROES
// Tile rows whose zeros come before the main launch: those of the heads that begin, or where only
// few blocks run all.
FN i64 zeroed_before(const struct Attention &p) {
    constexpr i32 FEW_ITEMS = 256;
    const i64 heads = p.batch * p.heads_q;
    const i64 first = (i64)max_i32(1, GROUP_TOKENS / p.n_q) * (p.heads_q / p.heads_kv);
    return (p.items < FEW_ITEMS || first > heads ? heads : first) * p.tile_rows;
}
#endif

// The unit of scores, in powers of two; with entmax, times alpha - 1.
FN float score_unit(const struct Attention &p) {
    const float whole = WITH_ENTMAX ? p.alpha_minus_1 : LOG2E;
    const float unit = left_scale(p) * whole;
    return fabsf(unit) < 1e-30f ? 1e-30f : unit;  // zero must not turn infinity into NaN
}

// One thread tells others what it wrote by adding to a number; they wait until it is so much.
FN void tell(i32 *number) {
    asm volatile("fence.proxy.async.global;\n"
                 "red.release.gpu.global.add.s32 [%0], 1;" :: "l"(number) : "memory");
}
FN void wait_until(const i32 *number, i32 is) {
    i32 now;
    do asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(now) : "l"(number) : "memory");
    while (now != is);
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Thresholds come before them: as they were found, then for every tile row as `Rows` reads them.
FN i64 padded_rows(const struct Attention &p) {
    return (i64)p.batch * p.heads_q * p.tile_rows * TILE_Q;
}
FN float *ends_of(const struct Attention &p) { return p.delta - padded_rows(p); }
FN float *lows_of(const struct Attention &p) { return ends_of(p) - padded_rows(p); }

// A warpgroup's columns of dk, dv and dq come in pieces of eight.
#if SPLIT_KEYS
constexpr int PIECES = HEAD_DIM / 8;  // of dk and dv
FN int column_of(i32, int piece) { return 8 * piece; }
FN int key_of(i32 group) { return 64 * group; }
// A share of dq has 64 rows or 64 columns, or is all. Pieces of what is transposed are of queries.
constexpr bool SHARE_COLUMNS = TILE_Q < 128;
FN int dq_pieces(i32 share) { return share && HEAD_DIM % 64 ? HEAD_DIM % 64 / 8 : DQ_PIECES; }
FN int dq_column(i32 share, int piece) { return (SHARE_COLUMNS ? 64 * share : 0) + 8 * piece; }
FN int dq_query(i32 share) { return SHARE_COLUMNS ? 0 : 64 * share; }
#else
constexpr int PIECES = HEAD_DIM / 16;
constexpr int WHOLE = SLABS / 2;  // slabs; the one in the middle, if any, is divided
FN int column_of(i32 group, int piece) {
    return piece < 8 * WHOLE ? 64 * (SLABS - WHOLE) * group + 8 * piece
                             : 64 * WHOLE + 32 * group + 8 * (piece - 8 * WHOLE);
}
FN int key_of(i32) { return 0; }
FN int dq_pieces(i32) { return DQ_PIECES; }
FN int dq_column(i32 share, int piece) { return column_of(share, piece); }
FN int dq_query(i32) { return 0; }
#endif

// Whose row a tile row's number stands for.
FN struct Place place_of_row(const struct Attention &p, i32 row) {
    return place_of(row / p.tile_rows, p.heads_q);
}

// What a backward pass needs of every row before its main launch, and the launch that finds it.
// Needs: backward_workspace.cuh, work.cuh. Gives: Rows of lse and delta, leave_row.

// Eight numbers in storage precision times eight others.
// Needs: unpack.cuh. Gives: dot.

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

FN void fill_zeros(float *to, i64 count, i64 first, i64 step) {
    for (i64 i = first; i < count / 4; i += step)
        ((float4 *)to)[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

FN float warp_sum(float x) {
#pragma unroll
    for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffff, x, by);
    return x;
}

// The sum of one number per thread, in thread 0; always in the same order.
FN float block_sum(float x) {
    __shared__ float part[PLAIN_THREADS / 32];
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x < PLAIN_THREADS / 32 ? part[threadIdx.x] : 0.0f;
    return threadIdx.x < 32 ? warp_sum(x) : 0.0f;
}

#if FOLDED
// A number as the sum of three in bf16: the high halves of two words, and the low half of one.
FN uint2 three_pieces(float x) {
    constexpr u32 HIGH = 0xffff0000;
    const u32 first = __float_as_uint(x) & HIGH;
    x -= __uint_as_float(first);
    const u32 second = __float_as_uint(x) & HIGH;
    x -= __uint_as_float(second);
    return make_uint2(first >> 16 | second, __float_as_uint(x) >> 16);
}
// What the products of scores and dp add for a query: minus lse, by the scores' unit, and minus
// delta. Rows without a key, and those past the end, have so large an lse that weights are 0.
FN uint4 row_pieces(const struct Attention &p, float lse, float delta) {
    const float unit = score_unit(p);
    const float level = (lse == MINUS_INFINITY ? 1e8f : lse * LOG2E) / unit;
    const uint2 a = three_pieces(-level), b = three_pieces(-delta);
    return make_uint4(a.x, a.y, b.x, b.y);
}
#endif

// Leaves lse and delta of query `r` of a tile row for the main launch.
FN void leave_row(const struct Attention &p, i64 row, i32 r, float lse, float delta) {
    const struct Workspace w = workspace(p);
#if FOLDED
    ((uint4 *)w.lse)[row * TILE_Q + r] = row_pieces(p, lse, delta);
#else
    const i64 place = row * TILE_Q + place_in_rows(r);
    w.lse[place] = lse == MINUS_INFINITY ? PLUS_INFINITY
                                         : lse * (WITH_ENTMAX ? p.alpha_minus_1 : LOG2E);
    if (!WITH_ENTMAX) w.delta[place] = delta;
#endif
}

#if !APART
// Before: delta and lse of a tile row, the sink's gradient from it, and zeros to add to, where it
// is not known who is the first. With entmax another launch finds delta.
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_prepare(const __grid_constant__ struct Attention p,
                           const __grid_constant__ struct Maps) {
    constexpr int LANES = HEAD_DIM <= 64 ? 8 : HEAD_DIM <= 128 ? 16 : 32;  // per row
    const struct Workspace w = workspace(p);
    const i64 row = blockIdx.x;
    const i32 thread = threadIdx.x, lane = thread % LANES;
    const i32 line = blockIdx.x / p.tile_rows, first = blockIdx.x % p.tile_rows * TILE_Q;
    const struct Place at = place_of(line, p.heads_q);
#if ZEROES
    const bool zeroes = row < zeroed_before(p);
#else
    constexpr bool zeroes = !DETERMINISTIC && !ONCE;
#endif
#if ONCE
    const bool lonely = row_tiles(&p, load_mask(&p, at.batch, at.head), at.batch, at.head,
                                  blockIdx.x % p.tile_rows).count == 0;
#else
    constexpr bool lonely = false;
#endif
    if (zeroes) fill_zeros(w.dq + row * TILE_FLOATS, TILE_FLOATS, thread, PLAIN_THREADS);
    float sink_sum = 0.0f;
#pragma unroll
    for (int i = 0; i < TILE_Q * LANES / PLAIN_THREADS; i++) {
        const i32 r = i * (PLAIN_THREADS / LANES) + thread / LANES, q = query_at(first + r);
        float sum = 0.0f;
        if (q < p.n_q && lane < HEAD_DIM / 8) {
            if (lonely)  // nobody else writes what is zero
                ((uint4 *)p.dq)[row_offset(p.dq_stride, at, q) / 8 + lane] = make_uint4(0, 0, 0, 0);
            const uint4 *out = (const uint4 *)p.out + row_offset(p.out_stride, at, q) / 8;
            const uint4 *dout = (const uint4 *)p.dout + row_offset(p.dout_stride, at, q) / 8;
            if (!WITH_ENTMAX) sum = dot(__ldg(out + lane), __ldg(dout + lane));
        }
#pragma unroll
        for (int by = LANES / 2; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffff, sum, by);
        if (lane == 0) {
            const float lse =
                q < p.n_q ? __ldg(p.lse + row_offset(p.lse_stride, at, q)) : MINUS_INFINITY;
            const bool dead = lse == MINUS_INFINITY;  // no key, or past the end: weights are 0
            leave_row(p, row, r, lse, dead ? 0.0f : sum);
#if THRESHOLDS
            const i64 place = row * TILE_Q + place_in_rows(r);
            int2 there = make_int2(__float_as_int(PLUS_INFINITY), 0);
            if (q < p.n_q) there = __ldg(thresholds_of(p, lows_of(p), at.batch, at.head) + q);
            lows_of(p)[place] = __int_as_float(there.x);
            ends_of(p)[place] = __int_as_float(there.y);
#endif
#if WITH_SINKS
            if (!dead) sink_sum -= fast_exp2((p.sink_logits[at.head] - lse) * LOG2E) * sum;
#endif
        }
    }
    if (WITH_SINKS) sink_sum = block_sum(sink_sum);
#if DETERMINISTIC
    const struct Further further = further_of(p, line, blockIdx.x % p.tile_rows);
    if (thread < further.count) *control_of(p, further.first + thread, TURN) = 0;
#endif
    if (thread < 2) {
        float4 *const control = (float4 *)(w.control + row * TILE_Q);
        control[thread] = make_float4(thread ? 0.0f : sink_sum, 0.0f, 0.0f, 0.0f);
    }
    if (!DETERMINISTIC)
        fill_zeros(w.keys, (i64)p.shared_items * KEY_TILE_FLOATS, row * PLAIN_THREADS + thread,
                   (i64)gridDim.x * PLAIN_THREADS);
}
#endif

// Eight numbers in storage precision, joined with those that are there.
FN void store_eight(uint4 *to, const float2 (&x)[4], bool joins) {
    const uint4 there = joins ? *to : make_uint4(0, 0, 0, 0);
    const u32 before[4] = {there.x, there.y, there.z, there.w};
    u32 sum[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 y = unpack(before[i]);
        sum[i] = pack(x[i].x + y.x, x[i].y + y.y);
    }
    *to = make_uint4(sum[0], sum[1], sum[2], sum[3]);
}

FN float4 sum_of(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// Tiles that are added up: the first, and others that lie side by side.
struct Sum {
    const float *first, *more;
    i32 count, stride;
};
// Eight columns of two of `tokens` rows, as four threads left them at a place of a tile: numbers 0
// and 1 of each belong to `first`, 2 and 3 to `second`.
FN void store_rows(void *to, const i64 (&stride)[3], struct Place at, i32 first, i32 second,
                   i32 tokens, int column, const struct Sum &sum, i32 place, float scale,
                   bool joins) {
    float4 x[4] = {};
    const float4 *from = (const float4 *)(sum.first + place);
    if (sum.count > 0)
#pragma unroll
        for (int i = 0; i < 4; i++) x[i] = __ldcs(from + i);
    constexpr int TOGETHER = 4;  // that are on their way at a time
#pragma unroll 1
    for (i32 part = 1; part < sum.count; part += TOGETHER) {
        float4 y[TOGETHER][4] = {};
#pragma unroll
        for (int j = 0; j < TOGETHER; j++) {
            if (part + j >= sum.count) break;
            from = (const float4 *)(sum.more + (part + j - 1ll) * sum.stride + place);
#pragma unroll
            for (int i = 0; i < 4; i++) y[j][i] = __ldcs(from + i);
        }
#pragma unroll
        for (int j = 0; j < TOGETHER; j++)
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] = sum_of(x[i], y[j][i]);
    }
    float2 low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        low[i] = make_float2(x[i].x * scale, x[i].y * scale);
        high[i] = make_float2(x[i].z * scale, x[i].w * scale);
    }
    uint4 *const line = (uint4 *)to + (row_offset(stride, at, 0) + column) / 8;
    if (first < tokens) store_eight(line + first * stride[2] / 8, low, joins);
    if (second < tokens) store_eight(line + second * stride[2] / 8, high, joins);
}

// The last block adds the tiles' shares, head by head, always in the same order.
FN void sum_shares(const struct Attention &p, const struct Workspace &w, int which, float *to,
                   float factor) {
    const i32 tiles = p.batch * p.tile_rows;
    for (i32 head = threadIdx.x / 32; head < p.heads_q; head += PLAIN_THREADS / 32) {
        float sum = 0.0f;
        for (i32 i = threadIdx.x % 32; i < tiles; i += 32) {
            const i32 batch = i / p.tile_rows;
            const i64 row = ((i64)batch * p.heads_q + head) * p.tile_rows + i % p.tile_rows;
            sum += __ldcg(w.control + row * TILE_Q + which);
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) to[head] += factor * sum;
    }
}

#if !(ONCE || APART)
// After: a tile row of dq in storage precision, and what its queries leave for a whole head.
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_finish(const __grid_constant__ struct Attention p,
                          const __grid_constant__ struct Maps) {
    const struct Workspace w = workspace(p);
    const i64 row = blockIdx.x;
    const i32 thread = threadIdx.x, first = blockIdx.x % p.tile_rows * TILE_Q;
    const struct Place at = place_of_row(p, blockIdx.x);
    const float *const tile = w.dq + row * TILE_FLOATS;
    struct Sum sum = {tile, tile, 1, TILE_FLOATS};
#if DETERMINISTIC
    const struct Further further = further_of(p, row / p.tile_rows, row % p.tile_rows);
    sum.more = w.dq + (i64)further.first * TILE_FLOATS;
    // Where nobody added to it there is nothing, not even zeros.
    sum.count = *control_of(p, row, TURN) ? 1 + further.count : 0;
#endif
#pragma unroll
    for (i32 i = thread; i < TILE_Q * HEAD_DIM / 16; i += PLAIN_THREADS) {
        const i32 share = i >= 32 * DQ_PIECES, j = i - share * 32 * DQ_PIECES;
        const i32 pieces = dq_pieces(share), piece = j % pieces, y = j / pieces;
        const i32 q = first + dq_query(share) + y / 8 * 16 + y % 8;
        store_rows(p.dq, p.dq_stride, at, query_at(q), query_at(q + 8), p.n_q,
                   dq_column(share, piece), sum, share * SHARE + 4 * (piece * 128 + y * 4), p.scale,
                   p.joins);
    }
#if HEAD_GRADIENT
    const i32 share = thread / 128;
    const i32 place = share * SHARE + 512 * dq_pieces(share) + thread % 128;
    float slope = sum.count && share < SHARES ? tile[place] : 0.0f;
    for (i32 part = 1; part < sum.count && share < SHARES; part++)
        slope += sum.more[(part - 1ll) * TILE_FLOATS + place];
    slope = block_sum(slope);
    if (thread == 0) w.control[row * TILE_Q + SLOPE_SUM] = slope;
#endif
#if HEAD_GRADIENT || WITH_SINKS
    __shared__ bool last;
    if (thread == 0) {
        __threadfence();
        last = atomicAdd((u32 *)w.control + DONE, 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (last && WITH_SINKS && p.dsink) sum_shares(p, w, SINK_SUM, p.dsink, 1.0f);
    if (last && HEAD_GRADIENT && p.dalibi) sum_shares(p, w, SLOPE_SUM, p.dalibi, p.spacing);
#endif
}
#endif

// After: dk and dv of a tile column that several items share.
extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_finish_keys(const __grid_constant__ struct Attention p,
                               const __grid_constant__ struct Maps) {
    const struct Workspace w = workspace(p);
    const struct Work work = work_at(p, p.items + p.empty + blockIdx.x / KEY_BLOCKS);
    const struct Place place = place_of(work.head, p.heads_q);
    const struct Place at = {place.batch, place.head / (p.heads_q / p.heads_kv)};
    const i32 first = work.tile * TILE_K;
    const float *const tile = w.keys + (i64)work.first * KEY_TILE_FLOATS;
    const struct Sum sum = {tile, tile + KEY_TILE_FLOATS, work.count, KEY_TILE_FLOATS};
    constexpr i32 STEP = KEY_BLOCKS * PLAIN_THREADS, ALL = 2 * GROUPS * PIECES * 32;
    for (i32 i = blockIdx.x % KEY_BLOCKS * PLAIN_THREADS + threadIdx.x; i < ALL; i += STEP) {
        const i32 piece = i % PIECES, y = i / PIECES % 32, part = i / PIECES / 32;
        const i32 group = part % GROUPS, key = first + key_of(group) + y / 8 * 16 + y % 8;
        const i32 from = 4 * ((part * PIECES + piece) * 128 + y * 4);
        const i32 to = column_of(group, piece), low = key_at(key), high = key_at(key + 8);
        if (part < GROUPS)
            store_rows(p.dk, p.dk_stride, at, low, high, p.n_kv, to, sum, from, p.scale,
                       p.joins);
        else
            store_rows(p.dv, p.dv_stride, at, low, high, p.n_kv, to, sum, from, 1.0f,
                       p.joins);
    }
}

#if !APART
// Delta found once more where a call has few pairs.
// Needs: backward_rows.cuh; keep of the mask. Gives: settle_rows.

// Gradients of many rows hide how `out` was rounded. Where a call has few pairs it would be most of
// their error, and delta is found once more, by a warp for each query.
// `out` was rounded to storage precision. dq and dk of a row that sees few keys, or few of any
// weight, show that: the sum of p dp over its keys has no such error. Where that differs from
// dout . out by more than the rounding explains, `out` is not of these keys alone, as of a mask in
// parts, and decides. `size` is the sum of |dout * out|.
// Needs: dot.cuh.
FN float settled_delta(float exact, float rounded, float size) {
    return fabsf(exact - rounded) <= ROUNDING * size ? exact : rounded;
}
FN float absolute_dot(uint4 a, uint4 b) {
    constexpr u32 SIZES = 0x7fff7fff;
    return dot(make_uint4(a.x & SIZES, a.y & SIZES, a.z & SIZES, a.w & SIZES),
               make_uint4(b.x & SIZES, b.y & SIZES, b.z & SIZES, b.w & SIZES));
}

#if SETTLES_DELTA
// The logit of one pair as it is defined, for where time does not count.
// Needs: device.cuh, Attention. Gives: plain_logit.

FN float plain_logit(const struct Attention &p, float score, i32 head, i32 q, i32 k) {
    score *= p.scale;
#if WITH_SOFTCAP
    score = p.softcap * (1.0f - 2.0f / (fast_exp2(score / p.softcap * (2.0f * LOG2E)) + 1.0f));
#endif
#if WITH_ALIBI
    score -= p.alibi_slopes[head] * p.spacing * fabsf((float)(q + (p.n_kv - p.n_q) - k));
#endif
    return score;
}

// The rows of a tensor's head, in pieces of eight numbers.
FN const uint4 *pieces_of(const void *tensor, const i64 (&stride)[3], struct Place at, i32 token) {
    return (const uint4 *)tensor + row_offset(stride, at, token) / 8;
}

// exp(logit - lse) * (dout . v) of one key.
FN float term_of(const struct Attention &p, struct Place at, struct Place keys, i32 q, i32 k,
                 float lse, const uint4 *of_q, const uint4 *of_dout) {
    const uint4 *const of_k = pieces_of(p.k, p.k_stride, keys, k);
    const uint4 *const of_v = pieces_of(p.v, p.v_stride, keys, k);
    float score = 0.0f, dp = 0.0f;
#pragma unroll 1
    for (int i = 0; i < HEAD_DIM / 8; i++) {
        score += dot(__ldg(of_q + i), __ldg(of_k + i));
        dp += dot(__ldg(of_dout + i), __ldg(of_v + i));
    }
    return fast_exp2((plain_logit(p, score, at.head, q, k) - lse) * LOG2E) * dp;
}
#endif

// By a block for each tile row.
FN void settle_rows(const struct Attention &p) {
#if SETTLES_DELTA
#if !WITH_ENTMAX
    const i64 row = blockIdx.x;
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i32 first = blockIdx.x % p.tile_rows * TILE_Q;
    const struct Place at = place_of_row(p, blockIdx.x);
    const struct Place keys = {at.batch, at.head / (p.heads_q / p.heads_kv)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
#pragma unroll 1
    for (i32 r = warp; r < TILE_Q; r += PLAIN_THREADS / 32) {
        const i32 q = query_at(first + r);
        if (q >= p.n_q) continue;
        const float lse = __ldg(p.lse + row_offset(p.lse_stride, at, q));
        if (lse == MINUS_INFINITY) continue;  // no key: delta is 0
        const uint4 *const of_q = pieces_of(p.q, p.q_stride, at, q);
        const uint4 *const of_dout = pieces_of(p.dout, p.dout_stride, at, q);
        float exact = 0.0f, rounded = 0.0f, size = 0.0f;
#pragma unroll 1
        for (i32 k = lane; k < p.n_kv; k += 32)
            if (keep(mask, q, k, p.n_q, p.n_kv))
                exact += term_of(p, at, keys, q, k, lse, of_q, of_dout);
        if (lane < HEAD_DIM / 8) {
            const uint4 out = __ldg(pieces_of(p.out, p.out_stride, at, q) + lane);
            const uint4 dout = __ldg(of_dout + lane);
            rounded = dot(out, dout);
            size = absolute_dot(out, dout);
        }
        exact = warp_sum(exact);
        rounded = warp_sum(rounded);
        size = warp_sum(size);
        if (lane == 0) leave_row(p, row, r, lse, settled_delta(exact, rounded, size));
    }
#endif
#endif
}

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
    float far;  // the query's position minus the key's
    FN void refresh(const struct Attention &) { far = anew_float(far); }
    FN float distance(int i) const {
        return fabsf(far + (i / 4 * 8 + i % 2 - i / 2 % 2 * 8));
    }
    FN struct HeadLogit head_logit(int) const { return own; }
    FN i32 query(const struct Attention &p, int i) const {
        return min_i32(query_at(query_place + i / 4 * 8 + i % 2), p.n_q - 1);
    }
    FN i32 key(const struct Attention &p, int i) const {
        return min_i32(key_at(key_place + i / 2 % 2 * 8), p.n_kv - 1);
    }
    FN i32 head(int) const { return place.head; }
    FN i32 batch() const { return place.batch; }
};

// The query at a row of the tiles: each has one.

[[maybe_unused]] constexpr bool ROWS_PACKED = false;
FN i32 mask_row(const struct Attention &p, i32 row) { return min_i32(row, p.n_q - 1); }

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

// Rows whose columns data bound: the mask's see_data tells which columns from `first` on two rows
// see. All lanes of a warp have the same columns. It is false where pairs are to be tested.

// Of 32 columns those that a thread has, two of every eight, from a vote of the warp's lanes.
FN u32 own_votes(u32 votes) {
    return (votes >> threadIdx.x % 4 * 2 & 0x03030303u) * 0x01041040u >> 24;
}

// Inside a run of columns with the same data a row's columns are a few intervals. False where runs
// are so many that a tile does not go run by run.
FN bool see_data(ByKey, u32 (&seen)[2][WORDS], const struct Mask &m, const i32 (&rows)[2],
                 i32 first, Integer n_q, Integer n_kv) {
    constexpr i32 COLUMNS = 4 * OWN;
    const i32 lane = threadIdx.x % 32, own = first + lane % 4 * 2;
    (void)n_q; (void)n_kv;
    u32 starts[COLUMNS / 32];
    constexpr i32 INTERVALS = 1;  // of a row
    constexpr i32 MOST_RUNS = (COLUMNS / 16 + INTERVALS - 1) / INTERVALS;
    i32 runs = 0;
#pragma unroll
    for (int j = 0; j < COLUMNS / 32; j++) {
        const i32 place = first + 32 * j + lane;
        const Integer q = min_int(place, n_q - 1);
        const Integer before = min_int(max_i32(place - 1, 0), n_q - 1);
        starts[j] = __ballot_sync(~0u, (Integer)m.a1[before] != (Integer)m.a1[q]);
        if (j == 0) starts[j] |= 1;
        runs += __popc(starts[j]);
    }
    if (runs > MOST_RUNS) return false;
#pragma unroll 1
    for (i32 begin = 0, end; begin < COLUMNS; begin = end) {
        end = COLUMNS;
#pragma unroll
        for (int j = COLUMNS / 32 - 1; j >= 0; j--) {
            const u32 later = starts[j] & bits_from(begin + 1 - 32 * j);
            end = later ? 32 * j + __ffs(later) - 1 : end;
        }
        const Integer run = first + begin;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const Integer tj = rows[r];
            i32 low, high;
            low = range_end(max_int(tj - m.c0, 0));
            high = range_end(n_q);
            if (!((Integer)m.a0[tj] == (Integer)m.a1[run])) high = 0;
            low = max_i32(low, first + begin), high = min_i32(high, first + end);
            low = own_before(low - own), high = own_before(high - own);
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                seen[r][w] |= bits_from(low - 32 * w) & bits_before(high - 32 * w);
        }
    }
    return true;
}

// Aligned runs of so many keys, or queries, are alike.
constexpr int KEY_RUN = 1, QUERY_RUN = 1;
constexpr int PAIRS_AT_ONCE = 4;  // columns of a turn of the loop
constexpr bool LONG_FORMULA = 0;  // that takes many registers

// The live pairs of a tile by the mask's formula, pair by pair, or one pair for a run of columns
// that are alike.
// Needs: bits.cuh, mask_sides.cuh, visible.cuh; KEY_RUN, QUERY_RUN, PAIRS_AT_ONCE, LONG_FORMULA,
// keep of the mask.

template <class Side>
FN u32 is_live(const struct Mask &mask, i32 row, i32 column, i32 n_q, i32 n_kv) {
    row = Side::inside(row, n_kv);
    return keep(mask, Side::query(row, column), Side::key(row, column), n_q, n_kv) != 0;
}

// Aligned runs of columns are alike: one of each is tested.
template <class Side>
FN void add_runs(struct Visible &seen, const struct Mask &mask, const i32 (&rows)[2], i32 first,
                 i32 column, i32 n_q, i32 n_kv) {
    constexpr int ALL = 4 * OWN, ALIKE = Side::KEY_ROWS ? QUERY_RUN : KEY_RUN;
    constexpr int RUN = ALIKE < ALL ? ALIKE : ALL;
#pragma unroll
    for (int i = 0; i < ALL / RUN; i++) {
        const i32 inside = min_i32(first + RUN * i, Side::last_column(n_q, n_kv));
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (is_live<Side>(mask, rows[r], inside, n_q, n_kv))
                seen.word[r][RUN / 4 * i / 32] |= bits_before(RUN / 4) << RUN / 4 * i % 32;
    }
    if (Side::KEY_ROWS) return;
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        const u32 inside = bits_before(own_before(n_kv - column) - 32 * w);
        seen.word[0][w] &= inside, seen.word[1][w] &= inside;
    }
}

// Some pairs at a time; those of keys from `end` on are none.
template <class Side>
FN void add_pairs(struct Visible &seen, const struct Mask &mask, const i32 (&rows)[2], i32 own,
                  i32 end, i32 n_q, i32 n_kv) {
    constexpr int AT_ONCE = Side::KEY_ROWS ? 2 : PAIRS_AT_ONCE;  // columns
#pragma unroll AT_ONCE
    for (int i = 0; i < OWN; i++) {
        const i32 column = own + i / 2 * 8 + i % 2;
        const i32 inside = min_i32(column, Side::last_column(n_q, n_kv));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 live = is_live<Side>(mask, rows[r], inside, n_q, n_kv);
            seen.word[r][WORDS > 1 ? i / 32 : 0] |=
                Side::KEY_ROWS ? live << i : (live & (column < end)) << i % 32;
        }
    }
}

// One pair at a time: long formulas need the registers. Rows are keys.
template <class Side>
FN void add_single_pairs(struct Visible &seen, const struct Mask &mask, const i32 (&rows)[2],
                         i32 column, i32 n_q, i32 n_kv) {
#pragma unroll 1
    for (int i = 0; i < 2 * OWN; i++) {
        const i32 r = i % 2, own = i / 2;
        const i32 inside = min_i32(column + own / 2 * 8 + own % 2, Side::last_column(n_q, n_kv));
        const u32 live = is_live<Side>(mask, rows[0] + 8 * r, inside, n_q, n_kv);
        seen.word[0][0] |= (r ? 0 : live) << own;
        seen.word[1][0] |= (r ? live : 0) << own;
    }
}

// All of a tile, in whichever way suits the formula; the thread's first column is `column`.
template <class Side>
FN void add_tested(struct Visible &seen, const struct Mask &mask, const i32 (&rows)[2], i32 first,
                   i32 column, i32 n_q, i32 n_kv) {
    constexpr bool RUNS = (Side::KEY_ROWS ? QUERY_RUN : KEY_RUN) >= 8;
    if constexpr (RUNS)
        add_runs<Side>(seen, mask, rows, first, column, n_q, n_kv);
    else if constexpr (Side::KEY_ROWS && LONG_FORMULA)
        add_single_pairs<Side>(seen, mask, rows, column, n_q, n_kv);
    else
        add_pairs<Side>(seen, mask, rows, column, n_kv, n_q, n_kv);
}

constexpr bool DATA_EARLY = 1;  // columns have conditions, or pairs are tested
constexpr bool DATA_HEAVY = 1;

// Mask policy: data bound a row's columns, which are a few intervals, in all of a tile or in runs
// of columns with the same data; where runs are many, the mask's formula decides. See
// mask_sides.cuh.
// Needs: data_rows.cuh, pairs.cuh; DATA_EARLY, DATA_HEAVY.

constexpr bool MASK_EARLY = DATA_EARLY;
constexpr bool MASK_HEAVY = DATA_HEAVY || LONG_FORMULA || QUERY_RUN < 8;
constexpr bool MASK_FETCHED = false;
struct MaskRow {};
FN void begin_row(struct MaskRow &) {}

template <class Side>
FN struct Visible prefetch_mask(const struct Attention &, struct Place, i32, i32) { return {}; }

template <class Side>
FN struct Visible visible(const struct Attention &p, struct Place at, i32 row, i32 first,
                          struct MaskRow &, const struct Visible &) {
    const i32 n_q = Side::queries(p), n_kv = p.n_kv, column = first + threadIdx.x % 4 * 2;
    struct Visible seen = {};
    const i32 rows[2] = {Side::row(p, row), Side::row(p, row + 8)};
    const i32 inside[2] = {Side::inside(rows[0], n_kv), Side::inside(rows[1], n_kv)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    // Beside ALiBi's distances small heads leave too few registers for runs.
    constexpr bool TESTED = WITH_ALIBI && HEAD_DIM <= 64;
    if (TESTED || !see_data(Side(), seen.word, mask, inside, first, n_q, n_kv))
        add_tested<Side>(seen, mask, rows, first, column, n_q, n_kv);
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

#if WITH_ENTMAX
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
#else
// Softmax: from a score to its weight, once the row's lse is known; as entmax_weights.cuh.
// Gives: Alpha, Weight, by_alpha.

enum Alpha { SOFTMAX };
template <Alpha VALUE>
struct Kind {
    static constexpr Alpha value = VALUE;
};
template <typename F>
FN void by_alpha(float, const F &f) { f(Kind<SOFTMAX>()); }

struct Weight {
    float p, u;
};
template <Alpha>
FN struct Weight weigh(float score, float unit, float lse, float) {
    const float p = fast_exp2(fmaf(score, unit, -lse));
    return {p, p};
}
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
};

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
            const struct Weight v = weigh<ALPHA>(x, logit.unit, base.x, p.alpha_minus_1);
            const struct Weight w = weigh<ALPHA>(y, logit.unit, base.y, p.alpha_minus_1);
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

// Products of a backward pass: their operands, and those of scores; SPLIT_KEYS tells of the others.

// dk or dv of a warpgroup's keys and columns.
typedef float Gradient[PIECES * 4];
typedef float QueryGradient[DQ_PIECES * 4];

// Where a warpgroup's operands lie, of stage 0. The tile of v lies behind that of k; that of dout,
// STAGES tiles behind that of q; that of p, where it is exchanged, as many behind that of ds.
struct Operands {
    u64 k, q;                // for scores, along the columns
    u64 rows, ones;          // for scores and dp, lse and delta, and what stands beside them
    u64 k_tokens, q_tokens;  // for gradients, along the tokens
    u64 k_half, q_half;      // the same of the slab that both warpgroups have half of, if any
    u64 ds, ds_keys;         // for dq, along the keys; for dk, along the queries
};
constexpr u32 TO_V = K_BYTES >> 4, TO_DOUT = STAGES * Q_BYTES >> 4;
[[maybe_unused]] constexpr u32 TO_P = STAGES * PAIR_BYTES >> 4;
FN u32 q_stage(u32 at) { return at * (Q_BYTES >> 4); }
FN u32 rows_stage(u32 at) { return at * TILE_Q; }
FN u32 ds_stage(u32 at) { return at % DS_STAGES * (PAIR_BYTES >> 4); }

#if FOLDED
// Minus lse and minus delta are the right operand of one more step: a query has a row of eight
// numbers, three of lse, a zero, and the same of delta. The step's second half is the first again.
FN u64 along_pieces(u32 rows) { return (u64)(rows >> 4) | 8ull << 32; }
constexpr u32 PIECE_BYTES = 16 * TILE_Q;
// The left operand, in registers, has ones beside what is to be added, and zeros.
constexpr u32 TWO_ONES = 0x3f803f80;
#endif

// s = k q^T, begun; likewise v dout^T.
FN void begin_scores(Scores &s, u64 k, u64 q, bool more = false) {
    pin(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        multiply_scores(s, k + column_step(i, K_SLAB), q + column_step(i, Q_SLAB), i > 0);
    if (!more) products_commit();
}
// The same, and what is folded into them.
FN void begin_scores(Scores &s, u64 k, u64 q, [[maybe_unused]] const struct Operands &tiles,
                     [[maybe_unused]] u32 at, [[maybe_unused]] bool of_delta) {
#if FOLDED
    u32 ones[4] = {};
    ones[0] = ones[1] = threadIdx.x % 4 / 2 == of_delta ? TWO_ONES : 0;
    pin(ones);
    begin_scores(s, k, q, true);
    multiply_pieces(s, ones, tiles.rows + rows_stage(at), true);
    products_commit();
#else
    begin_scores(s, k, q);
#endif
}

// Writes p or ds of a warpgroup to a tile of queries by keys.
FN void store_pairs(u32 tile, const Pairs &x, i32 group) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    tile += SPLIT_KEYS ? group * Q_SLAB : group * QUERIES * SLAB_ROW;
#pragma unroll
    for (int i = 0; i < QUERIES / 16; i++)
        store_matrices_transposed(
            tile + swizzled(16 * i + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2), x[4 * i],
            x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}

// Products of gradients where warpgroups divide the keys of a tile column.
// Needs: backward_products.cuh, backward_workspace.cuh, gen/wgmma.cuh.j2.

FN struct Operands operands(u32 k, u32 q, u32 ds, i32 group) {
    const u32 half = SHARE_COLUMNS ? 0 : group * 64 * SLAB_ROW;
    struct Operands at;
    at.k = along_columns(k + group * 64 * SLAB_ROW);
    at.q = along_columns(q);
    at.k_tokens = along_tokens(k + (SHARE_COLUMNS ? group * K_SLAB : 0), K_SLAB);
    at.q_tokens = along_tokens(q, Q_SLAB);
    at.ds = along_columns(ds + half);
    return at;
}

// dv += p dout, begun; likewise dk += ds q. The left operand is in registers.
FN void begin_gradient(Gradient &d, Pairs &pairs, u64 q) {
    pin(pairs);
    pin(d);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_Q / 16; i++)
        multiply_gradient(d, pairs + 4 * i, q + token_step(i), true);
    products_commit();
}

// dq = ds k, begun; a warpgroup alone does so for each of its shares.
FN void begin_dq(QueryGradient &dq, const struct Operands &tiles, u32 at, int share) {
    const u64 ds = tiles.ds + ds_stage(at), k = tiles.k_tokens + share * (K_SLAB >> 4);
    pin(dq);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++)
        multiply_dq(dq, ds + column_step(i, Q_SLAB), k + token_step(i), i > 0);
    products_commit();
}

// The order of additions to dq where tiles come as lists. Needs: common/lib/tiles_csr.h.

#if DETERMINISTIC
FN void skip_tiles(struct TileList &list, i32 count) { list.tiles += count; }

// How many tile columns add to a tile of dq before this one: those behind it.
FN i32 column_at(const struct TileList &list, i32 i) { return __ldg(list.tiles + i) >> 1; }
FN i32 behind(const struct TileList &list, i32 column) {  // a step leaves a quarter to be searched
    i32 low = 0, high = list.count;
    while (low < high) {
        const i32 step = (high - low + 3) / 4, last = high - 1;
        i32 passed = 0;
#pragma unroll
        for (int i = 1; i < 4; i++)
            passed += column_at(list, min_i32(low + i * step - 1, last)) <= column;
        if (passed < 3) high = min_i32(low + (passed + 1) * step - 1, high);
        low = min_i32(low + passed * step, last + 1);
    }
    return list.count - low;
}

// What the host wrote beside tile `i` of a column's list; false where it did not.
FN bool turn_word(i32 &word, const struct Attention &p, const struct TileList &list, i32 i) {
    if (!p.col_turns) return false;
    word = __ldg(p.col_turns + (list.tiles - p.col_tiles) + i);
    return true;
}
#endif

// Which tile columns a block takes; in deterministic mode also who adds to dq after whom.
// Needs: work.cuh, backward_workspace.cuh, order_csr.cuh or order_range.cuh. Gives: Item, Turn.

// A tile column, and the query heads that are taken one after another.
struct alignas(16) Item {
    struct Work work;
    i32 steps;         // query tiles of all heads; negative past the end of the work
};

// In memory at a time. In deterministic mode large tiles have no registers for a second.
constexpr u32 ITEMS = DETERMINISTIC && !ALONE ? 1 : 2;

// Which tile of dq a column adds to, and, where that matters, how many do so before; the last turn
// of a column may be HELD, see maskc/layout/work/deterministic_order.py.
struct Turn {
    i32 sum, rank;
};
constexpr i32 HELD = 1 << 30;
FN i32 rank_in(const struct Turn &turn) { return turn.rank & ~HELD; }
FN bool held(const struct Turn &turn) { return DETERMINISTIC && turn.rank & HELD; }

#if DETERMINISTIC
// Additions to a tile of dq happen in the order in which blocks take the columns of a head, from
// the last to the first: whoever waits for a turn waits for a block already under way. In most
// masks a later column begins at a later row, so that it is ahead.
typedef struct TileList List;

FN void find_list(List &list, const struct Attention &p, const struct Work &work, i32 head) {
    const struct Place at = place_of(head, p.heads_q);
    list = column_tiles(&p, load_mask(&p, at.batch, at.head), at.batch, at.head, work.tile);
    if (work.shared) {
        list.count = work.count;
        skip_tiles(list, work.first);
    }
}
FN i32 word_in(const struct Attention &, const List &list, i32 i) {
    const struct Tile tile = tile_at(list, i);
    return tile.index | (tile.full ? 0 : MASKED);
}

FN void find_item(struct Item &item, const struct Attention &p, i32 index) {
    item.steps = -1;
    // The same order, with long columns cut: see maskc/layout/work/deterministic_order.py.
    if (p.work) {
        if (index >= p.items) return;
        item.work = work_at(p, index);
        item.steps = item.work.count;
        return;
    }
    if (index >= p.batch * p.heads_kv * p.tile_cols) return;
    const i32 together = max_i32(1, GROUP_TOKENS / p.n_q);
    const i32 first = index / (together * p.tile_cols) * together;
    const i32 width = min_i32(together, p.batch * p.heads_kv - first);
    index -= first * p.tile_cols;
    item.work.tile = p.tile_cols - 1 - index / width;
    item.work.heads = p.heads_q / p.heads_kv;
    item.work.head = (first + index % width) * item.work.heads;
    item.work.shared = item.steps = 0;
#pragma unroll 1
    for (i32 i = 0; i < item.work.heads; i++) {
        List list;
        find_list(list, p, item.work, item.work.head + i);
        item.steps += list.count;
    }
}

FN i32 rank_of(const struct Attention &p, i32 head, i32 row, i32 column) {
    const struct Place at = place_of(head, p.heads_q);
    return behind(row_tiles(&p, load_mask(&p, at.batch, at.head), at.batch, at.head, row), column);
}

// Of tile `i` of a column's list; where the host made the lists it is written there.
FN struct Turn turn_at(const struct Attention &p, const List &list, i32 i, i32 head, i32 row,
                       i32 column) {
    const i32 sum = head * p.tile_rows + row;
    i32 word;
    if (turn_word(word, p, list, i)) {
        constexpr i32 MOST_SUMS = 32;  // as in maskc/layout/work/deterministic_order.py
        const i32 which = word % MOST_SUMS, rank = (word & ~HELD) / MOST_SUMS;
        return {which ? further_of(p, head, row).first + which - 1 : sum, rank | (word & HELD)};
    }
    return {sum, rank_of(p, head, row, column)};
}
#else
typedef struct Work List;

FN void find_list(List &list, const struct Attention &, const struct Work &work, i32) {
    list = work;
}
FN i32 word_in(const struct Attention &p, const List &list, i32 i) {
    return word_of(list, i, p.col_tiles, TILE_Q, p.tile_rows * TILE_Q);
}
FN void find_item(struct Item &item, const struct Attention &p, i32 index) {
    item.steps = -1;
    if (index >= p.items + p.empty) return;
    item.work = work_at(p, index);
    item.steps = item.work.count * item.work.heads;
}
#endif

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

// The thread that claims tile columns and loads what they need.
// Needs: backward_order.cuh, backward_workspace.cuh, ptx.cuh; Shared and Maps of the includer.

// ---------------------------------------------------------------- the warp that loads

// A tile of a tensor.
template <int ROWS>
FN void load_tile(unsigned char *tile, const TensorMap &map, u64 &full, const Point &from,
                  const struct Place &at) {
#pragma unroll
    for (int i = 0; i < SLABS; i++)
        load_box(shared_address(tile) + i * ROWS * 128, map, full, 64 * i, from, at.head,
                 at.batch);
}

// One query tile and what is known of its rows; or dout, and the rest.
FN void load_queries(struct Shared &shared, const struct Source &source, const TensorMap &map,
                     u32 at, i32 first) {
    u64 &full = shared.q_full[at];
#if FOLDED
    arrive_expecting(full, Q_BYTES + PIECE_BYTES);
    load_bytes(shared_address(shared.rows[at]), source.lse + ROW_FLOATS * first, PIECE_BYTES, full);
#else
    constexpr u32 NUMBERS = 4 * TILE_Q;  // bytes
    arrive_expecting(full, Q_BYTES + (THRESHOLDS ? 3 : 1) * NUMBERS);
    load_bytes(shared_address(shared.lse[at]), source.lse + first, NUMBERS, full);
#endif
    load_tile<TILE_Q>(shared.q[at], map, full, query_point(first), source.q);
#if THRESHOLDS
    // Thresholds of all rows come just before, as many numbers each: no pointers to them.
    const i64 rows = source.delta - source.lse;
    load_bytes(shared_address(shared.low[at]), source.lse - 2 * rows + first, NUMBERS, full);
    load_bytes(shared_address(shared.end[at]), source.lse - rows + first, NUMBERS, full);
#endif
}
FN void load_dout(struct Shared &shared, const struct Source &source, const TensorMap &map, u32 at,
                  i32 first) {
    u64 &full = shared.dout_full[at];
#if FOLDED
    arrive_expecting(full, Q_BYTES);
#else
    arrive_expecting(full, Q_BYTES + 4 * TILE_Q);
    load_bytes(shared_address(shared.delta[at]), source.delta + first, 4 * TILE_Q, full);
#endif
    load_tile<TILE_Q>(shared.dout[at], map, full, query_point(first), source.dout);
}

// Where a place lies in a tensor: a dimension without a stride is one that all share.
FN struct Place coordinates(const i64 (&stride)[3], const struct Place &at) {
    return {stride[0] ? at.batch : 0, stride[1] ? at.head : 0};
}

FN void find_source(struct Source &source, const struct Attention &p, const struct Work &work,
                    i32 head) {
    const struct Place at = place_of(head, p.heads_q);
    const struct Workspace w = workspace(p);
    const i64 first = (i64)head * p.tile_rows * TILE_Q;
    find_list(source.list, p, work, head);
    source.q = coordinates(p.q_stride, at);
    source.dout = coordinates(p.dout_stride, at);
    source.lse = w.lse + (FOLDED ? ROW_FLOATS : 1) * first;
    source.delta = w.delta + first;
    source.tail = (work.tile + 1) * TILE_K > keys_end(p) ? MASKED : 0;
}

FN void load_column(struct Shared &shared, const struct Work &work, const struct Attention &p,
                    const struct Maps &maps) {
    const struct Place place = place_of(work.head, p.heads_q);
    const struct Place at = {place.batch, place.head / (p.heads_q / p.heads_kv)};
    const Point first = key_point(work.tile * TILE_K);
    arrive_expecting(shared.column_full, 2 * K_BYTES);
    load_tile<TILE_K>(shared.k, maps.k, shared.column_full, first, coordinates(p.k_stride, at));
    load_tile<TILE_K>(shared.v, maps.v, shared.column_full, first, coordinates(p.v_stride, at));
}

// The steps of one head of an item. What is done for every tile is little, as it costs the warps
// that compute on the same scheduler. The column itself comes behind its first queries, whose place
// is free earlier: `begins` says whether it is still to come, `turn` when its place is free.
FN void load_steps(struct Shared &shared, const struct Work &work, const struct Attention &p,
                   const struct Maps &maps, i32 head, bool &begins, u32 turn,
                   Ring<STAGES> &stage) {
    struct Source &source = shared.source;
    find_source(source, p, work, head);
#pragma unroll 1
    for (i32 i = 0; i < source.list.count; i++) {
        const i32 word = word_in(p, source.list, i) | source.tail, first = (word & INDEX) * TILE_Q;
        const u32 at = stage.at();
#if DETERMINISTIC
        const struct Turn added = turn_at(p, source.list, i, head, word & INDEX, work.tile);
        wait_asleep(shared.q_free[at], stage.turn() ^ 1);
        shared.turn[at] = added;
        shared.holds = held(added);
#else
        wait_asleep(shared.q_free[at], stage.turn() ^ 1);
#endif
        shared.word[at] = word;
        shared.head[at] = head;
        load_queries(shared, source, maps.q, at, first);
        if (begins) {
            wait_asleep(shared.column_free, turn);
            load_column(shared, work, p, maps);
            begins = false;
        }
        wait_asleep(shared.dout_free[at], stage.turn() ^ 1);
        load_dout(shared, source, maps.dout, at, first);
        stage.next();
    }
}

FN void load_items(struct Shared &shared, const struct Attention &p, const struct Maps &maps) {
    Ring<STAGES> stage;
#pragma unroll 1
    for (Ring<ITEMS> column;; column.next()) {
#if DETERMINISTIC
        if (shared.holds) {  // these are the thread's own, which has no registers for them
            wait_asleep(shared.column_settled, shared.settled);
            shared.settled ^= 1, shared.holds = 0;
        }
#endif
        const i32 index = atomicAdd(p.counter, 1);
        const u32 turn = column.steps % 2 ^ 1;
        bool begins = ITEMS > 1;
        if (!begins) wait_asleep(shared.column_free, turn);
        struct Item &item = shared.item[column.at()];  // where there are two, ahead of its turn
        find_item(item, p, index);
        if (item.steps <= 0) {
            if (begins) wait_asleep(shared.column_free, turn);
            arrive(shared.column_full);
            if (item.steps < 0) break;
            continue;
        }
        if (!begins) load_column(shared, item.work, p, maps);
#pragma unroll 1
        for (i32 i = 0; i < item.work.heads; i++)
            load_steps(shared, item.work, p, maps, item.work.head + i, begins, turn, stage);
    }
    // The last block leaves the counter as it found it.
    if (atomicAdd(p.counter + 1, 1) == gridDim.x - 1) p.counter[0] = p.counter[1] = 0;
}

// How a warpgroup's share of dq gets to memory.
// Needs: backward_workspace.cuh, backward_order.cuh, backward_products.cuh, ptx.cuh.

// ---------------------------------------------------------------- dq leaves

// Named barriers: 1 for all that compute, 2 and 3 for each warpgroup.
FN void sync_both() { sync_threads(1, 128 * GROUPS); }
FN void sync_group(i32 group) { sync_threads(2 + group, 128); }

#if ZEROES
// The warp that writes zeros, ahead of who adds to them; a block takes up what is next.
FN void zero_tiles(struct Shared &shared, const struct Attention &p) {
    for (u32 i = threadIdx.x % 32; i < ZERO_BYTES / 16; i += 32)
        ((float4 *)shared.zeros)[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    publish_writes();
    __syncwarp();
    if (!elected()) return;
    float *const dq = workspace(p).dq;
    i32 *const taken = control_of(p, 0, TAKEN);
    const i64 rows = (i64)p.batch * p.heads_q * p.tile_rows, before = zeroed_before(p);
    if (before == rows) return;
#pragma unroll 1
    for (;;) {
        const i64 row = before + atomicAdd(taken, 1);
        if (row >= rows) break;
#pragma unroll
        for (int i = 0; i < 4; i++)
            put_floats(dq + row * TILE_FLOATS + i * (ZERO_BYTES / 4), shared_address(shared.zeros),
                       ZERO_BYTES);
        commit_stores();
        stores_done<0>();
        tell(control_of(p, row - row % p.tile_rows, ZEROED));
    }
}
#endif

#if DETERMINISTIC
// A thread that passes turns on once a step's dq is in memory, which takes long to be sure of: who
// hands over the next waits for none of it.
FN void pass_turns_on(struct Shared &shared) {
#pragma unroll 1
    for (Ring<1> added;; added.next()) {
#if STAGED
        wait_asleep(shared.dq_added, added.turn());
#else
        for (i32 group = 0; group < GROUPS; group++)
            wait_asleep(shared.dq_full[group], added.turn());
#endif
        i32 *const turn = shared.dq_counter;
        arrive(shared.dq_seen);
        if (!turn) break;
        tell(turn);
    }
}
#endif

#if STAGED
// The thread that adds what the warpgroups stage to dq in memory.
FN void add_dq_tiles(struct Shared &shared, const struct Attention &p) {
    float *const dq = workspace(p).dq;
#if ZEROES
    const i64 before = zeroed_before(p);
    i32 head = -1;  // whose tiles have zeros
#endif
#pragma unroll 1
    for (Ring<1> staged;; staged.next()) {
        i32 row;
#pragma unroll
        for (i32 group = 0; group < GROUPS; group++) {
            wait_asleep(shared.dq_full[group], staged.turn());
            row = shared.dq_turn.sum;
            if (row < 0) continue;
#if DETERMINISTIC
            if (group == 0) {
                wait_until(control_of(p, row, TURN), rank_in(shared.dq_turn));
                if (held(shared.dq_turn)) arrive(shared.column_settled);
            }
#elif ZEROES
            if (group == 0 && row / p.tile_rows != head) {
                head = row / p.tile_rows;
                i32 *const zeroed = control_of(p, head * p.tile_rows, ZEROED);
                if (row >= before) wait_until(zeroed, p.tile_rows);
            }
#endif
            const int place = group * SHARE;
            float *const to = dq + (i64)row * TILE_FLOATS + place;
            const u32 from = shared_address(shared.dq + place);
            const u32 bytes = 2048 * dq_pieces(group) + 4 * SLOPE_SUMS;
            if (DETERMINISTIC && rank_in(shared.dq_turn) == 0) put_floats(to, from, bytes);
            else add_floats(to, from, bytes);
            commit_stores();
        }
        if (row >= 0) {
            stores_read<1>();
            arrive(shared.dq_free[0]);
            stores_read<0>();
            arrive(shared.dq_free[1]);
        }
#if DETERMINISTIC
        stores_done<0>();
        wait_asleep(shared.dq_seen, staged.turn() ^ 1);
        shared.dq_counter = row < 0 ? nullptr : control_of(p, row, TURN);
        arrive(shared.dq_added);
#endif
        if (row < 0) break;
    }
    stores_done<0>();
}
#elif DETERMINISTIC
// A thread that waits for the turn of the next step while warpgroups compute one.
FN void await_turns(struct Shared &shared, const struct Attention &p) {
    Ring<STAGES> stage;
#pragma unroll 1
    for (Ring<1> given;; given.next(), stage.next()) {
        wait_asleep(shared.q_full[stage.at()], stage.turn());
        const struct Turn next = shared.turn[stage.at()];
        i32 *const turn = next.sum < 0 ? nullptr : control_of(p, next.sum, TURN);
        if (turn) wait_until(turn, rank_in(next));
        if (turn && held(next)) arrive(shared.column_settled);
        wait_asleep(shared.dq_seen, given.turn() ^ 1);
        shared.dq_counter = turn;
        for (i32 group = 0; group < GROUPS; group++) arrive(shared.dq_free[group]);
        if (!turn) break;
    }
}
#endif

// A warp's part of a tile of dq is there: staged, and visible to copies, or in memory.
FN void publish_dq(struct Shared &shared, i32 group) {
#if STAGED
    publish_writes();
#endif
#if STAGED || DETERMINISTIC
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.dq_full[group]);
#endif
}

// What a step adds to; read where registers are at hand, but before all warps meet for the last
// time: behind that the place may be given back.
FN struct Turn turn_in(const struct Shared &shared, u32 at, const struct Step &step) {
    if (!DETERMINISTIC) return {step.row, 0};
    return {uniform(shared.turn[at].sum), uniform(shared.turn[at].rank)};
}

// Waits until a warpgroup may hand over its part of a step's dq.
FN void await_dq(struct Shared &shared, const struct Turn &turn, i32 group, Ring<1> &staged) {
#if STAGED
    wait(shared.dq_free[group], staged.turn() ^ 1);
    staged.next();
    if (threadIdx.x == 128) shared.dq_turn = turn;
#elif DETERMINISTIC
    wait(shared.dq_free[group], staged.turn());
    staged.next();
#endif
}

#if ONCE || APART
// A thread's columns of one row, of two pieces of dq, in storage precision: threads side by side
// exchange halves, so that four of them have 32 bytes in a row, of the piece thread % 2.
FN uint2 traded_halves(const float *x, const float *y, float scale) {
    const bool odd = threadIdx.x % 2;
    const u32 low = pack(x[0] * scale, x[1] * scale), high = pack(y[0] * scale, y[1] * scale);
    const u32 theirs = __shfl_xor_sync(0xffffffff, odd ? low : high, 1);
    return make_uint2(odd ? theirs : low, odd ? high : theirs);
}
#endif

#if ONCE
// Stores a share of a tile of dq, in storage precision at once.
FN void add_dq(QueryGradient &dq, float, struct Shared &, const struct Attention &p,
               const struct Step &step, const struct Turn &, i32 share) {
    const i32 thread = threadIdx.x % 128, odd = thread % 2;
    const i32 first = (step.word & INDEX) * TILE_Q + dq_query(share) + thread / 32 * 16
                      + thread % 32 / 4;
    const struct Place at = place_of_row(p, step.row);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const i32 token = query_at(first + 8 * half);
        u32 *const line = (u32 *)p.dq + row_offset(p.dq_stride, at, token) / 2 + thread % 4 / 2 * 2;
#pragma unroll
        for (int i = 0; i < DQ_PIECES; i += 2) {
            if (i >= dq_pieces(1) && share) break;
            const float *const x = dq + 4 * i + 2 * half;
            const uint2 both = traded_halves(x, x + 4, p.scale);
            if (token < p.n_q) *(uint2 *)(line + dq_column(share, i + odd) / 2) = both;
        }
    }
}
#else
// Hands over a share of a tile of dq; `slope` is the thread's share of ALiBi's. What is staged is
// still to be published.
FN void add_dq(QueryGradient &dq, float slope, struct Shared &shared, const struct Attention &p,
               const struct Step &, const struct Turn &turn, i32 share) {
    const i32 thread = threadIdx.x % 128;
#if STAGED
    constexpr bool first = true;
    float *const to = shared.dq + share * SHARE;
#else
    const bool first = DETERMINISTIC && rank_in(turn) == 0;  // finds nothing to add to
    float *const to = workspace(p).dq + (i64)anew(turn.sum) * TILE_FLOATS + anew(share) * SHARE;
#endif
#pragma unroll
    for (int i = 0; i < DQ_PIECES; i++) {
        if (i >= dq_pieces(1) && share) break;
        const float *x = dq + 4 * i;
        const float4 four = make_float4(x[0], x[1], x[2], x[3]);
        float4 *const own = (float4 *)to + i * 128 + thread;
        if (first) *own = four;
        else atomicAdd(own, four);
    }
    if (HEAD_GRADIENT) {
        float *const own = to + 512 * dq_pieces(share) + thread;
        if (first) *own = slope;
        else atomicAdd(own, slope);
    }
}
#endif

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
    const i32 position = query + p.n_kv - p.n_q, key = first_key(tile, group);
    return {place, query, key, own, (float)(position - key)};
}

// dp = dout . v begins before scores become weights, where registers are at hand.
constexpr bool FEW = QUERIES <= 64;
constexpr bool EARLY =
    !LONG_LOGITS && (THRESHOLDS ? FEW : !(BENT || WITH_ENTMAX) || (FEW && !CROWDED));
// Numbers of the rows that are read are so before the products begin, behind whose operands they
// would wait.
constexpr bool LSE_EARLY = EARLY && !BENT && !MASK_HEAVY && !THRESHOLDS && !WITH_ENTMAX;
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
    store_pairs(shared_address(shared.weights[stage.at()]), kept.p, group);
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

// The end of a tile column: dk and dv, alone or with what others add.
// Needs: backward_workspace.cuh, backward_dq.cuh, ptx.cuh.

// A warpgroup's share of a tile column's gradients, in storage precision, where boxes are copied
// from: its own keys, or its own columns of all keys.
FN void stage_gradient(const Gradient &d, u32 tile, float scale, i32 group) {
    const u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < PIECES / 2; i++) {
        const float *x = d + 8 * i;
        const u32 column = column_of(group, 2 * i);
        store_matrices(tile + column / 64 * 64 * SLAB_ROW
                           + swizzled(row, column % 64 / 8 + lane / 16),
                       pack(x[0] * scale, x[1] * scale), pack(x[2] * scale, x[3] * scale),
                       pack(x[4] * scale, x[5] * scale), pack(x[6] * scale, x[7] * scale));
    }
    publish_writes();
}

// Where a warpgroup stages dk or dv. `last` is the stage of a column's last step, whose place a
// warpgroup alone has not given back yet; a column without steps has that of its keys.
FN u32 gradient_place(const struct Shared &shared, const struct Column &column, u32 last, int of_k,
                      i32 group) {
    if (!ALONE)
        return shared_address(shared.ds) + (SPLIT_KEYS ? group * SLABS * 64 * SLAB_ROW : 0);
    if (column.steps == 0) return shared_address(of_k ? shared.k : shared.v);
    return shared_address(of_k ? shared.q[last] : shared.dout[last]);
}

FN void store_column(const Gradient &dk, const Gradient &dv, const struct Column &column, u32 last,
                     struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                     i32 group) {
    const struct Place place = place_of(column.head, p.heads_q);
    const struct Place at = {place.batch, place.head / (p.heads_q / p.heads_kv)};
    const bool leader = threadIdx.x % 128 == 0 && (SPLIT_KEYS || group == 0);
    sync_both();  // all products that read what lies there are over
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 tile = gradient_place(shared, column, last, i, group);
        stage_gradient(i ? dk : dv, tile, i ? p.scale : 1.0f, group);
        if (SPLIT_KEYS) sync_group(group);
        else sync_both();
        if (leader) {
#pragma unroll
            for (int j = 0; j < SLABS; j++) {
                const TensorMap &map = i ? maps.dk : maps.dv;
                const u32 from = tile + j * 64 * SLAB_ROW;
                const Point key = key_point(column.tile * TILE_K + key_of(group));
                if (p.joins) add_box(map, from, 64 * j, key, at.head, at.batch);
                else store_box(map, from, 64 * j, key, at.head, at.batch);
            }
            commit_stores();
            if (!ALONE || i == 1) stores_read<0>();
        }
        if (ALONE) continue;
        if (SPLIT_KEYS && i == 0) sync_group(group);
        else sync_both();
    }
}

// The same where others add to the column too, or leave shares of it.
FN void add_column(const Gradient &dk, const Gradient &dv, const struct Column &column,
                   const struct Attention &p, i32 group) {
    float *const tile = workspace(p).keys + (column.shared - 1ll) * KEY_TILE_FLOATS;
    float4 *const to = (float4 *)tile + group * PIECES * 128 + threadIdx.x % 128;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < PIECES; j++) {
            const float *x = (i ? dv : dk) + 4 * j;
            const float4 four = make_float4(x[0], x[1], x[2], x[3]);
            float4 *const own = to + (GROUPS * i * PIECES + j) * 128;
            if (DETERMINISTIC || APART) *own = four;
            else atomicAdd(own, four);
        }
}

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
    begin_scores(s, tiles.k, tiles.q + q_stage(at), tiles, at, false);
    if (EARLY) begin_dp(dp, delta, shared, tiles, stage, group);
    finish_scores(s, dp, kept, lse, delta, shared, tiles, p, step, stage, column.tile, group);
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
// What a row's gradients with entmax are relative to: a launch over tile rows, before the main one.
// Needs: backward_products.cuh, backward_load.cuh, entmax_weights.cuh.

// delta = sum(u dp) / sum(u) over a row's keys, with dp = dout . v: the gradients of its scores
// then add up to 0, as its weights add up to 1 whatever the scores. A block has one tile row, whose
// q and dout stay while k and v stream; scores are transposed, as in the main launch, and every
// thread adds up over its own keys.
constexpr int WARPS = 4 * GROUPS;

struct MeanShared {
    unsigned char k[STAGES][K_BYTES], v[STAGES][K_BYTES];
    unsigned char q[Q_BYTES], dout[Q_BYTES];
    float level[TILE_Q];
    float sum[WARPS][TILE_Q], mass[WARPS][TILE_Q];  // of a warp's keys
    u64 rows_full;
    u64 k_full[STAGES], k_free[STAGES], v_full[STAGES], v_free[STAGES];
    i32 tiles;         // of the row
    i32 word[STAGES];  // of the key tile in this stage
};
static_assert(sizeof(struct MeanShared) <= sizeof(struct Shared), "memory of the main launch");

// See shared_memory().
FN struct MeanShared &mean_memory() { return (struct MeanShared &)shared_memory(); }

FN void initialize_mean(struct MeanShared &shared) {
    barrier_init(shared.rows_full, 1);
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared.k_full[i], 1);
        barrier_init(shared.v_full[i], 1);
        barrier_init(shared.k_free[i], GROUPS);
        barrier_init(shared.v_free[i], GROUPS);
    }
    barriers_ready();
}

// The last rows, which most masks make the longest, come first.
FN i32 row_of_block() { return gridDim.x - 1 - blockIdx.x; }

// One thread: the row's q, dout and level, then the keys and values of its tiles.
FN void load_row(struct MeanShared &shared, const struct Attention &p, const struct Maps &maps) {
    const i32 row = row_of_block(), tile_row = row % p.tile_rows;
    const struct Place at = place_of_row(p, row);
    const struct Place kv = {at.batch, at.head / (p.heads_q / p.heads_kv)};
    const struct Place k = coordinates(p.k_stride, kv), v = coordinates(p.v_stride, kv);
    const Point first = query_point(tile_row * TILE_Q);
    const struct TileList list =
        row_tiles(&p, load_mask(&p, at.batch, at.head), at.batch, at.head, tile_row);
    shared.tiles = list.count;
    arrive_expecting(shared.rows_full, 2 * Q_BYTES + TILE_Q * 4);
    load_tile<TILE_Q>(shared.q, maps.q, shared.rows_full, first, coordinates(p.q_stride, at));
    load_tile<TILE_Q>(shared.dout, maps.dout, shared.rows_full, first,
                      coordinates(p.dout_stride, at));
    load_bytes(shared_address(shared.level), workspace(p).lse + (i64)row * TILE_Q, TILE_Q * 4,
               shared.rows_full);
    Ring<STAGES> stage;
#pragma unroll 1
    for (i32 i = 0; i < list.count; i++, stage.next()) {
        const struct Tile tile = tile_at(list, i);
        const Point key = key_point(tile.index * TILE_K);
        const bool inside = (tile.index + 1) * TILE_K <= keys_end(p);
        const u32 to = stage.at(), turn = stage.turn() ^ 1;
        wait_asleep(shared.k_free[to], turn);
        shared.word[to] = tile.index | (tile.full && inside ? 0 : MASKED);
        arrive_expecting(shared.k_full[to], K_BYTES);
        load_tile<TILE_K>(shared.k[to], maps.k, shared.k_full[to], key, k);
        wait_asleep(shared.v_free[to], turn);
        arrive_expecting(shared.v_full[to], K_BYTES);
        load_tile<TILE_K>(shared.v[to], maps.v, shared.v_full[to], key, v);
    }
}

// As with softmax; see EARLY.
constexpr bool MEAN_EARLY = !LONG_LOGITS && (!BENT || QUERIES <= 64);

// What a thread adds up for each of its queries.
struct Mean {
    float sum[OWN], mass[OWN];  // of u dp, and of u
};

FN void begin_mean_dp(Scores &dp, struct MeanShared &shared, const struct Operands &tiles,
                      const Ring<STAGES> &stage) {
    wait(shared.v_full[stage.at()], stage.turn());
    begin_scores(dp, tiles.k + STAGES * TO_V + stage.at() * (K_BYTES >> 4),
                 tiles.q + (Q_BYTES >> 4));
}

// Scores become u.
FN void to_slopes(Scores &s, const struct Attention &p, float unit, const float *level) {
    by_alpha(p.alpha_minus_1, [&](auto kind) {
#pragma unroll
        for (int i = 0; i < QUERIES / 16; i++) {
            const float4 four = row_four(level, i);
            const float own[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float &x = s[8 * i + j];
                const float of_query = own[j / 4 * 2 + j % 2];
                x = weigh<decltype(kind)::value>(x, unit, of_query, p.alpha_minus_1).u;
            }
        }
    });
}

FN void add_slopes(struct Mean &mean, const Scores &u, const Scores &dp) {
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++) {
        const int own = i / 4 * 2 + i % 2;
        mean.sum[own] = fmaf(u[i], dp[i], mean.sum[own]);
        mean.mass[own] += u[i];
    }
}

// One tile of keys.
FN void add_keys(struct Mean &mean, const struct Attention &p, i32 row, const Ring<STAGES> &stage,
                 i32 group) {
    struct MeanShared &shared = mean_memory();
    const struct Operands tiles =
        operands(shared_address(shared.k), shared_address(shared.q), 0, group);
    const u32 at = stage.at();
    const bool leader = threadIdx.x % 128 == 0;
    Scores s, dp;
    wait(shared.k_full[at], stage.turn());
    const i32 word = uniform(shared.word[at]), tile = word & INDEX;
    const struct Step step = {anew(row) % p.tile_rows, row};
    begin_scores(s, tiles.k + at * (K_BYTES >> 4), tiles.q);
    if (MEAN_EARLY) begin_mean_dp(dp, shared, tiles, stage);
    const struct Place place = place_of_row(p, row);
    struct Visible seen;
    struct MaskRow mask_rows;
    if (word & MASKED)
        seen = visible<ByKey>(p, place, first_key(tile, group), first_query(step.word, group),
                              mask_rows, {});
    products_wait<MEAN_EARLY ? 1 : 0>();
    pin(s);
    if (leader) arrive(shared.k_free[at]);
    const struct Logit logit = logit_of(p);
    bend(s, p, where_of(place, step, p, tile, group));
    if (word & MASKED) apply_mask(s, seen, logit.hidden);
    pin(s);
    to_slopes(s, p, logit.unit, shared.level + first_row(group));
    if (!MEAN_EARLY) begin_mean_dp(dp, shared, tiles, stage);
    products_wait<0>();
    pin(dp);
    if (leader) arrive(shared.v_free[at]);
    add_slopes(mean, s, dp);
}

// Over the eight lanes of a warp that have the same queries.
FN float key_sum(float x) {
#pragma unroll
    for (int by = 4; by < 32; by *= 2) x += __shfl_xor_sync(0xffffffff, x, by);
    return x;
}
FN void store_sums(struct MeanShared &shared, const struct Mean &mean, i32 group) {
    const i32 warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const float sum = key_sum(mean.sum[i]), mass = key_sum(mean.mass[i]);
        const i32 query = first_row(group) + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (lane < 4) shared.sum[warp][query] = sum, shared.mass[warp][query] = mass;
    }
}

// Of a row without keys it is 0, of a level that is no number none.
FN void store_delta(const struct MeanShared &shared, const struct Attention &p, i32 row) {
    const i32 query = threadIdx.x - 128;
    if (query >= TILE_Q) return;
    float sum = 0.0f, mass = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        if (!SPLIT_KEYS && i / 4 != query / QUERIES) continue;  // a group has its own queries
        sum += shared.sum[i][query];
        mass += shared.mass[i][query];
    }
    const i32 place = place_in_rows(query);
    const float level = shared.level[place];
    const float delta = mass > 0.0f ? sum / mass : level == level ? 0.0f : level;
    workspace(p).delta[(i64)row * TILE_Q + place] = delta;
}

FN void find_mean(struct MeanShared &shared, const struct Attention &p, i32 group) {
    const i32 row = row_of_block();
    Ring<STAGES> stage;
    struct Mean mean = {};
    wait(shared.rows_full, 0);
#pragma unroll 1
    for (i32 left = uniform(shared.tiles); left > 0; left--, stage.next())
        add_keys(mean, p, row, stage, group);
    store_sums(shared, mean, group);
    sync_both();
    store_delta(shared, p, row);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_backward_mean(const __grid_constant__ struct Attention p,
                        const __grid_constant__ struct Maps maps) {
    struct MeanShared &shared = *(struct MeanShared *)memory;
    if (threadIdx.x == 0) initialize_mean(shared);
    __syncthreads();
    const i32 group = uniform(threadIdx.x / 128);
    if (group == 0) {
        give_registers<COPY_REGISTERS>();
        if (uniform(threadIdx.x / 32) == 0 && elected()) load_row(shared, p, maps);
    } else {
        take_registers<COMPUTE_REGISTERS>();
        find_mean(shared, p, group - 1);
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
