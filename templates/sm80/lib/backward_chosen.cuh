// Keys selected one by one, in backward passes. Needs: backward_scores.cuh. Gives: keep_chosen.

#include "common/lib/thresholds.cuh"


// The thresholds of a head's queries. The workspace has room behind them, which other kernels use.
FN const int2 *thresholds_in(const struct Attention &p, struct Place at) {
    const i64 room = 2ll * p.batch * p.heads_q * p.tile_rows * TILE_Q;
    return thresholds_of(p, p.delta - room, at.batch, at.head);
}

// Keeps the selected ones among the candidate pairs, and pairs that are kept with any score. Bits
// as in Weights. The thread's first pair is query q and key k.
template <bool KEY_ROWS, int COUNT, int GROUPS>
FN void keep_chosen(u32 &seen, const float (&s)[COUNT][GROUPS][4], const struct Attention &p,
                    struct Place at, i32 q, i32 k) {
    const int2 *const thresholds = thresholds_in(p, at);
    u32 kept = 0;
#if HAS_ALWAYS_KEPT
    const struct Mask mask = load_mask(&p, at.batch, at.head);
#pragma unroll 1
    // In a separate loop: formulas need the registers of the scores
    for (int i = 0; i < 2 * GROUPS; i++) {
        const i32 across = i / 2 * 8 + i % 2;
#pragma unroll
        for (int r = 0; r < 2 * COUNT; r++) {
            const i32 query = min_i32(q + (KEY_ROWS ? across : 8 * r), p.n_q - 1);
            const i32 key = min_i32(k + (KEY_ROWS ? 8 * r : across), p.n_kv - 1);
            kept |= (u32)(always_kept(mask, query, key, p.n_q, p.n_kv) != 0)
                << (r * 2 * GROUPS + i);
        }
    }
#endif
    // The outer loop is over queries, as each has one threshold.
    constexpr int QUERIES = KEY_ROWS ? 2 * GROUPS : 2 * COUNT;
    constexpr int KEYS = KEY_ROWS ? 2 * COUNT : 2 * GROUPS;
#pragma unroll
    for (int i = 0; i < QUERIES; i++) {
        const i32 query = q + (KEY_ROWS ? i / 2 * 8 + i % 2 : 8 * i);
        const int2 there = __ldg(thresholds + min_i32(query, p.n_q - 1));
        const struct Threshold threshold = threshold_from(__int_as_float(there.x), there.y);
        const bool any = threshold.low != threshold.low;
#pragma unroll
        for (int j = 0; j < KEYS; j++) {
            const int row = KEY_ROWS ? j : i, column = KEY_ROWS ? i : j;
            const int m = row / 2, n = column / 2, e = row % 2 * 2 + column % 2;
            const bool before = k + (KEY_ROWS ? 8 * j : j / 2 * 8 + j % 2) < threshold.end;
            kept |= (u32)(chosen_by(threshold, s[m][n][e], before) | (any & before))
                << bit_of<GROUPS>(m, n, e);
        }
    }
    seen &= kept;
}
