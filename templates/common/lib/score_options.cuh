// The formula of the score where a mask has none of its own, by the options of a call:
//     softcap * tanh(s / softcap) - alibi_slopes[head] * |p - k|, p being the query's position,
// with the parts that a source is built with. Only here and in cpu/lib/option_logits.h do these
// stand: kernels ask for the facts, which common/gen/features.h.j2 gives of other formulas.
// Needs: FN, Attention. Gives: the facts; score_height, head_slope.
//     SCORED         a logit is more than its score times the scale.
//     SCORE_BENDS    its derivative by scale * score is not 1 everywhere.
//     SCORE_CAPS     it is height * tanh(scale * score / height), before anything is added.
//     SCORE_SHIFTS   all that is done is to add what follows from distance.
//     HEAD_GRADIENT  heads have a number of their own, the slope by which logits fall with
//                    distance, and that has a gradient: the sum of gradients of logits times
//                    minus the distance.
#define SCORED (WITH_SOFTCAP || WITH_ALIBI)
#define SCORE_BENDS WITH_SOFTCAP
#define SCORE_CAPS WITH_SOFTCAP
#define SCORE_SHIFTS (WITH_ALIBI && !WITH_SOFTCAP)
#define HEAD_GRADIENT WITH_ALIBI

FN float score_height(i32, i32, const struct Attention &p) { return p.softcap; }
FN float head_slope(const struct Attention &p, i32 head) {
    return HEAD_GRADIENT ? p.alibi_slopes[head] * p.spacing : 0.0f;
}
