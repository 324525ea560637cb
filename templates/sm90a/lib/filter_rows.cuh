// A filter beside any mask policy: of the pairs that are visible those remain whose scores reach
// their row's threshold, and those that are spared. Rows are queries.
// Needs: thresholds.cuh, bits.cuh, visible.cuh, mask_row; SPARES and spare of spared.cuh.

FN void see_all(struct Visible &seen) {
#pragma unroll
    for (int w = 0; w < WORDS; w++) seen.word[0][w] = seen.word[1][w] = ~0u;
}

// How the pairs of one of a thread's rows are told: bits as in Visible.
struct Choice {
    struct Threshold threshold;
    u32 open[WORDS];    // pairs that may be chosen
    u32 before[WORDS];  // of which a lesser score is enough
    u32 sure[WORDS];    // pairs that are seen whatever their scores
};
FN bool is_seen(const struct Choice &x, float score, int i) {
    const u32 bit = 1u << i % 32;
    const bool chosen = chosen_by(x.threshold, score, x.before[i / 32] & bit);
    return (x.sure[i / 32] | (chosen ? x.open[i / 32] : 0)) & bit;  // without branches
}

// Of query q + 8 r, whose candidates are `seen`.
FN struct Choice choice_of(const struct Visible &seen, const struct Attention &p, i32 batch,
                           i32 head, i32 q, i32 first_k, int r) {
    const i32 k = first_k + threadIdx.x % 4 * 2, row = mask_row(p, q + 8 * r);
    const int2 there = __ldg(thresholds_of(p, p.delta, batch, head) + row);
    struct Choice x;
    x.threshold = threshold_from(__int_as_float(there.x), there.y);
    const bool any = x.threshold.low != x.threshold.low;
    u32 spared[WORDS] = {};
    if (SPARES)
        spare<ByQuery>(spared, load_mask(&p, batch, head), row, k, p.queries, p.n_kv);
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        x.open[w] = seen.word[r][w];
        x.before[w] = bits_before(own_before(there.y - k) - 32 * w);
        x.sure[w] = x.open[w] & (spared[w] | (any ? x.before[w] : 0));
    }
    return x;
}

// Scores q . k become -inf where pairs are not seen; those that turn around later, inf.
FN void hide_others(Scores &s, const struct Visible &seen, const struct Attention &p, i32 batch,
                    i32 head, i32 q, i32 first_k) {
    const float hidden = flips(p) ? PLUS_INFINITY : MINUS_INFINITY;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        // The second row's numbers do not wait in registers while the first one's are in use.
        const struct Choice x = choice_of(seen, p, batch, head, anew(q), first_k, r);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            float &score = s[i / 2 * 4 + 2 * r + i % 2];
            score = is_seen(x, score, i) ? score : hidden;
        }
        pin(s);
    }
}

// The same of a tile where all pairs may be chosen, in two instructions a score, if one bound a row
// tells: all of a row's keys lie before the threshold's end, or none. Returns whether that is so.
// Scores that turn around later are not here: all their tiles are special. Nothing may be spared.
FN bool hide_lesser(Scores &s, const struct Attention &p, i32 batch, i32 head, i32 q, i32 first_k) {
    const int2 *const rows = thresholds_of(p, p.delta, batch, head);
    float least[2];
    bool plain = true;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int2 there = __ldg(rows + mask_row(p, q + 8 * r));
        const struct Threshold t = threshold_from(__int_as_float(there.x), there.y);
        const bool before = t.end >= first_k + TILE_K;
        plain &= t.low == t.low & (before | t.end <= first_k);
        least[r] = before ? t.low : t.high;
    }
    if (!__all_sync(0xffffffff, plain)) return false;
#pragma unroll
    for (int i = 0; i < TILE_K / 2; i++) s[i] = s[i] >= least[i / 2 % 2] ? s[i] : MINUS_INFINITY;
    return true;
}

// The same as bits, for scores that become logits before they are hidden.
FN void keep_chosen(struct Visible &seen, const Scores &s, const struct Attention &p, i32 batch,
                    i32 head, i32 q, i32 first_k) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const struct Choice x = choice_of(seen, p, batch, head, q, first_k, r);
        u32 kept[WORDS] = {};
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const float score = s[i / 2 * 4 + 2 * r + i % 2];
            kept[i / 32] |= is_seen(x, score, i) ? 1u << i % 32 : 0;
            if (i % 4 == 3) pin(kept);  // not one register for each
        }
#pragma unroll
        for (int w = 0; w < WORDS; w++) seen.word[r][w] = kept[w];
    }
}
