// Pairs that are kept whatever their scores, by a formula. Gives SPARES and spare, which adds a
// row's columns, of which the thread's first one is `column`, as bits.
// Needs: mask_sides.cuh, visible.cuh; spared of the mask.

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
