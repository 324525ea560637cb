// The backward pass.
// Needs: forward.h, weights.h, multiply.h, storage.h, vector.h, scores.h; Mask and lists of
// tiles.

// Each tile is visited once, by the thread that owns its tile column, and contributes to dk, dv and
// dq. dk and dv stay with the thread. Threads add to dq in memory one after another, in the order
// of the row's list, so the result does not depend on the number of threads.
struct Workspace {
    // [batch, heads_q, n_q] softmax: rowsum(out * dout); entmax: mean of dout . v, weighted by u
    float *delta;
    float *share;   // likewise, with a score formula: see shares.h
    float *dsink;   // [batch, heads_q, tile_rows] shares of the tile rows
    float *dslopes;  // likewise
    i32 *turn;      // likewise: tiles of the row that were added to dq
    float *dq;      // [batch, heads_q, tile_rows][TILE_Q][QK_LD]
};

// With a score formula, also factors of weights.
#if WITH_SCORE
enum { OF_QUERIES = 2 };
#else
enum { OF_QUERIES = 1 };
#endif

FN i64 queries_of_all(const struct Attention *p) { return (i64)p->batch * p->heads_q * p->n_q; }
FN i64 all_rows(const struct Attention *p) { return (i64)p->batch * p->heads_q * p->tile_rows; }

// Floats before dq, rounded up to a whole vector.
FN i64 small_parts(const struct Attention *p) {
    const i64 floats = OF_QUERIES * queries_of_all(p) + 3 * all_rows(p);
    return (floats + LANES - 1) / LANES * LANES;
}

FN struct Workspace workspace(const struct Attention *p) {
    struct Workspace w = {.delta = p->delta, .dq = p->delta + small_parts(p)};
    w.share = w.delta + (OF_QUERIES - 1) * queries_of_all(p);
    w.dsink = w.share + queries_of_all(p);
    w.dslopes = w.dsink + all_rows(p);
    w.turn = (i32 *)(w.dslopes + all_rows(p));
    return w;
}

// Number of floats that `delta` must have room for.
i64 attention_workspace(const struct Attention *p) {
    return small_parts(p) + all_rows(p) * TILE_Q * QK_LD;
}

struct Backward {
    float k[TILE_K * QK_LD];
    float v[TILE_K * V_LD];
    float dk[TILE_K * QK_LD];
    float dv[TILE_K * V_LD];
    float q[TILE_Q * QK_LD];
    float q_t[QK_LD * TILE_Q];  // transposed, times query_factor()
    float dout[TILE_Q * V_LD];
    float dout_t[V_LD * TILE_Q];
    Scores weights;
    Scores dscores;
    Scores kept;  // input for the slopes of logits
    float lse[TILE_Q];    // times UNIT; +inf without keys, so that weights are 0
    float delta[TILE_Q];
#if WITH_SCORE
    float share[TILE_Q];
#endif
    i32 k_finite;
    Live live;
#if WITH_DROPOUT
    Live stay;  // pairs that dropout keeps
#endif
} __attribute__((aligned(64)));

// One tile of one head, and the data of its row.
struct Visit {
    struct Mask m;
    struct Place at;
    i64 line;  // batch * heads_q + head
    i32 batch, head, ti, tj, full;
};

FN void load_lse(const struct Attention *p, i32 batch, i32 head, struct Place at, float *lse) {
    const float *from = p->lse + row_offset(p->lse_stride, batch, head, at.q0);
    for (i32 q = 0; q < TILE_Q; q++) lse[q] = INFINITE;
    for (i32 q = 0; q < at.queries; q++) {
        const float value = from[q * p->lse_stride[2]];
        if (value != -INFINITE) lse[q] = value * UNIT;
    }
}

// Loads q, dout and lse of a tile row. Returns whether q and dout are finite.
FN i32 load_rows(const struct Attention *p, struct Backward *b, struct Place at, i32 batch,
                 i32 head) {
    const i32 queries = at.queries;
    clear(b->q + queries * QK_LD, (TILE_Q - queries) * QK_LD);
    clear(b->dout + queries * V_LD, (TILE_Q - queries) * V_LD);
    const i32 q_finite = load_tile(b->q, QK_LD, p->q, p->q_stride, batch, head, at.q0, queries,
                                   HEAD_DIM);
    const i32 dout_finite = load_tile(b->dout, V_LD, p->dout, p->dout_stride, batch, head, at.q0,
                                      queries, HEAD_DIM_V);
    transpose(b->q_t, TILE_Q, b->q, QK_LD, TILE_Q, QK_LD, query_factor(p));
    transpose(b->dout_t, TILE_Q, b->dout, V_LD, TILE_Q, V_LD, 1.0f);
    load_lse(p, batch, head, at, b->lse);
    return q_finite && dout_finite;
}

