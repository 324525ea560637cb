// The CPU kernels of one mask, forward and backward, in one C file.

// Floats per vector register, and the width of multiply()'s block of sums in registers. Six rows of
// sums, one row of the operand and one factor fill the register file.
#if defined(__AVX512F__)
enum { LANES = 16, BLOCK_VECTORS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, BLOCK_VECTORS = 2 };
#elif defined(__aarch64__)
enum { LANES = 4, BLOCK_VECTORS = 4 };
#else
enum { LANES = 4, BLOCK_VECTORS = 2 };
#endif
enum {
    BLOCK_ROWS = 6,
    QK_VECTORS = (HEAD_DIM + LANES - 1) / LANES,  // vectors of a row of q or k, padded with zeros
    V_VECTORS = (HEAD_DIM_V + LANES - 1) / LANES,
    QK_LD = QK_VECTORS * LANES,  // floats between rows of a tile
    V_LD = V_VECTORS * LANES,
    MAX_LD = QK_LD > V_LD ? QK_LD : V_LD,
};
_Static_assert(TILE_Q % LANES == 0, "the lanes of a vector are queries of one tile");

#define INLINE static inline __attribute__((always_inline))  // so that constants reach the body
#if WITH_SCORE
// A formula may return any finite number, which a factor could make infinite. So softmax and entmax
// take its logits unscaled, and softmax multiplies their differences by log2(e).
#define UNIT 1.0f
#define POWER LOG2E
#define NATURAL 1.0f
#else
// Softmax takes scores times log2(e), so that 2^x replaces e^x. entmax takes them unscaled.
#define UNIT (WITH_ENTMAX ? 1.0f : LOG2E)
#define POWER 1.0f
#define NATURAL (WITH_ENTMAX ? 1.0f : LN2)
#endif

// ---------------------------------------------------------------- tiles

#include "common/lib/tiles.h"

// ---------------------------------------------------------------- vectors

#include "cpu/lib/vector.h"

// ---------------------------------------------------------------- storage

#include STORAGE_POLICY

#include "cpu/lib/storage.h"

// ---------------------------------------------------------------- products of tiles

#include "cpu/lib/multiply.h"

// ---------------------------------------------------------------- tokens of rows

#include TOKENS_POLICY

#if WITH_DROPOUT
// ---------------------------------------------------------------- dropout

#include "common/lib/dropout.h"

#endif
// ---------------------------------------------------------------- scores

#include "cpu/lib/scores.h"

#if WITH_PAGES
// ---------------------------------------------------------------- pages

#include "cpu/lib/pages.h"

#endif
#if HAS_SELECTIONS
// ---------------------------------------------------------------- selection

#include "cpu/lib/select.h"

#endif
// ---------------------------------------------------------------- weights

#include "cpu/lib/weights.h"

#if WITH_DROPOUT
#include "cpu/lib/dropout.h"

#endif
// ---------------------------------------------------------------- forward

#include "cpu/lib/forward.h"

// ---------------------------------------------------------------- backward

#include "cpu/lib/backward.h"
