// Score options of a call, for masks without a score formula: softcap * tanh(s / softcap) -
// alibi_slopes[head] * |p - k|, where p is the query's position. Each part only if the source is
// built with it. Kernels test these facts; features.h defines them for score formulas.
//     SCORED         the logit differs from the score.
//     SCORE_BENDS    its derivative by scale * score is not 1 everywhere.
//     SCORE_CAPS     it is height * tanh(scale * score / height), plus other terms.
//     SCORE_SHIFTS   the only change is to add a function of distance.
//     HEAD_GRADIENT  heads have a slope by distance with a gradient: the sum of -distance times the
//                    gradients of logits.
#define SCORED (WITH_SOFTCAP || WITH_ALIBI)
#define SCORE_BENDS WITH_SOFTCAP
#define SCORE_CAPS WITH_SOFTCAP
#define SCORE_SHIFTS (WITH_ALIBI && !WITH_SOFTCAP)
#define HEAD_GRADIENT WITH_ALIBI
