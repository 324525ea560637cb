// Modes of a backward pass, and constants derived from its schedule; see
// gen/backward_constants.cuh.j2.

#ifndef DETERMINISTIC
#define DETERMINISTIC 0  // bitwise deterministic
#endif
#ifndef EXCLUSIVE_DQ
// Exclusive dq: at most one tile column contributes to each tile of dq, so dq is stored, not added
#define EXCLUSIVE_DQ 0
#endif
#ifndef SEPARATE_DQ
// A separate launch over tile rows computes dq; the main launch computes dk and dv.
#define SEPARATE_DQ 0
#endif
// STAGED: dq is added to memory by bulk reduce-add copies from shared memory, not by atomics from
// registers.
#define STAGED (BULK_SHARES && !EXCLUSIVE_DQ && !SEPARATE_DQ)
// Pairs are also filtered by their scores and thresholds.
#if WITH_THRESHOLDS
#define THRESHOLDS 1
#else
#define THRESHOLDS 0
#endif
#if BULK_SHARES && !HALF_SHARE
// Pieces of eight columns in a share of a tile of dq.
constexpr int DQ_PIECES = HEAD_DIM < 64 ? HEAD_DIM / 8 : 8;
#else
constexpr int DQ_PIECES = HEAD_DIM / 8 / SHARES;
#endif
constexpr int THREADS = 128 * (GROUPS + 1);
// Most tiles of dq are zeroed by an idle warp of the main launch, except the tiles of the first
// heads, which the prepare launch zeroes.
#define ZEROES (STAGED && ZEROING_WARP && !DETERMINISTIC)
// LSE_IN_WGMMA: the WGMMAs of scores and dp subtract lse and delta by one additional k-step, so
// that no thread loads them. Only for plain softmax, where nothing else reads the scores, and
// without dropout, which comes between dp and delta.
#define LSE_IN_WGMMA (!(THRESHOLDS || PAIRWISE_LOGITS || HEAD_GRADIENT || WITH_ENTMAX || DROPS))
constexpr int PLAIN_THREADS = 256;  // threads per block of the launches before and after
constexpr int SLABS_V = (HEAD_DIM_V + 63) / 64;  // slabs in tiles of v and dout
constexpr int STEPS = HEAD_DIM / 16, STEPS_V = HEAD_DIM_V / 16;  // k-steps of a WGMMA along rows
constexpr int OWN = QUERIES / 4;  // queries of a tile that a thread holds, for each of its two keys
constexpr u32 Q_SLAB = TILE_Q * 128, K_SLAB = TILE_K * 128;  // bytes
constexpr u32 Q_BYTES = SLABS * Q_SLAB, K_BYTES = SLABS * K_SLAB;
constexpr u32 DOUT_BYTES = SLABS_V * Q_SLAB, V_BYTES = SLABS_V * K_SLAB;
constexpr u32 PAIR_BYTES = TILE_Q * TILE_K * 2;  // bytes of a tile of p or ds
// A single warpgroup does not synchronize with another: it needs one tile of ds, and it stages dk
// and dv in the q slot of its last step, so that the next tile column can be loaded meanwhile.
constexpr bool ONE_WARPGROUP = GROUPS == 1;
// Two warpgroups share one tile of ds: each writes its half once the other has read the last one.
constexpr bool ONE_DS = !ONE_WARPGROUP && DS_STAGES == 1;

// A tile of dq in the workspace consists of shares: one per warpgroup, or all that a single
// warpgroup computes one after another. A share is in thread order: DQ_PIECES times four numbers
// per thread (fewer in share 1 if the head dimension is not a multiple of whole slabs), then one
// number per thread for the head's own gradient.
constexpr int OWN_SHARES = SHARES / GROUPS;
// The accumulators of dk and dv of a warpgroup's keys are more than 128 registers of a thread.
constexpr bool WIDE_SUMS = SPLIT_KEYS && HEAD_DIM + HEAD_DIM_V > 256;
// Registers are short: keep fewer values live.
constexpr bool REGISTER_PRESSURE = OWN_SHARES > 1 || WIDE_SUMS;
constexpr int SLOPE_SUMS = HEAD_GRADIENT ? 128 : 0;
constexpr int TILE_FLOATS = TILE_Q * HEAD_DIM + SHARES * SLOPE_SUMS;
constexpr int SHARE = 512 * DQ_PIECES + SLOPE_SUMS;  // offset of share 1
constexpr u32 ZERO_BYTES = TILE_FLOATS;  // a quarter of a tile
