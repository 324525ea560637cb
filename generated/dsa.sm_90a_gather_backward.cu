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
constexpr int BLOCKS = 1;  // that a multiprocessor runs at once
constexpr int COMPUTE_REGISTERS = 240;
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
constexpr int BEHIND = STAGES - 1;  // groups of copies under way: k and v of a tile are one

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

// 64 x 128 and 16 deep, a in registers: d = a b, or d += a b where `add`.
FN void multiply_dq(float (&d)[64], const u32 *a, u64 b, bool add) {
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
FN void multiply_keys(float (&d)[32], u64 a, u64 b, bool add) {
    asm volatile(
        "{\n"
        ".reg .pred add;\n"
        "setp.ne.b32 add, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." ELEMENT "." ELEMENT " {"
        " %0, %1, %2, %3, %4, %5, %6, %7,"
        " %8, %9, %10, %11, %12, %13, %14, %15,"
        " %16, %17, %18, %19, %20, %21, %22, %23,"
        " %24, %25, %26, %27, %28, %29, %30, %31},"
        " %32, %33, add, 1, 1, 1, 1;\n"
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

FN float2 unpack(u32 pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
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

#ifndef DETERMINISTIC
#define DETERMINISTIC 0  // gradients have the same bits on every run
#endif

// Queries add to the keys they chose in any order. In fp32 that changes the last bits. Where it may
// not, sums are 64-bit integers, in a unit so small that what it rounds is not seen in the results
// and so large that no sum is out of range: it follows from the largest numbers of q, v and dout.
// A term that is not finite leaves a mark instead, and a result that has one is NaN.
//
// Behind each other, at p.array[2]: sums of dk and of dv [sequences][heads][keys][HEAD_DIM]. Then,
// where they are integers, those of dsink and of dalibi [heads_q], marks [2: dk, dv][rows] and
// [2][heads_q], which rows of v count [rows], and the largest numbers [3: of q, v and dout].
#if DETERMINISTIC
typedef i64 Sum;
#else
typedef float Sum;
#endif
constexpr i32 BLOCK = 256;  // threads of the launches before and after

FN i64 rows_of_keys(const struct Attention &p) { return (i64)p.batch * p.heads_kv * p.n_kv; }
FN Sum *sums_of(const struct Attention &p) { return (Sum *)p.array[2]; }
FN i64 sums_count(const struct Attention &p) {
    return 2 * rows_of_keys(p) * HEAD_DIM + (DETERMINISTIC ? 2 * p.heads_q : 0);
}
FN Sum *head_sums(const struct Attention &p) {
    return sums_of(p) + 2 * rows_of_keys(p) * HEAD_DIM;
}
FN u32 *marks_of(const struct Attention &p) { return (u32 *)(sums_of(p) + sums_count(p)); }
FN u32 *head_marks(const struct Attention &p) { return marks_of(p) + 2 * rows_of_keys(p); }
FN u32 *seen_rows(const struct Attention &p) { return head_marks(p) + 2 * p.heads_q; }
FN u32 *largest(const struct Attention &p) { return seen_rows(p) + rows_of_keys(p); }

// Units of the integers are 2^-exponent.
struct Units {
    i32 dk, dv, dsink, dalibi;
};
FN float power_of_two(i32 exponent) {
    return __int_as_float((min_i32(max_i32(exponent, -126), 127) + 127) << 23);
}
// The least exponent whose power of two is above a number, or not below a count.
FN i32 exponent_above(u32 bits) { return (i32)(bits >> 23) - 126; }
FN i32 exponent_of_count(i32 x) { return 32 - __clz(x - 1); }

FN struct Units units_of(const struct Attention &p) {
    struct Units units = {};
#if DETERMINISTIC
    const u32 *const most = largest(p);
    const i32 q = exponent_above(most[0]), v = exponent_above(most[1]);
    const i32 dout = exponent_above(most[2]), dim = exponent_of_count(HEAD_DIM);
    const i32 queries = exponent_of_count(p.n_q), spare = 2;
    const i32 heads = exponent_of_count((u32)p.heads_q / (u32)p.heads_kv);
    const i32 ds = dim + v + dout + 1;  // of a row: weights add up to 1, times dp - delta
    const i32 all = queries + exponent_of_count(p.batch), far = max_i32(p.n_q, p.n_kv);
    units.dv = 62 - spare - (queries + heads + dout);
    units.dk = 62 - spare - (queries + heads + ds + q);
    units.dsink = 62 - spare - (all + ds);
    units.dalibi = 62 - spare - (all + ds + exponent_of_count(far));
#endif
    return units;
}

FN void add_exactly(Sum *to, u32 *mark, float x, i32 exponent) {
    if (fabsf(x) < PLUS_INFINITY)
        atomicAdd((u64 *)to, (u64)__float2ll_rn(x * power_of_two(exponent)));
    else
        *mark = 1;
}
FN float sum_at(const Sum *sums, const u32 *marks, i64 place, i32 exponent) {
#if DETERMINISTIC
    if (*marks) return __int_as_float(0x7fffffff);
    return __fmul_rn(__ll2float_rn(sums[place]), power_of_two(-exponent));
#else
    return sums[place];
#endif
}

FN void add_sink(const struct Attention &p, const struct Units &units, i32 head, float x) {
#if DETERMINISTIC
    add_exactly(head_sums(p) + head, head_marks(p) + head, x, units.dsink);
#else
    atomicAdd(p.dsink + head, x);
#endif
}
FN void add_slope(const struct Attention &p, const struct Units &units, i32 head, float x) {
#if DETERMINISTIC
    const i32 place = p.heads_q + head;
    add_exactly(head_sums(p) + place, head_marks(p) + place, x, units.dalibi);
#else
    atomicAdd(p.dalibi + head, x);
#endif
}
// 64 columns of a thread's two keys; rows that are not there are negative.
FN void add_slab(const struct Attention &p, const float (&x)[32], const i64 (&row)[2], bool values,
                 int slab, const struct Units &units) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (row[r] < 0) continue;
        const i64 own = row[r] + (values ? rows_of_keys(p) : 0);
        Sum *const to = sums_of(p) + own * HEAD_DIM + 64 * slab + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (64 * slab + 8 * i >= HEAD_DIM) continue;
            const float a = x[4 * i + 2 * r], b = x[4 * i + 2 * r + 1];
#if DETERMINISTIC
            const i32 exponent = values ? units.dv : units.dk;
            add_exactly(to + 8 * i, marks_of(p) + own, a, exponent);
            add_exactly(to + 8 * i + 1, marks_of(p) + own, b, exponent);
#else
            atomicAdd((float2 *)(to + 8 * i), make_float2(a, b));
#endif
        }
    }
}

// ---------------------------------------------------------------- before and after

FN i64 first_place() { return (i64)blockIdx.x * BLOCK + threadIdx.x; }
FN i64 step_of_places() { return (i64)gridDim.x * BLOCK; }

extern "C" __global__ void __launch_bounds__(BLOCK)
attention_clear(const __grid_constant__ struct Attention p) {
    u32 *const words = (u32 *)sums_of(p);
    const i64 sums = sums_count(p) * (sizeof(Sum) / 4);
    const i64 count = DETERMINISTIC ? largest(p) + 3 - words : sums;
    for (i64 i = first_place(); i < count; i += step_of_places()) words[i] = 0;
}

#if DETERMINISTIC
// Whose keys count: some query keeps them.
extern "C" __global__ void __launch_bounds__(BLOCK)
attention_seen(const __grid_constant__ struct Attention p) {
    const i64 lists = (i64)p.batch * p.heads_kv * p.n_q;
    for (i64 i = blockIdx.x; i < lists; i += gridDim.x) {
        const i64 list = i / p.n_q;
        struct Item item = {};
        item.query = i - list * p.n_q, item.batch = list / p.heads_kv;
        item.kv_head = list - (i64)item.batch * p.heads_kv;
        const i32 *const keys = keys_of(p, item);
        const i32 count = count_of(p, item);
        for (i32 j = threadIdx.x; j < count; j += BLOCK)
            seen_rows(p)[list * p.n_kv + keys[j]] = 1;
    }
}

// The largest finite number of a tensor.
FN void raise_largest(const struct Attention &p, const void *tensor, const i64 (&stride)[3],
                      i32 heads, i32 tokens, const u32 *seen, u32 *to) {
    const i64 count = (i64)p.batch * heads * tokens * PIECES;
    u32 most = 0;
    for (i64 i = first_place(); i < count; i += step_of_places()) {
        const i64 row = i / PIECES, list = row / tokens, batch = list / heads;
        if (seen && !seen[row]) continue;
        const uint4 *const from = (const uint4 *)row_of(tensor, stride, batch, list - batch * heads,
                                                        row - list * tokens);
        const uint4 piece = from[i % PIECES];
        const u32 x[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 pair = unpack(x[j]);
            const u32 a = __float_as_uint(fabsf(pair.x)), b = __float_as_uint(fabsf(pair.y));
            if (a < 0x7f800000 && a > most) most = a;
            if (b < 0x7f800000 && b > most) most = b;
        }
    }
    most = __reduce_max_sync(0xffffffff, most);
    if (threadIdx.x % 32 == 0) atomicMax(to, most);
}

extern "C" __global__ void __launch_bounds__(BLOCK)
attention_largest(const __grid_constant__ struct Attention p) {
    u32 *const most = largest(p);
    raise_largest(p, p.q, p.q_stride, p.heads_q, p.n_q, nullptr, most);
    raise_largest(p, p.v, p.v_stride, p.heads_kv, p.n_kv, seen_rows(p), most + 1);
    raise_largest(p, p.dout, p.dout_stride, p.heads_q, p.n_q, nullptr, most + 2);
}
#endif

// Sums become dk and dv, eight columns a thread, and gradients of heads.
extern "C" __global__ void __launch_bounds__(BLOCK)
attention_keys(const __grid_constant__ struct Attention p) {
    const struct Units units = units_of(p);
    const i64 rows = rows_of_keys(p);
    for (i64 i = first_place(); i < 2 * rows * PIECES; i += step_of_places()) {
        const i64 own = i / PIECES, row = own < rows ? own : own - rows, list = row / p.n_kv;
        const bool values = own >= rows;
        const i32 batch = list / p.heads_kv, head = list - (i64)batch * p.heads_kv;
        const float by = values ? 1.0f : p.scale;
        const i32 exponent = values ? units.dv : units.dk;
        float x[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = by * sum_at(sums_of(p), marks_of(p) + own, 8 * i + j, exponent);
        void *const to = (void *)row_of(values ? p.dv : p.dk, values ? p.dv_stride : p.dk_stride,
                                        batch, head, row - list * p.n_kv);
        ((uint4 *)to)[i % PIECES] = make_uint4(pack(x[0], x[1]), pack(x[2], x[3]),
                                               pack(x[4], x[5]), pack(x[6], x[7]));
    }
#if DETERMINISTIC
    for (i64 i = first_place(); i < 2 * p.heads_q; i += step_of_places()) {
        const bool slope = i >= p.heads_q;
        float *const to = slope ? p.dalibi : p.dsink;
        const float x = sum_at(head_sums(p), head_marks(p) + i, i,
                               slope ? units.dalibi : units.dsink);
        if (to) to[slope ? i - p.heads_q : i] = x;
    }
#endif
}

// A block's shared memory; its size is in maskc/plan/gather.py.
struct Shared {
    unsigned char q[Q_BYTES];
    unsigned char dout[Q_BYTES];
    unsigned char k[STAGES][K_BYTES];
    unsigned char v[STAGES][K_BYTES];
    unsigned char p[K_SLAB], ds[K_SLAB];  // heads x keys
    i32 key[STAGES][TILE_K];              // whose k and v are there
    u64 q_full, q_free;
    u64 full[STAGES], free[STAGES];
};
static_assert(GROUPS == 1 && TILE_Q == 64 && TILE_K == 64, "a tile of p is one slab");

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
        barrier_init(shared.full[i], COPIERS);
        barrier_init(shared.free[i], GROUPS);
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
        settle_all(under);  // q waits for the item before, which may wait for these
        wait(shared.q_free, q_turn ^ 1);
        q_turn ^= 1;
        copy_heads(shared.q, p.q, p.q_stride, item);
        copy_heads(shared.dout, p.dout, p.dout_stride, item);
        begun(under, shared.q_full);
#pragma unroll 1
        for (i32 tile = 0; tile < tiles; tile++) {
            const struct Rows own = rows;
            rows = rows_of(keys, count, min_i32(tile + 1, tiles - 1));  // needed a tile later
            wait(shared.free[stage.at], stage.turn ^ 1);
            gather(shared.k[stage.at], p.k, p.k_stride, item, own);
            gather(shared.v[stage.at], p.v, p.v_stride, item, own);
            if (threadIdx.x % 8 == 0)
#pragma unroll
                for (int i = 0; i < TURNS; i++)
                    shared.key[stage.at][threadIdx.x / 8 + ROWS_AT_ONCE * i] = own.key[i];
            begun(under, shared.full[stage.at]);
            stage.next();
        }
    }
    settle_all(under);
}

