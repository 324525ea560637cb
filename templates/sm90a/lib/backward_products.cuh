// WGMMA operands of a backward pass, and the WGMMAs of scores. SPLIT_KEYS selects the file with the
// others.

// dk and dv for a warpgroup's keys and columns.
typedef float Gradient[PIECES * 4];
typedef float ValueGradient[PIECES_OF_DV * 4];
// What a product gives of a warpgroup's share of dq.
#if HALF_SHARE
constexpr int PRODUCT_PIECES = 8 * whole(SLABS);
typedef float QueryHalf[HALF_COLUMNS / 2];  // the rest of the share
#else
constexpr int PRODUCT_PIECES = DQ_PIECES;
#endif
typedef float QueryGradient[PRODUCT_PIECES * 4];

// Operand descriptors of a warpgroup for stage 0. In shared memory, v follows k; dout is STAGES
// tiles after q; p, if exchanged, is STAGES tiles after ds.
struct Operands {
    u64 k, q;                // for scores: K-major
    u64 rows, ones;          // LSE_IN_WGMMA: pieces of lse and delta, and their multipliers, 1
    u64 k_tokens, q_tokens;  // for gradients: MN-major, reduced along tokens
    u64 k_half, q_half;      // the slab that both warpgroups share half of, if any
    u64 ds, ds_keys;         // for dq, along the keys; for dk, along the queries
};
constexpr u32 TO_V = K_BYTES >> 4, TO_DOUT = STAGES * Q_BYTES >> 4;
[[maybe_unused]] constexpr u32 TO_P = STAGES * PAIR_BYTES >> 4;
FN u32 q_stage(u32 at) { return at * (Q_BYTES >> 4); }
FN u32 dout_stage(u32 at) { return at % DOUT_STAGES * (DOUT_BYTES >> 4); }
FN u32 rows_stage(u32 at) { return at * TILE_Q; }
FN u32 ds_stage(u32 at) { return at % DS_STAGES * (PAIR_BYTES >> 4); }

#if LSE_IN_WGMMA
// -lse and -delta are the B operand of one more k-step. Each query has a row of eight bf16 numbers:
// three pieces of lse, a zero, and the same for delta. The second half of the k-step rereads the
// first.
FN u64 along_pieces(u32 rows) { return (u64)(rows >> 4) | 8ull << 32; }
constexpr u32 PIECE_BYTES = 16 * TILE_Q;
// The A operand, in registers, has ones at the pieces to add and zeros elsewhere.
constexpr u32 TWO_ONES = 0x3f803f80;
#endif

// Issues s = k q^T, or dp^T = v dout^T, along rows of COUNT k-steps.
template <int COUNT, int N>
FN void begin_scores(float (&s)[N], u64 k, u64 q, bool more = false) {
    fence_operand(s);
    products_begin();
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        multiply_scores(s, k + column_step(i, K_SLAB), q + column_step(i, Q_SLAB), i > 0);
    if (!more) products_commit();
}
// The same for queries from `first` on, followed by the k-step that subtracts lse or delta.
template <int COUNT, int N>
FN void begin_scores(float (&s)[N], u64 k, u64 q, [[maybe_unused]] const struct Operands &tiles,
                     [[maybe_unused]] u32 at, [[maybe_unused]] bool of_delta, u32 first = 0) {
    q += first * (SLAB_ROW >> 4);
#if LSE_IN_WGMMA
    u32 ones[4] = {};
    ones[0] = ones[1] = threadIdx.x % 4 / 2 == of_delta ? TWO_ONES : 0;
    fence_operand(ones);
    begin_scores<COUNT>(s, k, q, true);
    multiply_pieces(s, ones, tiles.rows + rows_stage(at) + first, true);
    products_commit();
#else
    begin_scores<COUNT>(s, k, q);
#endif
}

// Writes a warpgroup's p or ds to a tile of queries by keys.
FN void store_pairs(u32 tile, const Pairs &x, i32 group) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    tile += SPLIT_KEYS ? group * Q_SLAB : group * QUERIES * SLAB_ROW;
#pragma unroll
    for (int i = 0; i < QUERIES / 16; i++)
        store_matrices_transposed(
            tile + swizzled(16 * i + lane / 16 * 8 + lane % 8, warp * 2 + lane / 8 % 2), x[4 * i],
            x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
}
