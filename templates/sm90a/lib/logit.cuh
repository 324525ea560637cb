// From the score q . k of a pair to its logit: applies the score formula, or the options of
// a call. To bend scores is to turn them into logits. score_facts.h defines SCORED, SCORE_BENDS and
// HEAD_GRADIENT. Kernels test these and the facts below, and call the functions below.
// Needs: device.cuh, Attention. Gives: the facts; left_scale, HeadLogit, head_logit_of, bend.
//
// `where` maps a thread's elements to pairs. Each kernel has its own type for it, with these
// members; unused ones cost nothing:
//     void refresh(p)                     call before querying many elements
//     float distance(int i)               |position of the query - position of the key|, element i
//     struct HeadLogit head_logit(int i)  constants of the head of element i
//     i32 query(p, int i), key(p, int i)  tokens, clamped to the sequence
//     i32 head(int i), batch()            query head, sequence
//     float q_minus_k(p, int i)           query token minus key token, of element i
//     bool all_columns_inside(p)          PAIR_ROWS: whether no column of the tile is past the end
//     pair_rows<Kind>(p)                  PAIR_ROWS: see pair_rows.cuh

// The includer includes pair_rows.cuh before this file if WITH_PAIR_ROWS. Facts:
//     PAIRWISE_LOGITS  `bend` computes logits. Otherwise it leaves scores as they are, and the code
//                    that reads them next applies the scale.
//     HAS_SLOPE      the derivative of the logit by scale * score is not 1 everywhere.
//     NEEDS_WHERE    the logit depends on the position of the pair.
//     LONG_LOGITS    logits need so many registers that fewer values can be kept across them.
//     SHIFTED        the kernel adds the distance term along the diagonals of its tiles, see
//                    shifts.cuh. The facts above then ignore this term.
//     CAPPED         the logit is height * tanh(rate * s), see cap.cuh, plus other terms.
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
#if WITH_SHIFTS  // the source can add a distance term along diagonals
#ifndef PACK_GQA
#define PACK_GQA 0
#endif
// With pack_gqa, rows of a tile have different heads, so a diagonal has no single value.
#define SHIFTED (SCORE_SHIFTS && !(WITH_ENTMAX || PACK_GQA))
#elif WITH_FP8  // see add_distances
#define SHIFTED SCORE_SHIFTS
#else
#define SHIFTED 0
#endif
#define CAPPED SCORE_CAPS
#define PAIRWISE_LOGITS (SCORED && !SHIFTED)
#define HAS_SLOPE SCORE_BENDS
#define NEEDS_WHERE (PAIRWISE_LOGITS && (HEAD_GRADIENT || !CAPPED))
#define LONG_LOGITS SCORE_BENDS

// The factor by which the output of `bend` must still be multiplied to give logits.
FN float left_scale(const struct Attention &p) { return PAIRWISE_LOGITS ? 1.0f : p.scale; }

// Constants of the logits of one head.
struct HeadLogit {
    float slope;  // decrease of the logit per unit of distance
};
FN struct HeadLogit head_logit_of(const struct Attention &p, i32 head) {
    return {head_slope(p, head)};
}

#if WITH_SCORE
template <int N>
FN void near_logits(float (&)[N]);
// Forward passes limit logits when they know the maxima of rows, see softmax.cuh.
#ifndef NEAR_BY_ROWS
#define NEAR_BY_ROWS 0
#endif
template <int N>
FN void limit_logits(float (&x)[N]) {
    if (!NEAR_BY_ROWS) near_logits(x);
}
#if WITH_CAP
FN float score_height(i32 head, i32 batch, const struct Attention &p);
FN float score_rate(i32 head, i32 batch, const struct Attention &p);
#endif
#endif
#if CAPPED
#include "sm90a/lib/cap.cuh"

#endif
// Turns scores into logits if PAIRWISE_LOGITS. SCALED: see cap.cuh. A mask's score
// formula defines score_anywhere; near_logits limits its results, see score_far.cuh.
template <bool SCALED = false, int N, typename Where>
FN void bend(float (&s)[N], const struct Attention &p, Where where) {
#if WITH_PAIR_ROWS && PAIR_ROWS
    each_entry<N>(p, where, [&](int i, float entry) {
        s[i] = score_logit_with(entry, s[i] * p.scale, where.query(p, i), where.key(p, i),
                                where.q_minus_k(p, i), where.head(i), where.batch(), p);
    });
    limit_logits(s);
    return;
#endif
#if PAIRWISE_LOGITS
    if (NEEDS_WHERE) where.refresh(p);
#if CAPPED
    cap_scores(s, cap_of<SCALED>(p, where.head(0), where.batch()));
#endif
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (!CAPPED) s[i] *= p.scale;
#if WITH_SCORE
        if (!CAPPED)
            s[i] = score_anywhere(s[i], where.query(p, i), where.key(p, i), where.q_minus_k(p, i),
                               where.head(i), where.batch(), p);
#else
        if (NEEDS_WHERE) s[i] -= where.head_logit(i).slope * where.distance(i);
#endif
    }
#if WITH_SCORE
    if (!CAPPED) limit_logits(s);
#endif
#endif
}
