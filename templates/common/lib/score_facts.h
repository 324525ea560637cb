// What is done to scores where a mask has no formula of its own, by the options of a call:
//     softcap * tanh(s / softcap) - alibi_slopes[head] * |p - k|, p being the query's position,
// with the parts that a source is built with. Kernels ask for these facts, which
// features.h gives of other formulas.
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
