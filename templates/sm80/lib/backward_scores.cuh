// Between the products: turns scores into weights, and dp = dout . v into gradients of scores.
// Needs: backward_products.cuh, logit.cuh; see_rows of the mask. Gives: Weights, weigh,
// to_gradients.

#if WITH_ENTMAX
#include "common/lib/entmax_weights.cuh"
#else
#include "common/lib/softmax_weights.cuh"
#endif

// Factor from the output of to_logit to powers of two. It keeps its sign, as no score is hidden by
// infinity here.
FN float signed_unit(const struct Attention &p, const struct Logit &logit) {
    return PAIRWISE_LOGITS ? logit.unit : p.scale * (WITH_ENTMAX ? p.alpha_minus_1 : LOG2E);
}

// Per-pair values of a thread. Element (m, n, e) is in row lane / 4 + 16 m + 8 (e / 2) and column 8
// n + 2 (lane % 4) + e % 2.
template <int COUNT, int GROUPS>
struct Weights {
    u32 p[COUNT][GROUPS][2];  // in storage precision
    u32 slope[SCORE_BENDS ? COUNT : 1][SCORE_BENDS ? GROUPS : 1][2];  // derivatives of logits
    u32 seen;                 // one bit per pair, see bit_of
};
template <int GROUPS>
FN u32 bit_of(int m, int n, int e) { return (2 * m + e / 2) * (2 * GROUPS) + 2 * n + e % 2; }

// Query minus key of a pair, for either kind of rows.
template <bool KEY_ROWS>
FN float steps_of(const struct Steps &steps, int m, int n, int e) {
    const int row = 16 * m + 8 * (e / 2), column = 8 * n + e % 2;
    return KEY_ROWS ? steps.at(column, row) : steps.at(row, column);
}

// The levels of a thread's pairs, and their positions: the first pair is this query and this key.
template <bool KEY_ROWS, class Level>
struct Placed {
    Level level;
    i32 query, key;
    struct Place at;
    struct Steps steps;
    FN float operator()(int m, int n, int e) const { return level(m, n, e); }
    FN i32 query_of(int m, int n, int e) const {
        return query + (KEY_ROWS ? 8 * n + e % 2 : 16 * m + 8 * (e / 2));
    }
    FN i32 key_of(int m, int n, int e) const {
        return key + (KEY_ROWS ? 16 * m + 8 * (e / 2) : 8 * n + e % 2);
    }
};
template <bool KEY_ROWS, class Level>
FN Placed<KEY_ROWS, Level> placed(const Level &level, i32 query, i32 key, struct Place at,
                                  const struct Steps &steps) {
    return {level, query, key, at, steps};
}

// The live pairs of a thread; the first pair is query q and key k.
template <bool KEY_ROWS, int COUNT, int GROUPS>
FN u32 seen_by(const struct Attention &p, struct Place at, i32 q, i32 k, i32 full) {
    typedef SideOf<KEY_ROWS> Side;
    typedef QuadColumns<2 * GROUPS> Own;
    constexpr int ROWS = 2 * COUNT;
    const i32 n_q = p.n_q, n_kv = p.n_kv, column = KEY_ROWS ? q : k;
    u32 word[ROWS][1] = {}, seen = 0;
    if (full) {
        const u32 inside = KEY_ROWS ? ~0u : bits_before(Own::before(n_kv - column));
#pragma unroll
        for (int r = 0; r < ROWS; r++) word[r][0] = inside;
    } else {
        const struct Mask mask = load_mask(&p, at.batch, at.head);
        i32 rows[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            rows[r] = min_i32((KEY_ROWS ? k : q) + 8 * r, (KEY_ROWS ? n_kv : n_q) - 1);
        see_rows<Side, Own>(word, mask, rows, column - Own::first(), n_q, n_kv);
    }
    constexpr u32 TILE = Own::COUNT < 32 ? (1u << Own::COUNT % 32) - 1 : ~0u;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const bool inside = !KEY_ROWS || k + 8 * r < n_kv;
        seen |= (inside ? word[r][0] & TILE : 0) << r * Own::COUNT;
    }
    return seen;
}

