// The forward pass over a row with entmax.
// A part of forward.h.

// A row takes several passes: one for the scores, as many as lse needs, and one over the values of
// the tiles with positive weights. Scores are kept in between; in long rows only those of the first
// tiles, and the others are recomputed.
enum { KEPT_TILES = 2048 };

FN void keep_scores(const struct Attention *p, struct Forward *f) {
    f->most_kept = min_i32(p->tile_cols, KEPT_TILES);
    f->kept = aligned_alloc(64, (size_t)f->most_kept * sizeof(struct Kept));
    if (!f->kept) f->most_kept = 0;
}

// State of the search for lse, per query.
struct Search {
    float p[TILE_Q], u[TILE_Q];  // sums over the row
    i32 moves[TILE_Q];           // -1 until lse is found
};

FN i32 any_lane(ivec x) {
    i32 any = 0;
    for (i32 i = 0; i < LANES; i++) any |= x[i];
    return any;
}

// The largest scores. lse is at least as large, because no weight exceeds 1.
FN void find_tops(const struct Attention *p, struct Forward *f, struct Row r) {
    for (i32 i = 0; i < r.tiles.count; i++) {
        const struct Tile tile = tile_at(r.tiles, i);
        const struct Place at = place(p, r.ti, tile.index);
        Scores *scores = i < f->most_kept ? &f->kept[i].scores : &f->scores;
        row_scores(p, f, r, tile, at, *scores);
        if (i < f->most_kept) f->kept[i].live = 1;
        for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
            store(f->top + j, largest(*scores, at.keys, j, load(f->top + j)));
        }
    }
}

// Tile i of the row again; null if it has no positive weight. It never will have one, as lse only
// grows.
FN Scores *kept_scores(const struct Attention *p, struct Forward *f, struct Row r, i32 i,
                       struct Place *at) {
    const struct Tile tile = tile_at(r.tiles, i);
    *at = place(p, r.ti, tile.index);
    if (i < f->most_kept) return f->kept[i].live ? &f->kept[i].scores : 0;
    row_scores(p, f, r, tile, *at, f->scores);
    return &f->scores;
}

// Adds a tile's weights to the sums. Returns whether one is positive or NaN.
FN i32 add_sums(const struct Attention *p, struct Forward *f, struct Place at, Scores scores,
                struct Search *s) {
    i32 any = 0;
    for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
        const vec lse = load(f->top + j);
        vec sum_p = {0}, sum_u = {0};
        for (i32 k = 0; k < at.keys; k++) {
            const struct Weight w = weigh(p, load(&scores[k][j]), lse);
            sum_p += w.p;
            sum_u += w.u;
        }
        store(s->p + j, load(s->p + j) + sum_p);
        store(s->u + j, load(s->u + j) + sum_u);
        any |= any_lane(sum_u != 0.0f);
    }
    return any;
}

// One step towards sum(p) = 1: Newton's step for the 1/a-norm of x. It decreases with lse and is
// convex, so steps upwards from the largest score do not pass the root. The first step is exact if
// all scores are equal, and as alpha approaches 1. Each row stops on its own, independent of its
// neighbors. Returns whether any row continues.
FN i32 step(const struct Attention *p, struct Forward *f, struct Search *s) {
    const float a = p->alpha_minus_1;
    ivec going = {0};
    for (i32 j = 0; j < TILE_Q; j += LANES) {
        const vec sum = load(s->p + j), lse = load(f->top + j);
        const vec by = sum * one_less_exp(a * log_vec(sum)) / (a * load(s->u + j));
        const ivec moves = *(const ivec_in_memory *)&s->moves[j];
        const ivec on = moves & (by > 2e-7f * max_vec(splat(1.0f), max_vec(lse, -lse)));
        store(f->top + j, either(moves, lse + by, lse));
        *(ivec_in_memory *)&s->moves[j] = on;
        going |= on;
    }
    return any_lane(going);
}

// Finds lse, starting from the largest score; 0 if a row has no keys.
FN void find_lse(const struct Attention *p, struct Forward *f, struct Row r) {
    struct Search s;
    const i32 queries = place(p, r.ti, 0).queries;
    for (i32 q = 0; q < TILE_Q; q++) {
        s.moves[q] = -(q < queries && f->top[q] != -INFINITE);
        if (f->top[q] == -INFINITE) f->top[q] = 0.0f;
    }
    do {
        clear(s.p, TILE_Q);
        clear(s.u, TILE_Q);
        for (i32 i = 0; i < r.tiles.count; i++) {
            struct Place at;
            Scores *scores = kept_scores(p, f, r, i, &at);
            if (!scores) continue;
            const i32 any = add_sums(p, f, at, *scores, &s);
            if (i < f->most_kept) f->kept[i].live = any;
        }
    } while (step(p, f, &s));
}

// Turns scores into weights and adds them to the total.
FN void take_weights(const struct Attention *p, struct Forward *f, struct Place at, Scores scores) {
    for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
        const vec lse = load(f->top + j);
        vec sum = {0};
        for (i32 k = 0; k < at.keys; k++) {
            const struct Weight w = weigh(p, load(&scores[k][j]), lse);
            store(&f->scores[k][j], w.p);
            sum += w.p;
        }
        store(f->total + j, load(f->total + j) + sum);
    }
}

FN void add_tiles(const struct Attention *p, struct Forward *f, struct Row r) {
    find_tops(p, f, r);
    find_lse(p, f, r);
    for (i32 i = 0; i < r.tiles.count; i++) {
        struct Place at;
        Scores *scores = kept_scores(p, f, r, i, &at);
        if (!scores || !any_weight(p, at, *scores, f->top)) continue;
        take_weights(p, f, at, *scores);
        const i32 finite = load_values(p, f, at, r);
        if (!finite) live_weights(at, f->scores, f->live);
#if WITH_DROPOUT
        draw_pairs(p, r.batch, r.head, at, f->stay);
        drop(p, at, f->stay, f->scores);
#endif
        add_values(f, at, finite ? 0 : &f->live[0][0]);
    }
}
