// What follows from the numbers of a schedule, see gen/constants.cuh.j2.

constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int Q_TILES = STREAM ? 2 : 1;
#if FP8
// q, k and v have one byte an element, and out has two: what is said of 64 columns, or of 16, is
// said of out, which takes the place of a tile of q that is half as wide.
constexpr int STEPS = HEAD_DIM / 16;  // of a row of out
constexpr int QK_STEPS = HEAD_DIM / 32, PV_STEPS = TILE_K / 32;
constexpr int OPERAND_SLABS = (HEAD_DIM + 127) / 128;  // of 128 columns, in a tile of q or k
constexpr int OWN = TILE_K / 4;       // columns of a tile that a thread has in each of two rows
constexpr u32 Q_SLAB = TILE_Q * 128, K_SLAB = TILE_K * 128;  // bytes
constexpr u32 Q_BYTES = SLABS * Q_SLAB, K_BYTES = OPERAND_SLABS * K_SLAB;
constexpr u32 V_BYTES = HEAD_DIM * TILE_K;  // of v^T
#else
constexpr int STEPS = HEAD_DIM / 16;  // of q k^T
constexpr int OWN = TILE_K / 4;       // columns of a tile that a thread has in each of two rows
constexpr u32 Q_SLAB = TILE_Q * 128, K_SLAB = TILE_K * 128;  // bytes
constexpr u32 Q_BYTES = SLABS * Q_SLAB, K_BYTES = SLABS * K_SLAB;
#endif
