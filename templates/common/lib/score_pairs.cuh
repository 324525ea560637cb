// Scores and dp = dout . v of sixteen queries by sixteen keys, computed by one warp from global
// memory, for launches that revisit every pair. Needs: mma.cuh, Place, row_offset, HEAD_DIM. Gives:
// Pairs, KeyRows, take_keys, multiply_queries.

constexpr int SLICES = HEAD_DIM / 32;  // of a row
static_assert(HEAD_DIM % 32 == 0, "whole slices");

// [8 keys][query lane / 4, and + 8; keys 2 * (lane % 4), and + 1].
typedef float Pairs[2][4];

// Eight consecutive elements of rows lane / 4 and + 8. The MMA expects another order, but both
// operands use the same one, so the sums are equal.
struct Slice {
    uint4 low, high;
};
FN void multiply_slices(Pairs &x, const struct Slice &a, const struct Slice &b) {
    const u32 left[4] = {a.low.x, a.high.x, a.low.y, a.high.y};
    const u32 right[4] = {a.low.z, a.high.z, a.low.w, a.high.w};
    multiply(x[0], left, b.low.x, b.low.y);
    multiply(x[1], left, b.high.x, b.high.y);
    multiply(x[0], right, b.low.z, b.low.w);
    multiply(x[1], right, b.high.z, b.high.w);
}

// A lane's addresses in a head of a tensor: its pieces of two rows.
struct Lines {
    const uint4 *low, *high;
};
FN struct Lines lines_of(const void *tensor, const i64 (&stride)[3], struct Place at, i32 low,
                         i32 high) {
    const uint4 *const own = (const uint4 *)tensor + threadIdx.x % 4;
    return {own + row_offset(stride, at, low) / 8, own + row_offset(stride, at, high) / 8};
}
template <int PIECES>
FN struct Slice slice_of(const struct Lines &lines, int i) {
    if (PADDED && 4 * i + (int)threadIdx.x % 4 >= PIECES) return {};
    return {__ldg(lines.low + 4 * i), __ldg(lines.high + 4 * i)};
}

// Sixteen keys of k and of v, kept in registers.
struct KeyRows {
    struct Slice k[SLICES], v[SLICES];
};
// `low` and `high` are the lane's tokens; past the end, any row will do.
FN void take_keys(struct KeyRows &rows, const struct Attention &p, struct Place at, i32 low,
                  i32 high) {
    low = min_i32(low, p.n_kv - 1), high = min_i32(high, p.n_kv - 1);
    const struct Lines k = lines_of(p.k, p.k_stride, at, low, high);
    const struct Lines v = lines_of(p.v, p.v_stride, at, low, high);
#pragma unroll
    for (int i = 0; i < SLICES; i++)
        rows.k[i] = slice_of<PIECES_QK>(k, i), rows.v[i] = slice_of<PIECES_V>(v, i);
}
FN void multiply_queries(Pairs &s, Pairs &dp, const struct KeyRows &rows,
                         const struct Attention &p, struct Place at, i32 low, i32 high) {
    low = min_i32(low, p.n_q - 1), high = min_i32(high, p.n_q - 1);
    const struct Lines q = lines_of(p.q, p.q_stride, at, low, high);
    const struct Lines dout = lines_of(p.dout, p.dout_stride, at, low, high);
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) s[i][e] = dp[i][e] = 0.0f;
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        multiply_slices(s, slice_of<PIECES_QK>(q, i), rows.k[i]);
        multiply_slices(dp, slice_of<PIECES_V>(dout, i), rows.v[i]);
    }
}
