// dk and dv of a tile column, and its contribution to dq. Needs: backward_rows.cuh,
// backward_scores.cuh, backward_store.cuh.

#include "sm80/lib/backward_turns.cuh"

struct Shared {
    unsigned char k[TILE_K * PITCH], v[TILE_K * PITCH];
    unsigned char q[TILE_Q * PITCH], dout[TILE_Q * PITCH];
    unsigned char ds[ONE_PLACE ? 16 : TILE_K * DS_PITCH];
    float lse[TILE_Q], delta[TILE_Q];
};
static_assert(sizeof(struct Shared) <= MEMORY, "see maskc/plan/families/sm80_backward.py");
extern __shared__ __align__(128) unsigned char memory[];
FN struct Shared &shared_memory() { return *(struct Shared *)memory; }

// Index of the tile row of dq among all heads and sequences.
FN i64 row_of(const struct Attention &p, i32 batch, i32 head, i32 tile) {
    return ((i64)batch * p.heads_q + head) * p.tile_rows + tile;
}

// Starts to copy lse and delta of a tile row.
FN void load_rows(struct Shared &shared, const struct Attention &p, i64 row) {
    const struct Workspace w = workspace(p);
    const i32 i = threadIdx.x % (TILE_Q / 4);
    if (threadIdx.x < TILE_Q / 4)
        copy_async(shared_address(shared.lse + 4 * i), w.lse + row * TILE_Q + 4 * i, true);
    else if (threadIdx.x < TILE_Q / 2)
        copy_async(shared_address(shared.delta + 4 * i), w.delta + row * TILE_Q + 4 * i, true);
    copy_commit();
}
FN void load_queries(struct Shared &shared, const struct Attention &p, i32 batch,
                     const struct Turn &turn) {
    const i32 tile = tile_at(turn.list, turn.i).index;
    load_tile<TILE_Q>(shared_address(shared.q), head_rows(p.q, p.q_stride, batch, turn.head),
                      p.q_stride, tile * TILE_Q, p.n_q);
    load_tile<TILE_Q, PIECES_V>(shared_address(shared.dout),
                      head_rows(p.dout, p.dout_stride, batch, turn.head), p.dout_stride,
                      tile * TILE_Q, p.n_q);
    load_rows(shared, p, row_of(p, batch, turn.head, tile));
}

// Adds a warp's part of ds k to the tile of dq.
FN void add_to_dq(const struct Shared &shared, u32 ds, const struct Attention &p, i64 row) {
    const i32 warp = threadIdx.x / 32, fragment = warp % ROW_WARPS, share = warp / ROW_WARPS;
    Share x;
    dq_products(x, ds, shared_address(shared.k), fragment, share);
    float *const to = workspace(p).dq + row * TILE_FLOATS;
    constexpr int COLUMNS = HEAD_DIM / 8 / SHARES;
#pragma unroll
    for (int c = 0; c < COLUMNS; c++)
        add_four(to + dq_place(fragment, share * COLUMNS + c, threadIdx.x % 32, 0), x[0][c]);
}

// Stores the gradients of scores of a step, as the operand of dq.
FN void put_gradients(unsigned char *to, const Pairs &ds, i32 step) {
    const i32 lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16 * FRAGMENTS;
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
        for (int n = 0; n < STEP_Q / 8; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u32 place = ds_place(own + 16 * m + lane / 4 + 8 * r, step / 8 + n);
                *((u32 *)(to + place) + lane % 4) = ds[m][n][r];
            }
}

