// Passes over tile rows: the separate dq launch and, with entmax, delta. Needs: backward_keys.cuh.

constexpr int STEP_K = 32;               // keys whose scores are in registers at a time
constexpr int OWN_K = TILE_K / SHARES;   // keys of a tile per warp
static_assert(OWN_K % STEP_K == 0, "steps are whole");
typedef float RowScores[1][STEP_K / 8][4];

// Per-row values of a thread's two rows.
struct Rows {
    float lse[2], delta[2];
    float sum[2], mass[2];  // of u dp and of u so far
};

#include "sm80/lib/backward_line.cuh"

// Processes the warp's own keys of a tile.
template <bool MEAN>
FN float take_tile(float (&dq)[1][HEAD_DIM / 8][4], struct Rows &rows, const struct Shared &shared,
                   const struct Attention &p, const struct Logit &logit, const struct Line &line,
                   i32 first_k, i32 full) {
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i32 fragment = warp % ROW_WARPS, own = warp / ROW_WARPS * OWN_K;
#if WITH_THRESHOLDS
    const bool tested = !full || p.n_kv - first_k < TILE_K;
    constexpr bool masked = true;
#else
    const bool masked = !full || p.n_kv - first_k < TILE_K;
#endif
    const i32 query = line.tile * TILE_Q + 16 * fragment + lane / 4;
    float total = 0.0f;
#pragma unroll 1
    for (int step = own; step < own + OWN_K; step += STEP_K) {
        const u32 k = shared_address(shared.k) + step * PITCH;
        const u32 v = shared_address(shared.v) + step * PITCH;
        const i32 key = first_k + step + lane % 4 * 2;
        const struct Steps steps = steps_from(p, line.at.batch, query, key);
        RowScores s, dp;
        Weights<1, STEP_K / 8> weights;
#if WITH_THRESHOLDS
        weights.seen = ~0u;
        if (tested)
#else
        if (masked)
#endif
        {
            weights.seen = seen_by<false, 1, STEP_K / 8>(p, line.at, query, key, full);
            if (!__any_sync(0xffffffff, weights.seen)) continue;
        }
        products(s, shared_address(shared.q) + fragment * 16 * PITCH + lane_in_rows(),
                 k + lane_in_halves());
#if WITH_THRESHOLDS
        keep_chosen<false>(weights.seen, s, p, line.at, query, key);
#endif
        products(dp, shared_address(shared.dout) + fragment * 16 * PITCH + lane_in_rows(),
                 v + lane_in_halves());
        struct Staying<STEP_K / 2> stay;
        draw_by_query(stay, dropout_of(p), query, key, line.at.head, line.at.batch);
        drop(*(float (*)[STEP_K / 2])&dp[0], stay, kept_scale(p));
        const auto of_row = [&](int, int, int e) { return rows.lse[e / 2]; };
        weigh_scores<false>(s, weights, p, logit, masked,
                            placed<false>(of_row, query, key, line.at, steps));
        if constexpr (MEAN) {
#pragma unroll
            for (int n = 0; n < STEP_K / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const bool live =
                        !masked || weights.seen >> bit_of<STEP_K / 8>(0, n, e) & 1;
                    rows.sum[e / 2] += live ? s[0][n][e] * dp[0][n][e] : 0.0f;
                    rows.mass[e / 2] += s[0][n][e];
                }
        } else {
            u32 ds[1][STEP_K / 8][2];
            total += to_gradients<false>(ds, dp, s, weights, steps, masked,
                                         [&](int, int, int e) { return rows.delta[e / 2]; });
            add_products(dq, ds, k + lane_in_rows());
        }
    }
    return total;
}

