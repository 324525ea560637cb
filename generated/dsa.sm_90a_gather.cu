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

#ifndef STREAM
#define STREAM 0  // blocks stream through tile rows instead of computing one each
#endif
#ifndef PACKED
#define PACKED 0  // the queries of the heads of a key/value head are rows of one tile
#endif
constexpr int HEAD_DIM = 128;  // elements of a row of q, k, v and out
constexpr int TILE_Q = 64;  // queries per tile row
constexpr int TILE_K = 64;  // keys per step
constexpr int KEY_STEP = TILE_K;  // of an index in a list of tiles, in keys
constexpr int GROUPS = 1;  // warpgroups that compute 64 queries each
constexpr int STAGES = 3;  // tiles of k, and of v, in flight
constexpr int BLOCKS = 2;  // that a multiprocessor runs at once
constexpr int COMPUTE_REGISTERS = 176;
constexpr int COPY_REGISTERS = 80;
// A warpgroup's q stays in registers, where the logits leave room for it.
#define KEEP_Q (0 && !WITH_SOFTCAP && !WITH_ALIBI \
                && !WITH_ENTMAX)
// A step waits for p v before the logits where they need the registers (0), after the maxima (1),
// or after half of the exponentials (2).
constexpr int SETTLE = WITH_SOFTCAP && GROUPS == 3 ? 0 : STREAM ? 1 : 1;

constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int SLABS = 2;  // of 64 columns, in every tile
constexpr int Q_TILES = STREAM ? 2 : 1;
constexpr int STEPS = HEAD_DIM / 16;  // of q k^T
constexpr int OWN = TILE_K / 4;       // columns of a tile that a thread has in each of two rows
constexpr u32 Q_SLAB = TILE_Q * 128, K_SLAB = TILE_K * 128;  // bytes
constexpr u32 Q_BYTES = SLABS * Q_SLAB, K_BYTES = SLABS * K_SLAB;
// Groups of copies under way: with 2 (STAGES - 1) of k and v in between, the next place in the ring
// is still free in time.
constexpr int BEHIND = STAGES > 2 ? 3 : 2;

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

// 64 x 64 and 16 deep, a in shared memory: d = a b, or d += a b where `add`.
FN void multiply_qk(float (&d)[32], u64 a, u64 b, bool add) {
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

// A thread's part of an accumulator of a warpgroup: element 4 i + 2 r + e lies in row
// 16 warp + lane / 4 + 8 r and in column 8 i + 2 (lane % 4) + e.
typedef float Scores[TILE_K / 2];
typedef float Output[HEAD_DIM / 2];
typedef u32 Weights[TILE_K / 4];  // p in storage precision, as the left operand of p v

// Of scores (or of logits, where they are made of scores) in powers of two. A scale of zero must
// not turn the mask's -inf into NaN.
FN float unit_of(const struct Attention &p) {
    return WITH_SOFTCAP || WITH_ALIBI ? LOG2E : fmaxf(fabsf(p.scale) * LOG2E, 1e-30f);
}

// A negative scale turns the order of scores around: they are negated first, in every tile.
FN bool flips(const struct Attention &p) {
    return !WITH_SOFTCAP && !WITH_ALIBI && p.scale < 0.0f;
}
FN void negate(Scores &s) {
#pragma unroll
    for (int i = 0; i < TILE_K / 2; i++) s[i] = -s[i];
}

// Which keys a thread's two rows see: bit 2 i + e of a row is column 8 i + 2 (lane % 4) + e.
constexpr int WORDS = (OWN + 31) / 32;
struct Seen {
    u32 word[2][WORDS];
};

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

FN u32 word_of(const struct Seen &seen, int r, int i) { return seen.word[r][i]; }
FN void hide_rest(Scores &s, const struct Seen &seen) {
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            float &x = s[i / 2 * 4 + 2 * r + i % 2];
            x = word_of(seen, r, i / 32) & 1u << i % 32 ? x : MINUS_INFINITY;
        }
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

constexpr int PIECES = HEAD_DIM / 8;  // of 16 bytes, in a row of q, k or v
constexpr int COPIERS = 128;          // threads that copy

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

// ---------------------------------------------------------------- the warpgroup that copies

// Eight threads copy a row, a piece of 16 bytes each at a time.
constexpr int ROWS_AT_ONCE = COPIERS / 8, TURNS = TILE_K / ROWS_AT_ONCE;

// What a thread's copies are of: the rows, of a tile of keys, that are its to copy.
struct Rows {
    i32 key[TURNS];
    i32 live;  // of them; the others become zeros
};
FN struct Rows rows_of(const i32 *keys, i32 count, i32 tile) {
    const i32 own = tile * TILE_K + threadIdx.x / 8, last = count - 1;
    struct Rows rows;
#pragma unroll
    for (int i = 0; i < TURNS; i++)
        rows.key[i] = __ldg(keys + min_i32(own + ROWS_AT_ONCE * i, last));
    rows.live = max_i32(count - own + ROWS_AT_ONCE - 1, 0) / ROWS_AT_ONCE;
    return rows;
}

// A piece of a row, one in eight; the last ones are not there where HEAD_DIM is no multiple of 64.
FN void copy_row(u32 tile, u32 slab, u32 row, const unsigned char *from, bool live) {
    const u32 own = threadIdx.x % 8;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece += 8)
        if (PIECES % 8 == 0 || piece + 8 <= PIECES || piece + own < PIECES)
            copy_piece(tile + piece / 8 * slab + swizzled(row, own), from + 16 * (piece + own),
                       live);
}
FN void gather(unsigned char *tile, const void *tensor, const i64 (&stride)[3],
               const struct Item &item, const struct Rows &rows) {
#pragma unroll
    for (int i = 0; i < TURNS; i++)
        copy_row(shared_address(tile), K_SLAB, threadIdx.x / 8 + ROWS_AT_ONCE * i,
                 row_of(tensor, stride, item.batch, item.kv_head, rows.key[i]), i < rows.live);
}
// The rows of a tile's heads, zeros where there are fewer.
FN void copy_heads(unsigned char *tile, const void *tensor, const i64 (&stride)[3],
                   const struct Item &item) {
#pragma unroll 4
    for (i32 row = threadIdx.x / 8; row < TILE_Q; row += ROWS_AT_ONCE) {
        const i32 inside = min_i32(row, item.heads - 1);
        copy_row(shared_address(tile), Q_SLAB, row,
                 row_of(tensor, stride, item.batch, item.head + inside, item.query),
                 row < item.heads);
    }
}