// ---------------------------------------------------------------- rows

// A thread's part of an accumulator: element 4 i + 2 r + e lies in row 16 warp + lane / 4 + 8 r and
// in column 8 i + 2 (lane % 4) + e. Rows are heads, columns are keys; or rows keys, columns a slab.
typedef float Scores[TILE_K / 2];
typedef float Gradient[HEAD_DIM / 2];
typedef float Slab[32];
typedef u32 Weights[TILE_K / 4];  // in storage precision, as a left operand

// What a thread knows of its two heads.
struct Heads {
    float lse[2];    // in powers of two; infinity for a head that is not there
    float delta[2];  // sum of out * dout
    float slope[2];  // of ALiBi
    float total[2];  // of the gradient of that slope, so far
};

FN i32 row_in_tile() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

FN float row_delta(const struct Attention &p, const struct Item &item, i32 head) {
    const uint4 *const out = (const uint4 *)row_of(p.out, p.out_stride, item.batch, head,
                                                   item.query);
    const uint4 *const dout = (const uint4 *)row_of(p.dout, p.dout_stride, item.batch, head,
                                                    item.query);
    float sum = 0.0f;
#pragma unroll 4
    for (int i = threadIdx.x % 4; i < PIECES; i += 4) {
        const uint4 a = __ldg(out + i), b = __ldg(dout + i);
        const u32 x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float2 left = unpack(x[j]), right = unpack(y[j]);
            sum = fmaf(left.x, right.x, fmaf(left.y, right.y, sum));
        }
    }
    return quad_sum(sum);
}

