// Which pairs of a tile are seen.
// Needs: constants.cuh; Mask, keep. Gives: everything, visible.

constexpr u32 EVERYTHING = 0xffffffff;

// Bit C * r + c tells whether this thread's row r sees its column c. Rows are queries and columns
// keys, or, turned, rows keys and columns queries.
//
// Pairs are tested where a tile is partial; full ones, which are most, lose their tails alone.
template <int R, int C, bool TURNED>
FN u32 visible(const struct Attention &p, const struct Mask &mask, bool full, i32 first_q,
               i32 first_k) {
    constexpr i32 QUERIES = TURNED ? C * SIDE : R * SIDE, KEYS = TURNED ? R * SIDE : C * SIDE;
    if (full && first_q + QUERIES <= p.n_q && first_k + KEYS <= p.n_kv) return EVERYTHING;
    const i32 row = (TURNED ? first_k : first_q) + R * thread_down();
    const i32 column = (TURNED ? first_q : first_k) + C * thread_across();
    u32 bits = 0;
#pragma unroll 1
    for (i32 i = 0; i < R * C; i++) {
        const i32 down = row + i / C, across = column + i % C;
        const i32 q = TURNED ? across : down, k = TURNED ? down : across;
        const bool inside = q < p.n_q && k < p.n_kv;
        const bool sees = inside && (full || keep(mask, q, k, p.n_q, p.n_kv));
        bits |= (u32)sees << i;
    }
    return bits;
}
