// From the score q . k of a pair to its logit.
// What stands between them is the formula of the score, or that of the options of a call, see
// score_facts.h, which also says SCORED, SCORE_BENDS, HEAD_GRADIENT. The kernels ask for these
// and for the facts below, and call what follows.
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
//     LONG_LOGITS    logits take so many registers that less can wait beside them.
//     SHIFTED        the kernel itself adds what follows from distance, by diagonals of its tiles,
//                    see shifts.cuh, and to the facts above that is nothing.
//     CAPPED         a logit is height * tanh(rate * s), see cap.cuh, before anything is added.
#if WITH_SCORE
FN float head_slope(const struct Attention &, i32) { return 0.0f; }  // see score_options.cuh
#else
#include "common/lib/score_options.cuh"

FN float score_rate(i32 head, i32 batch, const struct Attention &p) {
    return fast_reciprocal(score_height(head, batch, p));
}
FN float score_shift(i32 far, i32 head, i32, const struct Attention &p) {
    return -head_slope(p, head) * fabsf((float)(far + p.n_kv - p.n_q));
}
#endif
#if WITH_SHIFTS
#ifndef PACKED
#define PACKED 0
#endif
#define SHIFTED (SCORE_SHIFTS && !(WITH_ENTMAX || PACKED))  // heads have distances of their own
#else
#define SHIFTED 0
#endif
#define CAPPED SCORE_CAPS
#define BENT (SCORED && !SHIFTED)
#define HAS_SLOPE SCORE_BENDS
#define NEEDS_WHERE (BENT && (HEAD_GRADIENT || !CAPPED))
#define LONG_LOGITS SCORE_BENDS

// What scores are still to be multiplied by when `bend` is through, to be logits.
FN float left_scale(const struct Attention &p) { return BENT ? 1.0f : p.scale; }

// What the logits of one head are made of.
struct HeadLogit {
    float slope;  // by which a logit falls with every step of distance
};
FN struct HeadLogit head_logit_of(const struct Attention &p, i32 head) {
    return {head_slope(p, head)};
}

#if WITH_SCORE
template <int N>
FN void near_logits(float (&)[N]);
#if WITH_CAP
FN float score_height(i32 head, i32 batch, const struct Attention &p);
FN float score_rate(i32 head, i32 batch, const struct Attention &p);
#endif
#endif
#if CAPPED
#include "sm90a/lib/cap.cuh"

#endif
// Scores become logits, where they are bent at all. FOLDED: see cap.cuh.
template <bool FOLDED = false, int N, typename Where>
FN void bend(float (&s)[N], const struct Attention &p, Where where) {
#if BENT
    if (NEEDS_WHERE) where.refresh(p);
#if CAPPED
    cap_scores(s, cap_of<FOLDED>(p, where.head(0), where.batch()));
#endif
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (!CAPPED) s[i] *= p.scale;
#if WITH_SCORE
        if (!CAPPED)
            s[i] = score_anywhere(s[i], where.query(p, i), where.key(p, i), where.apart(p, i),
                               where.head(i), where.batch(), p);
#else
        if (NEEDS_WHERE) s[i] -= where.head_logit(i).slope * where.distance(i);
#endif
    }
#if WITH_SCORE
    if (!CAPPED) near_logits(s);
#endif
#endif
}
