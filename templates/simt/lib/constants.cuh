// Constants derived from the schedule; see gen/constants.cuh.j2.

typedef unsigned int u32;
constexpr int SIDE = 16;              // threads form a square: 16 down, 16 across
constexpr int THREADS = SIDE * SIDE;
constexpr int STRIP = 4 * SIDE;       // columns of v, k, q or dout per step
// Columns of dout and v that are summed before they join the total
constexpr int PIECE = DEPTH % 16 ? DEPTH : 32;
constexpr int PAD = 4;                // padding of a row in shared memory, in floats; see Columns
constexpr int MAX_TILE = TILE_Q > TILE_K ? TILE_Q : TILE_K;

#define MINUS_INFINITY __int_as_float(0xff800000)
#define PLUS_INFINITY __int_as_float(0x7f800000)

static_assert(TILE_Q % STRIP == 0 && TILE_K % STRIP == 0 && DEPTH % 8 == 0,
              "every thread loads and multiplies as much as every other one");
static_assert(TILE_Q * TILE_K <= 32 * THREADS, "the pairs of a thread fit the bits of one word");

FN i32 thread_down() { return threadIdx.x / SIDE; }
FN i32 thread_across() { return threadIdx.x % SIDE; }
