// Lists of the keys that queries choose: sm_80, bfloat16.
// Written by `maskc compile`; change the pattern, not this file.

#define FN __device__ __forceinline__
typedef int i32;
typedef long long i64;

struct Gathered {
    const void *index_q;  // [batch, index heads, n_q, INDEX_DIM]
    const void *index_k;  // [batch, n_kv, INDEX_DIM]
    const void *index_w;  // [batch, index heads, n_q]
    const void *given;  // scores [batch, heads, n_q, n_kv]
    const void *factors;  // of the keys of index_k, [batch, n_kv], or null
    float *scores;  // workspace [rows][pitch], of the rows at hand
    i32 *lists;  // [all rows][room]: the keys of a query, ascending
    i32 *counts;  // [all rows]: how many they are
    i64 index_q_stride[3];  // elements between batches, heads, tokens
    i64 index_k_stride[2];  // elements between batches, tokens
    i64 index_w_stride[3];  // elements between batches, heads, tokens
    i64 given_stride[3];  // elements between batches, heads, queries
    i64 factor_stride[2];  // elements between batches, tokens
    i64 pitch;  // elements from one row of scores to the next
    i64 first;  // of the rows at hand: (sequence * groups + group) * n_q + query
    i32 rows;  // at hand
    i32 groups;  // of heads of a sequence that have lists of their own
    i32 n_q;  // queries
    i32 n_kv;  // keys
    i32 wanted;  // keys that are chosen, at most n_kv
    i32 room;  // keys for which a list has room
    i32 heads;  // of the indexer, or whose given scores are averaged
    i32 index_dim;  // elements of a row of index_q and index_k
    i32 weight_code;  // of an element of index_w: 0 fp32, 1 bf16, 2 fp16
    i32 given_code;  // likewise of the scores
    i32 factor_code;  // likewise of the factors
    i32 constants[48];  // of the mask's formulas
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

#ifndef INDEXED_64
#define INDEXED_64 0  // scores of an indexer with rows of at most 64 elements
#endif
#ifndef INDEXED_128
#define INDEXED_128 0  // scores of an indexer with rows of at most 128 elements
#endif
#ifndef INDEXED_256
#define INDEXED_256 0  // scores of an indexer with rows of at most 256 elements
#endif
// How its rows lie: slabs of 128 bytes, none where scores are given, and how many are in flight.
#if INDEXED_64
constexpr int INDEX_BYTES = 2, INDEX_SLABS = 1, SLOTS = 3;
#elif INDEXED_128
constexpr int INDEX_BYTES = 2, INDEX_SLABS = 2, SLOTS = 3;
#elif INDEXED_256
constexpr int INDEX_BYTES = 2, INDEX_SLABS = 4, SLOTS = 2;
#endif
#define INDEXED (0 \
    || INDEXED_64 \
    || INDEXED_128 \
    || INDEXED_256)
constexpr i32 THREADS = 512, WARPS = THREADS / 32;
constexpr u32 ALL = 0xffffffff;

FN i32 min_i32(i32 a, i32 b) { return a < b ? a : b; }
FN i32 max_i32(i32 a, i32 b) { return a > b ? a : b; }
// Division and remainder that round towards minus infinity, as the mask's formulas mean them.
FN i32 floor_div(i32 a, i32 b) { return a / b - (a % b < 0); }
FN i32 floor_mod(i32 a, i32 b) { return a % b + (a % b < 0 ? b : 0); }

// Constants of the formulas.
struct Mask {
    i32 c0;  // n_kv - n_q
    i32 c1;  // n_kv - n_q
};
FN struct Mask mask_of(const struct Gathered &p) {
    struct Mask m;
    m.c0 = p.constants[0];
    m.c1 = p.constants[1];
    return m;
}

// Whether query q may choose key k.
FN bool allowed(const struct Mask &m, i32 q, i32 k, i32 n_q, i32 n_kv) {
    (void)m; (void)q; (void)k; (void)n_q; (void)n_kv;
    return
        // line 22: causal()
        k <= q + m.c0;
}
// Whether the mask keeps a pair that was chosen.
FN bool chosen(const struct Mask &m, i32 q, i32 k, i32 n_q, i32 n_kv) {
    (void)m; (void)q; (void)k; (void)n_q; (void)n_kv;
    return
        // line 22: causal()
        k <= q + m.c1;
}
// Whether it keeps one that was not.
FN bool beside(const struct Mask &m, i32 q, i32 k, i32 n_q, i32 n_kv) {
    (void)m; (void)q; (void)k; (void)n_q; (void)n_kv;
    return
        0;
}

