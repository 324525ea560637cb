// Converts exact sums to gradients of tables, entry by entry, with all threads of a launch. Needs:
// gen/score.h.j2. Gives: finish_tables.

FN void finish_tables(const struct Attention &p, i32 threads) {
    for (i32 slot = 0; slot < SCORE_SLOTS; slot++) {
        if (!p.score_gradient[slot] || !p.score_sums[slot]) continue;
        const i64 first = (i64)blockIdx.x * threads + threadIdx.x;
        for (i64 i = first; i < p.score_entries[slot]; i += (i64)gridDim.x * threads)
            p.score_gradient[slot][i] = score_sum(p.score_sums[slot] + i * SUM_WORDS);
    }
}
