// Modes of a forward pass, and constants derived from its schedule; see gen/constants.cuh.j2.

#if INTERLEAVED  // persistent, and the rows of a tile are all heads of a query, then of the next
#define PERSISTENT 1
#endif
#ifndef PERSISTENT
#define PERSISTENT 0  // persistent: blocks loop over tile rows
#endif
#ifndef PACK_GQA
#define PACK_GQA 0  // pack_gqa: the query heads of a key/value head are rows of one tile
#endif
// Keep a warpgroup's q in registers, if the logits leave room for it.
#if WITH_PAIR_RING
#define KEEP_Q (ROOM_FOR_Q && PAIR_RING && !HAS_SLOPE)
#else
#define KEEP_Q (ROOM_FOR_Q && !PAIRWISE_LOGITS && !WITH_ENTMAX)
#endif
// When a step waits for the p v of the previous tile, and so frees the registers of p:
// before the logits, if they need these registers (0); after the row maxima (1); or after half of
// the exponentials (2). A later wait overlaps more work with the WGMMA.
constexpr int PV_WAIT =
    PV_WAIT_FIRST || (LONG_LOGITS && GROUPS == 3)
#if WITH_FP8
    || (LONG_LOGITS && HEAD_DIM > 128)
#endif
    ? 0
    : SELECTION_REGISTER_PRESSURE && PAIRWISE_LOGITS ? 0
    : PERSISTENT && !ONE_Q ? 1 : PV_WAIT_LAST;

constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int Q_TILES = PERSISTENT && !ONE_Q ? 2 : 1;
// Out goes to memory from registers, as the next row's q is already in its place.
constexpr bool STORE_DIRECT = PERSISTENT && ONE_Q;
constexpr int SLABS_V = (HEAD_DIM_V + 63) / 64;  // in tiles of v and out
constexpr int OUT_STEPS = HEAD_DIM_V / 16;  // pairs of pieces of eight columns in a row of out
constexpr int OWN = TILE_K / 4;  // columns of a tile that a thread holds in each of its two rows
constexpr u32 Q_SLAB = TILE_Q * 128, K_SLAB = TILE_K * 128;  // bytes
constexpr u32 Q_BYTES = SLABS * Q_SLAB;  // q and out use the same shared memory
static_assert(HEAD_DIM_V <= HEAD_DIM, "out fits where q was");

#if WITH_FP8
#include "sm90a/lib/operands_bytes.cuh"
#else
#include "sm90a/lib/operands_halves.cuh"
#endif
#if E4M3_POOLS
constexpr int CONVERTING_WARPS = 3;  // of the producer warpgroup: all but the one that copies
// A tile of a pool in shared memory: slabs of 128 columns of a byte.
constexpr int POOL_SLABS = (HEAD_DIM + 127) / 128, POOL_SLABS_V = (HEAD_DIM_V + 127) / 128;
constexpr u32 K_BYTES_IN_POOL = POOL_SLABS * K_SLAB, V_BYTES_IN_POOL = POOL_SLABS_V * K_SLAB;
#endif
