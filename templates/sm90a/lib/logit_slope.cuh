// Derivatives of logits by scores, for backward passes. Needs: logit.cuh, unpack.cuh. Gives: bend,
// Slopes, take_slopes, kept_slopes; Halfway, halfway_of, halfway, logit_from, slope_from.

// The derivatives of N logits by scale * score, in storage precision.
template <int N>
struct Slopes {
#if HAS_SLOPE
    u32 pair[N / 2];
#endif
};
// Turns scores into the logits of a backward pass. Computes the derivatives too, if they do not
// follow from the logits.
#if WITH_SCORE
template <int N, typename Where>
FN void bend(float (&s)[N], struct Slopes<N> &slopes, const struct Attention &p, Where where) {
#if WITH_PAIR_ROWS && PAIR_ROWS
    where.refresh(p);
    float kept_slope = 1.0f;
    each_entry<N>(p, where, [&](int i, float entry) {
        const float x = s[i] * p.scale;
        const i32 q = where.query(p, i), k = where.key(p, i), head = where.head(i);
        const float q_minus_k = where.q_minus_k(p, i);
        s[i] = score_logit_with(entry, x, q, k, q_minus_k, head, where.batch(), p);
#if HAS_SLOPE
        const float slope =
            score_slope_with(entry, x, q, k, q_minus_k, head, where.batch(), p);
        if (i % 2) slopes.pair[i / 2] = pack(kept_slope, slope);
        else kept_slope = slope;
#endif
    });
    (void)kept_slope;
    if (!where.all_columns_inside(p)) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (where.query_row(i) >= p.n_q) s[i] = MINUS_INFINITY;
    }
    near_logits(s);
    return;
#endif
#if CAPPED || !PAIRWISE_LOGITS
    bend(s, p, where);
#else
    where.refresh(p);
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        float slope[2];
#pragma unroll
        for (int j = i; j < i + 2; j++) {
            const float x = s[j] * p.scale;
            const i32 q = where.query(p, j), k = where.key(p, j), head = where.head(j);
            const float q_minus_k = where.q_minus_k(p, j);
            const bool inside = where.query_row(j) < p.n_q;
            s[j] = inside ? score_anywhere(x, q, k, q_minus_k, head, where.batch(), p)
                          : MINUS_INFINITY;
            slope[j - i] = HAS_SLOPE ? score_slope(x, q, k, q_minus_k, head, where.batch(), p)
                                     : 1.0f;
        }
#if HAS_SLOPE
        slopes.pair[i / 2] = pack(slope[0], slope[1]);
#endif
    }
    near_logits(s);
#endif
}
#else
template <int N, typename Where>
FN void bend(float (&s)[N], struct Slopes<N> &, const struct Attention &p, const Where &where) {
    bend(s, p, where);
}
#endif
#if HAS_SLOPE
#if CAPPED
// Returns the derivatives at the logits x and y of elements 2 i and 2 i + 1, and stores them in
// `slopes`. 0 where the logit is -inf.
template <int N, typename Where>
FN float2 take_slopes(struct Slopes<N> &slopes, int i, float x, float y, const struct Attention &p,
                      const Where &where) {
    const Cap<> cap = cap_of(p, where.head(0), where.batch());
    if (NEEDS_WHERE) {
        x += where.head_logit(2 * i).slope * where.distance(2 * i);
        y += where.head_logit(2 * i + 1).slope * where.distance(2 * i + 1);
    }
    const float2 slope = make_float2(slope_at(x, cap), slope_at(y, cap));
    slopes.pair[i] = pack(slope.x, slope.y);
    return slope;
}
#else
// The same for formulas. Logits of -inf give 0, whatever the formula returns for dead pairs.
template <int N, typename Where>
FN float2 take_slopes(struct Slopes<N> &slopes, int i, float x, float y, const struct Attention &,
                      const Where &) {
    const u32 low = x == MINUS_INFINITY ? 0 : 0xffff, high = y == MINUS_INFINITY ? 0 : 0xffff0000;
    slopes.pair[i] &= low | high;
    return unpack(slopes.pair[i]);
}
#endif
template <int N>
FN float2 kept_slopes(const struct Slopes<N> &slopes, int i) {
    return unpack(slopes.pair[i]);
}
#endif

// Half the way from scores to logits: both logits and derivatives follow from this value. `counts`:
// whether the derivative is needed.
struct Halfway {
    float unit, steep;
};
FN struct Halfway halfway_of(const struct Attention &p) {
#if CAPPED
    return {1.0f, score_rate(0, 0, p)};
#else
    return {p.scale, 0.0f};
#endif
}
template <int N>
FN void halfway(float (&s)[N], const struct Attention &p) {
#if CAPPED
    cap_scores(s, cap_of(p, 0, 0));
#endif
}
#if WITH_SCORE
template <typename Where>
FN float logit_from(float score, struct Halfway, const struct Attention &p, const Where &where,
                    int i) {
    return score_logit(score * p.scale, where.query(p, i), where.key(p, i), where.q_minus_k(p, i),
                       where.head(i), where.batch(), p);
}
template <typename Where>
FN float slope_from(float score, struct Halfway, const struct Attention &p, const Where &where,
                    int i, bool counts) {
    return counts ? score_slope(score * p.scale, where.query(p, i), where.key(p, i),
                                where.q_minus_k(p, i), where.head(i), where.batch(), p)
                  : 0.0f;
}
#else
template <typename Where>
FN float logit_from(float half, struct Halfway way, const struct Attention &, const Where &where,
                    int i) {
    const float logit = half * way.unit;
    return HEAD_GRADIENT ? fmaf(-where.head_logit(i).slope, where.distance(i), logit) : logit;
}
template <typename Where>
FN float slope_from(float half, struct Halfway way, const struct Attention &, const Where &, int,
                    bool) {
    const float part = half * way.steep;
    return fmaf(-part, part, 1.0f);
}
#endif
