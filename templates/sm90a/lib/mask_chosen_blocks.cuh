// Mask policy: the live columns of a row are a few intervals; in some of them only blocks of keys
// that were selected at run time are live. See mask_policy.cuh. Needs: CHOSEN_Q, CHOSEN_K,
// BLOCKS_EARLY and what follows them of the config header.

#include "sm90a/lib/visible.cuh"

#include "common/lib/intervals.cuh"

#include "sm90a/lib/chosen_blocks.cuh"

constexpr bool MASK_EARLY = BLOCKS_EARLY;
constexpr bool MASK_HEAVY = true;
constexpr bool MASK_FETCHED = true;
struct MaskRow {};
FN void begin_row(struct MaskRow &) {}

// Both queries of a thread share a row of the table
constexpr bool ROWS_ALIKE = !ROWS_PACKED && CHOSEN_Q % 16 == 0;
constexpr bool KEYS_ALIKE = CHOSEN_K % 16 == 0;

// Prefetches the words of the table, long before they are needed, to hide the latency.
template <class Side>
FN struct Visible prefetch_mask(const struct Attention &p, struct Place at, i32 row, i32 first) {
    struct Visible blocks = {};
    if (Side::KEY_ROWS) return blocks;
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    const i32 n_kv = p.n_kv;
    blocks.word[0][0] = blocks_of(mask, Side::row(p, row), first, n_kv);
    if (!ROWS_ALIKE) blocks.word[1][0] = blocks_of(mask, Side::row(p, row + 8), first, n_kv);
    return blocks;
}

template <class Side>
FN struct Visible visible(const struct Attention &p, struct Place at, i32 row, i32 first,
                          struct MaskRow &, const struct Visible &blocks) {
    const i32 n_q = Side::queries(p), n_kv = p.n_kv, column = first + threadIdx.x % 4 * 2;
    struct Visible seen = {};
    const i32 rows[2] = {Side::row(p, row), Side::row(p, row + 8)};
    const struct Mask mask = load_mask(&p, at.batch, at.head);
    u32 own[2][WORDS];
    if (Side::KEY_ROWS) {
        own[0][0] = choosing(mask, Side::inside(rows[0], n_kv), first, n_q);
        own[1][0] = KEYS_ALIKE ? own[0][0]
                               : choosing(mask, Side::inside(rows[1], n_kv), first, n_q);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (!Side::KEY_ROWS) cover(own[r], blocks.word[ROWS_ALIKE ? 0 : r][0], first);
        add_intervals<Side, Own>(seen.word[r], mask, rows[r], column, n_kv, n_q, n_kv,
                            [&](int i, int w) { return of_interval(i, own[r][w]); });
    }
    hide_keys_past<Side>(seen, rows, n_kv);
    return seen;
}
