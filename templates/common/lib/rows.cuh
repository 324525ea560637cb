// Finds the live columns of rows of a tile: intervals with bounds from formulas or from data, or
// the formula of all pairs. The config header chooses: HAS_INTERVALS, DATA_ROWS. Needs: bits.cuh;
// mask_row; DATA_FIT: whether registers suffice for runs of data. Gives: see_rows.

#if HAS_INTERVALS
#include "common/lib/intervals.cuh"
#else
#if DATA_ROWS
#include "common/lib/data_rows.cuh"

#endif
#include "common/lib/pairs.cuh"
#endif

// Returns what rows see of the tile that begins with column `first`, as bits of a thread's own
// columns. Rows must be inside the lengths. Bits of keys past the last one are 0; bits past the
// tile are undefined.
template <class Side, class Own, int R>
FN void see_rows(u32 (&word)[R][Own::WORDS], const struct Mask &mask, const i32 (&rows)[R],
                 i32 first, i32 n_q, i32 n_kv) {
#if HAS_INTERVALS
#pragma unroll
    for (int r = 0; r < R; r++)
        add_intervals<Side, Own>(word[r], mask, rows[r], first + Own::first(), n_kv, n_q, n_kv);
#elif DATA_ROWS
    if (!DATA_FIT || !add_data<Side, Own>(word, mask, rows, first, n_q, n_kv))
        add_tested<Side, Own>(word, mask, rows, first, n_q, n_kv);
#else
    add_tested<Side, Own>(word, mask, rows, first, n_q, n_kv);
#endif
}
