// The mask of a partial tile if a query's keys are a few intervals: bounds are computed once per
// query, and lanes are compared with them. Needs: vector.h, bounds.h; Live, Place, tested_pairs;
// INTERVALS, CONDITIONS, RUNS, row_bounds, differs, condition, counts of the mask. Gives:
// live_pairs.

// Up to this many runs of keys with equal data, going run by run is cheaper than testing pairs.
enum { MAX_RUNS = 16 };

// Processes keys `begin` to `end` of the tile, which have equal data.
FN void live_run(const struct Attention *p, struct Mask m, struct Place at, i32 begin, i32 end,
                 Live live) {
    const i32 n_q = p->n_q, n_kv = p->n_kv;
    i32 first[INTERVALS][TILE_Q], last[INTERVALS][TILE_Q];
    for (i32 q = 0; q < at.vectors * LANES; q++) {
        struct Bounds own[INTERVALS];
        row_bounds(own, m, min_i32(at.q0 + q, n_q - 1), at.k0 + begin, n_q, n_kv);
        for (i32 i = 0; i < INTERVALS; i++) {
            first[i][q] = own[i].first - at.k0;
            last[i][q] = own[i].last - at.k0;
        }
    }
    for (i32 k = begin; k < end; k++) {
        i32 meets[INTERVALS];
        for (i32 i = 0; i < INTERVALS; i++)
            meets[i] = condition(i) < 0 || counts(condition(i), m, at.k0 + k, n_q, n_kv);
        for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
            ivec seen = {0};
            for (i32 i = 0; i < INTERVALS; i++) {
                if (!meets[i]) continue;
                seen |= (*(const ivec_in_memory *)&first[i][j] <= k)
                    & (*(const ivec_in_memory *)&last[i][j] > k);
            }
            *(ivec_in_memory *)&live[k][j] = seen & 1;
        }
    }
}

static __attribute__((noinline)) void live_pairs(const struct Attention *p, struct Mask m,
                                                 struct Place at, Live live) {
    i32 begins[MAX_RUNS + 1] = {0}, runs = 1;
    for (i32 k = 1; RUNS && k < at.keys && runs <= MAX_RUNS; k++) {
        if (differs(m, at.k0 + k, at.k0 + k - 1, p->n_q, p->n_kv)) begins[runs++] = k;
    }
    if (runs > MAX_RUNS) {
        tested_pairs(p, m, at, live);
        return;
    }
    for (i32 i = 0; i < runs; i++)
        live_run(p, m, at, begins[i], i + 1 < runs ? begins[i + 1] : at.keys, live);
}
