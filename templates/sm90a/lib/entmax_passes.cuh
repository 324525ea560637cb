// alpha-entmax: passes over a row, as a warpgroup runs them.
// A part of entmax.cuh. Needs: entmax_lists.cuh, entmax_products.cuh, entmax_values.cuh, query.cuh.

// State of a warpgroup for one tile row.
struct Rows {
    struct Row row;
    i32 query, group, tiles, decisions;
    float unit, a;
    struct MaskRow kept;
    struct Query q;
    Ring<STAGES> k_stage, v_stage;
    struct Search x;
};

// A tile whose score WGMMAs are in flight.
struct Tile {
    i32 word, query;
    struct Visible seen;
};
// TURNS: whether to use the scheduler barrier. Lists keep the warpgroups busy for unequal times, so
// in the first pass a warpgroup that is done must not wait for the others.
template <bool TURNS>
FN struct Tile begin_tile(Scores &s, struct Shared &shared, const struct Attention &p,
                          struct Rows &w) {
    const u64 k_tiles = along_columns(shared_address(shared.k[0]));
    wait(shared.k_full[w.k_stage.at], w.k_stage.phase);
    struct Tile tile;
    tile.word = uniform(shared.next[w.k_stage.at]);
    tile.query = make_opaque(w.query);
    tile.seen = look_early(p, w.row, tile.query, tile.word, w.kept);
    if (HEAD_DIM > 128) w.q.operand = q_operand(shared_memory(), 0, w.group);
    if (TURNS) scheduler_barrier_sync(w.group);
    begin_scores(s, w.q, k_tiles + w.k_stage.at * (K_BYTES >> 4));
    return tile;
}
// Call after the WGMMAs have finished.
FN void finish_tile(Scores &s, const struct Tile &tile, struct Shared &shared,
                    const struct Attention &p, struct Rows &w) {
    fence_operand(s);
    if (threadIdx.x % 128 == 0) arrive(shared.k_free[w.k_stage.at]);
    w.k_stage.next();
    finish_scores(s, p, w.row, tile.query, tile.word, w.kept, tile.seen);
}
// Returns the thread's first key.
FN i32 take_scores(Scores &s, struct Shared &shared, const struct Attention &p, struct Rows &w) {
    const struct Tile tile = begin_tile<false>(s, shared, p, w);
    products_wait<0>();
    finish_tile(s, tile, shared, p, w);
    return (tile.word & INDEX) * KEY_STEP + threadIdx.x % 4 * 2;
}

// The first pass. Returns the pass that these rows need next. If the lists are complete, no further
// pass over the keys is needed.
FN Pass pass_to_start(struct Lists &lists, struct Shared &shared, const struct Attention &p,
                      struct Rows &w) {
    start_lists(lists, w.x, w.unit, w.a);
    clear_sums(w.x);
#pragma unroll 1
    for (i32 i = 0; i < w.tiles; i++) {
        Scores s;
        const i32 key = take_scores(s, shared, p, w);
        list_scores(s, i + 1, key, w.unit, w.a, lists, w.x);
    }
    const bool found = !lists.full && search_lists(lists, w.unit, w.a, w.x);
    publish_writes();  // before v is copied over the lists
    if (!found || p.n_kv > MAX_KEYS) return lists.full ? SUMS : VALUES;
    const i32 listed = longest(join_lists(lists)) <= most_fetched(w.tiles) ? DONE : LISTED;
    const bool room = room_for_pairs(lists) && p.n_kv <= MAX_COLUMNS;
    return (Pass)(room ? listed : listed | UNLISTED);
}

FN void pass_over_keys(struct Shared &shared, const struct Attention &p, struct Rows &w) {
    clear_sums(w.x);
#pragma unroll 1
    for (i32 i = 0; i < w.tiles; i++) {
        Scores s;
        take_scores(s, shared, p, w);
        add_tile<false>(s, w.unit, w.a, w.x);
    }
}

FN void begin_values(Output &o, Weights &weights, struct Shared &shared, const struct Rows &w) {
    const u64 v_tiles = along_tokens(shared_address(shared.v[0]), K_SLAB);
    wait(shared.v_full[w.v_stage.at], w.v_stage.phase);
    begin_output(o, weights, v_tiles + w.v_stage.at * (V_STAGE >> 4));
}
FN void finish_values(Output &o, Weights &weights, struct Shared &shared, struct Rows &w) {
    products_wait<0>();
    fence_operand(weights);
    fence_operand(o);
    if (threadIdx.x % 128 == 0) arrive(shared.v_free[w.v_stage.at]);
    w.v_stage.next();
}

// The scores of the next tile are computed before the WGMMA of this tile's weights, which then
// overlaps their softmax. Exception: REGISTER_PRESSURE, where logits need the registers.
constexpr bool REGISTER_PRESSURE = GROUPS == 3 && PAIRWISE_LOGITS;
FN void drop_tile(Scores &s, const struct Dropout &d, const struct Rows &w, i32 query, i32 key) {
    struct Staying<TILE_K / 2> stay;
    draw_by_query(stay, d, query, key, w.row.head, w.row.batch);
    drop(s, stay);
}
FN void pass_over_values(Output &o, struct Shared &shared, const struct Attention &p,
                         struct Rows &w) {
    Scores s;
    Weights weights;
    clear_sums(w.x);
    clear(o);
    const struct Dropout dropout = dropout_of(p);
    const i32 key = take_scores(s, shared, p, w);
    add_tile<true>(s, w.unit, w.a, w.x);
    drop_tile(s, dropout, w, w.query, key);
    to_weights(weights, s);
#pragma unroll 1
    for (i32 i = 1; i < w.tiles; i++) {
        const struct Tile tile = begin_tile<true>(s, shared, p, w);
        begin_values(o, weights, shared, w);
        scheduler_barrier_arrive(w.group);
        products_wait<1>();
        if (REGISTER_PRESSURE) finish_values(o, weights, shared, w);
        finish_tile(s, tile, shared, p, w);
        add_tile<true>(s, w.unit, w.a, w.x);
        if (!REGISTER_PRESSURE) finish_values(o, weights, shared, w);
        drop_tile(s, dropout, w, tile.query, (tile.word & INDEX) * TILE_K + threadIdx.x % 4 * 2);
        to_weights(weights, s);
    }
    begin_values(o, weights, shared, w);
    finish_values(o, weights, shared, w);
}

