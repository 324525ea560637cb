// Turns the scores of a tile into logits and hides dead pairs; WITH_THRESHOLDS also hides
// unselected pairs. Needs: look.cuh, logit.cuh, apply_mask.cuh, filter_rows.cuh.

#if WITH_THRESHOLDS
FN void finish_scores(Scores &s, const struct Attention &p, const struct Row &row, i32 query,
                      i32 word, struct MaskRow &kept, struct Visible seen) {
    const i32 first_k = (word & INDEX) * KEY_STEP;
    if (!ALWAYS_KEPT && !PAIRWISE_LOGITS && !(word & MASKED)
        && hide_lesser(s, p, row.batch, row.head, query, first_k))
        return;
    if (!(word & MASKED))
        see_all(seen);
    else
        seen = look_late(p, row, query, word, kept, seen);
    if (PAIRWISE_LOGITS) {
        keep_chosen(seen, s, p, row.batch, row.head, query, first_k);
        bend<true>(s, p, where_of(p, row, query, word));
        apply_mask(s, seen, MINUS_INFINITY);
    } else {
        hide_others(s, seen, p, row.batch, row.head, query, first_k);
        if (flips(p)) negate(s);
    }
}
#else
FN void finish_scores(Scores &s, const struct Attention &p, const struct Row &row, i32 query,
                      i32 word, struct MaskRow &kept, struct Visible seen) {
    bend<true>(s, p, where_of(p, row, query, word));
    if (word & MASKED) {
        if (flips(p)) negate(s);
        seen = look_late(p, row, query, word, kept, seen);
        apply_mask(s, seen, MINUS_INFINITY);
    }
}
#endif
