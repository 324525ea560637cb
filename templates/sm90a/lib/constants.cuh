// What follows from the numbers of a schedule, see gen/constants.cuh.j2.

constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int Q_TILES = STREAM ? 2 : 1;
constexpr int STEPS = HEAD_DIM / 16;  // of a row of out
constexpr int OWN = TILE_K / 4;       // columns of a tile that a thread has in each of two rows
constexpr u32 Q_SLAB = TILE_Q * 128, K_SLAB = TILE_K * 128;  // bytes
constexpr u32 Q_BYTES = SLABS * Q_SLAB;  // also those of out, which takes the place of q