struct Hull {
    i32 first, last;  // past the end
};
FN void widen(struct Hull &hull, i32 first, i32 last) {
    if (first >= last) return;
    hull.first = min_i32(hull.first, first), hull.last = max_i32(hull.last, last);
}
// What lies around all keys that query `ti` may choose, and all that it keeps.
FN struct Hull choice_hull(const struct Mask &m, i32 ti, i32 n_q, i32 n_kv) {
    (void)m; (void)ti; (void)n_q;
    struct Hull hull = {n_kv, 0};
    {
        const i32 first = 0;
        const i32 last = min_i32(n_kv - 1, m.c0 + ti) + 1;
        widen(hull, max_i32(first, 0), min_i32(last, n_kv));
    }
    return hull;
}
FN struct Hull kept_hull(const struct Mask &m, i32 ti, i32 n_q, i32 n_kv) {
    struct Hull hull = choice_hull(m, ti, n_q, n_kv);
    return hull;
}
// Whether query `ti` may choose a key between `from` and `to`; true where that is not known.
FN bool may_choose(const struct Mask &m, i32 ti, i32 from, i32 to, i32 n_q, i32 n_kv) {
    (void)m; (void)ti; (void)from; (void)to; (void)n_q; (void)n_kv;
    bool any = false;
    {
        const i32 first = 0;
        const i32 last = min_i32(n_kv - 1, m.c0 + ti) + 1;
        any |= max_i32(first, from) < min_i32(last, to);
    }
    return any;
}

// Codes: 0 fp32, 1 bf16, 2 fp16.
FN float element_at(const void *from, i64 place, i32 code) {
    if (code == 0) return ((const float *)from)[place];
    const u32 bits = ((const unsigned short *)from)[place];
    if (code == 1) return __uint_as_float(bits << 16);
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)bits));
    return x;
}

// How many come before a thread's own, and in `all` how many there are.
FN i32 block_before(i32 count, i32 &all) {
    __shared__ i32 part[THREADS / 32];
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i32 sum = count;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const i32 other = __shfl_up_sync(ALL, sum, by);
        sum += lane >= by ? other : 0;
    }
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    all = 0;
    for (int i = 0; i < THREADS / 32; i++) {
        sum += i < warp ? part[i] : 0;
        all += part[i];
    }
    __syncthreads();
    return sum - count;
}

// Asked for where it is used: an address kept over a loop lies in an ordinary register, and with it
// the operands of all products, which then take two moves each.
extern __shared__ __align__(1024) unsigned char memory[];
FN struct Shared &shared_memory() {
    u32 address;
    asm volatile("mov.u32 %0, memory;" : "=r"(address));
    return *(struct Shared *)__cvta_shared_to_generic(address);
}

#if INDEXED
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

FN void copy_piece(u32 to, const void *from, bool inside) { copy_async(to, from, inside); }
// Slabs have rows of 128 bytes, whose 16-byte pieces trade places with row % 8.
FN u32 swizzled(u32 row, u32 piece) { return row * 128 + ((piece ^ (row % 8)) << 4); }

constexpr i32 COMPUTING = 256, COPYING = COMPUTING;  // threads
// A block has KEYS keys, and goes over some queries in steps of COLUMNS columns: the heads of a
// query one after another, in a number that divides COLUMNS or is a multiple of it. Keys are the
// rows of the product, sixteen a warp, so that a query's heads are added up in a thread. They stay;
// heads come slab by slab, 128 bytes of each.
constexpr int KEYS = 128, QUERIES = 64;
constexpr int COLUMNS = 128, COLUMN_BITS = 7;
constexpr u32 KEY_SLAB = KEYS * 128, COLUMN_SLAB = COLUMNS * 128;  // bytes
static_assert(COLUMNS == 1 << COLUMN_BITS, "heads are told by bits");
static_assert(COMPUTING == 2 * KEYS, "a warp has sixteen keys");

FN float relu(float x) {  // NaN stays NaN
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(0.0f));
    return y;
}

