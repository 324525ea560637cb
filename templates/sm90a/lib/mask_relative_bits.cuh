// Mask policy: liveness depends on k - q only and is stored as bits in memory, optionally combined
// with a few intervals. See mask_policy.cuh.

#include "sm90a/lib/visible.cuh"

#include "common/lib/intervals.cuh"

constexpr bool MASK_EARLY = true;
constexpr bool MASK_HEAVY = INTERVALS > 0 || OWN > 16;
constexpr bool MASK_FETCHED = false;
struct MaskRow {};
FN void begin_row(struct MaskRow &) {}

// Bit DISTANCE_PAD + n_q - 1 + k - q of a mask tells whether query q sees key k.
// maskc/layout/tiles/relative_bits.py builds the bits.
constexpr i32 DISTANCE_PAD = 256;
FN const u32 *distances_of(const struct Attention &p, i32 head) {
    const i32 words = (p.n_q + p.n_kv + 2 * DISTANCE_PAD + 31) / 32;
    return (const u32 *)p.distances + (i64)(p.head_variant ? p.head_variant[head] : 0) * words;
}
// 32 bits starting at bit `place`.
FN u32 bits_at(const u32 *bits, i32 place) {
    const u32 *const at = bits + (u32)place / 32;
    return __funnelshift_r(__ldg(at), __ldg(at + 1), place);
}
// Picks the columns of a thread out of 32, two of every eight: bits 8 i + e become 2 i + e.
FN u32 own_of(u32 bits) { return (bits & 0x03030303u) * 0x01041040u >> 24; }

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
