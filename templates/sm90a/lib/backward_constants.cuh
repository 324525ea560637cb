// Modes of a backward pass, and what follows from the numbers of its schedule, see
// gen/backward_constants.cuh.j2.

#ifndef DETERMINISTIC
#define DETERMINISTIC 0  // the same bits on every run
#endif
#ifndef ONCE
#define ONCE 0  // no tile of dq has shares of more than one tile column: it is stored, not added up
#endif
#ifndef APART
#define APART 0  // a launch of its own makes dq, by tile rows; the main one, dk and dv
#endif
// Shares of dq leave through shared memory and bulk copies that add, or straight from registers.
#define STAGED (BULK_SHARES && !ONCE && !APART)
// Pairs are kept by their scores and thresholds, on top of the mask.
#if WITH_THRESHOLDS
#define THRESHOLDS 1
#else
#define THRESHOLDS 0
#endif
#if BULK_SHARES
constexpr int DQ_PIECES = 8;  // of eight columns of a share of a tile of dq
#else
constexpr int DQ_PIECES = HEAD_DIM / 8 / SHARES;
#endif
constexpr int THREADS = 128 * (GROUPS + 1);
// Tiles of dq of all heads but the first ones get their zeros while these are computed.
#define ZEROES (STAGED && !DETERMINISTIC)
// lse and delta are one more step of the products that make scores and dp, instead of numbers that
// are read: with plain softmax, whose scores nothing else looks at, and without dropout, which
// stands between dp and delta.
#define FOLDED (!(THRESHOLDS || BENT || HEAD_GRADIENT || WITH_ENTMAX || DROPS))
constexpr int PLAIN_THREADS = 256;  // of a block of the passes before and after
constexpr int STEPS = HEAD_DIM / 16;  // of a product along the head dimension
constexpr int OWN = QUERIES / 4;      // queries of a tile that a thread has for each of two keys
constexpr u32 Q_SLAB = TILE_Q * 128, K_SLAB = TILE_K * 128;  // bytes
constexpr u32 Q_BYTES = SLABS * Q_SLAB, K_BYTES = SLABS * K_SLAB;
constexpr u32 PAIR_BYTES = TILE_Q * TILE_K * 2;  // of a tile of p or ds
// A warpgroup alone waits for nobody: it needs one tile of ds, and stages dk and dv where the
// queries of its last step were, so that the next column can come meanwhile.
constexpr bool ALONE = GROUPS == 1;
constexpr u32 DS_STAGES = ALONE ? 1 : STAGES;

// A tile of dq in memory is in shares: one for each warpgroup, or as many as a warpgroup alone
// makes one after another. They are in the order of its threads: DQ_PIECES times four numbers each
// (fewer in share 1 if the columns are no whole slabs), and a sum for the head's own gradient.
constexpr int OWN_SHARES = SHARES / GROUPS;
constexpr bool CROWDED = OWN_SHARES > 1;  // registers: fewer numbers wait in them
constexpr int SLOPE_SUMS = HEAD_GRADIENT ? 128 : 0;
constexpr int TILE_FLOATS = TILE_Q * HEAD_DIM + SHARES * SLOPE_SUMS;
constexpr int SHARE = 512 * DQ_PIECES + SLOPE_SUMS;  // where share 1 begins
constexpr u32 ZERO_BYTES = TILE_FLOATS;  // a quarter of a tile