// Turns scores into u, the derivatives of weights by logits. `level` returns the level of a pair,
// see Placed.
template <bool KEY_ROWS, Alpha ALPHA, int COUNT, int GROUPS, class Level>
FN void weigh_all(float (&s)[COUNT][GROUPS][4], Weights<COUNT, GROUPS> &w,
                  const struct Attention &p, const struct Logit &logit, bool masked,
                  const Level &level) {
    const float unit = signed_unit(p, logit);
#pragma unroll
    for (int m = 0; m < COUNT; m++)
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            float weight[4], slope[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float score = s[m][n][e];
                const i32 q = level.query_of(m, n, e), k = level.key_of(m, n, e);
                const i32 batch = level.at.batch;
                const struct Pair pair = {query_token(p, batch, q), key_token(p, batch, k),
                                          level.at.head, batch,
                                          steps_of<KEY_ROWS>(level.steps, m, n, e)};
                const float x =
                    PAIRWISE_LOGITS ? logit_of_any(score, p, logit, pair, q < p.n_q) : score;
                const struct Weight own = weigh<ALPHA>(x, unit, level(m, n, e), p.alpha_minus_1);
                const bool live = !masked || w.seen >> bit_of<GROUPS>(m, n, e) & 1;
                weight[e] = live ? own.p : 0.0f;
                s[m][n][e] = live ? own.u : 0.0f;
                slope[e] = logit_slope(score, x, p, logit, pair, live && own.u != 0.0f);
            }
            w.p[m][n][0] = pack(weight[0], weight[1]), w.p[m][n][1] = pack(weight[2], weight[3]);
            if (!SCORE_BENDS) continue;
            w.slope[m][n][0] = pack(slope[0], slope[1]);
            w.slope[m][n][1] = pack(slope[2], slope[3]);
        }
}
template <bool KEY_ROWS, int COUNT, int GROUPS, class Level>
FN void weigh_scores(float (&s)[COUNT][GROUPS][4], Weights<COUNT, GROUPS> &w,
                     const struct Attention &p, const struct Logit &logit, bool masked,
                     const Level &level) {
    by_alpha(p.alpha_minus_1, [&](auto kind) {
        weigh_all<KEY_ROWS, decltype(kind)::value>(s, w, p, logit, masked, level);
    });
}

// ds = u (dp - delta) times the logit's slope, in storage precision: the gradients of scaled
// scores. Returns the thread's share of the gradient of the head's slope.
template <bool KEY_ROWS, int COUNT, int GROUPS, class Delta>
FN float to_gradients(u32 (&ds)[COUNT][GROUPS][2], const float (&dp)[COUNT][GROUPS][4],
                      const float (&u)[COUNT][GROUPS][4], const Weights<COUNT, GROUPS> &w,
                      const struct Steps &steps, bool masked, const Delta &delta) {
    float total = 0.0f;
#pragma unroll
    for (int m = 0; m < COUNT; m++)
#pragma unroll
        for (int n = 0; n < GROUPS; n++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float x[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const int at = 2 * r + e;
                    const bool live = !masked || w.seen >> bit_of<GROUPS>(m, n, at) & 1;
                    x[e] = u[m][n][at] * (dp[m][n][at] - delta(m, n, at));
                    x[e] = live ? x[e] : 0.0f;  // dp of dead pairs may be NaN
                    if (HEAD_GRADIENT) total -= x[e] * fabsf(steps_of<KEY_ROWS>(steps, m, n, at));
                }
                if (SCORE_BENDS) {
                    const float2 slope = unpack(w.slope[m][n][r]);
                    x[0] *= slope.x, x[1] *= slope.y;
                }
                ds[m][n][r] = pack(x[0], x[1]);
            }
    return total;
}