// ---- prepare: delta, the sinks' share, and rows without tiles

// The sink's gradient is its weight times (0 - delta), because its value is zero.
FN float sink_share(const struct Attention *p, struct Place at, i32 batch, i32 head,
                    const float *delta, const float *share) {
    float lse[TILE_Q], weight[TILE_Q];
    load_lse(p, batch, head, at, lse);
    const float sink = sink_score(p, head);
    for (i32 j = 0; j < TILE_Q; j += LANES)
        store(weight + j, exp2_vec(POWER * (sink - load(lse + j))));
    float sum = 0.0f;
#if WITH_SCORE
    for (i32 q = 0; q < at.queries; q++) weight[q] *= share[q];
#endif
    for (i32 q = 0; q < at.queries; q++) sum -= weight[q] * delta[q];
    (void)share;
    return sum;
}

#include "cpu/lib/delta.h"

#if WITH_SCORE
#include "cpu/lib/shares.h"

#endif

FN void prepare_row(const struct Attention *p, struct Workspace w, struct Backward *b, i64 line,
                    i32 ti) {
    const i32 batch = (i32)(line / p->heads_q), head = (i32)(line % p->heads_q);
    const i64 row = line * p->tile_rows + ti;
    const struct Place at = place(p, ti, 0);
    const i64 first = line * p->n_q + at.q0;
    const struct Mask m = load_mask(p, batch, head);
    const struct Row r = {m, row_tiles(p, m, batch, head, ti), batch, head,
                          head / (p->heads_q / p->heads_kv), ti};
#if WITH_SCORE
    find_shares(p, b, r, w.share + first);
#endif
    find_delta(p, b, r, w.delta + first);
    w.turn[row] = 0;
    w.dslopes[row] = 0.0f;
    w.dsink[row] = WITH_SINKS ? sink_share(p, at, batch, head, w.delta + first, w.share + first)
                               : 0.0f;
    if (p->accumulates || r.tiles.count) return;
    clear(b->q, at.queries * QK_LD);
    store_tile(p->dq, p->dq_stride, batch, head, at.q0, b->q, QK_LD, at.queries, HEAD_DIM, 1.0f);
}

// ---- one tile

FN void load_delta(const struct Attention *p, struct Workspace w, struct Backward *b,
                   struct Visit t) {
    const i64 first = t.line * p->n_q + t.at.q0;
    for (i32 q = 0; q < TILE_Q; q++) b->delta[q] = q < t.at.queries ? w.delta[first + q] : 0.0f;
#if WITH_SCORE
    for (i32 q = 0; q < TILE_Q; q++) b->share[q] = q < t.at.queries ? w.share[first + q] : 0.0f;
#endif
}

// Turns `weights` from scores into shares of v, and `dscores` from dout . v into the gradients of
// scale * q . k. Returns the tile's share of dslopes.
FN float score_gradients(const struct Attention *p, struct Backward *b, struct Visit t) {
    const struct Place at = t.at;
    vec fall = {0};
    for (i32 j = 0; j < at.vectors; j++) {
        const vec lse = load(b->lse + j * LANES), delta = load(b->delta + j * LANES);
        for (i32 k = 0; k < at.keys; k++) {
            const vec score = load(&b->weights[k][j * LANES]);
            struct Weight weight = weigh(p, score, lse);
#if WITH_SCORE
            const vec share = load(b->share + j * LANES);
            weight.p *= share, weight.u *= share;
#endif
            const ivec dead = WITH_ENTMAX ? weight.u == 0.0f : hidden(score);
            vec d = weight.u * (load(&b->dscores[k][j * LANES]) - delta);
            d = zero_where(dead, d);  // 0 * NaN would not be 0
            store(&b->weights[k][j * LANES], weight.p);
            d = take_slopes(p, t.m, at, k, j, d, b->kept, &fall);
            store(&b->dscores[k][j * LANES], zero_where(dead, d));
        }
    }
    return sum_lanes(fall);
}

