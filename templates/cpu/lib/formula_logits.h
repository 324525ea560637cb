// From scores to logits by the score formula. Needs: vector.h, gen/score.h.j2; Place, Scores, UNIT,
// tokens. Gives what option_logits.h does.

FN float query_factor(const struct Attention *p) { return p->scale; }

// `kept`, if given, receives the scores. Lanes past the last query keep their scores, which are 0.
FN void make_logits(const struct Attention *p, struct Mask m, i32 head, struct Place at,
                    Scores scores, Scores kept) {
    (void)head;
    for (i32 k = 0; k < at.keys; k++) {
        if (kept) {
            for (i32 j = 0; j < at.vectors * LANES; j += LANES)
                store(&kept[k][j], load(&scores[k][j]));
        }
        for (i32 q = 0; q < at.queries; q++) {
            const i32 query = query_token(m, at.q0 + q), key = key_token(m, at.k0 + k);
            scores[k][q] = UNIT * score_logit(scores[k][q], query, key, m.head, m.batch, p);
        }
    }
}

// Slopes are applied pair by pair, see formula_gradients.
FN vec take_slopes(const struct Attention *p, struct Mask m, struct Place at, i32 k, i32 j, vec d,
                   Scores kept, vec *fall) {
    (void)p, (void)m, (void)at, (void)k, (void)j, (void)kept, (void)fall;
    return d;
}
