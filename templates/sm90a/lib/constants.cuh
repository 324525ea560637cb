// Modes of a forward pass, and what follows from the numbers of its schedule, see
// gen/constants.cuh.j2.

#ifndef STREAM
#define STREAM 0  // blocks stream through tile rows instead of computing one each
#endif
#ifndef PACKED
#define PACKED 0  // the queries of the heads of a key/value head are rows of one tile
#endif
// Packed heads: blocks go on to further items, for which the thread that copies needs registers.
constexpr int MOVED_REGISTERS = PACKED ? PACKED_REGISTERS : 0;
constexpr bool ROUNDS = MOVED_REGISTERS > 0;
constexpr int COMPUTE_REGISTERS = USUAL_COMPUTE - MOVED_REGISTERS;
constexpr int COPY_REGISTERS = USUAL_COPY + GROUPS * MOVED_REGISTERS;
// A warpgroup's q stays in registers, where the logits leave room for it.
#define KEEP_Q (ROOM_FOR_Q && !BENT && !WITH_ENTMAX)
// A step waits for p v before the logits where they need the registers (0), after the maxima (1),
// or after half of the exponentials (2).
constexpr int SETTLE =
    SETTLE_FIRST || (LONG_LOGITS && GROUPS == 3)
#if WITH_FP8
    || (LONG_LOGITS && HEAD_DIM > 128)
#endif
    ? 0
    : CROWDED_CELLS && BENT ? 0
    : STREAM ? 1 : SETTLE_LAST;

constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int Q_TILES = STREAM ? 2 : 1;
constexpr int STEPS = HEAD_DIM / 16;  // of a row of out
constexpr int OWN = TILE_K / 4;       // columns of a tile that a thread has in each of two rows
constexpr u32 Q_SLAB = TILE_Q * 128, K_SLAB = TILE_K * 128;  // bytes
constexpr u32 Q_BYTES = SLABS * Q_SLAB;  // also those of out, which takes the place of q

#if WITH_FP8
#include "sm90a/lib/operands_bytes.cuh"
#else
#include "sm90a/lib/operands_halves.cuh"
#endif