#if WITH_SCORE
// Turns gradients of logits into those of scores, which `kept` holds, and those of tables.
FN void formula_gradients(const struct Attention *p, struct Backward *b, struct Visit t) {
    for (i32 k = 0; k < t.at.keys; k++) {
        for (i32 q = 0; q < t.at.queries; q++) {
            const float d = b->dscores[k][q], s = b->kept[k][q];
            if (d == 0.0f) continue;  // a dead pair, whose score may be anything
            const i32 query = query_token(t.m, t.at.q0 + q), key = key_token(t.m, t.at.k0 + k);
            score_table_gradient(d, s, query, key, t.head, t.batch, p);
            b->dscores[k][q] = d * score_slope(s, query, key, t.head, t.batch, p);
        }
    }
}

#endif
FN void store_gradient(const struct Attention *p, void *tensor, const i64 *stride, i32 batch,
                       i32 head, i32 token, const float *from, i32 ld, i32 rows, i32 columns,
                       float factor) {
    if (p->accumulates) {
        add_tile(tensor, stride, batch, head, token, from, ld, rows, columns, factor);
    } else {
        store_tile(tensor, stride, batch, head, token, from, ld, rows, columns, factor);
    }
}

// Adds this tile's part of dq after those of its left neighbors, and writes dq after the last one.
// With `keys` 0 the part is zero.
FN void add_dq(const struct Attention *p, struct Workspace w, struct Backward *b, struct Visit t,
               i32 keys, float fall, const i32 *live) {
    const struct TileList tiles = row_tiles(p, t.m, t.batch, t.head, t.ti);
    const i64 row = t.line * p->tile_rows + t.ti;
    i32 done = __atomic_load_n(w.turn + row, __ATOMIC_ACQUIRE);
    for (i32 tries = 1; tile_at(tiles, done).index != t.tj; tries++) {
        if (tries % 64 == 0) sched_yield();
        done = __atomic_load_n(w.turn + row, __ATOMIC_ACQUIRE);
    }
    float *dq = w.dq + row * TILE_Q * QK_LD;
    if (!done) clear(dq, t.at.queries * QK_LD);
    const struct Left dscores = {&b->dscores[0][0], 1, TILE_Q};
    if (keys) add_product(dq, QK_LD, dscores, b->k, QK_LD, t.at.queries, QK_VECTORS, keys, live);
    w.dslopes[row] += fall;
    if (done + 1 == tiles.count) {
        store_gradient(p, p->dq, p->dq_stride, t.batch, t.head, t.at.q0, dq, QK_LD, t.at.queries,
                       HEAD_DIM, p->scale);
    }
    __atomic_store_n(w.turn + row, done + 1, __ATOMIC_RELEASE);
}

FN void backward_tile(const struct Attention *p, struct Workspace w, struct Backward *b,
                      struct Visit t) {
    const i32 finite = load_rows(p, b, t.at, t.batch, t.head) && b->k_finite;
    const i32 keys = t.at.keys, queries = t.at.queries;
    const struct Left k = {b->k, QK_LD, 1}, v = {b->v, V_LD, 1};
    tile_scores(p, t.m, t.head, t.at, t.full, b->q_t, k, b->weights, b->kept, b->live);
#if WITH_ENTMAX
    if (!any_weight(p, t.at, b->weights, b->lse)) {
        add_dq(p, w, b, t, 0, 0.0f, 0);
        return;
    }
#endif
    load_delta(p, w, b, t);
    clear(&b->dscores[0][0], keys * TILE_Q);
    multiply(&b->dscores[0][0], TILE_Q, v, b->dout_t, TILE_Q, keys, t.at.vectors, HEAD_DIM_V);
#if WITH_DROPOUT
    draw_pairs(p, t.batch, t.head, t.at, b->stay);
    drop(p, t.at, b->stay, b->dscores);
#endif
    const float fall = score_gradients(p, b, t);
#if WITH_SCORE
    formula_gradients(p, b, t);
#endif
#if WITH_ENTMAX
    if (!finite) live_weights(t.at, b->weights, b->live);
    const i32 *live = finite ? 0 : &b->live[0][0];
#else
    const i32 *live = t.full || finite ? 0 : &b->live[0][0];
#endif
#if WITH_DROPOUT
    drop(p, t.at, b->stay, b->weights);
#endif
    const struct Left weights = {&b->weights[0][0], TILE_Q, 1};
    const struct Left dscores = {&b->dscores[0][0], TILE_Q, 1};
    add_product(b->dv, V_LD, weights, b->dout, V_LD, keys, V_VECTORS, queries, live);
    add_product(b->dk, QK_LD, dscores, b->q, QK_LD, keys, QK_VECTORS, queries, live);
    add_dq(p, w, b, t, keys, fall, live);
}