// Groups of copies that are under way, the oldest first. Products read what ordinary writes left
// only after the writing threads' fence, so a barrier is told when BEHIND later groups have begun.
static_assert(STAGES >= 2, "the warpgroup that copies would wait for itself");
struct Under {
    u64 *barrier[BEHIND];
    i32 count = 0;
};
FN void settle_first(struct Under &under) {
    publish_writes();
    arrive(*under.barrier[0]);
#pragma unroll
    for (int i = 1; i < BEHIND; i++) under.barrier[i - 1] = under.barrier[i];
    under.count--;
}
// What was copied since is a group of its own; the barrier is of those who wait for it.
FN void begun(struct Under &under, u64 &barrier) {
    copies_commit();
    if (under.count == BEHIND) {
        copies_wait<BEHIND>();
        settle_first(under);
    }
#pragma unroll
    for (int i = 0; i < BEHIND; i++)
        if (i == under.count) under.barrier[i] = &barrier;
    under.count++;
}
FN void settle_all(struct Under &under) {
    copies_wait<0>();
#pragma unroll 1
    while (under.count > 0) settle_first(under);
}

// A block's shared memory; its size is in maskc/plan/gather.py.
struct Shared {
    unsigned char q[Q_BYTES];
    unsigned char k[STAGES][K_BYTES];
    unsigned char v[STAGES][K_BYTES];
    u64 q_full, q_free;
    u64 k_full[STAGES], k_free[STAGES], v_full[STAGES], v_free[STAGES];
};

// Asked for where it is used: an address kept over a loop lies in an ordinary register, and with it
// the operands of all products, which then take two moves each.
extern __shared__ __align__(1024) unsigned char memory[];
FN struct Shared &shared_memory() {
    u32 address;
    asm volatile("mov.u32 %0, memory;" : "=r"(address));
    return *(struct Shared *)__cvta_shared_to_generic(address);
}

FN void initialize(struct Shared &shared) {
    barrier_init(shared.q_full, COPIERS);
    barrier_init(shared.q_free, GROUPS);
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared.k_full[i], COPIERS);
        barrier_init(shared.v_full[i], COPIERS);
        barrier_init(shared.k_free[i], GROUPS);
        barrier_init(shared.v_free[i], GROUPS);
    }
    barriers_ready();
}

