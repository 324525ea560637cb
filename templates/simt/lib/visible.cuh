// The visible pairs of a tile. Needs: constants.cuh, square_columns.cuh; see_rows of the mask.
// Gives: everything, visible.

constexpr u32 EVERYTHING = 0xffffffff;

// Bit C * r + c: whether this thread's row r sees its column c. Rows are queries and columns keys
// or, TURNED, rows are keys and columns queries.
//
// Only partial tiles evaluate the mask. Full tiles, which are most, only hide what is past the end.
template <int R, int C, bool TURNED>
FN u32 visible(const struct Attention &p, const struct Mask &mask, bool full, i32 first_q,
               i32 first_k) {
    typedef SquareColumns<C> Own;
    constexpr i32 QUERIES = TURNED ? C * SIDE : R * SIDE, KEYS = TURNED ? R * SIDE : C * SIDE;
    if (full && first_q + QUERIES <= p.n_q && first_k + KEYS <= p.n_kv) return EVERYTHING;
    const i32 row = (TURNED ? first_k : first_q) + R * thread_down();
    const i32 column = TURNED ? first_q : first_k;
    const i32 row_end = TURNED ? p.n_kv : p.n_q, column_end = TURNED ? p.n_q : p.n_kv;
    i32 rows[R];
    u32 word[R][1] = {};
#pragma unroll
    for (int r = 0; r < R; r++) rows[r] = min_i32(row + r, row_end - 1);
    if (!full) see_rows<SideOf<TURNED>, Own>(word, mask, rows, column, p.n_q, p.n_kv);
    const u32 inside = bits_before(Own::before(column_end - (column + Own::first())));
    u32 bits = 0;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const u32 own = row + r >= row_end ? 0 : full ? inside : word[r][0] & inside;
        bits |= own << C * r;
    }
    return bits;
}
