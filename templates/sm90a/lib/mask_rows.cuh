// Mask policy: the live columns of a row are a few intervals, with bounds from formulas or data;
// otherwise the mask's formula decides pair by pair. See mask_policy.cuh.

#include "sm90a/lib/visible.cuh"

// With distances and small heads, too few registers are left for intervals from data.
[[maybe_unused]] constexpr bool DATA_FIT = !(HEAD_GRADIENT && HEAD_DIM <= 64);

#include "common/lib/rows.cuh"

#if HAS_INTERVALS
constexpr bool MASK_EARLY = false;  // intervals are cheap
constexpr bool MASK_HEAVY = INTERVALS > 2;
#elif DATA_ROWS
constexpr bool MASK_EARLY = DATA_EARLY;
constexpr bool MASK_HEAVY = DATA_OF_KEYS || LONG_FORMULA || QUERY_RUN < 8;
#else
constexpr bool MASK_EARLY = true;
constexpr bool MASK_HEAVY = LONG_FORMULA || QUERY_RUN < 8;
#endif
constexpr bool MASK_FETCHED = false;
struct MaskRow {};
FN void begin_row(struct MaskRow &) {}

template <class Side>
FN struct Visible prefetch_mask(const struct Attention &, struct Place, i32, i32) { return {}; }

template <class Side>
FN struct Visible visible(const struct Attention &p, struct Place at, i32 row, i32 first,
                          struct MaskRow &, const struct Visible &) {
    const i32 n_q = Side::queries(p), n_kv = p.n_kv;
    struct Visible seen = {};
    const i32 rows[2] = {Side::row(p, row), Side::row(p, row + 8)};
    const i32 inside[2] = {Side::inside(rows[0], n_kv), Side::inside(rows[1], n_kv)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    see_rows<Side, Own>(seen.word, mask, inside, first, n_q, n_kv);
    hide_keys_past<Side>(seen, rows, n_kv);
    return seen;
}