FN void copy_items(struct Shared &shared, const struct Attention &p) {
    Ring<STAGES> stage;
    struct Under under;
    u32 q_turn = 0;
#pragma unroll 1
    for (i32 index = blockIdx.x; index < p.items; index += gridDim.x) {
        const struct Item item = item_at(p, index);
        const i32 *const keys = keys_of(p, item);
        const i32 count = count_of(p, item), tiles = tiles_of(count);
        if (count == 0) continue;
        struct Rows rows = rows_of(keys, count, 0);
#pragma unroll 1
        for (i32 tile = 0; tile < tiles; tile++) {
            const struct Rows own = rows;
            rows = rows_of(keys, count, min_i32(tile + 1, tiles - 1));  // needed a tile later
            wait(shared.k_free[stage.at], stage.turn ^ 1);
            gather(shared.k[stage.at], p.k, p.k_stride, item, own);
            begun(under, shared.k_full[stage.at]);
            if (tile == 0) {
                settle_all(under);  // q waits for the item before, which may wait for these
                wait(shared.q_free, q_turn ^ 1);
                q_turn ^= 1;
                copy_heads(shared.q, p.q, p.q_stride, item);
                begun(under, shared.q_full);
            }
            wait(shared.v_free[stage.at], stage.turn ^ 1);
            gather(shared.v[stage.at], p.v, p.v_stride, item, own);
            begun(under, shared.v_full[stage.at]);
            stage.next();
        }
    }
    settle_all(under);
}

// ---------------------------------------------------------------- warpgroups that compute

// The thread's first row, a head; the other one is 8 behind.
FN i32 row_in_tile(i32 group) {
    const i32 thread = threadIdx.x % 128;
    return 64 * group + thread / 32 * 16 + thread % 32 / 4;
}

#if WITH_SOFTCAP || WITH_ALIBI
// Scores q . k become logits: rows are heads, and the keys of columns are anywhere.
FN void make_logits(Scores &s, const struct Attention &p, const struct Item &item, i32 row,
                    const i32 *keys, i32 count, i32 tile) {
    const float softcap = p.softcap, sharpness = 2.0f * LOG2E * fast_reciprocal(softcap);
    float slope[2] = {};
    (void)sharpness; (void)slope; (void)keys; (void)count; (void)tile; (void)row;
#if WITH_ALIBI
#pragma unroll
    for (int r = 0; r < 2; r++)
        slope[r] = p.alibi_slopes[item.head + min_i32(row + 8 * r, item.heads - 1)] * p.spacing;
    const i32 position = item.query + p.n_kv - p.n_q;
#endif
#pragma unroll
    for (int i = 0; i < TILE_K / 2; i++) {
        float x = s[i] * p.scale;
#if WITH_SOFTCAP
        // tanh by one exponential: the approximate instruction is too coarse for logits.
        x = fast_exp2(x * sharpness);
        x = softcap - 2.0f * softcap * fast_reciprocal(x + 1.0f);
#endif
#if WITH_ALIBI
        const i32 column = tile * TILE_K + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        const i32 key = __ldg(keys + min_i32(column, count - 1));
        x -= slope[i / 2 % 2] * fabsf((float)(position - key));
#endif
        s[i] = x;
    }
}
#endif

// Columns past the last key become -inf.
FN void hide_tail(Scores &s, i32 count, i32 tile) {
    const i32 own = own_before(count - tile * TILE_K - (i32)(threadIdx.x % 4) * 2);
    struct Seen seen;
#pragma unroll
    for (int w = 0; w < WORDS; w++)
        seen.word[0][w] = seen.word[1][w] = bits_before(min_i32(own - 32 * w, 32));
    hide_rest(s, seen);
}

// s = q k^T, begun
FN void begin_scores(Scores &s, u64 q, u64 k) {
    pin(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        multiply_qk(s, q + column_step(i, Q_SLAB), k + column_step(i, K_SLAB), i > 0);
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

// Warpgroups take turns at starting products, so that the softmax of one runs under those of the
// other. Named barriers 1 and 2.
FN void take_turn(i32 group) {
    if (GROUPS > 1) sync_threads(1 + group, 256);
}
FN void pass_turn(i32 group) {
    if (GROUPS > 1) arrive_threads(1 + (group + 1 == GROUPS ? 0 : group + 1), 256);
}

// Divides by the rows' sums, and writes out and lse of the heads that are there.
FN void store(const Output &o, const struct Softmax &softmax, float unit, const struct Item &item,
              const struct Attention &p, i32 first) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = first + 8 * r, head = item.head + min_i32(row, item.heads - 1);
        float total = quad_sum(softmax.sum[r]), base = softmax.top[r] * unit, factor = 1.0f;
#if WITH_SINKS
        const float sink = p.sink_logits[head] * LOG2E, higher = fmaxf(base, sink);
        factor = fast_exp2(base - higher);
        total = fmaf(total, factor, fast_exp2(sink - higher));
        base = higher;
#endif
        if (row >= item.heads) continue;
        const bool empty = total == 0.0f;
        const float scale = empty ? 0.0f : factor * fast_reciprocal(total);
        if (lane % 4 == 0)
            p.lse[item.batch * p.lse_stride[0] + head * p.lse_stride[1]
                  + item.query * p.lse_stride[2]] =
                empty ? MINUS_INFINITY : (base + fast_log2(total)) * LN2;
        u32 *const to = (u32 *)row_of(p.out, p.out_stride, item.batch, head, item.query);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++) {
            const float *const x = o + 4 * i + 2 * r;
            to[4 * i + lane % 4] = pack(x[0] * scale, x[1] * scale);
        }
    }
}

