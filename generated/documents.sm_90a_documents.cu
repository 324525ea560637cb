// Tile lists of a mask that reads data, made on the device: sm_90a.
// Written by `maskc compile`; change the pattern, not this file.

#define FN __device__ __forceinline__
typedef int i32;
typedef long long i64;
#include "common/lib/lists_arguments.h"

#undef WITH_WIDE
#define WITH_WIDE 1  // bounds need 64 bits
#include "common/lib/integers.h"
#include "common/lib/formulas.h"
#include "common/lib/tile_bounds.h"

typedef unsigned int u32;
#ifdef BY_LENGTHS
constexpr i32 THREADS = 512;
constexpr i32 BLOCKS = 2;
#else
constexpr i32 THREADS = 128;
constexpr i32 BLOCKS = 6;  // that an SM runs at once, or more
#endif
constexpr i32 MAX_RESULTS = 5;
constexpr u32 ALL = 0xffffffff;

#include "common/lib/block_sums.cuh"

#include "common/lib/block_before.cuh"

#include "common/lib/list_items.cuh"

// ---------------------------------------------------------------- the mask on a tile

// Why a block reads an array of the mask: for the tiles of a side (0 rows, 1 columns), or (-1) only
// to convert it to the 32 bits that attention kernels read.
struct Reading {
    i32 number, slot, side;
    bool writes;
};
constexpr i32 READINGS = 2;
constexpr i32 CHUNK = 1024;  // elements per block for side -1
constexpr bool READS_CHUNKS = 0;  // whether any array has side -1
constexpr i32 READ_TILES = 16;  // most tiles per block for the other sides
FN struct Reading reading_at(i32 number) {
    switch (number) {
    case 0:
        return {0, 0, 1, 1};
    case 1:
        return {1, 1, 0, 1};
    }
    return {0, 0, -1, false};
}
#define SEVERAL 1  // tiles of keys may begin with documents
// Readings of document ids
constexpr i32 OF_Q = 1, OF_K = 0;
constexpr i32 STOPS = 2;  // array of document ends
// For lists from lengths alone: the most lengths of both sides, tile rows, and lists.
constexpr i32 MAX_LENGTHS = 2048, MAX_ROWS = 2048;
constexpr i32 MAX_LISTS = 256;
#include "common/lib/entries.cuh"

// The constants of the mask.
struct Mask {
    i64 c0;
    i32 shape;
};
FN i64 constant(const i32 *args, i32 i, bool wide) {
    return wide ? (i64)args[2 * i + 1] * 4294967296 + (u32)args[2 * i] : args[i];
}
FN struct Mask load_mask(const struct Lists &p, i32 variant) {
    struct Mask m = {};
    const i32 words = 1 + 1 * (1 + p.wide);
    const i32 *const args = p.mask_args + variant * words;
    m.shape = args[0];
    m.c0 = constant(args + 1, 0, p.wide);
    return m;
}

#ifndef BY_LENGTHS
#include "common/lib/segments.cuh"

#include "common/lib/read_arrays.cuh"

#include "common/lib/box_entries.cuh"
// Bit 0: some pair of a tile may be live; bit 1: every pair certainly is. `full`: the part of the
// formula without data keeps all pairs. For a single pair, both bits are exact.
template <class At>
FN i32 classify(const struct Lists &p, const struct Mask &m, const At &at, bool full) {
    const struct Tokens tokens = tokens_of(p, at);
    [[maybe_unused]] const i64 q0 = tokens.q0, q1 = tokens.q1, k0 = tokens.k0, k1 = tokens.k1;
    (void)m, (void)full;
    if (q0 < 0 || q1 < 0 || k0 < 0 || k1 < 0) __builtin_unreachable();  // divisions are shorter
    // Formula of a pair: a0[k] == a1[q] && k <= q + c0
    const struct Span t0 = bounds_of(p, 0, at);
    const struct Span t1 = bounds_of(p, 1, at);
    const i32 t2 = t0.low <= t1.high;
    const i32 t3 = t1.low <= t0.high;
    const i32 t4 = t2 & t3;
    const i32 t5 = t0.high <= t1.low;
    const i32 t6 = t1.high <= t0.low;
    const i32 t7 = t5 & t6;
    return (t4) | (t7 && full) << 1;
}

#include "common/lib/box_verdicts.cuh"
#endif

#ifdef BY_LENGTHS
#include "common/lib/lists_of_lengths.cuh"
#else
#include "common/lib/make_lists.cuh"
#endif

#ifndef BY_LENGTHS
#include "common/lib/spoil_results.cuh"
#endif
