// Constants derived from the schedule; see gen/constants.cuh.j2.

constexpr int UNROLL = 4;  // columns of a partial tile tested per loop iteration

constexpr int THREADS = 32 * WARPS;
#if WIDE
#ifndef PACK_GQA
#define PACK_GQA 0  // pack_gqa: query heads that share keys are consecutive rows of tiles
#endif
// Two warps share rows: each multiplies one half of the head dimension of q and k, and has one half
// of the columns of out.
constexpr int HALVES = 2;
constexpr int FRAGMENTS = TILE_Q * HALVES / (16 * WARPS);  // 16-row fragments per warp
constexpr int OWN_GROUPS = HEAD_DIM_V / (8 * HALVES);      // 8-column groups of out
#else
constexpr int FRAGMENTS = TILE_Q / (16 * WARPS);  // 16-row fragments per warp
#endif
constexpr int ROWS = 2 * FRAGMENTS;               // rows per thread: lane / 4 + 8 * r
constexpr int DEPTH = HEAD_DIM / 16;              // 16-column steps along a row
constexpr int PITCH = 2 * HEAD_DIM;               // bytes of a row in shared memory
constexpr int CHUNKS = HEAD_DIM / 8;              // 16-byte pieces of a row
constexpr int SPAN = CHUNKS % 8 ? 4 : 8;          // pieces per swizzle group, see place()
constexpr int COPY_ROWS = THREADS / SPAN;         // rows that all threads copy at once

#if WIDE
static_assert(FRAGMENTS == 1 && TILE_K % 16 == 0 && HEAD_DIM % 64 == 0 && HEAD_DIM_V % 128 == 0,
              "halves are made of 16 x 16 fragments, and begin where places are exchanged again");
#else
static_assert(TILE_Q % (16 * WARPS) == 0 && TILE_K % 16 == 0 && HEAD_DIM % 32 == 0,
              "tiles are made of 16 x 16 fragments");
#endif
static_assert(TILE_K <= 64, "the bits of two rows fit one word");
static_assert(COPY_ROWS % 8 == 0 && TILE_Q % COPY_ROWS == 0 && TILE_K % COPY_ROWS == 0,
              "every thread copies the same number of rows, eight or more apart");
