// delta for entmax: a launch over tile rows that precedes the main one. Needs:
// backward_products.cuh, backward_load.cuh, entmax_weights.cuh.
#if WITH_THRESHOLDS
// Also needs filter_columns.cuh: keys that were not selected have u = 0.
#endif

// delta = sum(u dp) / sum(u) over the keys of a row, with dp = dout . v. It makes the score
// gradients of a row sum to 0, as they must, because the weights sum to 1 for any scores. A block
// owns one tile row: q and dout stay in shared memory while k and v stream through. Scores are
// transposed as in the main launch; each thread sums over its own keys.
constexpr int WARPS = 4 * GROUPS;
constexpr int MEAN_STAGES = DOUT_STAGES;  // tiles of k and v in flight

struct MeanShared {
    unsigned char k[MEAN_STAGES][K_BYTES], v[MEAN_STAGES][V_BYTES];
    unsigned char q[Q_BYTES], dout[DOUT_BYTES];
    float level[TILE_Q];
#if WITH_THRESHOLDS
    float low[TILE_Q], end[TILE_Q];  // `end` holds integers
#endif
    float sum[WARPS][TILE_Q], mass[WARPS][TILE_Q];  // over a warp's keys
    u64 rows_full;
    u64 k_full[MEAN_STAGES], k_free[MEAN_STAGES], v_full[MEAN_STAGES], v_free[MEAN_STAGES];
    i32 tiles;         // tiles of the row
    i32 word[MEAN_STAGES];  // of the key tile in this stage
};
static_assert(sizeof(struct MeanShared) <= MEAN_MEMORY, "planned memory");

// See shared_memory().
FN struct MeanShared &mean_memory() { return (struct MeanShared &)shared_memory(); }

FN void initialize_mean(struct MeanShared &shared) {
    barrier_init(shared.rows_full, 1);
    for (int i = 0; i < MEAN_STAGES; i++) {
        barrier_init(shared.k_full[i], 1);
        barrier_init(shared.v_full[i], 1);
        barrier_init(shared.k_free[i], GROUPS);
        barrier_init(shared.v_free[i], GROUPS);
    }
    barriers_ready();
}

// Start with the last rows, which are the longest in most masks.
FN i32 row_of_block() { return gridDim.x - 1 - blockIdx.x; }

// The producer thread: loads q, dout and the threshold of the row, then the keys and values of its
// tiles.
FN void load_row(struct MeanShared &shared, const struct Attention &p, const struct Maps &maps) {
    const i32 row = row_of_block(), tile_row = row % p.tile_rows;
    const struct Place at = place_of_row(p, row);
    const struct Place kv = {at.batch, at.head / (p.heads_q / p.heads_kv)};
    const struct Place k = coordinates(p.k_stride, kv), v = coordinates(p.v_stride, kv);
    const Point first = query_point(tile_row * TILE_Q);
    const struct TileList list =
        row_tiles(&p, load_mask(&p, at.batch, at.head), at.batch, at.head, tile_row);
    shared.tiles = list.count;
#if WITH_THRESHOLDS
    arrive_expecting(shared.rows_full, Q_BYTES + DOUT_BYTES + 3 * TILE_Q * 4);
    load_bytes(shared_address(shared.low), lows_of(p) + (i64)row * TILE_Q, TILE_Q * 4,
               shared.rows_full);
    load_bytes(shared_address(shared.end), ends_of(p) + (i64)row * TILE_Q, TILE_Q * 4,
               shared.rows_full);
#else
    arrive_expecting(shared.rows_full, Q_BYTES + DOUT_BYTES + TILE_Q * 4);
#endif
    load_tile<TILE_Q>(shared.q, maps.q, shared.rows_full, first, coordinates(p.q_stride, at));
    load_tile<TILE_Q, SLABS_V>(shared.dout, maps.dout, shared.rows_full, first,
                               coordinates(p.dout_stride, at));
    load_bytes(shared_address(shared.level), workspace(p).lse + (i64)row * TILE_Q, TILE_Q * 4,
               shared.rows_full);
    Ring<MEAN_STAGES> stage;
#pragma unroll 1
    for (i32 i = 0; i < list.count; i++, stage.next()) {
        const struct Tile tile = tile_at(list, i);
        const Point key = key_point(tile.index * TILE_K);
        const bool inside = (tile.index + 1) * TILE_K <= keys_end(p);
        const u32 to = stage.at(), phase = stage.phase() ^ 1;
        wait_asleep(shared.k_free[to], phase);
        shared.word[to] = tile.index | (tile.full && inside ? 0 : MASKED);
        arrive_expecting(shared.k_full[to], K_BYTES);
        load_tile<TILE_K>(shared.k[to], maps.k, shared.k_full[to], key, k);
        wait_asleep(shared.v_free[to], phase);
        arrive_expecting(shared.v_full[to], V_BYTES);
        load_tile<TILE_K, SLABS_V>(shared.v[to], maps.v, shared.v_full[to], key, v);
    }
}

// As for softmax; see EARLY.
constexpr bool MEAN_EARLY = !LONG_LOGITS && (!PAIRWISE_LOGITS || QUERIES <= 64);

// A thread's sums for each of its queries.
struct Mean {
    float sum[OWN], mass[OWN];  // of u dp, and of u
};

FN void begin_mean_dp(Scores &dp, struct MeanShared &shared, const struct Operands &tiles,
                      const Ring<MEAN_STAGES> &stage) {
    wait(shared.v_full[stage.at()], stage.phase());
    begin_scores<STEPS_V>(dp, tiles.k + MEAN_STAGES * TO_V + stage.at() * (V_BYTES >> 4),
                          tiles.q + (Q_BYTES >> 4));
}

