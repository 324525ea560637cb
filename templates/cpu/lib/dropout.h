// Applies dropout. Needs: common/lib/dropout.h, scores.h. Gives: draw_pairs, drop.

// Whether the pairs of a tile are kept, 0 or 1. Draws whole squares of 16 x 16 pairs, eight queries
// at a time, so that the compiler vectorizes the loop.
static __attribute__((noinline)) void draw_pairs(const struct Attention *p, i32 batch, i32 head,
                                                 struct Place at, Live stay) {
    _Static_assert(TILE_Q % 16 == 0 && TILE_K % 16 == 0, "tiles begin with squares");
    const struct Dropout d = dropout_of(p->dropout_seed_at, p->dropout_seed, p->dropout_least,
                                        p->dropout_first_q, p->dropout_first_k);
    for (i32 k0 = 0; k0 < at.keys; k0 += 16) {
        for (i32 q0 = 0; q0 < at.queries; q0 += 16) {
            for (i32 pair = 0; pair < 8; pair += 2) {
                struct Draws draws[8];
                for (i32 i = 0; i < 8; i++)
                    draws[i] = draws_at(d, at.q0 + q0 + i, at.k0 + k0 + pair, head, batch);
                for (i32 k = pair; k < 16; k += k == pair + 1 ? 7 : 1) {
                    for (i32 q = 0; q < 16; q++)
                        stay[k0 + k][q0 + q] = stays(draws[q % 8], d.least, q, k);
                }
            }
        }
    }
}

// Multiplies kept pairs by the dropout factor and zeroes the others, in place.
FN void drop(const struct Attention *p, struct Place at, Live stay, Scores x) {
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
            const ivec gone = *(const ivec_in_memory *)&stay[k][j] == 0;
            store(&x[k][j], zero_where(gone, p->dropout_scale * load(&x[k][j])));
        }
    }
}