FN void compute(struct Shared &shared, const struct Attention &p, i32 group) {
    const bool leader = threadIdx.x % 128 == 0;
    const u64 q = along_columns(shared_address(shared.q) + group * 64 * SLAB_ROW);
    const u64 k_tiles = along_columns(shared_address(shared.k[0]));
    const u64 v_tiles = along_tokens(shared_address(shared.v[0]), K_SLAB);
    const float unit = unit_of(p), stale = STALE * fast_reciprocal(unit);
    const i32 row = row_in_tile(group);
    Ring<STAGES> stage;
    u32 q_turn = 0;
    Scores s;
    Output o;
    Weights weights;
    struct Softmax softmax;
    (void)row;
    if (GROUPS > 1 && group == 0) arrive_threads(1, 256);
#pragma unroll 1
    for (i32 index = blockIdx.x; index < p.items; index += gridDim.x) {
        const struct Item item = item_at(p, index);
        const i32 *const keys = keys_of(p, item);
        const i32 count = uniform(count_of(p, item)), tiles = tiles_of(count);
        (void)keys;
        start(softmax);
        clear(o);
        Ring<STAGES> last = stage;
        if (count > 0) {
            wait(shared.q_full, q_turn);
            q_turn ^= 1;
        }
#pragma unroll 1
        for (i32 tile = 0; tile < tiles; tile++) {
            wait(shared.k_full[stage.at], stage.turn);
            take_turn(group);
            begin_scores(s, q, k_tiles + stage.at * (K_BYTES >> 4));
            bool raised = true;
            if (tile > 0) {
                wait(shared.v_full[last.at], last.turn);
                begin_output(o, weights, v_tiles + last.at * (K_BYTES >> 4));
                pass_turn(group);
                products_wait<1>();
            } else {
                pass_turn(group);
                products_wait<0>();
            }
            pin(s);
            if (leader) arrive(shared.k_free[stage.at]);
            if (leader && tile + 1 == tiles) arrive(shared.q_free);
#if WITH_SOFTCAP || WITH_ALIBI
            make_logits(s, p, item, row, keys, count, tile);
#else
            if (flips(p)) negate(s);
#endif
            if (tile + 1 == tiles) hide_tail(s, count, tile);
            raised = raise_tops(s, unit, stale, softmax);
            exponentials(s, 0, unit, softmax);
            pin(s);
            // In two branches, so that ptxas does not move the wait up, before the maxima.
            if (raised) {
                asm volatile("wgmma.wait_group.sync.aligned 0;  // raised" ::: "memory");
                pin(o);
                pin(weights);
                if (leader && tile > 0) arrive(shared.v_free[last.at]);
                rescale(o, softmax);
            } else {
                asm volatile("wgmma.wait_group.sync.aligned 0;  // as before" ::: "memory");
                pin(o);
                pin(weights);
                if (leader && tile > 0) arrive(shared.v_free[last.at]);
            }
            exponentials(s, 1, unit, softmax);
            to_weights(weights, s);
            last = stage;
            stage.next();
        }
        if (count > 0) {
            wait(shared.v_full[last.at], last.turn);
            begin_output(o, weights, v_tiles + last.at * (K_BYTES >> 4));
            products_wait<0>();
            pin(o);
            if (leader) arrive(shared.v_free[last.at]);
        }
        store(o, softmax, unit, item, p, row);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_forward(const __grid_constant__ struct Attention p) {
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) initialize(shared);
    __syncthreads();
    const i32 group = uniform(threadIdx.x / 128);
    if (group == 0) {
        give_registers<COPY_REGISTERS>();
        copy_items(shared, p);
    } else {
        take_registers<COMPUTE_REGISTERS>();
        compute(shared, p, group - 1);
    }
}
