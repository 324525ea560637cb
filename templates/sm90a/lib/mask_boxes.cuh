// Mask policy: tiles are boxes of a grid, and liveness is stored as words in memory, one per axis.
// See mask_policy.cuh. Needs: words_of, seen_inside, seen_outside, outer_box of the grid; Point,
// query_point, key_point.

constexpr bool MASK_EARLY = true;
constexpr bool MASK_HEAVY = OWN > 16;
constexpr bool MASK_FETCHED = false;

constexpr int WORDS = 1;
struct Visible {
    u32 word[2][WORDS];
    // All axes except the innermost; combined at the last moment, so that nothing waits earlier
    u32 outside[2];
};
FN u32 word_of(const struct Visible &seen, int r, int) {
    return seen.word[r][0] & seen.outside[r];
}

// What two rows see of boxes that differ only in their position along the innermost axis.
struct MaskRow {
    u32 boxes = ~0u;
    u32 outside[2];
};
FN void begin_row(struct MaskRow &kept) { kept = {}; }

template <class Side>
FN struct Visible prefetch_mask(const struct Attention &, struct Place, i32, i32) { return {}; }

template <class Side>
FN struct Visible visible(const struct Attention &p, struct Place at, i32 row, i32 first,
                          struct MaskRow &kept, const struct Visible &) {
    struct Visible seen;
    if constexpr (Side::KEY_ROWS) {
        const u32 words = words_of(p, at.head) + first % TILE_Q / (4 * OWN) * 4;
        const u32 box = (u32)first / TILE_Q;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const struct Point own = key_point(row + 8 * r);
            seen.word[r][0] = seen_inside(p, words, own, box) & seen_outside(p, words, own, box);
            seen.outside[r] = ~0u;
        }
    } else {
        const u32 words = words_of(p, at.head), box = (u32)first / TILE_K;
        const struct Point own[2] = {query_point(row), query_point(row + 8)};
        const bool others = kept.boxes != outer_box(box);
        kept.boxes = outer_box(box);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            if (others) kept.outside[r] = seen_outside(p, words, own[r], box);
            seen.word[r][0] = seen_inside(p, words, own[r], box);
            seen.outside[r] = kept.outside[r];
        }
    }
    return seen;
}
