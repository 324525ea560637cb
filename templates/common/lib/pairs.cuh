// The live pairs of a tile by the mask's formula: pair by pair, or once per run of columns with
// equal results. Needs: bits.cuh, mask_sides.cuh; Own, a type of a thread's columns, KEY_RUN,
// QUERY_RUN, KEYS_AT_ONCE, QUERIES_AT_ONCE, LONG_FORMULA, keep of the mask.

template <class Side>
FN u32 is_live(const struct Mask &mask, i32 row, i32 column, i32 n_q, i32 n_kv) {
    row = Side::inside(row, n_kv);
    return keep(mask, Side::query(row, column), Side::key(row, column), n_q, n_kv) != 0;
}

// Tests one column of each aligned run of equal columns.
template <class Side, class Own, int R>
FN void add_runs(u32 (&word)[R][Own::WORDS], const struct Mask &mask, const i32 (&rows)[R],
                 i32 first, i32 n_q, i32 n_kv) {
    constexpr int ALL = Own::ALL, ALIKE = Side::KEY_ROWS ? QUERY_RUN : KEY_RUN;
    constexpr int RUN = ALIKE < ALL ? ALIKE : ALL, RUNS = Own::SPREAD ? ALL / RUN : 1;
    constexpr int OWN_RUN = Own::COUNT / RUNS;
#pragma unroll
    for (int i = 0; i < RUNS; i++) {
        const i32 column = first + (Own::SPREAD ? RUN * i : Own::first());
        const i32 inside = min_i32(column, Side::last_column(n_q, n_kv));
#pragma unroll
        for (int r = 0; r < R; r++)
            if (is_live<Side>(mask, rows[r], inside, n_q, n_kv))
                word[r][OWN_RUN * i / 32] |= bits_before(OWN_RUN) << OWN_RUN * i % 32;
    }
    if (Side::KEY_ROWS) return;
    const i32 end = Own::before(n_kv - (first + Own::first()));
#pragma unroll
    for (int w = 0; w < Own::WORDS; w++)
#pragma unroll
        for (int r = 0; r < R; r++) word[r][w] &= bits_before(end - 32 * w);
}

// Tests several pairs per iteration. Keys from `end` on are dead.
template <class Side, class Own, int R>
FN void add_pairs(u32 (&word)[R][Own::WORDS], const struct Mask &mask, const i32 (&rows)[R],
                  i32 own, i32 end, i32 n_q, i32 n_kv) {
    constexpr int AT_ONCE = Side::KEY_ROWS ? QUERIES_AT_ONCE : KEYS_AT_ONCE;
#pragma unroll AT_ONCE
    for (int i = 0; i < Own::COUNT; i++) {
        const i32 column = own + Own::place(i);
        const i32 inside = min_i32(column, Side::last_column(n_q, n_kv));
#pragma unroll
        for (int r = 0; r < R; r++) {
            const u32 live = is_live<Side>(mask, rows[r], inside, n_q, n_kv);
            word[r][Own::WORDS > 1 ? i / 32 : 0] |=
                Side::KEY_ROWS ? live << i : (live & (column < end)) << i % 32;
        }
    }
}

// Tests one pair per iteration, because long formulas need the registers. Rows are keys.
template <class Side, class Own, int R>
FN void add_single_pairs(u32 (&word)[R][Own::WORDS], const struct Mask &mask,
                         const i32 (&rows)[R], i32 column, i32 n_q, i32 n_kv) {
#pragma unroll 1
    for (int i = 0; i < R * Own::COUNT; i++) {
        const i32 r = i % R, own = i / R;
        const i32 inside = min_i32(column + Own::place(own), Side::last_column(n_q, n_kv));
        const u32 live =
            is_live<Side>(mask, rows[0] + Own::ROW_STEP * r, inside, n_q, n_kv);
#pragma unroll
        for (int each = 0; each < R; each++) word[each][0] |= (r == each ? live : 0) << own;
    }
}

// Tests all pairs of a tile, in the way that suits the formula.
template <class Side, class Own, int R>
FN void add_tested(u32 (&word)[R][Own::WORDS], const struct Mask &mask, const i32 (&rows)[R],
                   i32 first, i32 n_q, i32 n_kv) {
    constexpr bool RUNS = (Side::KEY_ROWS ? QUERY_RUN : KEY_RUN) >= 8;
    const i32 column = first + Own::first();
    if constexpr (RUNS)
        add_runs<Side, Own>(word, mask, rows, first, n_q, n_kv);
    else if constexpr (Side::KEY_ROWS && LONG_FORMULA)
        add_single_pairs<Side, Own>(word, mask, rows, column, n_q, n_kv);
    else
        add_pairs<Side, Own>(word, mask, rows, column, n_kv, n_q, n_kv);
}
