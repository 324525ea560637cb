// alpha-entmax instead of softmax: repeated passes over a row of tiles until its lse is found.
// Needs: scores.cuh, values.cuh, work.cuh.

#include "common/lib/entmax_weights.cuh"

// Passes over the keys of a block. START finds levels that are close from below. SUMS passes sum
// weights at these levels until they are right except for a last step. VALUES passes also add
// values, once the levels seem right.
enum Pass { DONE, VALUES, SUMS, START };
typedef float RowScores[TILE_K / 2];  // of the two rows of a fragment
#include "common/lib/entmax_levels.cuh"

typedef struct Search Searches[FRAGMENTS];

FN RowScores &rows_of(Scores &s, int m) { return *(RowScores *)&s[m]; }

template <Pass NOW>
FN void take_scores(Scores &s, Searches &x, float unit, float a) {
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
        if constexpr (NOW == START) start_levels(rows_of(s, m), unit, a, x[m]);
        else add_tile<NOW == VALUES>(rows_of(s, m), unit, a, x[m]);
}

// The first keys of a pass are loaded alone; values are loaded while scores are computed, the next
// keys while values are used.
template <Pass NOW>
FN void pass_over(Output &o, Searches &x, const struct Query &query, const struct Attention *p,
                  struct Shared &shared) {
    const struct Block &block = shared.block;
    const u32 k_tile = shared_address(shared.k), v_tile = shared_address(shared.v);
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) clear_sums(x[m]);
    if (NOW == VALUES) clear(o);
    load_tile<TILE_K>(k_tile, block.k, p->k_stride, tile_at(block.list, 0).index * TILE_K, p->n_kv);
#pragma unroll 1
    for (i32 i = 0; i < block.list.count; i++) {
        const struct Tile tile = tile_at(block.list, i);
        const i32 first_k = tile.index * TILE_K;
        Scores s;
        copy_wait<0>();
        __syncthreads();
        if (NOW == VALUES)
            load_tile<TILE_K, PIECES_V>(v_tile, block.v, p->v_stride, first_k, p->n_kv);
        score(s, query, k_tile);
#if WIDE
        give_half(shared.halves, s);
#endif
        copy_wait<0>();
        __syncthreads();  // k is no longer read
#if WIDE
        add_half(s, shared.halves);
#endif
        if (i + 1 < block.list.count) {
            const i32 next_k = tile_at(block.list, i + 1).index * TILE_K;
            load_tile<TILE_K>(k_tile, block.k, p->k_stride, next_k, p->n_kv);
        }
#if WITH_THRESHOLDS
        const bool masked = !tile.full || p->n_kv - first_k < TILE_K;
        struct Seen seen = masked ? seen_by(p, block, tile) : everything();
        keep_chosen(seen, s, p, block, first_k);
        make_logits(s, p, block, first_k);
        hide_rest(s, seen);
#else
        make_logits(s, p, block, first_k);
        if (!tile.full || p->n_kv - first_k < TILE_K) hide_rest(s, seen_by(p, block, tile));
#endif
        take_scores<NOW>(s, x, block.logit.unit, p->alpha_minus_1);
        if (NOW == VALUES) {
            Kept kept;
            draw_tile(kept, p, block.work, first_k);
            drop_tile(s, kept);
        }
        if (NOW == VALUES)
#if WIDE
            add_values(o, v_tile + lane_in_rows() + 16 * first_group(), [&](int m, int n, int i) {
#else
            add_values(o, v_tile + lane_in_rows(), [&](int m, int n, int i) {
#endif
                const float *const w = &s[m][2 * n + i / 2][i % 2 * 2];
                return pack(w[0], w[1]);
            });
    }
    __syncthreads();  // nor are the previous tiles
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
        if (NOW != START) sum_over_quads(x[m]);
}

// The pass that the block needs, over all its rows.
FN Pass agreed(Searches &x, float a, Pass now, i32 passes) {
    Pass wish = DONE;
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) {
        const Pass own = take_step(x[m], a, now, passes);
        wish = own > wish ? own : wish;
    }
    if (__syncthreads_or(wish == SUMS)) return SUMS;
    return __syncthreads_or(wish == VALUES) ? VALUES : DONE;
}

// Computes weights times values, the sums of weights, and lse. Rows without keys have no weights. A
// NaN level makes the whole row NaN.
FN void find_weights(Output &o, float (&lse)[ROWS], float (&sum)[ROWS], const struct Query &query,
                     const struct Attention *p, struct Shared &shared) {
    const float a = p->alpha_minus_1;
    __shared__ Searches parked[PARK_ROWS ? THREADS : 1];
    Searches own, &x = PARK_ROWS ? parked[threadIdx.x] : own;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {  // rows past the end need no weights
        const bool inside = lane_query(shared.block.work) + 8 * r < p->n_q;
        x[r / 2].level[r % 2] = inside ? MINUS_INFINITY : PLUS_INFINITY;
        x[r / 2].p[r % 2] = 0.0f;
    }
    if (shared.block.list.count > 0) {
        pass_over<START>(o, x, query, p, shared);
        Pass now = SUMS;
#pragma unroll 1
        for (i32 passes = 1; now != DONE; passes++) {
            if (now == SUMS) pass_over<SUMS>(o, x, query, p, shared);
            else pass_over<VALUES>(o, x, query, p, shared);
            now = agreed(x, a, now, passes);
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const float level = x[r / 2].level[r % 2];
        lse[r] = level / a, sum[r] = x[r / 2].p[r % 2];
        if (!(level < PLUS_INFINITY)) lse[r] = sum[r] = __int_as_float(0x7fffffff);
    }
}
