// Pairs that are always kept, whatever their scores: given by intervals of a row, or by a formula;
// none without HAS_ALWAYS_KEPT. Gives ALWAYS_KEPT and add_always_kept, which adds such columns of a
// row as bits; `column` is the thread's first column. Needs: bits.cuh, mask_sides.cuh, visible.cuh;
// always_kept_bounds or always_kept of the config header.

#if !HAS_ALWAYS_KEPT
constexpr bool ALWAYS_KEPT = false;
template <class Side>
FN void add_always_kept(u32 (&)[WORDS], const struct Mask &, i32, i32, i32, i32) {}
#elif HAS_INTERVALS
constexpr bool ALWAYS_KEPT = true;
template <class Side>
FN void add_always_kept(u32 (&word)[WORDS], const struct Mask &mask, i32 row, i32 column, i32 n_q,
              i32 n_kv) {
    struct Bounds own[INTERVALS];
    always_kept_bounds(Side(), own, mask, row, n_q, n_kv);
#pragma unroll
    for (int i = 0; i < INTERVALS; i++)
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            word[w] |= bits_from(own_before(own[i].first - column) - 32 * w)
                & bits_before(own_before(own[i].last - column) - 32 * w);
}
#else
constexpr bool ALWAYS_KEPT = true;
template <class Side>
FN void add_always_kept(u32 (&word)[WORDS], const struct Mask &mask, i32 row, i32 column, i32 n_q,
              i32 n_kv) {
    constexpr int AT_ONCE = Side::KEY_ROWS ? 2 : 1;
#pragma unroll AT_ONCE
    for (int i = 0; i < OWN; i++) {
        const i32 inside = min_i32(column + i / 2 * 8 + i % 2, Side::last_column(n_q, n_kv));
        const i32 q = Side::query(row, inside), k = Side::key(row, inside);
        word[WORDS > 1 ? i / 32 : 0] |= (u32)(always_kept(mask, q, k, n_q, n_kv) != 0) << i % 32;
    }
}
#endif
