// Passes of a warp over its rows' scores. Needs: choose_lists.cuh, choose_rows.cuh; Rows, Shared,
// take_scores and chosen_count of the includer.

FN void first_brackets(struct Bracket (&row)[2], const struct Moments (&moments)[2],
                       const i32 (&allowed)[2], bool looked, bool &unsure,
                       const struct Attention &p, const struct Rows &w) {
    const i32 k = chosen_count(load_mask(&p, w.batch, w.head));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const i32 count = quad_add(allowed[r]);
        row[r] = first_bracket(moments[r], w.query + 8 * r < p.n_q ? count : 0, k, p.n_kv, looked,
                               unsure);
    }
}

// The next pass.
FN enum Pass next_pass(const struct Bracket (&row)[2]) {
    if (__any_sync(0xffffffff, guessed(row[0]) || guessed(row[1]))) return COLLECT;
    if (__all_sync(0xffffffff, is_short(row[0]) && is_short(row[1]))) return LISTS;
    const bool by_key = spread_of(row[0]).by_key || spread_of(row[1]).by_key;
    return __any_sync(0xffffffff, by_key) ? BINS_OF_ALL : BINS_OF_SCORES;
}

constexpr i32 MAX_GUESSES = 3;  // passes that may collect before falling back to bins

// Runs one pass and returns the next one. All warps of a group run the same loop, since they share
// the loads and products.
FN enum Pass pass_over(enum Pass pass, i32 passes, u32 *bins, struct Bracket (&row)[2],
                       struct Shared &shared, const struct Attention &p, struct Rows &w) {
    const struct Spread spread[2] = {spread_of(row[0]), spread_of(row[1])};
    struct List list[2] = {list_of(row[0], bins, 0), list_of(row[1], bins, 1)};
    struct Moments moments[2] = {};
    i32 allowed[2] = {};
    row[0].above = row[1].above = 0;
    if (pass > COLLECT) clear_bins(bins);
#pragma unroll 1
    for (i32 i = 0; i < w.tiles; i++) {
        Scores s;
        const i32 word = take_scores(s, shared, p, w, allowed);
        if (pass == COLLECT)
            collect(list, s);
        else if (pass == MOMENTS && !(word & MASKED))
            add_moments<false>(moments, s);
        else if (pass < COLLECT)
            add_moments<true>(moments, s);
        else
            look_on(pass, row, spread, bins, s, (word & INDEX) * KEY_STEP + threadIdx.x % 4 * 2);
    }
    __syncwarp();
    if (pass < COLLECT) {
        bool unsure = false;
        first_brackets(row, moments, allowed, pass == MOMENTS_OF_NUMBERS, unsure, p, w);
        return __any_sync(0xffffffff, unsure) ? MOMENTS_OF_NUMBERS : next_pass(row);
    }
    if (pass == COLLECT) {
        take_collected(row, list, bins, passes < MAX_GUESSES, p.n_kv);
    } else {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (pass == LISTS)
                take_from_list(row[r], bins_of(bins, r));
            else
                narrow(row[r], bins_of(bins, r), p.n_kv);
        }
    }
    __syncwarp();
    return next_pass(row);
}