// Rows without keys have no weights. A NaN level makes the whole row NaN.
FN void take_lse(float (&lse)[2], struct Search &x, float a) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        lse[r] = x.level[r] / a;
        if (!(x.level[r] < PLUS_INFINITY)) x.p[r] = lse[r] = __int_as_float(0x7fffffff);
    }
}
FN void finish_by_lists(const struct Lists &lists, const struct Attention &p, struct Rows &w) {
    Fetched o;
    float lse[2];
    fetch_values(o, lists, p, w.row, w.unit, w.a, w.x);
    take_lse(lse, w.x, w.a);
    store_pieces(o, lse, w.x.p, w.row, w.query, p);
}
// The pass over the tiles of v. A warpgroup prepares its weights while the WGMMAs of other
// warpgroups run.
FN void pass_by_lists(Output &o, struct Lists &lists, struct Shared &shared, struct Rows &w) {
    const u64 tiles = along_tokens(shared_address(shared.k[0]), K_SLAB);
    struct Cursor cursor = weigh_lists(lists, w.unit, w.a, w.x);
    clear(o);
#pragma unroll 1
    for (i32 i = 0; i < w.tiles; i++) {
        Weights weights;
        wait(shared.k_full[w.k_stage.at], w.k_stage.phase);
        put_weights(cursor, uniform(shared.next[w.k_stage.at]) & INDEX);
        take_weights(weights, cursor);
        begin_output(o, weights, tiles + w.k_stage.at * (K_BYTES >> 4));
        products_wait<0>();
        fence_operand(weights);
        fence_operand(o);
        if (threadIdx.x % 128 == 0) arrive(shared.k_free[w.k_stage.at]);
        w.k_stage.next();
    }
}

// Stores through the place of q, which is free by then.
FN void store_rows(Output &o, struct Shared &shared, const struct Attention &p,
                   const struct Maps &maps, struct Rows &w) {
    float lse[2];
    take_lse(lse, w.x, w.a);
    store(o, lse, w.x.p, 1.0f, w.row, p, maps, shared_address(shared.q[0]), w.group);
    if (threadIdx.x % 128 == 0) {
        stores_read<0>();
        arrive(shared.q_free[0]);
    }
}
FN void finish_by_products(struct Lists &lists, struct Shared &shared, const struct Attention &p,
                           const struct Maps &maps, struct Rows &w) {
    Output o;
    pass_by_lists(o, lists, shared, w);
    store_rows(o, shared, p, maps, w);
}
// Runs passes over tiles, from the second pass on, until the output was computed with the right
// level.
FN void finish_by_tiles(Pass next, struct Shared &shared, const struct Attention &p,
                        const struct Maps &maps, struct Rows &w) {
#pragma unroll 1
    for (i32 passes = 1;; passes++) {
        if (next == SUMS) {
            pass_over_keys(shared, p, w);
            sum_over_quads(w.x);
            next = agreed(shared, take_step(w.x, w.a, SUMS, passes), w.decisions++);
        } else {
            Output o;
            pass_over_values(o, shared, p, w);
            sum_over_quads(w.x);
            next = agreed(shared, take_step(w.x, w.a, VALUES, passes), w.decisions++);
            if (next != DONE) continue;
            store_rows(o, shared, p, maps, w);
            break;
        }
    }
}

FN void compute_passes(struct Shared &shared, const struct Attention &p, const struct Maps &maps,
                       i32 group) {
    struct Rows w;
    if (GROUPS > 1 && group == 0) arrive_threads(1, 256);
    w.unit = unit_of_entmax(p), w.a = p.alpha_minus_1, w.group = group, w.decisions = 0;
#pragma unroll 1
    for (u32 phase = 0;; phase ^= 1) {
        wait(shared.q_full[0], phase);
        w.tiles = uniform(shared.first_word);
        if (w.tiles == 0) break;
        w.row = row_in(shared, 0);
        w.query = query_of(w.row, make_opaque(group));
        begin_row(w.kept);
        take_q(w.q, shared, 0, group);
#pragma unroll
        for (int r = 0; r < 2; r++)  // rows past the end need no weights
            w.x.level[r] = query_at(w.query + 8 * r) < p.n_q ? MINUS_INFINITY : PLUS_INFINITY;
        struct Lists lists;
        const Pass next = agreed(shared, pass_to_start(lists, shared, p, w), w.decisions++);
        if (next == DONE)
            finish_by_lists(lists, p, w);
        else if (BY_PRODUCTS && next == LISTED)
            finish_by_products(lists, shared, p, maps, w);
        else
            finish_by_tiles(next, shared, p, maps, w);
    }
    if (threadIdx.x % 128 == 0) stores_done<0>();
}
