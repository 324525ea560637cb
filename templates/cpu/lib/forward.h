// The forward pass.
// Needs: multiply.h, storage.h, vector.h, scores.h; Mask and lists of tiles.

#if WITH_ENTMAX
// The scores of a tile, kept from one pass over its row to the next.
struct Kept {
    Scores scores;
    i32 live;  // some weight may be positive
} __attribute__((aligned(64)));
#endif

// Data of one thread: tiles widened to fp32 and packed, so that strides and storage types matter
// once per tile only.
struct Forward {
    float q[TILE_Q * QK_LD];
    float q_t[QK_LD * TILE_Q];  // transposed, times query_factor()
    float k[TILE_K * QK_LD];
    float v[TILE_K * V_LD];
    float out[TILE_Q * V_LD];   // sums of weight * v, not yet divided by total
    Scores scores;
    Live live;
#if WITH_DROPOUT
    Live stay;  // pairs that dropout keeps
#endif
    float top[TILE_Q];     // the largest score so far; start of entmax's search for lse
    float total[TILE_Q];   // the weights so far, relative to 2^top
    float shrink[TILE_Q];  // rescale factor that the current tile causes
#if WITH_ENTMAX
    struct Kept *kept;     // of the first tiles of the row
    i32 most_kept;
#endif
} __attribute__((aligned(64)));

// One tile row of one head.
struct Row {
    struct Mask m;
    struct TileList tiles;
    i32 batch, head, head_kv, ti;
};

// The logit of a head's sink in the unit of scores; a finite one stays finite.
FN float sink_score(const struct Attention *p, i32 head) {
    if (!WITH_SINKS) return -INFINITE;
    const float sink = p->sink_logits[head], most = UNIT > 1.0f ? 2.3e38f : 0x1.fffffep127f;
    const float within = sink > most ? most : sink < -most ? -most : sink;
    return UNIT * (sink - sink == 0.0f ? within : sink);
}

// A sink is a key that all queries see, with value zero: softmax starts from it.
FN void start_rows(const struct Attention *p, struct Forward *f, i32 head) {
    const float sink = sink_score(p, head);
    for (i32 q = 0; q < TILE_Q; q++) {
        f->top[q] = sink;
        f->total[q] = sink == -INFINITE ? 0.0f : 1.0f;
        f->shrink[q] = 1.0f;
    }
    clear(f->out, TILE_Q * V_LD);
}

FN void load_queries(const struct Attention *p, struct Forward *f, struct Place at, i32 batch,
                     i32 head) {
    clear(f->q + at.queries * QK_LD, (TILE_Q - at.queries) * QK_LD);
    load_tile(f->q, QK_LD, p->q, p->q_stride, batch, head, at.q0, at.queries, HEAD_DIM);
    transpose(f->q_t, TILE_Q, f->q, QK_LD, TILE_Q, QK_LD, query_factor(p));
}

// The maximum of `before` and a column of scores. Uses four independent maxima, because each step
// waits for the previous one; the last row may count twice.
FN vec largest(Scores scores, i32 keys, i32 j, vec before) {
    vec top[4] = {before, before, before, before};
    for (i32 k = 0; k < keys; k += 4) {
#pragma GCC unroll 4
        for (i32 i = 0; i < 4; i++) {
            top[i] = max_vec(load(&scores[min_i32(k + i, keys - 1)][j]), top[i]);
        }
    }
    return max_vec(max_vec(top[0], top[1]), max_vec(top[2], top[3]));
}

// The tile's keys. fp32 keys are read in place: each is read once, so packing would not pay.
FN struct Left load_keys(const struct Attention *p, struct Forward *f, struct Place at, i32 batch,
                         i32 head) {
#if WITH_PAGES
    const float scale = key_scale(p, batch, head);
    load_pages(p, f->k, QK_LD, p->k, p->k_stride, batch, head, at, HEAD_DIM, scale);
#else
    if (sizeof(element) == sizeof(float)) {
        const float *k = (const float *)p->k + row_offset(p->k_stride, batch, head, at.k0);
        return (struct Left){k, p->k_stride[2], 1};
    }
    load_tile(f->k, QK_LD, p->k, p->k_stride, batch, head, at.k0, at.keys, HEAD_DIM);
#endif
    return (struct Left){f->k, QK_LD, 1};
}

FN void row_scores(const struct Attention *p, struct Forward *f, struct Row r, struct Tile tile,
                   struct Place at, Scores scores) {
    const struct Left keys = load_keys(p, f, at, r.batch, r.head_kv);
    tile_scores(p, r.m, r.head, at, tile.full, f->q_t, keys, scores, 0, f->live);
}

// Loads the tile's values. Returns whether all are finite.
FN i32 load_values(const struct Attention *p, struct Forward *f, struct Place at, struct Row r) {
#if WITH_PAGES
    const float scale = value_scale(p, r.batch, r.head_kv);
    return load_pages(p, f->v, V_LD, p->v, p->v_stride, r.batch, r.head_kv, at, HEAD_DIM_V, scale);
#else
    return load_tile(f->v, V_LD, p->v, p->v_stride, r.batch, r.head_kv, at.k0, at.keys,
                     HEAD_DIM_V);
#endif
}

// Turns scores into weights 2^(score - top), and updates top and total.
FN void online_softmax(struct Forward *f, struct Place at) {
    for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
        const vec before = load(f->top + j);
        const vec top = largest(f->scores, at.keys, j, before);
        // For a row without keys so far, use 0 instead of -inf, because -inf - -inf is NaN.
        const vec base = zero_where(top == -INFINITE, top);
        const vec shrink = exp2_vec(POWER * (before - base));
        vec total = load(f->total + j) * shrink;
        for (i32 k = 0; k < at.keys; k++) {
            const vec weight = exp2_vec(POWER * (load(&f->scores[k][j]) - base));
            store(&f->scores[k][j], weight);
            total += weight;
        }
        store(f->top + j, top);
        store(f->total + j, total);
        store(f->shrink + j, shrink);
    }
}

