// From the score q . k of a pair to its logit, and from a gradient of logits back to one of scores.
// Only here stands what features make of scores: the soft cap bends them, then ALiBi subtracts what
// distance costs. The kernels ask for the facts below and call what follows; none names a feature.
// Needs: device.cuh, unpack.cuh, Attention.
// Gives: the facts; left_scale, HeadLogit; bend, Slopes; halfway, logit_from, slope_from; and of
// kernels whose unit holds the cap Log2Logit, tanh_halfway and what follows these.
//
// `where` tells which pairs a thread's elements are of. Each kernel has a type of its own for it,
// with what follows; nothing is computed of what is not asked for:
//     void refresh(p)                     called before many elements are asked about
//     float distance(int i)               between the positions of query and key of element i
//     struct HeadLogit head_logit(int i)  what the head of element i has
//     i32 query(p, int i), key(p, int i)  tokens, inside the sequence
//     i32 head(int i), batch()            a query head, a sequence

// Facts:
//     BENT           a logit is more than its score times the scale. Otherwise nothing is done to
//                    scores, and what reads them next applies the scale.
//     HAS_SLOPE      the derivative of a logit by scale * score is not 1 everywhere.
//     NEEDS_WHERE    a logit depends on where its pair is.
//     HEAD_GRADIENT  heads have a number of their own, the slope of distances, and that has a
//                    gradient: the sum of gradients of logits times minus the distance.
//     LONG_LOGITS    logits take so many registers that less can wait beside them.
#if WITH_SCORE
// A formula of the score takes the place of features; see common/gen/score.h.j2.
#define BENT 1
#define HAS_SLOPE 1
#define NEEDS_WHERE 1
#define HEAD_GRADIENT 0
#define LONG_LOGITS 1
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

// ---------------------------------------------------------------- logits of an accumulator

// cap * tanh(x / cap), where tanh is 1 - 2 / (2^(sharpness x) + 1), by one exponential: the
// approximate instruction is too coarse for logits.
FN float capped(float x, float cap, float sharpness) {
    x = fast_exp2(x * sharpness);
    return cap - 2.0f * cap * fast_reciprocal(x + 1.0f);
}

