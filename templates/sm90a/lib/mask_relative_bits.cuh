// Mask policy: whether a pair is live depends on k - q alone and is a bit in memory; a few
// intervals may come beside. See mask_policy.cuh.
// Needs: intervals.cuh or no_intervals.cuh.

constexpr bool MASK_EARLY = true;
constexpr bool MASK_HEAVY = INTERVALS > 0 || OWN > 16;
constexpr bool MASK_FETCHED = false;
struct MaskRow {};
FN void begin_row(struct MaskRow &) {}

#include "sm90a/lib/relative_bits.cuh"

template <class Side>
FN struct Visible prefetch_mask(const struct Attention &, struct Place, i32, i32) { return {}; }

template <class Side>
FN struct Visible visible(const struct Attention &p, struct Place at, i32 row, i32 first,
                          struct MaskRow &, const struct Visible &) {
    const i32 n_q = Side::queries(p), n_kv = p.n_kv, column = first + threadIdx.x % 4 * 2;
    struct Visible seen = {};
    const i32 rows[2] = {Side::row(p, row), Side::row(p, row + 8)};
    const u32 *const bits = distances_of(p, at.head);
    if constexpr (Side::KEY_ROWS) {
        // Later queries have earlier bits.
        const i32 place = DISTANCE_PAD + n_q - 1 + row - (column + 31);
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int i = 0; i < (OWN + 7) / 8; i++)
                seen.word[r][0] |= own_of(__brev(bits_at(bits, place + 8 * r - 32 * i))) << 8 * i;
    } else {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const i32 place = DISTANCE_PAD + n_q - 1 + column - rows[r];
#pragma unroll
            for (int i = 0; i < OWN / 8; i++)
                seen.word[r][i / 4] |= own_of(bits_at(bits, place + 32 * i)) << i % 4 * 8;
#pragma unroll
            for (int w = 0; w < WORDS; w++)
                seen.word[r][w] &= bits_before(own_before(n_kv - column) - 32 * w);
        }
    }
    if (INTERVALS > 0) {
        const struct Mask mask = load_mask(&p, at.batch, at.head);
#pragma unroll
        for (int r = 0; r < 2; r++)
            add_intervals<Side, Own>(seen.word[r], mask, rows[r], column, n_kv, n_q, n_kv);
    }
    hide_keys_past<Side>(seen, rows, n_kv);
    return seen;
}