// What a block computes.
struct Part {
    i32 batch, first_key;
    i32 query, queries;  // the first one, and how many
    i64 row;             // of its scores
    i32 heads;           // as columns: padded
    i32 bits;            // of a column that tell its head: it has 2^bits of a query, or more steps
};
FN struct Part part_of(const struct Gathered &p, i32 block) {
    const i32 tiles = (p.n_kv + KEYS - 1) / KEYS, tile = block % tiles;
    const i32 below = block / tiles * QUERIES, batch = p.first / p.n_q;
    struct Part part;
    part.batch = batch;
    part.first_key = tile * KEYS;
    part.query = p.first - (i64)batch * p.n_q + below;
    part.queries = min_i32(QUERIES, p.rows - below);
    part.row = below;
    part.bits = 3;
    while (1 << part.bits < min_i32(p.heads, COLUMNS)) part.bits++;
    part.heads = (p.heads + COLUMNS - 1) / COLUMNS * COLUMNS;
    if (part.bits < COLUMN_BITS) part.heads = 1 << part.bits;
    return part;
}

// The first column of a step: which head of which of the block's queries.
struct Step {
    i32 query, head;
};
FN struct Step step_of(const struct Part &part, i32 query) {
    return {query >> (COLUMN_BITS - part.bits) << (COLUMN_BITS - part.bits), 0};
}
FN struct Step step_after(const struct Part &part, struct Step step) {
    const i32 head = step.head + COLUMNS;
    if (head < part.heads) return {step.query, head};
    return {step.query + (1 << (COLUMN_BITS - part.bits)), 0};
}
// And another one.
struct Column {
    i32 query, head;
    bool real;
};
FN struct Column column_at(const struct Gathered &p, const struct Part &part, struct Step at,
                           i32 i) {
    const i32 query = at.query + (i >> part.bits), head = at.head + (i & ((1 << part.bits) - 1));
    return {query, head, head < p.heads && query < part.queries};
}

// Which queries may choose one of the keys: the first, and past the last; in shared memory.
FN void find_live(i32 &first, i32 &last, const struct Gathered &p, const struct Mask &m,
                  const struct Part &part) {
    const i32 own = threadIdx.x, end = min_i32(part.first_key + KEYS, p.n_kv);
    if (own == 0) first = QUERIES, last = 0;
    __syncthreads();
    if (own < part.queries
        && may_choose(m, part.query + own, part.first_key, end, p.n_q, p.n_kv)) {
        atomicMin(&first, own);
        atomicMax(&last, own + 1);
    }
    __syncthreads();
}

// ---------------------------------------------------------------- copies

// Eight threads copy the 128 bytes that a row has in a slab; zeros past the row's end.
FN void copy_part(const struct Gathered &p, u32 slab, u32 row, const unsigned char *from,
                  i32 number, bool real) {
    const i32 own = threadIdx.x % 8, piece = 8 * number + own;
    const bool inside = real && 16 * piece < INDEX_BYTES * p.index_dim;
    copy_piece(slab + swizzled(row, own), from + (inside ? 16 * piece : 0), inside);
}
// All keys, by the threads that compute.
FN void copy_keys(u32 keys, const struct Gathered &p, const struct Part &part) {
#pragma unroll
    for (int row = threadIdx.x / 8; row < KEYS; row += COMPUTING / 8) {
        const i32 key = min_i32(part.first_key + row, p.n_kv - 1);
        const unsigned char *const from = (const unsigned char *)p.index_k
            + INDEX_BYTES * (part.batch * p.index_k_stride[0] + key * p.index_k_stride[1]);
#pragma unroll
        for (int i = 0; i < INDEX_SLABS; i++)
            copy_part(p, keys + i * KEY_SLAB, row, from, i,
                      part.first_key + row < p.n_kv);
    }
}

// The rows of a step that a thread copies.
constexpr int TURNS = COLUMNS / (COPYING / 8);
struct Heads {
    const unsigned char *from[TURNS];
    bool real[TURNS];
};
FN struct Heads heads_of(const struct Gathered &p, const struct Part &part, struct Step step) {
    struct Heads heads;
#pragma unroll
    for (int i = 0; i < TURNS; i++) {
        const i32 column = threadIdx.x % COPYING / 8 + i * (COPYING / 8);
        const struct Column at = column_at(p, part, step, column);
        const i64 offset = part.batch * p.index_q_stride[0] + at.head * p.index_q_stride[1]
            + (part.query + at.query) * p.index_q_stride[2];
        heads.from[i] = (const unsigned char *)p.index_q + INDEX_BYTES * (at.real ? offset : 0);
        heads.real[i] = at.real;
    }
    return heads;
}
FN float weight_at(const struct Gathered &p, const struct Part &part, struct Step step,
                   i32 column) {
    const struct Column at = column_at(p, part, step, column);
    if (!at.real) return 0.0f;
    return element_at(p.index_w, part.batch * p.index_w_stride[0] + at.head * p.index_w_stride[1]
                                     + (part.query + at.query) * p.index_w_stride[2],
                      p.weight_code);
}
FN void copy_heads(u32 slab, const struct Gathered &p, const struct Heads &heads, i32 number) {
#pragma unroll
    for (int i = 0; i < TURNS; i++)
        copy_part(p, slab, threadIdx.x % COPYING / 8 + i * (COPYING / 8), heads.from[i], number,
                  heads.real[i]);
}