// Scores become logits, where they are bent at all.
template <int N, typename Where>
FN void bend(float (&s)[N], const struct Attention &p, Where where) {
#if BENT
    const float cap = p.softcap, sharpness = 2.0f * LOG2E * fast_reciprocal(cap);
    (void)sharpness;
    where.refresh(p);
#pragma unroll
    for (int i = 0; i < N; i++) {
        float x = s[i] * p.scale;
#if WITH_SCORE
        x = score_logit(x, where.query(p, i), where.key(p, i), where.head(i), where.batch(), p);
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

// The derivatives of N logits by scale * score, in storage precision.
template <int N>
struct Slopes {
#if HAS_SLOPE
    u32 pair[N / 2];
#endif
};
// Scores become logits, with which a pass goes on to gradients. Where derivatives cannot be told
// from logits, they are found here.
template <int N, typename Where>
FN void bend(float (&s)[N], struct Slopes<N> &, const struct Attention &p, const Where &where) {
    bend(s, p, where);
}
#if HAS_SLOPE
// The derivative at the logit of element i; 0 where it is minus infinity.
template <typename Where>
FN float slope_at(float logit, const struct Attention &p, const Where &where, int i) {
    if (WITH_ALIBI) logit += where.head_logit(i).slope * where.distance(i);
    logit *= fast_reciprocal(p.softcap);
    return fmaxf(1.0f - logit * logit, 0.0f);
}
// The derivatives at the logits x and y of elements 2 i and 2 i + 1; `slopes` has them from now on.
template <int N, typename Where>
FN float2 take_slopes(struct Slopes<N> &slopes, int i, float x, float y,
                      const struct Attention &p, const Where &where) {
    const float a = slope_at(x, p, where, 2 * i), b = slope_at(y, p, where, 2 * i + 1);
    slopes.pair[i] = pack(a, b);
    return make_float2(a, b);
}
template <int N>
FN float2 kept_slopes(const struct Slopes<N> &slopes, int i) {
    return unpack(slopes.pair[i]);
}
#endif

// Half the way to logits, from where both they and their derivatives can be told.
struct Halfway {
    float unit, steep;
};
FN struct Halfway halfway_of(const struct Attention &p) {
    return {WITH_SOFTCAP ? 1.0f : p.scale, WITH_SOFTCAP ? fast_reciprocal(p.softcap) : 0.0f};
}
template <int N>
FN void halfway(float (&s)[N], const struct Attention &p) {
#if WITH_SOFTCAP
    const float cap = p.softcap, sharpness = 2.0f * LOG2E * fast_reciprocal(cap);
#pragma unroll
    for (int i = 0; i < N; i++) s[i] = capped(s[i] * p.scale, cap, sharpness);
#endif
}
template <typename Where>
FN float logit_from(float half, struct Halfway way, const struct Attention &, const Where &where,
                    int i) {
    const float logit = half * way.unit;
    return WITH_ALIBI ? fmaf(-where.head_logit(i).slope, where.distance(i), logit) : logit;
}
template <typename Where>
FN float slope_from(float half, struct Halfway way, const struct Attention &, const Where &,
                    int) {
    const float part = half * way.steep;
    return fmaf(-part, part, 1.0f);
}

// ---------------------------------------------------------------- the same by tanh

// Of a call and a head, for logits in powers of two.
struct Log2Logit {
    float unit;       // of a score, or of what is made of it
    float sharpness;  // of the soft cap: tanh(scale x / cap) is 1 - 2 / (2^(sharpness x) + 1)
    float slope;      // see HeadLogit
};
FN float sharpness_of(const struct Attention &p) {
    return WITH_SOFTCAP ? 2.0f * LOG2E * p.scale * fast_reciprocal(p.softcap) : 0.0f;
}
FN float tanh_of(float score, float sharpness) {
    return 1.0f - 2.0f * fast_reciprocal(fast_exp2(score * sharpness) + 1.0f);
}
FN struct Log2Logit log2_logit_of(const struct Attention &p, i32 head) {
    struct Log2Logit x;
#if WITH_SCORE
    x.unit = LOG2E;
#else
    x.unit = (WITH_SOFTCAP ? p.softcap : p.scale) * LOG2E;
#endif
    x.sharpness = sharpness_of(p);
    x.slope = head_logit_of(p, head).slope * LOG2E;
    return x;
}
// The logit of a score, in powers of two.
template <typename Where>
FN float log2_logit(float score, const struct Log2Logit &l, const struct Attention &p,
                    const Where &where, int i) {
    float x = score;
#if WITH_SCORE
    x = score_logit(x * p.scale, where.query(p, i), where.key(p, i), where.head(i), where.batch(),
                    p);
#endif
#if WITH_SOFTCAP
    x = tanh_of(x, l.sharpness);
#endif
    x *= l.unit;
#if WITH_ALIBI
    x -= l.slope * where.distance(i);
#endif
    return x;
}
// The derivative by scale * score of what log2_logit made of a score, as a logit's own.
template <typename Where>
FN float log2_slope(float, float logit, const struct Log2Logit &l, const struct Attention &,
                    const Where &, int) {
    const float bend = logit * fast_reciprocal(l.unit);  // the tanh: no kernel has ALiBi, too
    return 1.0f - bend * bend;
}

// Halfway there, as above, for kernels that know no gradients of heads: without ALiBi. Logits are
// yet to be multiplied by left_scale.
FN float tanh_halfway(float score, float sharpness) {
    return WITH_SOFTCAP ? tanh_of(score, sharpness) : score;
}
template <typename Where>
FN float tanh_logit(float half, const struct Attention &p, const Where &, int) {
    return WITH_SOFTCAP ? p.softcap * half : half;
}
template <typename Where>
FN float tanh_slope(float half, const struct Attention &, const Where &, int) {
    return HAS_SLOPE ? fmaxf(1.0f - half * half, 0.0f) : 1.0f;
}
