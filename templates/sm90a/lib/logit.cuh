// From the score q . k of a pair to its logit.
// Only here, in logit_slope.cuh and in logit_tanh.cuh stands what features make of scores: the soft
// cap bends them, then ALiBi subtracts what distance costs. The kernels ask for the facts below and
// call what follows; none names a feature.
// Needs: device.cuh, Attention. Gives: the facts; left_scale, HeadLogit, head_logit_of, bend.
//
// `where` tells which pairs a thread's elements are of. Each kernel has a type of its own for it,
// with what follows; nothing is computed of what is not asked for:
//     void refresh(p)                     called before many elements are asked about
//     float distance(int i)               between the positions of query and key of element i
//     struct HeadLogit head_logit(int i)  what the head of element i has
//     i32 query(p, int i), key(p, int i)  tokens, inside the sequence
//     i32 head(int i), batch()            a query head, a sequence
//     float apart(p, int i)               the query's token minus the key's

// Facts:
//     BENT           a logit is more than its score times the scale. Otherwise nothing is done to
//                    scores, and what reads them next applies the scale.
//     HAS_SLOPE      the derivative of a logit by scale * score is not 1 everywhere.
//     NEEDS_WHERE    a logit depends on where its pair is.
//     HEAD_GRADIENT  heads have a number of their own, the slope of distances, and that has a
//                    gradient: the sum of gradients of logits times minus the distance.
//     LONG_LOGITS    logits take so many registers that less can wait beside them.
#if WITH_SCORE
// A formula of the score takes the place of features; see common/gen/score.h.j2. Of one that adds
// what follows from distance the kernel takes care itself, see shifts.cuh, but with entmax.
#if WITH_SHIFTS
#define SHIFTED (!WITH_ENTMAX)
#else
#define SHIFTED 0
#endif
#define BENT (!SHIFTED)
#define HAS_SLOPE SCORE_BENDS
#define NEEDS_WHERE BENT
#define HEAD_GRADIENT 0
#define LONG_LOGITS SCORE_BENDS
#else
#define BENT (WITH_SOFTCAP || WITH_ALIBI)
#define HAS_SLOPE WITH_SOFTCAP
#define NEEDS_WHERE WITH_ALIBI
#define HEAD_GRADIENT WITH_ALIBI
#define LONG_LOGITS WITH_SOFTCAP
#endif

// What scores are still to be multiplied by when `bend` is through, to be logits.
FN float left_scale(const struct Attention &p) { return BENT ? 1.0f : p.scale; }

// What the logits of one head are made of.
struct HeadLogit {
    float slope;  // by which a logit falls with every step of distance
};
FN struct HeadLogit head_logit_of(const struct Attention &p, i32 head) {
    return {WITH_ALIBI ? p.alibi_slopes[head] * p.spacing : 0.0f};
}

#if WITH_CAP
#include "sm90a/lib/cap.cuh"

#endif
// cap * tanh(x / cap), where tanh is 1 - 2 / (2^(sharpness x) + 1), by one exponential: the
// approximate instruction is too coarse for logits.
FN float capped(float x, float cap, float sharpness) {
    x = fast_exp2(x * sharpness);
    return cap - 2.0f * cap * fast_reciprocal(x + 1.0f);
}

// Scores become logits, where they are bent at all.
template <int N, typename Where>
FN void bend(float (&s)[N], const struct Attention &p, Where where) {
#if WITH_CAP
    cap_scores(s, cap_of(p, where.head(0), where.batch()));
    return;
#endif
#if BENT
    const float cap = p.softcap, sharpness = 2.0f * LOG2E * fast_reciprocal(cap);
    (void)sharpness;
    where.refresh(p);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float x = s[i] * p.scale;
#if WITH_SCORE
        x = score_logit(x, where.query(p, i), where.key(p, i), where.apart(p, i), where.head(i),
                        where.batch(), p);
#endif
#if WITH_SOFTCAP
        x = capped(x, cap, sharpness);
#endif
#if WITH_ALIBI
        x -= where.head_logit(i).slope * where.distance(i);
#endif
        s[i] = x;
    }
#endif
}