// One tile column of one key/value head, over the query heads that share it.
static void backward_column(const struct Attention *p, struct Workspace w, struct Backward *b,
                            i32 batch, i32 head_kv, i32 tj) {
    const i32 group = p->heads_q / p->heads_kv;
    const struct Place at = place(p, 0, tj);
    b->k_finite = load_tile(b->k, QK_LD, p->k, p->k_stride, batch, head_kv, at.k0, at.keys,
                            HEAD_DIM);
    load_tile(b->v, V_LD, p->v, p->v_stride, batch, head_kv, at.k0, at.keys, HEAD_DIM_V);
    clear(b->dk, at.keys * QK_LD);
    clear(b->dv, at.keys * V_LD);
    for (i32 head = head_kv * group; head < (head_kv + 1) * group; head++) {
        const struct Mask m = load_mask(p, batch, head);
        const struct TileList tiles = column_tiles(p, m, batch, head, tj);
        for (i32 i = 0; i < tiles.count; i++) {
            const struct Tile tile = tile_at(tiles, i);
            const struct Visit visit = {m, place(p, tile.index, tj), (i64)batch * p->heads_q + head,
                                        batch, head, tile.index, tj, tile.full};
            backward_tile(p, w, b, visit);
        }
    }
    store_gradient(p, p->dk, p->dk_stride, batch, head_kv, at.k0, b->dk, QK_LD, at.keys, HEAD_DIM,
                   p->scale);
    store_gradient(p, p->dv, p->dv_stride, batch, head_kv, at.k0, b->dv, V_LD, at.keys, HEAD_DIM_V,
                   1.0f);
}

// ---- finish: sums over rows, in a fixed order

FN void sum_shares(const struct Attention *p, float *to, const float *shares, i32 head,
                   float factor) {
    float sum = 0.0f;
    for (i32 batch = 0; batch < p->batch; batch++) {
        const float *rows = shares + ((i64)batch * p->heads_q + head) * p->tile_rows;
        for (i32 ti = 0; ti < p->tile_rows; ti++) sum += rows[ti];
    }
    to[head] += factor * sum;
}

#if WITH_SCORE
// Converts exact sums to gradients of tables; every head takes its share of the entries.
FN void take_sums(const struct Attention *p, i32 head) {
    for (i32 slot = 0; slot < SCORE_SLOTS; slot++) {
        if (!p->score_gradient[slot] || !p->score_sums[slot]) continue;
        const i64 entries = p->score_entries[slot];
        for (i64 i = head; i < entries; i += p->heads_q)
            p->score_gradient[slot][i] = score_sum(p->score_sums[slot] + i * SUM_WORDS);
    }
}

#endif
// Columns are assigned from left to right. A thread that waits in add_dq() therefore waits for a
// column that is already in progress, so there is no deadlock. Neighboring columns belong to
// different heads first, so that few threads wait.
void attention_backward(const struct Attention *p, i32 threads) {
    const struct Workspace w = workspace(p);
    const i64 pairs = (i64)p->batch * p->heads_kv;
    i64 next = 0;
#pragma omp parallel num_threads(max_i32(1, threads))
    {
        struct Backward b;
#pragma omp for schedule(static, 1)  // with entmax, long causal rows are adjacent
        for (i64 row = 0; row < all_rows(p); row++) {
            prepare_row(p, w, &b, row / p->tile_rows, (i32)(row % p->tile_rows));
        }
        for (;;) {
            const i64 item = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
            if (item >= pairs * p->tile_cols) break;
            const i64 pair = item % pairs;
            backward_column(p, w, &b, (i32)(pair / p->heads_kv), (i32)(pair % p->heads_kv),
                            (i32)(item / pairs));
        }
#pragma omp barrier
#pragma omp for schedule(static)
        for (i32 head = 0; head < p->heads_q; head++) {
#if WITH_SCORE
            take_sums(p, head);
#endif
            if (WITH_SINKS && p->dsink) sum_shares(p, p->dsink, w.dsink, head, 1.0f);
            if (HEAD_GRADIENT && p->dslopes)
                sum_shares(p, p->dslopes, w.dslopes, head, p->spacing);
        }
    }
}
