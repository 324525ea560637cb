// alpha-entmax: computes out from the lists of keys, by WGMMAs over the tiles of v. Needs:
// entmax_lists.cuh.

// Used if the lists are complete, but too long to fetch single values. A thread's lists hold
// exactly the columns that the A operand wants from this thread, so weights need no exchange
// between threads. The weights of a tile are scattered to a scratch area behind the lists, with one
// place for every pair of columns of each row.
constexpr u32 PAIRS = TILE_K / 8;  // pairs of columns in a row of a thread

FN uint2 &kept_words(u32 at) { return *(uint2 *)__cvta_shared_to_generic(at); }
FN u32 &kept_word(u32 at) { return *(u32 *)__cvta_shared_to_generic(at); }

// Not possible if tiles begin at any key (a key may then be in several lists, and lists must be in
// tile order), nor if registers are short.
constexpr bool BY_PRODUCTS = !FILTERS_PAIRS && KEY_STEP == TILE_K && HEAD_DIM <= 192
                             && !DROPS;  // dropout needs tiles, or single keys

// A list entry becomes one word: 14 bits of the weight, which is at most 1, and 18 bits of the
// column index within the thread. A row's last word is followed by NO_COLUMN.
constexpr u32 COLUMN = (1 << 18) - 1, NO_COLUMN = COLUMN;
constexpr i32 MAX_COLUMNS = 4 * (NO_COLUMN + 1) - TILE_K;  // of keys
// The words of both rows interleave from the same address: one row has the lower half of each
// entry, the other row the upper half.
FN u32 first_weight(int r) { return first_place(0) + 4 * r; }
// Returns whether all lists of a warp leave room for the scratch area, and the second row's list
// for its words.
FN bool room_for_pairs(const struct Lists &lists) {
    const u32 low = lists.free[0] - first_place(0), high = first_place(1) - lists.free[1];
    const u32 most = min(LIST - PAIRS - 1, LIST / 2) * LIST_STEP;
    return BY_PRODUCTS && __all_sync(0xffffffff, max(low, high) <= most);
}

// Position in both rows' words, the next two weights of each row, and the address of the scratch
// area.
struct Cursor {
    u32 pairs, at[2], next[2][2];
};
FN void look(struct Cursor &c, int r) {
    c.next[r][0] = kept_word(c.at[r]), c.next[r][1] = kept_word(c.at[r] + LIST_STEP);
}

// Turns scores into words in place. An iteration has read the entries that its words overwrite.
FN struct Cursor weigh_lists(const struct Lists &lists, float unit, float a, struct Search &x) {
    u32 free[2] = {first_weight(0), first_weight(1)};
    clear_sums(x);
    by_alpha(a, [&](auto kind) {
        constexpr Alpha ALPHA = decltype(kind)::value;
        if (ALPHA == NEAR_SOFTMAX) return;  // no lists
        for_lists<true>(lists, [&](int r, float y, float key) {
            const float weight = weigh<ALPHA>(y, unit, x.level[r], a).p;
            x.p[r] += weight;
            // Computed unconditionally, so that only the store is predicated.
            const u32 whole = (u32)key, column = whole / 8 * 2 + whole % 2;
            const i32 word = make_opaque((i32)(pack(weight, 0.0f) << 18 | column));
            if (!(weight > 0.0f)) return;
            kept_word(free[r]) = (u32)word;
            free[r] += LIST_STEP;
        });
    });
    struct Cursor c;
    c.pairs = (max(free[0], free[1]) & ~7u) + LIST_STEP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        x.p[r] = quad_sum(x.p[r]);
        kept_word(free[r]) = NO_COLUMN;
        c.at[r] = first_weight(r);
        look(c, r);
    }
#pragma unroll
    for (u32 i = 0; i < PAIRS; i++) kept_words(c.pairs + i * LIST_STEP) = make_uint2(0, 0);
    return c;
}

// Scatters the weights of a tile into the zeroed scratch area. An iteration takes two per row,
// since few rows have more. A word behind the end of a row's list must not pass for a column of the
// tile: `own` stops at the first one that is not.
FN void put_weights(struct Cursor &c, u32 tile) {
    bool more = true;
#pragma unroll 1
    while (more) {
        more = false;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            bool own = true;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const u32 column = (c.next[r][n] & COLUMN) - tile * (2 * PAIRS);
                own = own && column < 2 * PAIRS;
                if (!own) continue;
                const u32 place = column / 2 * LIST_STEP + column % 2 * 2 + 4 * r;
                *(unsigned short *)__cvta_shared_to_generic(c.pairs + place) =
                    (unsigned short)(c.next[r][n] >> 18);
                c.at[r] += LIST_STEP;
            }
            look(c, r);
            more = more || own;
        }
        more = __any_sync(0xffffffff, more);
    }
}
// Loads them as an A operand, and zeroes the scratch area again.
FN void take_weights(Weights &weights, const struct Cursor &c) {
#pragma unroll
    for (u32 i = 0; i < PAIRS; i++) {
        const uint2 pair = kept_words(c.pairs + i * LIST_STEP);
        weights[i / 2 * 4 + i % 2 * 2] = pair.x, weights[i / 2 * 4 + i % 2 * 2 + 1] = pair.y;
    }
#pragma unroll
    for (u32 i = 0; i < PAIRS; i++) kept_words(c.pairs + i * LIST_STEP) = make_uint2(0, 0);
}
