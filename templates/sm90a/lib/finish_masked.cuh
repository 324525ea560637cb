// Scores of a tile become logits, and those of dead pairs -inf.
// Needs: look.cuh, logit.cuh, apply_mask.cuh.

FN void finish_scores(Scores &s, const struct Attention &p, const struct Row &row, i32 query,
                      i32 word, struct MaskRow &kept, struct Visible seen) {
    bend<true>(s, p, where_of(p, row, query, word));
    if (word & MASKED) {
        if (flips(p)) negate(s);
        seen = look_late(p, row, query, word, kept, seen);
        apply_mask(s, seen, MINUS_INFINITY);
    }
}
