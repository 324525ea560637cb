// The live pairs of a tile by the mask's formula, pair by pair, or one pair for a run of columns
// that are alike.
// Needs: bits.cuh, mask_sides.cuh, visible.cuh; KEY_RUN, QUERY_RUN, PAIRS_AT_ONCE, LONG_FORMULA,
// keep of the mask.

template <class Side>
FN u32 is_live(const struct Mask &mask, i32 row, i32 column, i32 n_q, i32 n_kv) {
    row = Side::inside(row, n_kv);
    return keep(mask, Side::query(row, column), Side::key(row, column), n_q, n_kv) != 0;
}

// Aligned runs of columns are alike: one of each is tested.
template <class Side>
FN void add_runs(struct Visible &seen, const struct Mask &mask, const i32 (&rows)[2], i32 first,
                 i32 column, i32 n_q, i32 n_kv) {
    constexpr int ALL = 4 * OWN, ALIKE = Side::KEY_ROWS ? QUERY_RUN : KEY_RUN;
    constexpr int RUN = ALIKE < ALL ? ALIKE : ALL;
#pragma unroll
    for (int i = 0; i < ALL / RUN; i++) {
        const i32 inside = min_i32(first + RUN * i, Side::last_column(n_q, n_kv));
#pragma unroll
        for (int r = 0; r < 2; r++)
            if (is_live<Side>(mask, rows[r], inside, n_q, n_kv))
                seen.word[r][RUN / 4 * i / 32] |= bits_before(RUN / 4) << RUN / 4 * i % 32;
    }
    if (Side::KEY_ROWS) return;
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        const u32 inside = bits_before(own_before(n_kv - column) - 32 * w);
        seen.word[0][w] &= inside, seen.word[1][w] &= inside;
    }
}

// Some pairs at a time; those of keys from `end` on are none.
template <class Side>
FN void add_pairs(struct Visible &seen, const struct Mask &mask, const i32 (&rows)[2], i32 own,
                  i32 end, i32 n_q, i32 n_kv) {
    constexpr int AT_ONCE = Side::KEY_ROWS ? 2 : PAIRS_AT_ONCE;  // columns
#pragma unroll AT_ONCE
    for (int i = 0; i < OWN; i++) {
        const i32 column = own + i / 2 * 8 + i % 2;
        const i32 inside = min_i32(column, Side::last_column(n_q, n_kv));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u32 live = is_live<Side>(mask, rows[r], inside, n_q, n_kv);
            seen.word[r][WORDS > 1 ? i / 32 : 0] |=
                Side::KEY_ROWS ? live << i : (live & (column < end)) << i % 32;
        }
    }
}

// One pair at a time: long formulas need the registers. Rows are keys.
template <class Side>
FN void add_single_pairs(struct Visible &seen, const struct Mask &mask, const i32 (&rows)[2],
                         i32 column, i32 n_q, i32 n_kv) {
#pragma unroll 1
    for (int i = 0; i < 2 * OWN; i++) {
        const i32 r = i % 2, own = i / 2;
        const i32 inside = min_i32(column + own / 2 * 8 + own % 2, Side::last_column(n_q, n_kv));
        const u32 live = is_live<Side>(mask, rows[0] + 8 * r, inside, n_q, n_kv);
        seen.word[0][0] |= (r ? 0 : live) << own;
        seen.word[1][0] |= (r ? live : 0) << own;
    }
}

// All of a tile, in whichever way suits the formula; the thread's first column is `column`.
template <class Side>
FN void add_tested(struct Visible &seen, const struct Mask &mask, const i32 (&rows)[2], i32 first,
                   i32 column, i32 n_q, i32 n_kv) {
    constexpr bool RUNS = (Side::KEY_ROWS ? QUERY_RUN : KEY_RUN) >= 8;
    if constexpr (RUNS)
        add_runs<Side>(seen, mask, rows, first, column, n_q, n_kv);
    else if constexpr (Side::KEY_ROWS && LONG_FORMULA)
        add_single_pairs<Side>(seen, mask, rows, column, n_q, n_kv);
    else
        add_pairs<Side>(seen, mask, rows, column, n_kv, n_q, n_kv);
}
