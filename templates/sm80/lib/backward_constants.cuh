// Modes of a backward pass, and constants derived from its schedule; see
// gen/backward_constants.cuh.j2.

#if WIDE
#define DETERMINISTIC 1  // a separate launch over tile rows always computes dq
#else
#ifndef DETERMINISTIC
#define DETERMINISTIC 0  // bitwise deterministic: a separate launch over tile rows computes dq
#endif
#endif
#if WITH_THRESHOLDS
#define SETTLES_DELTA 0  // the selection is known only while scores are in registers
#else
// With few pairs in a call, delta is recomputed more precisely.
#define SETTLES_DELTA 1
#endif

constexpr bool PARK_ROWS = false;  // as forward passes may
constexpr int THREADS = 32 * WARPS;
constexpr int PLAIN_THREADS = 256;  // threads per block of the launches before and after
constexpr int DEPTH = HEAD_DIM / 16;                  // 16-column steps along a row
constexpr int PITCH = 2 * HEAD_DIM;                   // bytes of a row in shared memory
constexpr int CHUNKS = HEAD_DIM / 8;                  // 16-byte pieces of a row
constexpr int SPAN = CHUNKS % 8 ? 4 : 8;              // pieces that trade places, see place()
constexpr int COPY_ROWS = THREADS / SPAN;             // pieces per swizzle group, see place()
#if WIDE
// Two warps share rows: each multiplies a half of them along their length, and has a half of the
// columns of gradients.
constexpr int HALVES = 2;
constexpr int FRAGMENTS = TILE_K * HALVES / (16 * WARPS);  // 16-token fragments per warp
constexpr int OWN_GROUPS = HEAD_DIM / (8 * HALVES);        // 8-column groups of a gradient
#else
constexpr int FRAGMENTS = TILE_K / (16 * WARPS);      // 16-key fragments per warp
#endif
constexpr int ROW_WARPS = TILE_Q / 16;                // warps that cover all queries of a tile
constexpr int SHARES = WARPS / ROW_WARPS;  // warps that share 16 rows of dq, by columns or by keys
constexpr int TILE_FLOATS = TILE_Q * HEAD_DIM;        // of dq

#if WIDE
static_assert(TILE_Q == TILE_K && FRAGMENTS == 1 && STEP_Q == 16 && HEAD_DIM % 128 == 0,
              "halves are made of 16 x 16 fragments, and begin where places are exchanged again");
#else
static_assert(TILE_K % (16 * WARPS) == 0 && TILE_Q % STEP_Q == 0 && STEP_Q % 16 == 0
                  && HEAD_DIM % 32 == 0,
              "tiles are made of 16 x 16 fragments");
#endif
static_assert(WARPS % ROW_WARPS == 0 && DEPTH % SHARES == 0, "warps share the rows of a tile");
static_assert(FRAGMENTS * STEP_Q <= 64, "the bits of a thread's pairs fit one word");
static_assert(COPY_ROWS % 8 == 0 && TILE_Q % COPY_ROWS == 0 && TILE_K % COPY_ROWS == 0,
              "every thread copies the same number of rows, eight or more apart");
static_assert(!ONE_PLACE || TILE_Q == STEP_Q, "dout is read before its place is taken");
