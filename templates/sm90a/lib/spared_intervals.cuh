// Pairs that are kept whatever their scores: a row's columns are a few intervals. Gives what
// spared_pairs.cuh gives. Needs: bits.cuh, visible.cuh; Bounds, INTERVALS, spared_bounds of the
// mask.

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
