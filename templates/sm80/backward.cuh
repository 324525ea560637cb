// Attention backward for mma.sync (sm_80 and later); contract: maskc/core/abi.py.

// A block has a tile of keys and values and loops over the queries that see them. It recomputes the
// scores, transposed, together with dp = dout . v: weights and their gradients are then in
// registers as the A operands of dv and dk. Only the gradients go through shared memory, because dq
// needs those of all keys of the tile. dq is accumulated in fp32 by atomics; in deterministic mode,
// a separate launch over rows recomputes it.
#include "sm80/lib/backward_constants.cuh"

#include "common/lib/tiles.h"

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "common/lib/unpack.cuh"

#include TOKENS_POLICY

#include "common/lib/dot.cuh"

#include "sm80/lib/ptx.cuh"

#include "sm80/lib/load.cuh"

#if WIDE
#include "sm80/lib/halves.cuh"

#endif
#include "sm80/lib/logit.cuh"

#include "common/lib/keep.cuh"

#include "sm80/lib/backward_rows.cuh"

#include "common/lib/backward_few.cuh"

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_few(const __grid_constant__ struct Attention p) {
    settle_rows(p, blockIdx.x % p.tile_rows * TILE_Q, p.n_q);
}

#include "sm80/lib/backward_products.cuh"

#include "common/lib/plain_rows.cuh"

#include "sm80/lib/mask_rows.cuh"

#include "sm80/lib/backward_scores.cuh"

#if WITH_THRESHOLDS
#include "sm80/lib/backward_chosen.cuh"

#endif
#include "sm80/lib/backward_store.cuh"

#if WIDE
#include "sm80/lib/backward_wide.cuh"
#else
#include "sm80/lib/backward_keys.cuh"

#include "sm80/lib/backward_queries.cuh"
#endif

// Interface for the gradients of tables, see backward_tables.cuh.
FN i32 key_at(i32 place) { return place; }
FN float2 left_row(const struct Attention &p, i64 row, i32 r) {
    return make_float2(workspace(p).lse[row * TILE_Q + r], workspace(p).delta[row * TILE_Q + r]);
}