// ---------------------------------------------------------------- sums

// The heads of a step, eight columns after eight: those of both of a thread's keys are added up.
struct Target {
    float *to;  // the score of the thread's first key
    i32 query;
    float2 factor;  // of its keys
};
// Writes the scores of a query whose heads are complete.
FN void write_scores(float (&sum)[2], struct Target &target, const struct Gathered &p,
                     const struct Part &part) {
    const i32 lane = threadIdx.x % 32;
    const i32 key = part.first_key + threadIdx.x / 32 * 16 + lane / 4;
    const bool real = lane % 4 == 0 && target.query < part.queries;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float total = quad_sum(sum[r]);
        const float factor = r ? target.factor.y : target.factor.x;
        if (real && key + 8 * r < p.n_kv) target.to[8 * r] = factor * total;
        sum[r] = 0.0f;
    }
    target.to += p.pitch;
    target.query++;
}
FN struct Target target_of(const struct Gathered &p, const struct Part &part, i32 query,
                           float2 factor) {
    const i32 key = part.first_key + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    return {p.scores + (part.row + query) * p.pitch + key, query, factor};
}
// The factors of a thread's keys.
FN float factor_at(const struct Gathered &p, const struct Part &part, i32 key) {
    const i64 place = part.batch * p.factor_stride[0]
        + min_i32(key, p.n_kv - 1) * p.factor_stride[1];
    return element_at(p.factors, place, p.factor_code);
}
FN float2 factors_of(const struct Gathered &p, const struct Part &part) {
    const i32 key = part.first_key + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    if (!p.factors) return make_float2(1.0f, 1.0f);
    return make_float2(factor_at(p, part, key), factor_at(p, part, key + 8));
}

// Any number of heads. Padding may give NaN: it has no part in a sum.
FN void add_heads(const float (&x)[COLUMNS / 2], float (&sum)[2], const float *weight,
                  float2 factor, const struct Gathered &p, const struct Part &part,
                  struct Step step) {
    const i32 own = threadIdx.x % 4 * 2;
    const i32 last = part.heads - step.head - 8;  // the query's last eight heads
    struct Target target = target_of(p, part, step.query, factor);
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++) {
        const float2 w = *(const float2 *)(weight + 8 * i + own);
        const i32 at = 8 * i & ((1 << part.bits) - 1), head = step.head + at + own;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float a = relu(x[4 * i + 2 * r]), b = relu(x[4 * i + 2 * r + 1]);
            if (head < p.heads) sum[r] = fmaf(w.x, a, sum[r]);
            if (head + 1 < p.heads) sum[r] = fmaf(w.y, b, sum[r]);
        }
        if (at == last) write_scores(sum, target, p, part);
    }
}

// A multiple of 64 heads, none of which is padding: nothing is asked before half a step is over.
FN void add_all_heads(const float (&x)[COLUMNS / 2], float (&sum)[2], const float *weight,
                      float2 factor, const struct Gathered &p, const struct Part &part,
                      struct Step step) {
    float half[2][2] = {sum[0], sum[1], 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < COLUMNS / 8; i++) {
        const float2 w = *(const float2 *)(weight + 8 * i + threadIdx.x % 4 * 2);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float &to = half[i / (COLUMNS / 16)][r];
            const float a = relu(x[4 * i + 2 * r]), b = relu(x[4 * i + 2 * r + 1]);
            to = fmaf(w.y, b, fmaf(w.x, a, to));
        }
    }
    struct Target target = target_of(p, part, step.query, factor);
    if (part.bits < COLUMN_BITS) {
        write_scores(half[0], target, p, part);
        write_scores(half[1], target, p, part);
    } else {
#pragma unroll
        for (int r = 0; r < 2; r++) sum[r] = half[0][r] + half[1][r];
        if (step.head + COLUMNS == part.heads) write_scores(sum, target, p, part);
    }
}

