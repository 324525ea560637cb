// Run-time selections and their tile lists, made on the device: sm_90a, bfloat16, head_dim 128.
// Written by `maskc compile`; change the pattern, not this file.

#define FN __device__ __forceinline__
typedef int i32;
typedef long long i64;
#include "common/lib/selected_arguments.h"
#include "common/lib/lists_arguments.h"

typedef unsigned int u32;
typedef unsigned short u16;
#include "common/lib/element_bf16.cuh"
#include "common/lib/integers.h"
#include "common/lib/formulas.h"
constexpr i32 THREADS = 128, WARPS = THREADS / 32;
constexpr i32 HEAD_DIM = 128;
constexpr i32 ROWS = 16;        // most query blocks that a block ranks for
constexpr i32 OWN = ROWS / WARPS;            // of these, per warp
constexpr i32 COLUMNS = 32;                  // key blocks at a time, one per lane
constexpr i32 KEY_ROW = HEAD_DIM + 4;        // floats per row in shared memory
constexpr i32 BLOCKS = 6;            // that an SM runs at once, or more
constexpr u32 ALL = 0xffffffff;
extern __shared__ __align__(16) unsigned char memory[];

// What a selection ranks by.
enum { PRODUCTS, MEANS, INDEXER, GIVEN };
// Class of a cell (query block x key block): how many of its pairs the static mask allows.
enum { NOTHING, SOMETHING, EVERYTHING };

// Parameters of the formulas.
struct Mask {
    i32 c0;
};
FN struct Mask load_mask(const struct Selected &p) {
    struct Mask m = {};
    return m;
}

struct Selection0 {
    static constexpr i32 INDEX = 0;
    static constexpr i32 MAX_CHOSEN = 13;  // chosen blocks
    static constexpr i32 BLOCK = 64, Q_BLOCK = 1;  // tokens
    static constexpr i32 SCORE = GIVEN;
    // Cells of one class are stored as one number
    static constexpr i32 CLASS_ROWS = 128;
    static constexpr i32 CLASS_COLUMNS = 2;
    // Whether a pair is a candidate.
    static FN bool allows(const struct Mask &m, i32 q, i32 k, i32 n_q, i32 n_kv) {
        (void)m, (void)q, (void)k, (void)n_q, (void)n_kv;
        return
            floor_div(q + n_kv - n_q, 64) >= k / 64 + 2 && k >= 64 && k <=
            q + n_kv - n_q;
    }
};

#include "common/lib/selected_numbers.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
select_join(const __grid_constant__ struct Selected p) {
    const i32 warp = blockIdx.x * WARPS + threadIdx.x / 32;
    (void)warp;
}

#include "common/lib/select_scores.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 3)
select_blocks(const __grid_constant__ struct Selected p) {
    const i32 block = blockIdx.x;
    if (block == 0)
        for (i32 i = threadIdx.x; i < p.state_words; i += THREADS) p.state[i] = 0;
    if (block >= p.first_block[0])
        return choose<Selection0>(p, block - p.first_block[0]);
}

#include "common/lib/block_sums.cuh"

#include "common/lib/block_before.cuh"

#include "common/lib/list_items.cuh"

#define SEVERAL 0
#include "common/lib/chosen_bits.cuh"

FN bool read_part(const struct Lists &p, i32 block) {
    const i32 shares = (p.tile_count[0] + p.reading_tiles[0] - 1) / p.reading_tiles[0];
    const i32 list = block / shares, tile = (block - list * shares) * p.reading_tiles[0];
    const i32 tiles = min_i32(p.reading_tiles[0], p.tile_count[0] - tile);
    join_bits<Selection0>(p, list, tile, tiles);
    return false;
}

#include "common/lib/chosen_lines.cuh"

FN i32 verdict_of(const struct Lists &p, const struct Line &line, i32 i, i32) {
    if (i >= line.count) return 0;
    const struct Place &at = line.at;
    const i32 row = at.side ? i : at.tile, column = at.side ? at.tile : i;
    const i32 variant = p.cases[2 * (at.list % p.heads)];
    const i32 code = p.codes[(variant * p.tile_count[0] + row) * p.tile_count[1] + column];
    if (!code) return 0;
    u32 ways = (1u << (1 << 1)) - 1;
    ways &= ways_of<Selection0>(p, at.list, row, column, 2);
    if (!(code & ways)) return 0;
    return (code >> 8 & ways) == ways ? 3 : 1;
}

#include "common/lib/make_lists.cuh"
