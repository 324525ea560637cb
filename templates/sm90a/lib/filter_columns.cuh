// A filter on top of any mask policy: keeps visible pairs if their scores reach their column's
// threshold, or if they are always kept. Columns are queries. Needs: thresholds.cuh, visible.cuh;
// ALWAYS_KEPT and add_always_kept of always_kept.cuh.

FN struct Visible see_all() {
    struct Visible seen;
    seen.word[0][0] = seen.word[1][0] = ~0u;
    return seen;
}
// Keeps the selected ones among the candidate pairs of keys k and k + 8. `lows` and `ends` belong
// to the queries from `first_q` on, in the order of `Rows`.
FN void keep_chosen(struct Visible &seen, const Scores &s, const struct Attention &p,
                    const struct Place &at, const float *lows, const float *ends, i32 k,
                    i32 first_q) {
    lows += threadIdx.x % 4 * 4, ends += threadIdx.x % 4 * 4;
    u32 free[2][WORDS] = {};
    if (ALWAYS_KEPT) {
        const struct Mask mask = load_mask(&p, at.batch, at.head);
        const i32 q = first_q + threadIdx.x % 4 * 2;
#pragma unroll
        for (int r = 0; r < 2; r++)
            add_always_kept<ByKey>(free[r], mask, ByKey::inside(k + 8 * r, p.n_kv), q, p.n_q,
                                   p.n_kv);
    }
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int place = i / 4 * 16 + i % 4;
        const struct Threshold t = threshold_from(lows[place], __float_as_int(ends[place]));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const bool before = k + 8 * r < t.end, any = before && t.low != t.low;
            const bool live = any || chosen_by(t, s[i / 2 * 4 + 2 * r + i % 2], before);
            seen.word[r][0] &= live ? ~0u : free[r][0] | ~(1u << i);
        }
        fence_operand(seen.word[0]);  // one after the other, because registers are short
        fence_operand(seen.word[1]);
    }
}