FN void begin_heads(struct Heads &heads, const struct Attention &p, const struct Item &item) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = row_in_tile() + 8 * r, head = item.head + min_i32(row, item.heads - 1);
        const float lse = p.lse[item.batch * p.lse_stride[0] + head * p.lse_stride[1]
                                + item.query * p.lse_stride[2]];
        const float finite = lse == MINUS_INFINITY ? 0.0f : lse * LOG2E;
        heads.lse[r] = row < item.heads ? finite : PLUS_INFINITY;
        heads.delta[r] = row_delta(p, item, head);
        heads.slope[r] = WITH_ALIBI ? p.alibi_slopes[head] * p.spacing : 0.0f;
        heads.total[r] = 0.0f;
    }
}

// What heads have a gradient of beside that of their queries.
FN void end_heads(const struct Heads &heads, const struct Attention &p, const struct Item &item,
                  const struct Units &units) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = row_in_tile() + 8 * r, head = item.head + row;
        const float total = quad_sum(heads.total[r]);
        if (row >= item.heads || threadIdx.x % 4) continue;
        if (WITH_ALIBI && p.dalibi) add_slope(p, units, head, -total * p.spacing);
        if (WITH_SINKS && p.dsink) {
            const float share = fast_exp2(fmaf(p.sink_logits[head], LOG2E, -heads.lse[r]));
            add_sink(p, units, head, -share * heads.delta[r]);
        }
    }
}

