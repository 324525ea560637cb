// alpha-entmax instead of softmax: repeated passes over a row of tiles until its level is found.
// Needs: softmax.cuh, tile_logits. Gives: find_levels.

#include "simt/lib/powers.cuh"

#include "common/lib/entmax_weights.cuh"

constexpr i32 MAX_PASSES = 60;  // limit, in case rounding keeps a level from settling

// A NaN score makes the level NaN.
FN float max_or_nan(float x, float y) { return x != x || y != y ? x + y : fmaxf(x, y); }
FN float row_max_or_nan(float x) {
#pragma unroll
    for (int by = SIDE / 2; by > 0; by /= 2)
        x = max_or_nan(x, __shfl_xor_sync(0xffffffff, x, by));
    return x;
}

// Newton's step for the 1/a-norm of the weights. It decreases with the level and is convex, so
// steps from below do not pass the level at which the weights sum to 1. 0 if there are no weights.
FN float newton_step(float a, float p, float u) {
    return p > 0.0f ? p * -expm1f(-a * logf(p)) / u : 0.0f;
}

// Starts from the level of the largest score alone, whose weight is 1. Leaves in `rows`: lse, which
// is level / a, as the peak, and the sum of the weights.
FN void find_levels(struct RowState &rows, float (&o)[STRIPS][ROWS][4], const struct Attention &p,
                    struct Shared &shared, const struct Head &h, i32 first_q) {
    const float a = p.alpha_minus_1;
    float level[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) level[r] = MINUS_INFINITY;
#pragma unroll 1
    for (i32 i = 0; i < h.list.count; i++) {
        float x[ROWS][COLS];
        tile_logits(x, p, shared, h, tile_at(h.list, i), first_q);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLS; c++) level[r] = max_or_nan(level[r], x[r][c]);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        level[r] = a * row_max_or_nan(level[r]);
        if (level[r] == MINUS_INFINITY) level[r] = PLUS_INFINITY;  // no keys: no weights
    }
    bool last = false;  // levels are found; this pass adds values
#pragma unroll 1
    for (i32 pass = 0;; pass++) {
        float sum[ROWS] = {}, sum_u[ROWS] = {};
#pragma unroll 1
        for (i32 i = 0; i < h.list.count; i++) {
            const struct Tile tile = tile_at(h.list, i);
            float x[ROWS][COLS];
            tile_logits(x, p, shared, h, tile, first_q);
            by_alpha(a, [&](auto kind) {
#pragma unroll
                for (int r = 0; r < ROWS; r++)
#pragma unroll
                    for (int c = 0; c < COLS; c++) {
                        const struct Weight w =
                            weigh<decltype(kind)::value>(x[r][c], a, level[r], a);
                        sum[r] += w.p, sum_u[r] += w.u, x[r][c] = w.p;
                    }
            });
            if (!last) continue;
#if WITH_DROPOUT
            const struct Place at = row_place(p);
            const i32 first_k = tile.index * TILE_K;
            drop(x, draw<ROWS, COLS, false>(p, at.batch, at.head, first_q, first_k),
                 p.dropout_scale);
#endif
            keep_weights(shared, x);
#pragma unroll
            for (int j = 0; j < STRIPS; j++)
                add_strip<TILE_K, HEAD_DIM_V>(o[j], shared, h.v, tile.index * TILE_K, j * STRIP);
        }
        if (last) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const bool number = level[r] == level[r];
                rows.peak[r] = level[r] / a, rows.sum[r] = number ? sum[r] : level[r];
            }
            return;
        }
        bool far = false;
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float step = newton_step(a, row_sum(sum[r]), row_sum(sum_u[r]));
            level[r] += step;
            far |= fabsf(step) > 2e-7f * fmaxf(fabsf(level[r]), a);
        }
        last = !__syncthreads_or(far) || pass == MAX_PASSES;
    }
}
