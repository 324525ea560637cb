// Mask policy: the mask's formula decides, pair by pair. See mask_sides.cuh.
// Needs: pairs.cuh.

constexpr bool MASK_EARLY = true;
constexpr bool MASK_HEAVY = LONG_FORMULA || QUERY_RUN < 8;
constexpr bool MASK_FETCHED = false;
struct MaskRow {};
FN void begin_row(struct MaskRow &) {}

template <class Side>
FN struct Visible prefetch_mask(const struct Attention &, struct Place, i32, i32) { return {}; }

template <class Side>
FN struct Visible visible(const struct Attention &p, struct Place at, i32 row, i32 first,
                          struct MaskRow &, const struct Visible &) {
    constexpr bool RUNS = (Side::KEY_ROWS ? QUERY_RUN : KEY_RUN) >= 8;
    const i32 n_kv = p.n_kv;
    const i32 rows[2] = {Side::row(p, row), Side::row(p, row + 8)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    struct Visible seen = {};
    if constexpr (RUNS)
        add_runs<Side>(seen, p, mask, rows, first);
    else if constexpr (Side::KEY_ROWS && LONG_FORMULA)
        add_single_pairs<Side>(seen, p, mask, rows, first);
    else
        add_pairs<Side>(seen, p, mask, rows, first, n_kv);
    hide_keys_past<Side>(seen, rows, n_kv);
    return seen;
}
