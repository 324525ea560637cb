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
    const i32 n_q = Side::queries(p), n_kv = p.n_kv, column = first + threadIdx.x % 4 * 2;
    struct Visible seen = {};
    const i32 rows[2] = {Side::row(p, row), Side::row(p, row + 8)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    add_tested<Side>(seen, mask, rows, first, column, n_q, n_kv);
    hide_keys_past<Side>(seen, rows, n_kv);
    return seen;
}
