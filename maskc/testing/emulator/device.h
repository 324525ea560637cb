// CUDA as a kernel sees it, on the CPU: included by every translated source. Threads of a block are
// fibers of one thread of the host; what they wait for is in runtime.cpp.
#pragma once
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS  // math.h as C has it: <cmath> takes longer than all others
#include <math.h>
#undef _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __restrict__ __restrict

struct Index {
    unsigned x, y, z;
};
extern Index threadIdx, blockIdx, blockDim, gridDim;

#define EMU_VECTOR(name, type, bytes, fields, given, values)                 \
    struct alignas(bytes) name { type fields; };                             \
    static inline name make_##name given { return name values; }
#define EMU_COMMA ,
EMU_VECTOR(int2, int, 8, x EMU_COMMA y, (int x, int y), {x EMU_COMMA y})
EMU_VECTOR(uint2, unsigned, 8, x EMU_COMMA y, (unsigned x, unsigned y), {x EMU_COMMA y})
EMU_VECTOR(float2, float, 8, x EMU_COMMA y, (float x, float y), {x EMU_COMMA y})
EMU_VECTOR(int4, int, 16, x EMU_COMMA y EMU_COMMA z EMU_COMMA w, (int x, int y, int z, int w),
           {x EMU_COMMA y EMU_COMMA z EMU_COMMA w})
EMU_VECTOR(uint4, unsigned, 16, x EMU_COMMA y EMU_COMMA z EMU_COMMA w,
           (unsigned x, unsigned y, unsigned z, unsigned w),
           {x EMU_COMMA y EMU_COMMA z EMU_COMMA w})
EMU_VECTOR(float4, float, 16, x EMU_COMMA y EMU_COMMA z EMU_COMMA w,
           (float x, float y, float z, float w), {x EMU_COMMA y EMU_COMMA z EMU_COMMA w})

