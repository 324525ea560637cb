// The numbers in the formula of options, see score_facts.h. Options are named only there, here and
// in cpu/lib/option_logits.h. Needs: FN, Attention. Gives: score_height, head_slope.

FN float score_height(i32, i32, const struct Attention &p) { return p.softcap; }
FN float head_slope(const struct Attention &p, i32 head) {
    return HEAD_GRADIENT ? p.alibi_slopes[head] * p.spacing : 0.0f;
}
