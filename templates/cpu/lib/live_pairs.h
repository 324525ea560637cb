// The mask of a partial tile: bounds of rows, or pair by pair. Needs: Place, Live; row_bounds and
// what goes with it of the config header, with HAS_BOUNDS; mark_chosen, with HAS_SELECTIONS.

// The mask's formula, pair by pair, in a separate function: a plain loop that the compiler can
// vectorize for any formula.
static __attribute__((noinline)) void tested_pairs(const struct Attention *p, struct Mask m,
                                                   struct Place at, Live live) {
    const i32 n_q = p->n_q, n_kv = p->n_kv;
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 q = 0; q < at.queries; q++) {
            live[k][q] = keep(m, at.q0 + q, at.k0 + k, n_q, n_kv);
        }
    }
}

#if HAS_BOUNDS
#include "cpu/lib/live_rows.h"
#else
static __attribute__((noinline)) void live_pairs(const struct Attention *p, struct Mask m,
                                                 struct Place at, Live live) {
#if HAS_SELECTIONS
    m.tile_q = at.q0;
    m.tile_k = at.k0;
    CHOSEN_PAIRS(m, at)
#endif
    tested_pairs(p, m, at, live);
}
#endif