namespace emu {
typedef uint32_t u32;
typedef uint64_t u64;

// ---- what runtime.cpp does
[[noreturn]] void fail(const char *format, ...);
void yield();             // others run before this thread goes on
unsigned char *arena();   // the block's shared memory; addresses count from here
void *block_variable(int id, size_t bytes);
int new_variable();
void block_sync();
bool block_any(bool mine);
void warp_sync(u32 mask);
// One number of every lane, to be filled before warp_sync; then what the lanes' numbers give, and
// whether that is there.
constexpr int WARP_SLOTS = 34, RESULT = 32, MADE = 33;
u64 *warp_slots(u32 mask);
void named_sync(int name, int threads);
void named_arrive(int name, int threads);

void barrier_init(u32 barrier, u32 arrivals);
void barrier_arrive(u32 barrier);
void barrier_expect(u32 barrier, u32 bytes);
void barrier_wait(u32 barrier, u32 parity);

struct Map;
void load_tensor(u32 to, const void *map, u32 barrier, std::initializer_list<int> at);
void store_tensor(const void *map, u32 from, std::initializer_list<int> at, bool adds);
void load_bytes(u32 to, const void *from, u32 bytes, u32 barrier);
void store_bytes(void *to, u32 from, u32 bytes);
void add_floats(float *to, u32 from, u32 bytes);
void bulk_commit();
void bulk_wait(int pending);

void copy_async(u32 to, const void *from, u32 bytes, u32 given);
void copy_commit();
void copy_wait(int pending);
void copy_arrive(u32 barrier);  // once all copies so far of this thread are over; noinc

void matrices_load(u32 *const (&x)[4], u32 from, int count, bool transposed);
void matrices_store(u32 to, const u32 (&x)[4], int count, bool transposed);
void mma(float *const (&c)[4], const u32 (&a)[4], const u32 (&b)[2], bool half);
// d: where the thread keeps its first number. a and b are operands in shared memory, or a thread's
// share of a.
void wgmma(float *d, int columns, u64 a, u64 b, bool add, bool a_turned, bool b_turned, bool half);
void wgmma_registers(float *d, int columns, const u32 (&a)[4], u64 b, bool add, bool a_turned,
                     bool b_turned, bool half);
void wgmma_bytes(float *d, int columns, u64 a, u64 b, bool add);  // E4M3
void wgmma_byte_registers(float *d, int columns, const u32 (&a)[4], u64 b, bool add);
void wgmma_commit();
void wgmma_wait(int pending);

u32 pack(float low, float high, bool half);
u32 pack_bytes(float a, float b, float c, float d);  // E4M3, the first lowest
float widen_byte(u32 x);  // of E4M3: no infinity, and one NaN of each sign
inline void unpack_bytes(float &a, float &b, float &c, float &d, u32 x) {
    a = widen_byte(x & 255), b = widen_byte(x >> 8 & 255);
    c = widen_byte(x >> 16 & 255), d = widen_byte(x >> 24);
}
inline void halves_of_bytes(u32 &low, u32 &high, u32 x) {
    float a, b, c, d;
    unpack_bytes(a, b, c, d, x);
    low = pack(a, b, true), high = pack(c, d, true);
}
inline float widen(uint16_t x, bool half) {
    const u32 bits = (u32)x << 16;
    float y;
    _Float16 z;
    memcpy(&y, &bits, 4), memcpy(&z, &x, 2);
    return half ? (float)z : y;
}

inline u32 fma_pairs(u32 x, u32 y, u32 z, bool half) {
    const auto one = [half](u32 a, u32 b, u32 c) {  // exact in fp64 for numbers of few bits
        return (float)((double)widen((uint16_t)a, half) * widen((uint16_t)b, half)
                       + widen((uint16_t)c, half));
    };
    return pack(one(x, y, z), one(x >> 16, y >> 16, z >> 16), half);
}

const char *run(void (*kernel)(void *), void *arguments, int blocks, int threads, int shared,
                u64 seed);

inline u32 lane() { return threadIdx.x % 32; }
template <class T>
T &variable_of(int id) { return *(T *)block_variable(id, sizeof(T)); }
// A variable in static shared memory: of each block one.
template <class T, int PLACE>
T &shared_variable() {
    static const int id = new_variable();
    return variable_of<T>(id);
}

// ---- values that lanes of a warp exchange
template <class T, class Read>
auto exchange(u32 mask, T mine, const Read &read) {
    static_assert(sizeof(T) <= 8, "a number");
    u64 *const slots = warp_slots(mask);
    memcpy(slots + lane(), &mine, sizeof mine);
    slots[MADE] = false;
    warp_sync(mask);
    return read([slots](u32 from) {
        T x;
        memcpy(&x, slots + from, sizeof x);
        return x;
    });
}
// What is the same for all lanes is made by the first that goes on.
template <class T, class Make>
auto agree(u32 mask, T mine, const Make &make) {
    u64 *const slots = warp_slots(mask);
    return exchange(mask, mine, [&](const auto &of) {
        decltype(make(of)) made;
        static_assert(sizeof made <= 8, "a number");
        if (slots[MADE]) {
            memcpy(&made, slots + RESULT, sizeof made);
        } else {
            made = make(of);
            memcpy(slots + RESULT, &made, sizeof made);
            slots[MADE] = true;
        }
        return made;
    });
}
template <class T, class Join>
T reduce(u32 mask, T mine, const Join &join) {
    return agree(mask, mine, [&](const auto &of) {
        T all = of(__builtin_ctz(mask));
        for (u32 rest = mask & (mask - 1); rest; rest &= rest - 1)
            all = join(all, of(__builtin_ctz(rest)));
        return all;
    });
}

// A matrix of 8 x 8: lane l has elements 2 (l % 4) and + 1 of row l / 4, before and after.
inline u32 transposed(u32 x) {
    return exchange(~0u, x, [](const auto &of) {
        const u32 row = lane() / 4, column = lane() % 4 * 2;
        const auto element = [&](u32 from, u32 at) {
            return of(4 * from + at / 2) >> 16 * (at % 2) & 0xffff;
        };
        return element(column, row) | element(column + 1, row) << 16;
    });
}

template <class... P, size_t... I>
const char *launch_indexed(void (*kernel)(P...), void **given, int blocks, int threads,
                           int shared, u64 seed, std::index_sequence<I...>) {
    struct Call {
        void (*kernel)(P...);
        void **given;
    } call = {kernel, given};
    return run([](void *at) {
        const Call &own = *(Call *)at;
        own.kernel(*(std::remove_cv_t<std::remove_reference_t<P>> *)own.given[I]...);
    }, &call, blocks, threads, shared, seed);
}
template <class... P>
const char *launch(void (*kernel)(P...), void **given, int blocks, int threads, int shared,
                   u64 seed) {
    return launch_indexed(kernel, given, blocks, threads, shared, seed,
                          std::index_sequence_for<P...>());
}
}  // namespace emu

// ---- intrinsics
using std::max;
using std::min;
static inline void __syncthreads() { emu::block_sync(); }
static inline int __syncthreads_or(int x) { return emu::block_any(x); }
static inline int __syncthreads_and(int x) { return !emu::block_any(!x); }
static inline void __syncwarp(unsigned mask = ~0u) { emu::warp_sync(mask); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned) { emu::yield(); }