template <bool MEAN>
FN void pass_over_keys(struct Shared &shared, const struct Attention &p, const struct Line &line) {
    const i32 lane = threadIdx.x % 32, fragment = threadIdx.x / 32 % ROW_WARPS;
    const i32 batch = line.at.batch, kv_head = line.at.head / (p.heads_q / p.heads_kv);
    const i64 row = row_of(p, batch, line.at.head, line.tile);
    const struct Workspace w = workspace(p);
    const struct Logit logit = logit_of(&p, line.at.head);
    const struct TileList list = row_tiles(&p, load_mask(&p, batch, line.at.head), batch,
                                           line.at.head, line.tile);
    load_tile<TILE_Q>(shared_address(shared.q), head_rows(p.q, p.q_stride, batch, line.at.head),
                      p.q_stride, line.tile * TILE_Q, p.n_q);
    load_tile<TILE_Q, PIECES_V>(shared_address(shared.dout),
                      head_rows(p.dout, p.dout_stride, batch, line.at.head), p.dout_stride,
                      line.tile * TILE_Q, p.n_q);
    struct Rows rows = {};
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i64 place = row * TILE_Q + 16 * fragment + lane / 4 + 8 * r;
        rows.lse[r] = w.lse[place], rows.delta[r] = w.delta[place];
    }
    float dq[1][HEAD_DIM / 8][4], total = 0.0f;
    if (!MEAN) clear(dq);
#pragma unroll 1
    for (i32 i = 0; i < list.count; i++) {
        const struct Tile tile = tile_at(list, i);
        const i32 first_k = tile.index * TILE_K;
        __syncthreads();  // the previous keys are no longer read
        load_tile<TILE_K>(shared_address(shared.k), head_rows(p.k, p.k_stride, batch, kv_head),
                          p.k_stride, first_k, p.n_kv);
        load_tile<TILE_K, PIECES_V>(shared_address(shared.v),
                                    head_rows(p.v, p.v_stride, batch, kv_head), p.v_stride,
                                    first_k, p.n_kv);
        copy_wait<0>();
        __syncthreads();
        total += take_tile<MEAN>(dq, rows, shared, p, logit, line, first_k, tile.full);
    }
    copy_wait<0>();
    __syncthreads();
    // Warps with other keys pass their sums to the warps with the first keys.
    float *const handed = (float *)shared.k + threadIdx.x % (32 * ROW_WARPS);
    const bool first = threadIdx.x < 32 * ROW_WARPS;
    constexpr int STRIDE = 32 * ROW_WARPS;
    if constexpr (MEAN) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (!first) handed[2 * r * STRIDE] = rows.sum[r];
            if (!first) handed[(2 * r + 1) * STRIDE] = rows.mass[r];
        }
        if (SHARES > 1) __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (!first) continue;
            if (SHARES > 1) rows.sum[r] += handed[2 * r * STRIDE];
            if (SHARES > 1) rows.mass[r] += handed[(2 * r + 1) * STRIDE];
            const float sum = quad_sum(rows.sum[r]), mass = quad_sum(rows.mass[r]);
            const i64 place = row * TILE_Q + 16 * fragment + lane / 4 + 8 * r;
            if (lane % 4 == 0) w.delta[place] = mass > 0.0f ? sum / mass : 0.0f;
        }
    } else {
        if constexpr (SHARES > 1) {
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (!first) handed[(4 * n + e) * STRIDE] = dq[0][n][e];
            __syncthreads();
#pragma unroll
            for (int n = 0; n < HEAD_DIM / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (first) dq[0][n][e] += handed[(4 * n + e) * STRIDE];
        }
        if (first)
            store_rows(dq, shared.q + fragment * 16 * PITCH, p.dq, p.dq_stride, line.at,
                       line.tile * TILE_Q + 16 * fragment, p.n_q, p.scale, p.accumulates);
        if (!HEAD_GRADIENT) return;
        total = block_sum<THREADS>(total);
        if (threadIdx.x == 0) w.sums[row * TILE_Q + SLOPE_SUM] = total * p.spacing;
    }
}

#if WITH_ENTMAX
// delta = sum(u dp) / sum(u) over the keys of a row, with dp = dout . v. It makes the score
// gradients of a row sum to 0, as they must, because the weights sum to 1 for any scores.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_backward_mean(const __grid_constant__ struct Attention p) {
    pass_over_keys<true>(shared_memory(), p, line_of(p, blockIdx.x));
}
#endif

#if DETERMINISTIC
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_backward_rows(const __grid_constant__ struct Attention p) {
    pass_over_keys<false>(shared_memory(), p, line_of(p, blockIdx.x));
}
#endif
