// spec.chosen: the selection thresholds of each query, two numbers per row (see
// common/thresholds.cuh.j2), for mma.sync (sm_80 and later). Contract: maskc/core/abi.py.

#include "sm80/lib/constants.cuh"

#include "common/lib/tiles.h"

#include ELEMENT_POLICY
#include "common/lib/device.cuh"

#include "sm80/lib/ptx.cuh"

#include "sm80/lib/load.cuh"

#include "sm80/lib/keys_rows.cuh"

#include "sm80/lib/work.cuh"

#include "sm80/lib/softmax.cuh"

#include "sm80/lib/mask_rows.cuh"

#include "sm80/lib/logits.cuh"

#include "sm80/lib/scores.cuh"

#include "common/lib/images.cuh"

#include "common/lib/threshold_place.cuh"

static_assert(FRAGMENTS == 1, "a lane has two rows, as brackets do");
constexpr int OWN = TILE_K / 4;  // scores of a tile that a thread holds per row
// The word of a tile: its index, and MASKED if some pairs are not candidates.
constexpr i32 KEY_STEP = TILE_K, MASKED = 1 << 28, INDEX = MASKED - 1;
FN float &score_at(Scores &s, int r, int i) { return s[0][i / 2][2 * r + i % 2]; }

#include "common/lib/choose_rows.cuh"

// Shared memory of a block. maskc/plan/families/sm80.py plans its size.
struct Shared {
    unsigned char q[TILE_Q * PITCH];
    unsigned char k[2][TILE_K * PITCH];
    u32 bins[TILE_Q][BINS];
    struct Block block;
};
static_assert(sizeof(struct Shared) <= MEMORY, "planned memory");

// State of a warp for all passes.
struct Rows {
    i32 batch, head, query, tiles;
    i32 at;  // the tile that is being loaded
    u32 place;  // its slot, one of two
    struct Query q;
};

// Loads the keys of a tile while the scores of the previous tile are in use. After the last tile it
// loads the first one again, as there may be another pass.
FN void load_keys(struct Shared &shared, const struct Attention &p, const struct Rows &w) {
    load_tile<TILE_K>(shared_address(shared.k[w.place]), shared.block.k, p.k_stride,
                      tile_at(shared.block.list, w.at).index * TILE_K, p.n_kv);
}

// Computes the scores of the next tile and returns its word. Pairs that are not candidates become
// NO_CANDIDATE.
FN i32 take_scores(Scores &s, struct Shared &shared, const struct Attention &p, struct Rows &w,
                   i32 (&allowed)[2]) {
    const struct Tile tile = tile_at(shared.block.list, w.at);
    const u32 k_tile = shared_address(shared.k[w.place]);
    const bool masked = !tile.full || p.n_kv - tile.index * TILE_K < TILE_K;
    struct Seen seen = everything();
    if (masked) seen = seen_by(&p, shared.block, tile);
    copy_wait<0>();   // the keys have arrived, and
    __syncthreads();  // the previous tile is no longer read
    w.at = w.at + 1 == w.tiles ? 0 : w.at + 1, w.place ^= 1;
    load_keys(shared, p, w);
    score(s, w.q, k_tile);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u32 own = seen.word[0] >> 16 * r & ((1u << OWN) - 1);
        allowed[r] += __popc(own);
        if (!masked) continue;
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (!(own >> i & 1)) score_at(s, r, i) = NO_CANDIDATE;
    }
    return tile.index | (masked ? MASKED : 0);
}

#include "common/lib/choose_lists.cuh"


#include "common/lib/choose_passes.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_choose(const __grid_constant__ struct Attention p) {
    extern __shared__ __align__(128) unsigned char memory[];
    struct Shared &shared = *(struct Shared *)memory;
    if (threadIdx.x == 0) shared.block.work = work_of(&p, blockIdx.x);
    __syncthreads();
    const struct Work work = shared.block.work;
    const u32 q_tile = shared_address(shared.q);
    load_tile<TILE_Q>(q_tile, head_rows(p.q, p.q_stride, work.batch, work.head), p.q_stride,
                      work.row * TILE_Q, p.n_q);
    if (threadIdx.x == 0) start_block(shared.block, &p);
    copy_wait<0>();
    __syncthreads();

    struct Rows w = {work.batch, work.head, lane_query(work), shared.block.list.count, 0, 0};
    w.q.at = q_tile + first_row() * PITCH + lane_in_rows();
    keep_query(w.q);
    struct Bracket row[2] = {};
    row[0].low = row[1].low = PLUS_INFINITY;  // without a tile nothing is selected
    if (w.tiles > 0) {
        u32 *const bins = shared.bins[first_row()];
        enum Pass pass = MOMENTS;
        bool more = true;
        load_keys(shared, p, w);
#pragma unroll 1
        for (i32 passes = 0; more; passes++) {
            pass = pass_over(pass, passes, bins, row, shared, p, w);
            more = __syncthreads_or(!(row[0].done && row[1].done));
        }
        copy_wait<0>();
    }
    int2 *const to = thresholds_of(p, p.delta, work.batch, work.head);
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (threadIdx.x % 4 == 0 && w.query + 8 * r < p.n_q)
            to[w.query + 8 * r] = make_int2(__float_as_int(row[r].low), row[r].last);
}