template <class T>
static inline T __shfl_sync(unsigned mask, T x, int from, int width = 32) {
    const unsigned base = emu::lane() / width * width;
    return emu::exchange(mask, x, [&](const auto &of) { return of(base + from % width); });
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T x, int by) {
    return emu::exchange(mask, x, [&](const auto &of) { return of(emu::lane() ^ by); });
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T x, int by) {
    const int from = (int)emu::lane() - by;
    return emu::exchange(mask, x, [&](const auto &of) { return from < 0 ? x : of(from); });
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T x, int by) {
    const unsigned from = emu::lane() + by;
    return emu::exchange(mask, x, [&](const auto &of) { return from > 31 ? x : of(from); });
}
static inline unsigned __ballot_sync(unsigned mask, int x) {
    return emu::agree(mask, x, [&](const auto &of) {
        unsigned bits = 0;
        for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1 && of(i)) bits |= 1u << i;
        return bits;
    });
}
static inline int __any_sync(unsigned mask, int x) { return __ballot_sync(mask, x) != 0; }
static inline int __all_sync(unsigned mask, int x) { return __ballot_sync(mask, x) == mask; }
template <class T>
static inline unsigned __match_any_sync(unsigned mask, T x) {
    return emu::exchange(mask, x, [&](const auto &of) {
        unsigned bits = 0;
        for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1 && of(i) == x) bits |= 1u << i;
        return bits;
    });
}
#define EMU_REDUCE(name, type, value)                                                  \
    static inline type __reduce_##name##_sync(unsigned mask, type x) {                 \
        return emu::reduce(mask, x, [](type a, type b) -> type { return value; });     \
    }
EMU_REDUCE(add, int, a + b)
EMU_REDUCE(add, unsigned, a + b)
EMU_REDUCE(max, int, a > b ? a : b)
EMU_REDUCE(max, unsigned, a > b ? a : b)
EMU_REDUCE(min, int, a < b ? a : b)
EMU_REDUCE(min, unsigned, a < b ? a : b)
EMU_REDUCE(or, unsigned, a | b)
EMU_REDUCE(and, unsigned, a & b)

template <class T>
static inline T __ldg(const T *from) { return *from; }
template <class T>
static inline T __ldcg(const T *from) { return *from; }
template <class T>
static inline T __ldcs(const T *from) { return *from; }
template <class T>
static inline void __stcs(T *to, T x) { *to = x; }
template <class T>
static inline void __stcg(T *to, T x) { *to = x; }

#define EMU_ATOMIC(name, value)                                       \
    template <class T, class U>                                       \
    static inline T name(T *at, U given) {                            \
        const T old = *at, x = (T)given;                              \
        *at = value;                                                  \
        return old;                                                   \
    }
EMU_ATOMIC(atomicAddOne, old + x)
EMU_ATOMIC(atomicSub, old - x)
EMU_ATOMIC(atomicMax, old > x ? old : x)
EMU_ATOMIC(atomicMin, old < x ? old : x)
EMU_ATOMIC(atomicOr, old | x)
EMU_ATOMIC(atomicAnd, old &x)
EMU_ATOMIC(atomicExch, x)
template <class T, class U>
static inline T atomicAdd(T *at, U x) { return atomicAddOne(at, x); }
static inline float4 atomicAdd(float4 *at, float4 x) {
    const float4 old = *at;
    *at = {old.x + x.x, old.y + x.y, old.z + x.z, old.w + x.w};
    return old;
}
static inline float2 atomicAdd(float2 *at, float2 x) {
    const float2 old = *at;
    *at = {old.x + x.x, old.y + x.y};
    return old;
}
template <class T>
static inline T atomicCAS(T *at, T expected, T x) {
    const T old = *at;
    if (old == expected) *at = x;
    return old;
}

template <class To, class From>
static inline To emu_bits(From x) {
    To y;
    static_assert(sizeof x == sizeof y, "bits");
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __int_as_float(int x) { return emu_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
static inline int __float_as_int(float x) { return emu_bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return emu_bits<unsigned>(x); }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline long long __float2ll_rn(float x) { return llrintf(x); }
static inline float __ll2float_rn(long long x) { return (float)x; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __saturatef(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned z = 0;
    for (int i = 0; i < 4; i++) z |= (unsigned)(both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
    return z;
}
static inline size_t __cvta_generic_to_shared(const void *at) {
    return (const unsigned char *)at - emu::arena();
}
static inline void *__cvta_shared_to_generic(size_t at) { return emu::arena() + at; }

// ---- instructions, as translate.py spells them
namespace emu {
inline float flushed(float x) { return fabsf(x) < 1.17549435e-38f ? copysignf(0.0f, x) : x; }

// Counts a score that reaches `low`, and stores one that is not above `high` either.
template <class Count>
void list_one(Count &reached, u32 &at, float score, float low, float high, u32 step) {
    if (!(score >= low)) return;
    reached++;
    if (!(score <= high)) return;
    memcpy(arena() + at, &score, sizeof(score));
    at += step;
}

inline float exp2_fast(float x) { return flushed(exp2f(flushed(x))); }
inline float log2_fast(float x) { return log2f(flushed(x)); }
inline float reciprocal_fast(float x) { return flushed(1.0f / flushed(x)); }
inline float max_nan(float x, float y) { return x != x || y != y ? NAN : fmaxf(x, y); }
inline u32 shift_left(u32 x, u32 by) { return by > 31 ? 0 : x << by; }
inline u32 shift_right(u32 x, u32 by) { return by > 31 ? 0 : x >> by; }
template <class T>
inline T poll(const T *at) {
    yield();
    return *at;
}
}  // namespace emu