// Computes one step of STEP_Q queries. Gradients of scores go to `to`, if it has room for them.
template <bool KEYS, bool VALUES>
FN float take_step(Gradient &dk, Gradient &dv, Pairs &ds, unsigned char *to, struct Shared &shared,
                   const struct Attention &p, const struct Logit &logit, struct Place at, i32 step,
                   i32 first_q, i32 first_k, i32 full) {
    const i32 lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16 * FRAGMENTS;
    const u32 q = shared_address(shared.q) + step * PITCH;
    const u32 dout = shared_address(shared.dout) + step * PITCH;
#if WITH_THRESHOLDS
    const bool tested = !full || p.n_kv - first_k < TILE_K;
    constexpr bool masked = true;
#else
    const bool masked = !full || p.n_kv - first_k < TILE_K;
#endif
    const i32 query = first_q + step + lane % 4 * 2, key = first_k + own + lane / 4;
    const struct Steps steps = steps_from(p, at.batch, query, key);
    Scores s, dp;
    Weights<FRAGMENTS, STEP_Q / 8> weights;
#if WITH_THRESHOLDS
    weights.seen = ~0u;
    if (tested)
#else
    if (masked)  // first, because long formulas need the registers of scores
#endif
    {
        weights.seen = seen_by<true, FRAGMENTS, STEP_Q / 8>(p, at, query, key, full);
        if (!__any_sync(0xffffffff, weights.seen)) {  // uniform in a warp
#pragma unroll
            for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
                for (int n = 0; n < STEP_Q / 8; n++) ds[m][n][0] = ds[m][n][1] = 0;
            if (to) put_gradients(to, ds, step);
            return 0.0f;
        }
    }
    products(s, shared_address(shared.k) + own * PITCH + lane_in_rows(), q + lane_in_halves());
#if WITH_THRESHOLDS
    keep_chosen<true>(weights.seen, s, p, at, query, key);
#endif
    if (KEYS)
        products(dp, shared_address(shared.v) + own * PITCH + lane_in_rows(),
                 dout + lane_in_halves());
    const auto of_query = [&](const float *from) {
        return [=](int, int n, int e) { return from[step + 8 * n + lane % 4 * 2 + e % 2]; };
    };
    weigh_scores<true>(s, weights, p, logit, masked,
                       placed<true>(of_query(shared.lse), query, key, at, steps));
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++) {
        struct Staying<STEP_Q / 2> stay;
        draw_by_key(stay, dropout_of(p), query, key + 16 * m, at.head, at.batch);
        if (KEYS) drop(*(float (*)[STEP_Q / 2])&dp[m], stay, kept_scale(p));
        if (VALUES) drop_pairs(*(u32 (*)[STEP_Q / 4])&weights.p[m], stay);
    }
    if (VALUES) add_products(dv, weights.p, dout + lane_in_rows());
    if (!KEYS) return 0.0f;
    const float total =
        to_gradients<true>(ds, dp, s, weights, steps, masked, of_query(shared.delta));
    add_products(dk, ds, q + lane_in_rows());
    if (to) put_gradients(to, ds, step);
    return total;
}
template <bool KEYS, bool VALUES>
FN void pass_over(struct Shared &shared, const struct Attention &p, const struct Column &column) {
    constexpr bool ADDS = KEYS && !DETERMINISTIC;  // to dq
    const i32 first_k = column.tile * TILE_K, batch = column.keys.batch;
    unsigned char *const of_ds = ONE_PLACE ? shared.dout : shared.ds;
    Gradient dk, dv;
    if (KEYS) clear(dk);
    if (VALUES) clear(dv);
    struct Turn turn = first_turn(p, column);
    bool more = find_tile(turn, p, column);
    load_tile<TILE_K>(shared_address(shared.k),
                      head_rows(p.k, p.k_stride, batch, column.keys.head), p.k_stride, first_k,
                      p.n_kv);
    if (KEYS)
        load_tile<TILE_K, PIECES_V>(shared_address(shared.v),
                          head_rows(p.v, p.v_stride, batch, column.keys.head), p.v_stride, first_k,
                          p.n_kv);
    if (more) load_queries(shared, p, batch, turn);
#pragma unroll 1
    while (more) {
        const struct Place at = {batch, turn.head};
        const struct Tile tile = tile_at(turn.list, turn.i);
        const struct Logit logit = logit_of(&p, at.head);
        turn.i++;
        more = find_tile(turn, p, column);
        float total = 0.0f;

        copy_wait<0>();   // queries have arrived, and
        __syncthreads();  // the previous gradients are no longer read
        Pairs ds;
#pragma unroll 1
        for (int step = 0; step < TILE_Q; step += STEP_Q) {
            total += take_step<KEYS, VALUES>(dk, dv, ds, ADDS && !ONE_PLACE ? of_ds : nullptr,
                                             shared, p, logit, at, step, tile.index * TILE_Q,
                                             first_k, tile.full);
        }
        __syncthreads();  // gradients are complete, and queries no longer read
        if (ADDS && ONE_PLACE) {
            put_gradients(of_ds, ds, 0);
            __syncthreads();
        }
        if (more && !ONE_PLACE) load_queries(shared, p, batch, turn);
        const i64 row = row_of(p, batch, at.head, tile.index);
        if (ADDS) add_to_dq(shared, shared_address(of_ds), p, row);
        if (ONE_PLACE) {
            if (ADDS) __syncthreads();
            if (more) load_queries(shared, p, batch, turn);
        }
        if (HEAD_GRADIENT && ADDS && p.dslopes) {
            total = warp_sum(total);
            if (threadIdx.x % 32 == 0) atomicAdd(p.dslopes + at.head, total * p.spacing);
        }
    }
    copy_wait<0>();
    __syncthreads();  // keys are no longer read
    const i32 own = threadIdx.x / 32 * 16 * FRAGMENTS;
    if (KEYS)
        store_rows(dk, shared.k + own * PITCH, p.dk, p.dk_stride, column.keys, first_k + own,
                   p.n_kv, p.scale, p.accumulates);
    if (VALUES)
        store_rows<PIECES_V>(dv, shared.v + own * PITCH, p.dv, p.dv_stride, column.keys,
                             first_k + own, p.n_kv, kept_scale(p), p.accumulates);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS)
attention_backward(const __grid_constant__ struct Attention p) {
    struct Shared &shared = shared_memory();
    const struct Column column = column_of(p, blockIdx.x);
    if constexpr (!DIVIDED) pass_over<true, true>(shared, p, column);
    else if (column.of_values) pass_over<false, true>(shared, p, column);
    else pass_over<true, false>(shared, p, column);
}
