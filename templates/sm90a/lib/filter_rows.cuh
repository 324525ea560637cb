// A filter on top of any mask policy: keeps visible pairs if their scores reach their row's
// threshold, or if they are always kept. Rows are queries. Needs: thresholds.cuh, bits.cuh,
// visible.cuh, mask_row; ALWAYS_KEPT and add_always_kept of always_kept.cuh.

FN void see_all(struct Visible &seen) {
#pragma unroll
    for (int w = 0; w < WORDS; w++) seen.word[0][w] = seen.word[1][w] = ~0u;
}

// The selection of one of a thread's rows, with bits as in Visible.
struct Choice {
    struct Threshold threshold;
    u32 open[WORDS];    // candidates
    u32 before[WORDS];  // candidates before the threshold's end, where a tie is selected
    u32 sure[WORDS];    // pairs that are visible with any score
};
FN bool is_seen(const struct Choice &x, float score, int i) {
    const u32 bit = 1u << i % 32;
    const bool chosen = chosen_by(x.threshold, score, x.before[i / 32] & bit);
    return (x.sure[i / 32] | (chosen ? x.open[i / 32] : 0)) & bit;  // without branches
}

// The selection of query q + 8 r among the candidates `seen`.
FN struct Choice choice_of(const struct Visible &seen, const struct Attention &p, i32 batch,
                           i32 head, i32 q, i32 first_k, int r) {
    const i32 k = first_k + threadIdx.x % 4 * 2, row = mask_row(p, q + 8 * r);
    const int2 there = __ldg(thresholds_of(p, p.delta, batch, head) + row);
    struct Choice x;
    x.threshold = threshold_from(__int_as_float(there.x), there.y);
    const bool any = x.threshold.low != x.threshold.low;
    u32 always_kept[WORDS] = {};
    if (ALWAYS_KEPT)
        add_always_kept<ByQuery>(always_kept, load_mask(&p, batch, head), row, k, p.queries,
                                 p.n_kv);
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        x.open[w] = seen.word[r][w];
        x.before[w] = bits_before(own_before(there.y - k) - 32 * w);
        x.sure[w] = x.open[w] & (always_kept[w] | (any ? x.before[w] : 0));
    }
    return x;
}

// Sets the scores q . k of invisible pairs to -inf, or to inf if scores are negated later.
FN void hide_others(Scores &s, const struct Visible &seen, const struct Attention &p, i32 batch,
                    i32 head, i32 q, i32 first_k) {
    const float hidden = flips(p) ? PLUS_INFINITY : MINUS_INFINITY;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        // Without make_opaque, the second row's numbers occupy registers while the first row is in
        // use.
        const struct Choice x = choice_of(seen, p, batch, head, make_opaque(q), first_k, r);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            float &score = s[i / 2 * 4 + 2 * r + i % 2];
            score = is_seen(x, score, i) ? score : hidden;
        }
        fence_operand(s);
    }
}

// A faster variant for tiles where all pairs are candidates: two instructions per score, if a
// single bound decides for each row, because all keys of the tile lie before the threshold's end,
// or none. Returns whether that holds. Not for scores that are negated later (their tiles are all
// MASKED), nor if pairs are always kept.
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
            if (i % 4 == 3) fence_operand(kept);  // otherwise ptxas keeps one register per bit
        }
#pragma unroll
        for (int w = 0; w < WORDS; w++) seen.word[r][w] = kept[w];
    }
}
