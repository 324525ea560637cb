// Pairs that are always kept, whatever their scores: given by intervals of a row, or by a formula;
// none without HAS_SPARED. Gives SPARES and spare, which adds such columns of a row as bits;
// `column` is the thread's first column. Needs: bits.cuh, mask_sides.cuh, visible.cuh;
// spared_bounds or spared of the config header.

#if !HAS_SPARED
constexpr bool SPARES = false;
template <class Side>
FN void spare(u32 (&)[WORDS], const struct Mask &, i32, i32, i32, i32) {}
#elif HAS_INTERVALS
constexpr bool SPARES = true;
template <class Side>
FN void spare(u32 (&word)[WORDS], const struct Mask &mask, i32 row, i32 column, i32 n_q,
              i32 n_kv) {
    struct Bounds own[INTERVALS];
    spared_bounds(Side(), own, mask, row, n_q, n_kv);
#pragma unroll
    for (int i = 0; i < INTERVALS; i++)
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            word[w] |= bits_from(own_before(own[i].first - column) - 32 * w)
                & bits_before(own_before(own[i].last - column) - 32 * w);
}
#else
constexpr bool SPARES = true;
template <class Side>
FN void spare(u32 (&word)[WORDS], const struct Mask &mask, i32 row, i32 column, i32 n_q,
              i32 n_kv) {
    constexpr int AT_ONCE = Side::KEY_ROWS ? 2 : 1;
#pragma unroll AT_ONCE
    for (int i = 0; i < OWN; i++) {
        const i32 inside = min_i32(column + i / 2 * 8 + i % 2, Side::last_column(n_q, n_kv));
        const i32 q = Side::query(row, inside), k = Side::key(row, inside);
        word[WORDS > 1 ? i / 32 : 0] |= (u32)(spared(mask, q, k, n_q, n_kv) != 0) << i % 32;
    }
}
#endif
