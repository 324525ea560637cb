// Applies dropout to a thread's pairs. Needs: common/lib/dropout.h, constants.cuh. Gives: draw,
// drop.

// Bit C * r + c: whether this thread's pair (r, c) is kept; see `visible`. Two neighboring keys
// share a draw.
template <int R, int C, bool TURNED>
FN u32 draw(const struct Attention &p, i32 batch, i32 head, i32 first_q, i32 first_k) {
    constexpr int KEYS = TURNED ? R : C, QUERIES = TURNED ? C : R;
    static_assert(KEYS % 2 == 0, "the first of a thread's keys is even");
    const struct Dropout d = dropout_of(p.dropout_seed_at, p.dropout_seed, p.dropout_least,
                                        p.dropout_first_q, p.dropout_first_k);
    const i32 q0 = first_q + QUERIES * (TURNED ? thread_across() : thread_down());
    const i32 k0 = first_k + KEYS * (TURNED ? thread_down() : thread_across());
    u32 bits = 0;
#pragma unroll 1
    for (i32 i = 0; i < R * C / 2; i++) {
        const i32 q = i / (KEYS / 2), k = 2 * (i % (KEYS / 2));
        const struct Draws draws = draws_at(d, q0 + q, k0 + k, head, batch);
        const u32 even = stays(draws, d.least, q0 + q, k0 + k);
        const u32 odd = stays(draws, d.least, q0 + q, k0 + k + 1);
        bits |= TURNED ? (even | odd << C) << (C * k + q) : (even | odd << 1) << (C * q + k);
    }
    return bits;
}

// Multiplies kept pairs by `factor` and zeroes the others. With nan_safe, hidden and dropped pairs
// become -0, which products skip.
template <int R, int C>
FN void drop(float (&x)[R][C], u32 stay, float factor) {
    const float gone = WITH_NAN_SAFE ? -0.0f : 0.0f;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++) x[r][c] = stay >> (C * r + c) & 1 ? x[r][c] * factor : gone;
}