// ---------------------------------------------------------------- a tile

// The keys of a tile, and which query they are of.
struct Tile {
    const i32 *keys;
    i32 count;     // of those that there are, from the first one on
    i32 position;  // of the query
};
// How far a column's key is from the query.
FN float distance_to(const struct Tile &tile, i32 column) {
    return fabsf((float)(tile.position - tile.keys[column]));
}

// Scores become what soft-cap leaves of logits.
FN void cap(Scores &s, const struct Attention &p) {
#if WITH_SOFTCAP
    const float softcap = p.softcap, sharpness = 2.0f * LOG2E * fast_reciprocal(softcap);
#pragma unroll
    for (int i = 0; i < TILE_K / 2; i++)
        s[i] = softcap
            - 2.0f * softcap * fast_reciprocal(fast_exp2(s[i] * p.scale * sharpness) + 1.0f);
#endif
}

// Weights, and the gradients of the scores but for the scale, as they are multiplied.
FN void weigh(const Scores &s, const Scores &dp, Weights &weights, Weights &ds,
              struct Heads &heads, const struct Tile &tile, const struct Attention &p) {
    const float steep = WITH_SOFTCAP ? fast_reciprocal(p.softcap) : 0.0f;
    const float unit = WITH_SOFTCAP ? 1.0f : p.scale;
#pragma unroll
    for (int i = 0; i < TILE_K / 8; i++) {
        const i32 column = 8 * i + threadIdx.x % 4 * 2;
        const bool live[2] = {column < tile.count, column + 1 < tile.count};
        float far[2] = {};
        if (WITH_ALIBI) far[0] = distance_to(tile, column), far[1] = distance_to(tile, column + 1);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float x[2], y[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int at = 4 * i + 2 * r + e;
                float logit = s[at] * unit;
                if (WITH_ALIBI) logit = fmaf(-heads.slope[r], far[e], logit);
                const float weight = fast_exp2(fmaf(logit, LOG2E, -heads.lse[r]));
                x[e] = live[e] ? weight : 0.0f;
                y[e] = live[e] ? weight * (dp[at] - heads.delta[r]) : 0.0f;
                if (WITH_ALIBI) heads.total[r] = fmaf(y[e], far[e], heads.total[r]);
                const float part = s[at] * steep;
                if (WITH_SOFTCAP) y[e] *= fmaf(-part, part, 1.0f);
            }
            weights[2 * i + r] = pack(x[0], x[1]);
            ds[2 * i + r] = pack(y[0], y[1]);
        }
    }
}