FN void add_values(struct Forward *f, struct Place at, const i32 *live) {
    for (i32 q = 0; q < at.queries; q++) {
        for (i32 j = 0; j < V_LD; j += LANES) {
            float *sum = f->out + q * V_LD + j;
            store(sum, load(sum) * f->shrink[q]);
        }
    }
    const struct Left weights = {&f->scores[0][0], 1, TILE_Q};
    add_product(f->out, V_LD, weights, f->v, V_LD, at.queries, V_VECTORS, at.keys, live);
}

FN void finish_rows(const struct Attention *p, struct Forward *f, struct Place at, i32 batch,
                    i32 head) {
    float lse[TILE_Q];
    for (i32 j = 0; j < TILE_Q; j += LANES) {
        const vec top = load(f->top + j);
        store(lse + j, WITH_ENTMAX ? top : top * NATURAL + log_vec(load(f->total + j)));
    }
    float *lse_out = p->lse + row_offset(p->lse_stride, batch, head, at.q0);
    for (i32 q = 0; q < at.queries; q++) {
        const float total = f->total[q];
        const float factor = total == 0.0f ? 0.0f : 1.0f / total;
        store_tile(p->out, p->out_stride, batch, head, at.q0 + q, f->out + q * V_LD, V_LD, 1,
                   HEAD_DIM_V, factor);
        lse_out[q * p->lse_stride[2]] = total > 0.0f ? lse[q] : total == 0.0f ? -INFINITE : total;
    }
}

// Adds results of an earlier launch over other keys: they count as one more key, with their lse as
// its logit and their out as its value.
FN void join_rows(const struct Attention *p, struct Forward *f, struct Place at, i32 batch,
                  i32 head) {
    const float *lse = p->lse + row_offset(p->lse_stride, batch, head, at.q0);
    float before[TILE_Q], share[TILE_Q], shrink[TILE_Q];
    for (i32 q = 0; q < TILE_Q; q++) {
        before[q] = q < at.queries ? lse[q * p->lse_stride[2]] * UNIT : -INFINITE;
    }
    for (i32 j = 0; j < TILE_Q; j += LANES) {
        const vec top = max_vec(load(f->top + j), load(before + j));
        const vec base = zero_where(top == -INFINITE, top);
        const vec weight = exp2_vec(POWER * (load(before + j) - base));
        store(shrink + j, exp2_vec(POWER * (load(f->top + j) - base)));
        store(share + j, weight);
        store(f->total + j, load(f->total + j) * load(shrink + j) + weight);
        store(f->top + j, top);
    }
    for (i32 q = 0; q < at.queries; q++) {
        float out[V_LD];
        load_row(out, (element *)p->out + row_offset(p->out_stride, batch, head, at.q0 + q),
                 HEAD_DIM_V);
        float *sum = f->out + q * V_LD;
        for (i32 j = 0; j < V_LD; j += LANES) {
            store(sum + j, load(sum + j) * shrink[q] + load(out + j) * share[q]);
        }
    }
}

#if WITH_ENTMAX
#include "cpu/lib/entmax.h"
#else
// Processes the row's live tiles from left to right.
FN void add_tiles(const struct Attention *p, struct Forward *f, struct Row r) {
    for (i32 i = 0; i < r.tiles.count; i++) {
        const struct Tile tile = tile_at(r.tiles, i);
        const struct Place at = place(p, r.ti, tile.index);
        const i32 finite = load_values(p, f, at, r);
        row_scores(p, f, r, tile, at, f->scores);
        online_softmax(f, at);
#if WITH_DROPOUT
        draw_pairs(p, r.batch, r.head, at, f->stay);
        drop(p, at, f->stay, f->scores);
#endif
        add_values(f, at, tile.full || finite ? 0 : &f->live[0][0]);
    }
}
#endif

static void forward_row(const struct Attention *p, struct Forward *f, i32 batch, i32 head, i32 ti) {
    const struct Mask m = load_mask(p, batch, head);
    const struct Row row = {m, row_tiles(p, m, batch, head, ti), batch, head,
                            head / (p->heads_q / p->heads_kv), ti};
    start_rows(p, f, head);
    load_queries(p, f, place(p, ti, 0), batch, head);
    add_tiles(p, f, row);
    if (p->accumulates) join_rows(p, f, place(p, ti, 0), batch, head);
    finish_rows(p, f, place(p, ti, 0), batch, head);
}

// Rows are scheduled one by one and are independent, so results do not depend on `threads`. Heads
// that share keys and values are adjacent, and long causal rows come first.
void attention_forward(const struct Attention *p, i32 threads) {
    const i32 group = p->heads_q / max_i32(1, p->heads_kv);
    const i64 items = (i64)p->batch * p->heads_q * p->tile_rows;
#pragma omp parallel num_threads(max_i32(1, threads))
    {
        struct Forward f;
#if WITH_ENTMAX
        keep_scores(p, &f);
#endif
#pragma omp for schedule(dynamic) nowait
        for (i64 item = 0; item < items; item++) {
            const i64 row = item / group;
            const i64 pair = row / p->tile_rows;  // of a sequence and a key/value head
            const i32 ti = p->tile_rows - 1 - (i32)(row % p->tile_rows);
            const i32 head = (i32)(pair % p->heads_kv) * group + (i32)(item % group);
            forward_row(p, &f, (i32)(pair / p->heads_kv), head, ti);
        }
#if WITH_ENTMAX
        free(f.kept);
#endif
    }
}
