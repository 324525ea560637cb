// Separate dq launch: one block per tile row computes dq, so that nothing is accumulated in memory.
// The main launch then computes dk and dv only. For one warpgroup and square tiles.
// spec.schedule.row_bytes, spec.schedule.keep_rows.

// ---------------------------------------------------------------- gradients of queries

namespace by_rows {

// KEEP_ROWS: a warp's rows of q and dout are in registers, so their slot is free at once. Otherwise
// two slots alternate.
constexpr int ROW_PLACES = KEEP_ROWS ? 1 : 2;
static_assert(ONE_WARPGROUP && TILE_Q == 64 && TILE_K == 64 && QUERIES == 64, "one kind of scores");

// A tile row of a head.
struct alignas(16) Row {
    i32 number;  // index among the tile rows of all heads
    i32 tile, batch, head;
};

// Shared memory of a block. maskc/plan/families/sm90a_backward.py plans its size.
struct Shared {
    unsigned char q[ROW_PLACES][Q_BYTES], dout[ROW_PLACES][Q_BYTES], out[ROW_PLACES][Q_BYTES];
    unsigned char k[STAGES][K_BYTES], v[STAGES][K_BYTES];
    u64 row_full[ROW_PLACES], row_free[ROW_PLACES], full[STAGES], free[STAGES];
    struct Row row[2];  // the current row and the next one
    i32 count[2];       // number of tiles in these rows
    i32 word[STAGES];   // word of the tile in this stage
};
static_assert(sizeof(struct Shared) <= ROW_MEMORY, "planned memory");
FN struct Shared &shared_memory() {
    u32 address;
    asm volatile("mov.u32 %0, memory;" : "=r"(address));
    return *(struct Shared *)__cvta_shared_to_generic(address);
}

FN struct Row row_of(const struct Attention &p, i32 number) {
    const struct Place at = place_of_row(p, number);
    return {number, number % p.tile_rows, at.batch, at.head};
}
FN struct Row row_in(u32 at) {
    const int4 row = *(const int4 *)&by_rows::shared_memory().row[at];
    return {uniform(row.x), uniform(row.y), uniform(row.z), uniform(row.w)};
}
FN struct Place place_in(const struct Row &row) { return {row.batch, row.head}; }

FN void initialize(struct Shared &shared) {
    constexpr int WARPS = 4;  // that compute
    for (int i = 0; i < ROW_PLACES; i++) {
        barrier_init(shared.row_full[i], 1);
        barrier_init(shared.row_free[i], WARPS);
    }
    for (int i = 0; i < STAGES; i++) {
        barrier_init(shared.full[i], 1);
        barrier_init(shared.free[i], WARPS);
    }
    barriers_ready();
}

// The producer thread. A block takes every gridDim.x-th tile row, and ends with a row of negative
// index.
FN void load_rows(struct Shared &shared, const struct Attention &p, const struct Maps &maps) {
    const i32 rows = p.batch * p.heads_q * p.tile_rows;
    Ring<STAGES> stage;
    Ring<ROW_PLACES> place;
    Ring<2> known;
#pragma unroll 1
    for (i32 number = blockIdx.x;; number += gridDim.x, place.next(), known.next()) {
        const u32 own = place.at(), info = known.at();
        u64 &full = shared.row_full[own];
        if (number >= rows) {
            wait_asleep(shared.row_free[own], place.phase() ^ 1);
            shared.row[info].number = -1;
            arrive(full);
            return;
        }
        const struct Row row = row_of(p, number);
        const struct Place at_q = place_in(row);
        const struct Place at_k = {row.batch, row.head / (p.heads_q / p.heads_kv)};
        const struct Place q = coordinates(p.q_stride, at_q), k = coordinates(p.k_stride, at_k);
        const struct Place v = coordinates(p.v_stride, at_k);
        const struct Place out = coordinates(p.out_stride, at_q);
        const struct Place dout = coordinates(p.dout_stride, at_q);
        const struct TileList list = row_tiles(&p, load_mask(&p, row.batch, row.head), row.batch,
                                               row.head, row.tile);
        wait_asleep(shared.row_free[own], place.phase() ^ 1);
        shared.row[info] = row;
        shared.count[info] = list.count;
        const Point first = query_point(row.tile * TILE_Q);
        arrive_expecting(full, 3 * Q_BYTES);
        load_tile<TILE_Q>(shared.q[own], maps.q, full, first, q);
        load_tile<TILE_Q>(shared.dout[own], maps.dout, full, first, dout);
        load_tile<TILE_Q>(shared.out[own], maps.out, full, first, out);
#pragma unroll 1
        for (i32 i = 0; i < list.count; i++, stage.next()) {
            const struct Tile tile = tile_at(list, i);
            const bool inside = (tile.index + 1) * TILE_K <= p.n_kv;
            const u32 at = stage.at();
            wait_asleep(shared.free[at], stage.phase() ^ 1);
            shared.word[at] = tile.index | (tile.full && inside ? 0 : MASKED);
            arrive_expecting(shared.full[at], 2 * K_BYTES);
            const Point key = key_point(tile.index * TILE_K);
            load_tile<TILE_K>(shared.k[at], maps.k, shared.full[at], key, k);
            load_tile<TILE_K>(shared.v[at], maps.v, shared.full[at], key, v);
        }
    }
}

// Rows of q or dout as the A operand.
struct Rows {
    u64 tile;
    u32 fragment[KEEP_ROWS ? STEPS * 4 : 4];
};
struct Known {
    float level[2];  // lse times log2(e); infinite past the end and without keys
    float delta[2];
};

// Loads 16 columns of a warp's rows with ldmatrix.
FN void take_rows(u32 *x, const unsigned char *tile, int step) {
    const u32 thread = threadIdx.x % 128, lane = thread % 32, row = thread / 32 * 16 + lane % 16;
    load_matrices(x[0], x[1], x[2], x[3], shared_address(tile) + step / 4 * Q_SLAB
                                              + swizzled(row, step % 4 * 2 + lane / 16));
}
FN void free_row(struct Shared &shared, u32 place) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(shared.row_free[place]);
}
FN float both(u32 a, u32 b) {
    const float2 x = unpack(a), y = unpack(b);
    return fmaf(x.x, y.x, x.y * y.y);
}
// The thread's first query within a tile row; its second one is 8 further on.
FN i32 own_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }

FN struct Visible seen_in(const struct Attention &p, u32 info, i32 word) {
    const struct Row row = row_in(info);
    struct MaskRow mask_rows;
    return visible<ByQuery>(p, place_in(row), row.tile * TILE_Q + own_row(),
                            (word & INDEX) * TILE_K, mask_rows, {});
}

FN struct Known take_row(struct Rows &q, struct Rows &dout, struct Shared &shared, u32 place,
                         const struct Attention &p, const struct Row &row) {
    struct Known known = {};
    float lse[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 query = row.tile * TILE_Q + own_row() + 8 * r;
        const float *const at = p.lse + row_offset(p.lse_stride, place_in(row), query);
        lse[r] = query < p.n_q ? __ldg(at) : MINUS_INFINITY;
    }
    q.tile = along_columns(shared_address(shared.q[place]));
    dout.tile = along_columns(shared_address(shared.dout[place]));
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        u32 out[4], *const own = dout.fragment + (KEEP_ROWS ? 4 * i : 0);
        if (KEEP_ROWS) take_rows(q.fragment + 4 * i, shared.q[place], i);
        take_rows(own, shared.dout[place], i);
        take_rows(out, shared.out[place], i);
#pragma unroll
        for (int j = 0; j < 4; j++) known.delta[j % 2] += both(out[j], own[j]);
    }
    if (KEEP_ROWS) free_row(shared, place);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool dead = lse[r] == MINUS_INFINITY;
        const float delta = quad_sum(known.delta[r]);
        known.delta[r] = dead ? 0.0f : delta;
        known.level[r] = dead ? PLUS_INFINITY : lse[r] * LOG2E;
        if (threadIdx.x % 4 == 0)
            leave_row(p, row.number, own_row() + 8 * r, lse[r], known.delta[r]);
    }
    return known;
}

// Issues s = q k^T, or dp = dout v^T.
FN void begin_product(Scores &s, struct Rows &rows, u64 tile) {
    if (KEEP_ROWS) fence_operand(rows.fragment);
    fence_operand(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < STEPS; i++) {
        const u64 step = tile + column_step(i, K_SLAB);
        if (KEEP_ROWS) multiply_kept_scores(s, rows.fragment + 4 * i, step, i > 0);
        else multiply_scores(s, rows.tile + column_step(i, Q_SLAB), step, i > 0);
    }
    products_commit();
}

// Maps a thread's score elements to pairs; see logit.cuh.
struct Where {
    u32 info;  // slot of the tile row in `Shared::row`
    i32 word;
    FN i32 first_query() const { return row_in(info).tile * TILE_Q + own_row(); }
    FN i32 first_key() const { return (word & INDEX) * TILE_K + threadIdx.x % 4 * 2; }
    FN i32 query(const struct Attention &p, int i) const {
        return query_token(p, batch(), mask_row(p, first_query() + i / 2 % 2 * 8));
    }
    FN i32 key(const struct Attention &p, int i) const {
        return key_token(p, batch(), first_key() + i / 4 * 8 + i % 2);
    }
    FN float q_minus_k(const struct Attention &p, int i) const {
        const struct Steps steps = steps_from(p, batch(), first_query(), first_key());
        return steps.at(i / 2 % 2 * 8, i / 4 * 8 + i % 2);
    }
    FN i32 head(int) const { return row_in(info).head; }
    FN i32 batch() const { return row_in(info).batch; }
};