// A warp's 16 rows of a tile of heads x keys.
FN void put(u32 tile, const Weights &x) {
    const u32 lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++)
        store_matrices(tile + swizzled(row, 2 * i + lane / 16), x[4 * i], x[4 * i + 1],
                       x[4 * i + 2], x[4 * i + 3]);
}

// s = q k^T and dp = dout v^T, begun one after the other
FN void begin_scores(Scores &s, u64 rows, u64 keys) {
    pin(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++)
        multiply_scores(s, rows + column_step(i, Q_SLAB), keys + column_step(i, K_SLAB), i > 0);
    products_commit();
}
// dq += ds k, begun
FN void begin_dq(Gradient &dq, Weights &ds, u64 k) {
    pin(ds);
    pin(dq);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_K / 16; i++) multiply_dq(dq, ds + 4 * i, k + token_step(i), true);
    products_commit();
}
// A slab of dv = p^T dout or of dk = ds^T q, begun: rows are keys.
FN void begin_slab(Slab &x, u64 weights, u64 rows) {
    pin(x);
    products_begin();
#pragma unroll
    for (int i = 0; i < TILE_Q / 16; i++)
        multiply_keys(x, weights + token_step(i), rows + token_step(i), i > 0);
    products_commit();
}
// Adds a tile's share to dk and dv of its keys: slab by slab, the next one under the additions.
FN void add_keys(struct Shared &shared, const struct Attention &p, const struct Item &item,
                 const struct Tile &tile, const struct Units &units) {
    i64 row[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 place = row_in_tile() + 8 * r;
        const i64 first = (i64)(item.batch * p.heads_kv + item.kv_head) * p.n_kv;
        row[r] = place < tile.count ? first + tile.keys[place] : -1;
    }
    const u64 weights = along_tokens(shared_address(shared.p), K_SLAB);
    const u64 ds = along_tokens(shared_address(shared.ds), K_SLAB);
    const u64 q = along_tokens(shared_address(shared.q), Q_SLAB);
    const u64 dout = along_tokens(shared_address(shared.dout), Q_SLAB);
    Slab x[2];
    begin_slab(x[0], weights, dout);
#pragma unroll
    for (int i = 0; i < 2 * SLABS; i++) {
        products_wait<0>();
        pin(x[i % 2]);
        const int next = i + 1;
        if (next < SLABS)
            begin_slab(x[next % 2], weights, dout + next * (Q_SLAB >> 4));
        else if (next < 2 * SLABS)
            begin_slab(x[next % 2], ds, q + (next - SLABS) * (Q_SLAB >> 4));
        add_slab(p, x[i % 2], row, i < SLABS, i % SLABS, units);
    }
}