struct Shared {
    unsigned char keys[INDEX_SLABS * KEY_SLAB];
    unsigned char heads[SLOTS][COLUMN_SLAB];  // slabs in flight
    float weight[SLOTS][COLUMNS];             // of steps
    i32 first, last;  // queries that may choose one of the keys, and those between
};

// A slab of a step.
struct Slab {
    struct Step step;
    i32 number, slab, slot;  // where its weights lie; which of its slabs; where that lies
};
FN void advance(struct Slab &at, const struct Part &part) {
    at.slot = at.slot + 1 == SLOTS ? 0 : at.slot + 1;
    if (++at.slab < INDEX_SLABS) return;
    at.slab = 0, at.step = step_after(part, at.step);
    at.number = at.number + 1 == SLOTS ? 0 : at.number + 1;
}

// Begins to copy a slab, and with a step's first one its weights; a group, though it may be empty.
FN void begin_slab(struct Shared &shared, struct Slab &ahead, const struct Gathered &p,
                   const struct Part &part, i32 last) {
    if (ahead.step.query < last) {
        copy_heads(shared_address(shared.heads[ahead.slot]), p, heads_of(p, part, ahead.step),
                   ahead.slab);
        if (ahead.slab == 0 && threadIdx.x < COLUMNS)
            shared.weight[ahead.number][threadIdx.x] =
                weight_at(p, part, ahead.step, threadIdx.x);
    }
    copy_commit();
    advance(ahead, part);
}

// x += keys . heads, of a slab of both: a warp's sixteen keys by all columns. Element 4 i + 2 r + e
// of a thread is of key lane / 4 + 8 r and column 8 i + 2 (lane % 4) + e.
FN void multiply_slab(float (&x)[COLUMNS / 2], u32 keys, u32 heads) {
    const u32 lane = threadIdx.x % 32, key = threadIdx.x / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 a[4], b[4];
        load_matrices(a, keys + swizzled(key, 2 * i + lane / 16));
#pragma unroll
        for (int n = 0; n < COLUMNS / 16; n++) {
            const u32 column = 16 * n + lane % 8 + lane / 16 * 8;
            load_matrices(b, heads + swizzled(column, 2 * i + lane / 8 % 2));
#pragma unroll
            for (int half = 0; half < 2; half++)
                multiply(*(float (*)[4])(x + 8 * n + 4 * half), a, b[2 * half], b[2 * half + 1]);
        }
    }
}

FN void score_steps(struct Shared &shared, const struct Gathered &p, const struct Part &part,
                    i32 first, i32 last) {
    const bool whole = part.heads == p.heads && part.bits >= COLUMN_BITS - 1;
    const float2 factor = factors_of(p, part);
    const u32 keys = shared_address(shared.keys), heads = shared_address(shared.heads);
    struct Slab now = {step_of(part, first), 0, 0, 0}, ahead = now;
    float sum[2] = {}, x[COLUMNS / 2] = {};
    copy_keys(keys, p, part);  // they come with the first slab
    for (int i = 0; i < SLOTS - 1; i++) begin_slab(shared, ahead, p, part, last);
#pragma unroll 1
    for (; now.step.query < last; advance(now, part)) {
        copy_wait<SLOTS - 2>();
        __syncthreads();  // all see this slab, and nobody reads the last one
        begin_slab(shared, ahead, p, part, last);
        multiply_slab(x, keys + now.slab * KEY_SLAB, heads + now.slot * COLUMN_SLAB);
        if (now.slab + 1 < INDEX_SLABS) continue;
        const float *const weight = shared.weight[now.number];
        if (whole)
            add_all_heads(x, sum, weight, factor, p, part, now.step);
        else
            add_heads(x, sum, weight, factor, p, part, now.step);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) x[i] = 0.0f;
    }
    copy_wait<0>();
}

extern "C" __global__ void __launch_bounds__(COMPUTING)
gather_scores(const __grid_constant__ struct Gathered p) {
    struct Shared &shared = shared_memory();
    const struct Part part = part_of(p, blockIdx.x);
    find_live(shared.first, shared.last, p, mask_of(p), part);
    const i32 first = shared.first, last = shared.last;
    if (first < last) score_steps(shared, p, part, first, last);
}
#endif

// ---------------------------------------------------------------- what ranks

// One query whose keys a block chooses.
struct Row {
    i64 number;  // of all rows
    i32 query, batch, group;
};
FN struct Row row_at(const struct Gathered &p, i32 block) {
    const i64 number = p.first + block, list = number / p.n_q, batch = list / p.groups;
    return {number, (i32)(number - list * p.n_q), (i32)batch, (i32)(list - batch * p.groups)};
}

