// The live columns of a row as bits, if they are a few intervals. Without HAS_INTERVALS there are
// none in addition to the policy's. Needs: bits.cuh, mask_sides.cuh; Own, a type of a thread's
// columns, Bounds, INTERVALS and row_bounds of the mask.

#if HAS_INTERVALS
// Adds the columns before key `end`. `only` gives the bits of word w that count for interval i.
template <class Side, class Own, class Only>
FN void add_intervals(u32 (&word)[Own::WORDS], const struct Mask &mask, i32 row, i32 column,
                      i32 end, i32 n_q, i32 n_kv, const Only &only) {
    struct Bounds own[INTERVALS];
    row_bounds(Side(), own, mask, Side::inside(row, n_kv), n_q, n_kv);
#pragma unroll
    for (int i = 0; i < INTERVALS; i++) {
        const i32 from = Own::before(own[i].first - column);
        const i32 to = Own::before(Side::column_end(own[i].last, end) - column);
#pragma unroll
        for (int w = 0; w < Own::WORDS; w++)
            word[w] |= bits_from(from - 32 * w) & bits_before(to - 32 * w) & only(i, w);
    }
}
template <class Side, class Own>
FN void add_intervals(u32 (&word)[Own::WORDS], const struct Mask &mask, i32 row, i32 column,
                      i32 end, i32 n_q, i32 n_kv) {
    const auto all = [](int, int) { return ~0u; };
    add_intervals<Side, Own>(word, mask, row, column, end, n_q, n_kv, all);
}
#else
constexpr int INTERVALS = 0;
template <class Side, class Own>
FN void add_intervals(u32 (&)[Own::WORDS], const struct Mask &, i32, i32, i32, i32, i32) {}
#endif