FN void store_dq(const Gradient &dq, const struct Attention &p, const struct Item &item) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 row = row_in_tile() + 8 * r;
        if (row >= item.heads) continue;
        u32 *const to = (u32 *)row_of(p.dq, p.dq_stride, item.batch, item.head + row, item.query);
#pragma unroll
        for (int i = 0; i < HEAD_DIM / 8; i++)
            to[4 * i + lane % 4] =
                pack(dq[4 * i + 2 * r] * p.scale, dq[4 * i + 2 * r + 1] * p.scale);
    }
}

FN void compute(struct Shared &shared, const struct Attention &p) {
    const bool leader = threadIdx.x % 128 == 0;
    const u64 q = along_columns(shared_address(shared.q));
    const u64 dout = along_columns(shared_address(shared.dout));
    const struct Units units = units_of(p);
    Ring<STAGES> stage;
    u32 q_turn = 0;
    Gradient dq;
#pragma unroll 1
    for (i32 index = blockIdx.x; index < p.items; index += gridDim.x) {
        const struct Item item = item_at(p, index);
        const i32 count = uniform(count_of(p, item)), tiles = tiles_of(count);
        struct Heads heads;
        begin_heads(heads, p, item);
        clear(dq);
        if (count > 0) {
            wait(shared.q_full, q_turn);
            q_turn ^= 1;
        }
#pragma unroll 1
        for (i32 tile = 0; tile < tiles; tile++) {
            const struct Tile own = {shared.key[stage.at], count - tile * TILE_K,
                                     item.query + p.n_kv - p.n_q};
            Scores s, dp;
            Weights weights, ds;
            wait(shared.full[stage.at], stage.turn);
            begin_scores(s, q, along_columns(shared_address(shared.k[stage.at])));
            begin_scores(dp, dout, along_columns(shared_address(shared.v[stage.at])));
            products_wait<0>();
            pin(s);
            pin(dp);
            cap(s, p);
            weigh(s, dp, weights, ds, heads, own, p);
            sync_threads(1, 128);  // products have read the tiles before
            put(shared_address(shared.p), weights);
            put(shared_address(shared.ds), ds);
            publish_writes();
            sync_threads(1, 128);
            begin_dq(dq, ds, along_tokens(shared_address(shared.k[stage.at]), K_SLAB));
            add_keys(shared, p, item, own, units);
            pin(dq);
            if (leader) arrive(shared.free[stage.at]);
            stage.next();
        }
        if (leader && count > 0) arrive(shared.q_free);
        store_dq(dq, p, item);
        end_heads(heads, p, item, units);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_backward(const __grid_constant__ struct Attention p) {
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) initialize(shared);
    __syncthreads();
    if (uniform(threadIdx.x / 128) == 0) {
        give_registers<COPY_REGISTERS>();
        copy_items(shared, p);
    } else {
        take_registers<COMPUTE_REGISTERS>();
        compute(shared, p);
    }
}