// Replaces scores by u.
FN void to_slopes(Scores &s, const struct Attention &p, float unit, const float *level) {
    by_alpha(p.alpha_minus_1, [&](auto kind) {
#pragma unroll
        for (int i = 0; i < QUERIES / 16; i++) {
            const float4 four = row_four(level, i);
            const float own[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                float &x = s[8 * i + j];
                const float of_query = own[j / 4 * 2 + j % 2];
                x = weigh<decltype(kind)::value>(x, unit, of_query, p.alpha_minus_1).u;
            }
        }
    });
}

FN void add_slopes(struct Mean &mean, const Scores &u, const Scores &dp) {
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++) {
        const int own = i / 4 * 2 + i % 2;
        mean.sum[own] = fmaf(u[i], dp[i], mean.sum[own]);
        mean.mass[own] += u[i];
    }
}

// Adds one tile of keys.
FN void add_keys(struct Mean &mean, const struct Attention &p, i32 row,
                 const Ring<MEAN_STAGES> &stage,
                 i32 group) {
    struct MeanShared &shared = mean_memory();
    const struct Operands tiles =
        operands(shared_address(shared.k), shared_address(shared.q), 0, group);
    const u32 at = stage.at();
    const bool leader = threadIdx.x % 128 == 0;
    Scores s, dp;
    wait(shared.k_full[at], stage.phase());
    const i32 word = uniform(shared.word[at]), tile = word & INDEX;
    const struct Step step = {make_opaque(row) % p.tile_rows, row};
    begin_scores<STEPS>(s, tiles.k + at * (K_BYTES >> 4), tiles.q);
    if (MEAN_EARLY) begin_mean_dp(dp, shared, tiles, stage);
    const struct Place place = place_of_row(p, row);
#if WITH_THRESHOLDS
    struct Visible seen = see_all();
#else
    struct Visible seen;
#endif
    struct MaskRow mask_rows;
    if (word & MASKED)
        seen = visible<ByKey>(p, place, first_key(tile, group), first_query(step.word, group),
                              mask_rows, {});
    products_wait<MEAN_EARLY ? 1 : 0>();
    fence_operand(s);
    if (leader) arrive(shared.k_free[at]);
    const struct Logit logit = logit_of(p);
#if WITH_THRESHOLDS
    keep_chosen(seen, s, p, place, shared.low + first_row(group), shared.end + first_row(group),
                first_key(tile, group), first_query(step.word, group));
    bend(s, p, where_of(place, step, p, tile, group));
    apply_mask(s, seen, logit.hidden);
#else
    bend(s, p, where_of(place, step, p, tile, group));
    if (word & MASKED) apply_mask(s, seen, logit.hidden);
#endif
    fence_operand(s);
    to_slopes(s, p, logit.unit, shared.level + first_row(group));
    if (!MEAN_EARLY) begin_mean_dp(dp, shared, tiles, stage);
    products_wait<0>();
    fence_operand(dp);
    if (leader) arrive(shared.v_free[at]);
    if (DROPS) {
        struct Staying<QUERIES / 2> stay;
        draw_by_key(stay, dropout_of(p), first_query(step.word, group) + (i32)threadIdx.x % 4 * 2,
                    first_key(tile, group), place.head, place.batch);
        drop(dp, stay, kept_scale(p));
    }
    add_slopes(mean, s, dp);
}

// Sums over the eight lanes of a warp that hold the same queries.
FN float key_sum(float x) {
#pragma unroll
    for (int by = 4; by < 32; by *= 2) x += __shfl_xor_sync(0xffffffff, x, by);
    return x;
}
FN void store_sums(struct MeanShared &shared, const struct Mean &mean, i32 group) {
    const i32 warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const float sum = key_sum(mean.sum[i]), mass = key_sum(mean.mass[i]);
        const i32 query = first_row(group) + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (lane < 4) shared.sum[warp][query] = sum, shared.mass[warp][query] = mass;
    }
}

// Rows without keys get delta 0. A NaN threshold gives NaN.
FN void store_delta(const struct MeanShared &shared, const struct Attention &p, i32 row) {
    const i32 query = threadIdx.x - 128;
    if (query >= TILE_Q) return;
    float sum = 0.0f, mass = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        // Each warpgroup has its own queries
        if (!SPLIT_KEYS && i / 4 != query / QUERIES) continue;
        sum += shared.sum[i][query];
        mass += shared.mass[i][query];
    }
    const i32 place = place_in_rows(query);
    const float level = shared.level[place];
    const float delta = mass > 0.0f ? sum / mass : level == level ? 0.0f : level;
    workspace(p).delta[(i64)row * TILE_Q + place] = delta;
}

FN void find_mean(struct MeanShared &shared, const struct Attention &p, i32 group) {
    const i32 row = row_of_block();
    Ring<MEAN_STAGES> stage;
    struct Mean mean = {};
    wait(shared.rows_full, 0);
#pragma unroll 1
    for (i32 left = uniform(shared.tiles); left > 0; left--, stage.next())
        add_keys(mean, p, row, stage, group);
    store_sums(shared, mean, group);
    sync_both();
    store_delta(shared, p, row);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_backward_mean(const __grid_constant__ struct Attention p,
                        const __grid_constant__ struct Maps maps) {
    struct MeanShared &shared = *(struct MeanShared *)memory;
    if (threadIdx.x == 0) initialize_mean(shared);
    __syncthreads();
    const i32 group = uniform(threadIdx.x / 128);
    if (group == 0) {
        setmaxnreg_dec<COPY_REGISTERS>();
        if (uniform(threadIdx.x / 32) == 0 && elected()) load_row(shared, p, maps);
    } else {
        setmaxnreg_inc<COMPUTE_REGISTERS>();
        find_mean(shared, p, group - 1);
    }
}
