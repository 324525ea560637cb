// Mask policy: the live columns of a row are a few intervals. See mask_sides.cuh.
// Needs: intervals.cuh.

constexpr bool MASK_EARLY = false;  // intervals are cheap
constexpr bool MASK_HEAVY = INTERVALS > 2;
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
#pragma unroll
    for (int r = 0; r < 2; r++)
        add_intervals<Side>(seen.word[r], mask, rows[r], column, n_kv, n_q, n_kv);
    hide_keys_past<Side>(seen, rows, n_kv);
    return seen;
}
