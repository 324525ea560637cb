// Mask policy: arrays bound the columns of a row, see gen/mask_data.cuh.j2; pairs are tested only
// in tiles whose columns have many different data. See mask_sides.cuh.
// Needs: pairs.cuh; DATA_EARLY and see_data of the mask.

constexpr bool MASK_EARLY = DATA_EARLY;
constexpr bool MASK_HEAVY = true;
constexpr bool MASK_FETCHED = false;
struct MaskRow {};
FN void begin_row(struct MaskRow &) {}

template <class Side>
FN struct Visible prefetch_mask(const struct Attention &, struct Place, i32, i32) { return {}; }

template <class Side>
FN struct Visible visible(const struct Attention &p, struct Place at, i32 row, i32 first,
                          struct MaskRow &, const struct Visible &) {
    const i32 n_q = Side::queries(p), n_kv = p.n_kv;
    const i32 rows[2] = {Side::row(p, row), Side::row(p, row + 8)};
    const i32 inside[2] = {Side::inside(rows[0], n_kv), Side::inside(rows[1], n_kv)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    struct Visible seen = {};
    if (!see_data(Side(), seen, mask, inside, first, n_q, n_kv)) {
        if constexpr (Side::KEY_ROWS && LONG_FORMULA)
            add_single_pairs<Side>(seen, p, mask, rows, first);
        else
            add_pairs<Side>(seen, p, mask, rows, first, n_kv);
    }
    hide_keys_past<Side>(seen, rows, n_kv);
    return seen;
}