// The score of a key; the mean where heads that choose together have their own.
FN float score_of(const struct Gathered &p, const struct Row &row, i32 key) {
#if INDEXED
    return p.scores[(i64)blockIdx.x * p.pitch + key];
#else
    const i64 place = row.batch * p.given_stride[0] + row.query * p.given_stride[2] + key;
    const i32 first = row.group * p.heads;
    float sum = element_at(p.given, place + first * p.given_stride[1], p.given_code);
    if (p.heads == 1) return sum;
    for (i32 i = 1; i < p.heads; i++)
        sum = __fadd_rn(sum, element_at(p.given, place + (first + i) * p.given_stride[1],
                                        p.given_code));
    return __fdiv_rn(sum, (float)p.heads);
#endif
}
// Those of four keys, the first a multiple of four; anything for keys that are not there.
FN float4 scores_at(const struct Gathered &p, const struct Row &row, i32 key) {
#if INDEXED
    return *(const float4 *)(p.scores + (i64)blockIdx.x * p.pitch + key);
#else
    const i32 last = p.n_kv - 1;
    return make_float4(score_of(p, row, key), score_of(p, row, min_i32(key + 1, last)),
                       score_of(p, row, min_i32(key + 2, last)),
                       score_of(p, row, min_i32(key + 3, last)));
#endif
}

// A sample tells about how high a score has to be; candidates that are so high are listed in shared
// memory in one walk over the scores, and the last one to be chosen is found among them. Counts
// say whether the sample was wrong: then, or where a list would not hold as many as are wanted,
// scores are walked over again and again instead.
constexpr i32 LISTED = 6144;           // candidates
constexpr i32 SAMPLED = 32;            // one key in so many; more where a list would not hold them
constexpr i32 STRETCH = 1 << 17;       // keys that have their bits at a time
constexpr int BITS = 11, BINS = 1 << BITS, OWN_BINS = BINS / THREADS;
constexpr int AHEAD = 4;               // loads under way in a thread

struct Choice {
    u64 list[LISTED];
    union {
        i32 bins[BINS];
        u32 kept[STRETCH / 32];
    };
};
FN struct Choice &choice_memory() { return *(struct Choice *)memory; }

// ---------------------------------------------------------------- candidates

// Ascends with the score: 0 for NaN, one number for both zeros.
FN u32 rank_of(float score) {
    const u32 bits = __float_as_uint(__fadd_rn(score, 0.0f));
    if ((bits & 0x7fffffff) > 0x7f800000) return 0;
    return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}
FN float score_with(u32 rank) {
    return __uint_as_float(rank & 0x80000000 ? rank ^ 0x80000000 : ~rank);
}
// A candidate as one number: the better one is the larger, and none equals another.
FN u64 candidate(float score, i32 key) {
    return (u64)rank_of(score) << 32 | (0xffffffff - (u32)key);
}
FN i32 key_of(u64 x) { return (i32)(0xffffffff - (u32)x); }

FN bool may(const struct Gathered &p, const struct Mask &m, const struct Row &row,
            const struct Hull &hull, i32 key) {
    return key < hull.last && allowed(m, row.query, key, p.n_q, p.n_kv);
}

// Scores with their keys, all of a hull and a few around it.
template <class Act>
FN void each_score(const struct Gathered &p, const struct Row &row, const struct Hull &hull,
                   const Act &act) {
    const i32 end = hull.last - 1 & ~3;
#pragma unroll 1
    for (i32 first = (hull.first & ~3) + 4 * (i32)threadIdx.x; first < hull.last;
         first += AHEAD * 4 * THREADS) {
        float4 x[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            x[i] = scores_at(p, row, min_i32(first + i * 4 * THREADS, end));
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const i32 key = first + i * 4 * THREADS;
            act(x[i].x, key), act(x[i].y, key + 1), act(x[i].z, key + 2), act(x[i].w, key + 3);
        }
    }
}

// ---------------------------------------------------------------- the last one to be chosen