// Turns the scores of a tile into weights times the derivatives of logits.
FN void weigh(Scores &s, const struct Visible &seen, const struct Where &where,
              const struct Known &known, const struct Attention &p) {
#if WITH_SCORE
    const float unit = LOG2E;
#else
    const float unit = score_unit(p);
#endif
    const float sharpness = sharpness_of(p);
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++) {
        const float half = tanh_halfway(s[i], sharpness), level = known.level[i / 2 % 2];
        s[i] = fast_exp2(fmaf(tanh_logit(half, p, where, i), unit, -level))
             * tanh_slope(half, p, where, i);
    }
    if (!(where.word & MASKED)) return;
#pragma unroll
    for (int i = 0; i < QUERIES / 2; i++)
        if (!(word_of(seen, i / 2 % 2, 0) & 1u << (i / 4 * 2 + i % 2))) s[i] = 0.0f;
}

FN u32 sum_of_pairs(u32 a, u32 b) {
    const float2 x = unpack(a), y = unpack(b);
    return pack(x.x + y.x, x.y + y.y);
}

// Stores a tile row of dq.
FN void store_dq(const Gradient &dq, const struct Attention &p, const struct Row &row) {
    const i32 odd = threadIdx.x % 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 token = row.tile * TILE_Q + own_row() + 8 * r;
        u32 *const line = (u32 *)p.dq + row_offset(p.dq_stride, place_in(row), token) / 2
                          + threadIdx.x % 4 / 2 * 2;
#pragma unroll
        for (int i = 0; i < PIECES; i += 2) {
            const float *const x = dq + 4 * i + 2 * r;
            uint2 both = traded_halves(x, x + 4, p.scale);
            if (token >= p.n_q) continue;
            if (PADDED && i + odd >= PIECES_QK) continue;
            uint2 *const to = (uint2 *)(line + 4 * (i + odd));
            if (p.accumulates)
                both = make_uint2(sum_of_pairs(both.x, to->x), sum_of_pairs(both.y, to->y));
            *to = both;
        }
    }
}

// Whether to evaluate the mask before the WGMMAs, because the code after them needs the registers.
constexpr bool EARLY_LOOK = MASK_EARLY || LONG_LOGITS;

FN void compute(struct Shared &shared, const struct Attention &p) {
    Ring<STAGES> stage;
    Ring<2> info;
#pragma unroll 1
    for (Ring<ROW_PLACES> place;; place.next(), info.next()) {
        const u32 own = place.at();
        wait(shared.row_full[own], place.phase());
        const i32 count = uniform(shared.count[info.at()]);
        if (row_in(info.at()).number < 0) break;
        struct Rows q, dout;
        const struct Known known = take_row(q, dout, shared, own, p, row_in(info.at()));
        Gradient dq;
        clear(dq);
#pragma unroll 1
        for (i32 left = count; left > 0; left--, stage.next()) {
            const u32 at = stage.at(), step = at * (K_BYTES >> 4);
            const u32 k = shared_address(by_rows::shared_memory().k[0]);
            const u64 tile = along_columns(k) + step;
            Scores s, dp;
            Pairs ds;
            wait(shared.full[at], stage.phase());
            const i32 word = uniform(shared.word[at]);
            struct Visible seen = {};
            if (EARLY_LOOK && word & MASKED) seen = seen_in(p, info.at(), word);
            begin_product(s, q, tile);
            begin_product(dp, dout, tile + (STAGES * K_BYTES >> 4));
            if (!EARLY_LOOK && word & MASKED) seen = seen_in(p, info.at(), word);
            products_wait<1>();
            fence_operand(s);
            weigh(s, seen, {info.at(), word}, known, p);
            products_wait<0>();
            fence_operand(dp);
#pragma unroll
            for (int i = 0; i < QUERIES / 4; i++) {
                const float base = known.delta[i % 2];
                ds[i] = pack(s[2 * i] * (dp[2 * i] - base), s[2 * i + 1] * (dp[2 * i + 1] - base));
            }
            begin_gradient(dq, ds, along_tokens(k, K_SLAB) + step);
            products_wait<0>();
            fence_operand(dq);
            fence_operand(ds);
            if (KEEP_ROWS) fence_operand(q.fragment), fence_operand(dout.fragment);
            if (threadIdx.x % 32 == 0) arrive(shared.free[at]);
        }
        const struct Row row = row_in(info.at());  // before the slot may be overwritten
        if (!KEEP_ROWS) free_row(shared, own);
        if (count > 0 || !p.accumulates) store_dq(dq, p, row);
    }
}

}  // namespace by_rows

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
attention_backward_rows(const __grid_constant__ struct Attention p,
                        const __grid_constant__ struct Maps maps) {
    struct by_rows::Shared &shared = *(struct by_rows::Shared *)memory;
    if (threadIdx.x == 0) by_rows::initialize(shared);
    __syncthreads();
    if (uniform(threadIdx.x / 128) == 0) {
        setmaxnreg_dec<COPY_REGISTERS>();
        if (uniform(threadIdx.x / 32) == 0 && elected()) by_rows::load_rows(shared, p, maps);
    } else {
        setmaxnreg_inc<COMPUTE_REGISTERS>();
        by_rows::compute(shared, p);
    }
}
