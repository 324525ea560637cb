// Lists of the keys that queries choose: sm_90a, bfloat16.
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
#ifndef INDEXED_E4M3_128
#define INDEXED_E4M3_128 0  // scores of an indexer with rows of at most 128 bytes, E4M3
#endif
#ifndef INDEXED_E4M3_256
#define INDEXED_E4M3_256 0  // scores of an indexer with rows of at most 256 bytes, E4M3
#endif
// How its rows lie: slabs of 128 bytes, none where scores are given, and how many are in flight.
#if INDEXED_64
constexpr int INDEX_BYTES = 2, INDEX_SLABS = 1, SLOTS = 8;
#elif INDEXED_128
constexpr int INDEX_BYTES = 2, INDEX_SLABS = 2, SLOTS = 8;
#elif INDEXED_256
constexpr int INDEX_BYTES = 2, INDEX_SLABS = 4, SLOTS = 5;
#elif INDEXED_E4M3_128
constexpr int INDEX_BYTES = 1, INDEX_SLABS = 1, SLOTS = 8;
#elif INDEXED_E4M3_256
constexpr int INDEX_BYTES = 1, INDEX_SLABS = 2, SLOTS = 8;
#endif
#define INDEXED (0 \
    || INDEXED_64 \
    || INDEXED_128 \
    || INDEXED_256 \
    || INDEXED_E4M3_128 \
    || INDEXED_E4M3_256)
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