// The bin, from the last one down, that the `wanted`-th candidate lies in.
struct Bin {
    i32 bin, above, inside;  // its number, and candidates in those behind it, and in it
    i32 all;
};
FN struct Bin bin_of(const i32 *bins, i32 wanted) {
    __shared__ struct Bin found;
    const i32 last = BINS - 1 - OWN_BINS * (i32)threadIdx.x;
    i32 own = 0, all;
#pragma unroll
    for (int i = 0; i < OWN_BINS; i++) own += bins[last - i];
    const i32 before = block_before(own, all);
    if (before < wanted && wanted <= before + own) {
        i32 above = before, bin = last;
        while (above + bins[bin] < wanted) above += bins[bin--];
        found.bin = bin, found.above = above, found.inside = bins[bin];
    }
    __syncthreads();
    struct Bin result = found;
    result.all = all;
    __syncthreads();
    return result;
}

// What the candidates reach that are chosen, all of which lie between `low` and `high`; 0 where
// all are. `each` hands every candidate over, as often as it is called.
template <class Each>
FN u64 least_of(i32 *bins, u64 low, u64 high, i32 wanted, const Each &each) {
#pragma unroll 1
    for (bool first = true;; first = false) {
        const u64 range = high - low;
        const i32 shift = max_i32(64 - __clzll(range) - BITS, 0);
        for (i32 i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
        __syncthreads();
        each([&](u64 x) {
            if (x - low <= range) atomicAdd(bins + (i32)(x - low >> shift), 1);
        });
        __syncthreads();
        const struct Bin bin = bin_of(bins, wanted);
        if (first && bin.all <= wanted) return 0;
        wanted -= bin.above;
        low += (u64)bin.bin << shift;
        if (bin.inside == wanted || shift == 0) return low;
        high = low + (1ull << shift) - 1;
    }
}
FN u64 least_listed(struct Choice &c, i32 count, i32 wanted) {
    __shared__ u32 low;
    __shared__ u32 high;
    if (count <= wanted) return 0;
    if (threadIdx.x == 0) low = ALL, high = 0;
    __syncthreads();
    u32 least = ALL, most = 0;
    for (i32 i = threadIdx.x; i < count; i += THREADS) {
        const u32 rank = c.list[i] >> 32;
        least = rank < least ? rank : least, most = rank > most ? rank : most;
    }
    least = __reduce_min_sync(ALL, least), most = __reduce_max_sync(ALL, most);
    if (threadIdx.x % 32 == 0) atomicMin(&low, least), atomicMax(&high, most);
    __syncthreads();
    return least_of(c.bins, (u64)low << 32, (u64)high << 32 | ALL, wanted, [&](const auto &act) {
        for (i32 i = threadIdx.x; i < count; i += THREADS) act(c.list[i]);
    });
}

// ---------------------------------------------------------------- the candidates that are listed

// What the best candidates of a query reach; they are in the list, or where `count` is -1 nowhere.
struct Best {
    u64 least;
    i32 count;
};

// A rank that rather more keys reach than are wanted, and fewer than a list holds, as far as a
// sample tells; 0: all are to be listed.
FN u32 sampled_rank(struct Choice &c, const struct Gathered &p, const struct Mask &m,
                    const struct Row &row, const struct Hull &hull, i32 &count) {
    const i32 length = hull.last - hull.first;
    if (length <= LISTED) return 0;
    const i32 step = max_i32(SAMPLED, (length + LISTED - 1) / LISTED);
    for (i32 i = threadIdx.x; i < length / step; i += THREADS) {
        // Somewhere in its step, lest a pattern of the keys is met in step.
        const u32 beside = (u64)((u32)i * 0x9e3779b1u) * (u32)step >> 32;
        const i32 key = hull.first + i * step + (i32)beside;
        if (may(p, m, row, hull, key))
            c.list[atomicAdd(&count, 1)] = candidate(score_of(p, row, key), key);
    }
    __syncthreads();
    const i32 sampled = count, place = max_i32((p.wanted + LISTED) / 2 / step, 1);
    const u64 least = least_listed(c, sampled, place);
    __syncthreads();
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    return least >> 32;
}

FN struct Best best_of(struct Choice &c, const struct Gathered &p, const struct Mask &m,
                       const struct Row &row) {
    __shared__ i32 count;
    const struct Hull hull = choice_hull(m, row.query, p.n_q, p.n_kv);
    if (p.wanted == 0) return {~0ull, 0};
    if (p.wanted < LISTED / 5 * 4 || hull.last - hull.first <= LISTED) {
        if (threadIdx.x == 0) count = 0;
        __syncthreads();
        const u32 rank = sampled_rank(c, p, m, row, hull, count);
        const bool all = rank == 0;
        const float bound = score_with(rank);
        each_score(p, row, hull, [&](float x, i32 key) {
            if (!(all || x >= bound) || !may(p, m, row, hull, key)) return;
            const i32 place = atomicAdd(&count, 1);
            if (place < LISTED) c.list[place] = candidate(x, key);
        });
        __syncthreads();
        const i32 found = count;
        if (found <= LISTED && (all || found >= p.wanted))
            return {least_listed(c, found, p.wanted), found};
    }
    const u64 least = least_of(c.bins, 0, ~0ull, p.wanted, [&](const auto &act) {
        each_score(p, row, hull, [&](float x, i32 key) {
            if (may(p, m, row, hull, key)) act(candidate(x, key));
        });
    });
    return {least, -1};
}

// ---------------------------------------------------------------- the list

// The bits of some keys: what the mask keeps beside the best, if anything.
FN void begin_bits(struct Choice &c, const struct Gathered &p, const struct Mask &m,
                   const struct Row &row, i32 from, i32 to) {
    const i32 words = (to - from + 31) / 32;
    for (i32 word = threadIdx.x; word < words; word += THREADS) c.kept[word] = 0;
}

// One of the best sets its bit or clears it.
FN void settle_bit(struct Choice &c, const struct Gathered &p, const struct Mask &m,
                   const struct Row &row, i32 from, i32 key) {
    u32 *const word = c.kept + (key - from) / 32;
    const u32 bit = 1u << (key - from) % 32;
    if (chosen(m, row.query, key, p.n_q, p.n_kv))
        atomicOr(word, bit);
    else
        atomicAnd(word, ~bit);
}
FN void settle_bits(struct Choice &c, const struct Gathered &p, const struct Mask &m,
                    const struct Row &row, const struct Best &best, i32 from, i32 to) {
    for (i32 i = threadIdx.x; i < best.count; i += THREADS) {
        const i32 key = key_of(c.list[i]);
        if (c.list[i] >= best.least && key >= from && key < to)
            settle_bit(c, p, m, row, from, key);
    }
    if (best.count >= 0) return;
    struct Hull hull = choice_hull(m, row.query, p.n_q, p.n_kv);
    hull.first = max_i32(hull.first, from), hull.last = min_i32(hull.last, to);
    each_score(p, row, hull, [&](float x, i32 key) {
        if (candidate(x, key) >= best.least && may(p, m, row, hull, key))
            settle_bit(c, p, m, row, from, key);
    });
}

// Lists the keys whose bits are set, in order; how many they are. A warp has consecutive words.
FN i32 list_bits(const struct Choice &c, i32 *list, i32 from, i32 to) {
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, words = (to - from + 31) / 32;
    const i32 own = (words + THREADS - 1) / THREADS * 32;
    const i32 first = warp * own + lane, last = min_i32((warp + 1) * own, words);
    i32 count = 0, all;
    for (i32 word = first; word < last; word += 32) count += __popc(c.kept[word]);
    i32 place = __shfl_sync(ALL, block_before(count, all), 0);  // the warp's first
#pragma unroll 1
    for (i32 word = first; word - lane < last; word += 32) {
        u32 bits = word < last ? c.kept[word] : 0;
        const i32 set = __popc(bits);
        i32 after = set;
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            const i32 other = __shfl_up_sync(ALL, after, by);
            after += lane >= by ? other : 0;
        }
        i32 *at = list + place + after - set;
        for (; bits; bits &= bits - 1) *at++ = from + 32 * word + __ffs((i32)bits) - 1;
        place += __shfl_sync(ALL, after, 31);
    }
    return all;
}

// A block lists the keys of one query.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
gather_lists(const __grid_constant__ struct Gathered p) {
    struct Choice &c = choice_memory();
    const struct Row row = row_at(p, blockIdx.x);
    const struct Mask m = mask_of(p);
    const struct Best best = best_of(c, p, m, row);
    const struct Hull hull = kept_hull(m, row.query, p.n_q, p.n_kv);
    i32 *const list = p.lists + row.number * p.room;
    i32 count = 0;
#pragma unroll 1
    for (i32 from = hull.first & ~31; from < hull.last; from += STRETCH) {
        const i32 to = min_i32(from + STRETCH, hull.last);
        __syncthreads();
        begin_bits(c, p, m, row, from, to);
        __syncthreads();
        settle_bits(c, p, m, row, best, from, to);
        __syncthreads();
        count += list_bits(c, list + count, from, to);
    }
    if (threadIdx.x == 0) p.counts[row.number] = count;
}
