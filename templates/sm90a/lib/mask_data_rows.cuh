// Mask policy: data bound a row's columns, which are a few intervals, in all of a tile or in runs
// of columns with the same data; where runs are many, the mask's formula decides. See
// mask_sides.cuh.
// Needs: data_rows.cuh, pairs.cuh; DATA_EARLY, DATA_HEAVY.

constexpr bool MASK_EARLY = DATA_EARLY;
constexpr bool MASK_HEAVY = DATA_HEAVY || LONG_FORMULA || QUERY_RUN < 8;
constexpr bool MASK_FETCHED = false;
struct MaskRow {};
FN void begin_row(struct MaskRow &) {}

template <class Side>
FN struct Visible prefetch_mask(const struct Attention &, struct Place, i32, i32) { return {}; }

template <class Side>
FN struct Visible visible(const struct Attention &p, struct Place at, i32 row, i32 first,
                          struct MaskRow &, const struct Visible &) {
    const i32 n_q = Side::queries(p), n_kv = p.n_kv, column = first + threadIdx.x % 4 * 2;
    struct Visible seen = {};
    const i32 rows[2] = {Side::row(p, row), Side::row(p, row + 8)};
    const i32 inside[2] = {Side::inside(rows[0], n_kv), Side::inside(rows[1], n_kv)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    // Beside distances small heads leave too few registers for runs.
    constexpr bool TESTED = HEAD_GRADIENT && HEAD_DIM <= 64;
    if (TESTED || !see_data(Side(), seen.word, mask, inside, first, n_q, n_kv))
        add_tested<Side>(seen, mask, rows, first, column, n_q, n_kv);
    hide_keys_past<Side>(seen, rows, n_kv);
    return seen;
}