// 16 bytes from global to shared memory; zeros instead where `inside` is false.
FN void copy_piece(u32 to, const void *from, bool inside) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
FN void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// At most PENDING groups of this thread's copies are still under way.
template <int PENDING>
FN void copies_wait() { asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory"); }

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
FN void multiply_keys(float (&d)[64], u64 a, u64 b, bool add) {
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

// 64 x 128 and 32 deep, a in shared memory: d = a b, or d += a b where `add`.
FN void multiply_e4m3(float (&d)[64], u64 a, u64 b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
        " %0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31,"
        " %32, %33, %34, %35, %36, %37, %38, %39,"
        " %40, %41, %42, %43, %44, %45, %46, %47,"
        " %48, %49, %50, %51, %52, %53, %54, %55,"
        " %56, %57, %58, %59, %60, %61, %62, %63},"
        " %64, %65, add, 1, 1;\n"
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

constexpr i32 COPYING = 128, COMPUTING = 640 - COPYING;  // threads
// A block has KEYS keys, and goes over some queries in steps of COLUMNS columns: the heads of a
// query one after another, in a number that divides COLUMNS or is a multiple of it. Keys are the
// rows of the product, sixteen a warp, so that a query's heads are added up in a thread. They stay;
// heads come slab by slab, 128 bytes of each.
constexpr int KEYS = 256, QUERIES = 64;
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

constexpr int BEHIND = SLOTS - INDEX_SLABS < 4 ? SLOTS - INDEX_SLABS : 4;
static_assert(BEHIND > 0, "who copies would wait for a slab that he has not handed over");

struct Shared {
    unsigned char keys[INDEX_SLABS * KEY_SLAB];
    unsigned char heads[SLOTS][COLUMN_SLAB];  // slabs in flight
    float weight[SLOTS][COLUMNS];  // of a step, with its first slab
    u64 full[SLOTS], empty[SLOTS];
    i32 first, last;  // queries that may choose one of the keys, and those between
};

// Turns through a ring of places in shared memory.
template <int COUNT>
struct Ring {
    i32 at = 0;
    u32 turn = 0;  // parity
    FN void next() {
        at = at + 1 == COUNT ? 0 : at + 1;
        turn ^= at == 0;
    }
};

// ---------------------------------------------------------------- who copies

// Products read what ordinary writes left only after the writing threads' fence, so a slab is
// handed over when BEHIND later ones have begun to be copied.
FN void hand_over(struct Shared &shared, Ring<SLOTS> &told) {
    publish_writes();
    arrive(shared.full[told.at]);
    told.next();
}
FN void copy_steps(struct Shared &shared, const struct Gathered &p, const struct Part &part,
                   i32 first, i32 last) {
    Ring<SLOTS> ring, told;
    i32 begun = 0;
#pragma unroll 1
    for (struct Step at = step_of(part, first); at.query < last; at = step_after(part, at)) {
        const float weight = weight_at(p, part, at, threadIdx.x % COPYING);
        const struct Heads heads = heads_of(p, part, at);
#pragma unroll
        for (int slab = 0; slab < INDEX_SLABS; slab++) {
            wait(shared.empty[ring.at], ring.turn ^ 1);
            copy_heads(shared_address(shared.heads[ring.at]), p, heads, slab);
            copies_commit();
            if (slab == 0) shared.weight[ring.at][threadIdx.x % COPYING] = weight;
            ring.next();
            if (++begun <= BEHIND) continue;
            copies_wait<BEHIND>();
            hand_over(shared, told);
        }
    }
    copies_wait<0>();
#pragma unroll 1
    while (told.at != ring.at || told.turn != ring.turn) hand_over(shared, told);
}

// ---------------------------------------------------------------- who computes

// Keys by the heads of a step, 32 bytes deep.
FN void multiply(float (&x)[COLUMNS / 2], u64 keys, u64 heads, bool add) {
    if (INDEX_BYTES == 1)
        multiply_e4m3(x, keys, heads, add);
    else
        multiply_keys(x, keys, heads, add);
}
FN void score_steps(struct Shared &shared, const struct Gathered &p, const struct Part &part,
                    i32 first, i32 last) {
    const u32 group = uniform(threadIdx.x / 128);
    const u64 keys =
        along_columns(shared_address(shared_memory().keys) + group * 64 * SLAB_ROW);
    const bool whole = part.heads == p.heads && part.bits >= COLUMN_BITS - 1;
    const float2 factor = factors_of(p, part);
    Ring<SLOTS> ring;
    float sum[2] = {}, x[COLUMNS / 2];
#pragma unroll 1
    for (struct Step at = step_of(part, first); at.query < last; at = step_after(part, at)) {
        const Ring<SLOTS> begin = ring;
        pin(x);
#pragma unroll
        for (int slab = 0; slab < INDEX_SLABS; slab++) {
            wait(shared.full[ring.at], ring.turn);
            const u64 heads =
                along_columns(shared_address(shared_memory().heads) + ring.at * COLUMN_SLAB);
            if (slab == 0) products_begin();
#pragma unroll
            for (int i = 0; i < 4; i++)
                multiply(x, keys + column_step(4 * slab + i, KEY_SLAB),
                         heads + column_step(i, COLUMN_SLAB), slab + i > 0);
            ring.next();
        }
        products_commit();
        products_wait<0>();
        pin(x);
        const float *const weight = shared.weight[begin.at];
        if (whole)
            add_all_heads(x, sum, weight, factor, p, part, at);
        else
            add_heads(x, sum, weight, factor, p, part, at);
        __syncwarp();
        Ring<SLOTS> read = begin;
#pragma unroll
        for (int slab = 0; slab < INDEX_SLABS; slab++, read.next())
            if (threadIdx.x % 32 == 0) arrive(shared.empty[read.at]);
    }
}

extern "C" __global__ void __launch_bounds__(COMPUTING + COPYING, 1)
gather_scores(const __grid_constant__ struct Gathered p) {
    struct Shared &shared = shared_memory();
    const struct Part part = part_of(p, blockIdx.x);
    if (threadIdx.x < SLOTS) {
        barrier_init(shared.full[threadIdx.x], COPYING);
        barrier_init(shared.empty[threadIdx.x], COMPUTING / 32);
        barriers_ready();
    }
    find_live(shared.first, shared.last, p, mask_of(p), part);
    const i32 first = uniform(shared.first), last = uniform(shared.last);
    if (first >= last) return;
    if (uniform(threadIdx.x / 128) == COMPUTING / 128) {
        copy_steps(shared, p, part, first, last);
    } else {
        copy_keys(shared_address(shared_memory().keys), p, part);
        copies_commit();
        copies_wait<0>();
        publish_writes();
        sync_threads(1, COMPUTING);
        score_steps(shared, p, part, first, last);
    }
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
