// Decides when a forward pass evaluates the mask of a tile ("looks"). Needs: Row and tile words of
// the includer; a mask policy.

// Before the WGMMA: evaluates the mask, or only prefetches what it reads from memory.
FN struct Visible look_early(const struct Attention &p, const struct Row &row, i32 query, i32 word,
                             struct MaskRow &kept) {
    struct Visible seen;
    if ((MASK_EARLY || MASK_FETCHED) && word & MASKED) {
        const struct Place at = {row.batch, row.head};
        const i32 first_k = (word & INDEX) * KEY_STEP;
        if (MASK_FETCHED) seen = prefetch_mask<ByQuery>(p, at, query, first_k);
        if (MASK_EARLY) seen = visible<ByQuery>(p, at, query, first_k, kept, seen);
#if LONG_SUMS
        if (ROWS_SHARED && MASK_EARLY) shared_memory().seen[threadIdx.x - 128] = seen;
#endif
    }
    return seen;
}
// After the WGMMA: evaluates the mask, if look_early did not.
FN struct Visible look_late(const struct Attention &p, const struct Row &row, i32 query, i32 word,
                            struct MaskRow &kept, const struct Visible &seen) {
#if LONG_SUMS
    if (ROWS_SHARED && MASK_EARLY) return shared_memory().seen[threadIdx.x - 128];
#endif
    if (MASK_EARLY) return seen;
    const i32 first_k = (word & INDEX) * KEY_STEP;
    return visible<ByQuery>(p, {row.batch, row.head}, query, first_k, kept, seen);
}
