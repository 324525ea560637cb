// What a warp finds out about the columns of a tile, a vote for each 32: conditions on a column
// alone, and where runs of columns begin that have the same data.
// Needs: bits.cuh, visible.cuh.

constexpr int VOTES = (4 * OWN + 31) / 32;

FN u32 vote(bool own) { return __ballot_sync(~0u, own); }
// Vote j becomes bits of a thread's own columns, two of every eight.
FN void add_votes(u32 (&own)[WORDS], int j, u32 votes) {
    const u32 pairs = votes >> threadIdx.x % 4 * 2 & 0x03030303u;
    own[j / 4] |= (pairs * 0x01041040u >> 24) << j % 4 * 8;
}
// The column where the run after this one begins; past the last one all of them end.
FN i32 next_start(const u32 (&starts)[VOTES], i32 column) {
    i32 next = 4 * OWN;
#pragma unroll
    for (int j = VOTES - 1; j >= 0; j--) {
        const u32 later = starts[j] & bits_from(column + 1 - 32 * j);
        if (later) next = min_i32(32 * j + __ffs(later) - 1, 4 * OWN);
    }
    return next;
}
// Runs up to which a tile goes run by run, where rows have so many intervals in each.
FN constexpr i32 most_runs(i32 intervals) { return (OWN / 4 + intervals - 1) / intervals; }

// Columns from `low` to `high`, counted from the thread's first one, as far as they count.
FN void add_span(u32 (&word)[WORDS], i32 low, i32 high, const u32 (&counts)[WORDS]) {
    const i32 from = own_before(low), to = own_before(high);
#pragma unroll
    for (int w = 0; w < WORDS; w++)
        word[w] |= bits_from(from - 32 * w) & bits_before(to - 32 * w) & counts[w];
}
FN void add_span(u32 (&word)[WORDS], i32 low, i32 high) {
    u32 all[WORDS];
#pragma unroll
    for (int w = 0; w < WORDS; w++) all[w] = ~0u;
    add_span(word, low, high, all);
}
