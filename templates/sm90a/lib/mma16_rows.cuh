// 16 x 16 tiles in the registers of a warp, and rows of tensors in memory. Needs: mma.cuh,
// unpack.cuh.

constexpr int THREADS = 32 * WARPS;
// 32-element slices of a row, for products that reduce along rows
constexpr int SLICES = HEAD_DIM / 32;
// 64-element spans of a row, for products that reduce across rows
constexpr int SPANS = HEAD_DIM / 64;
static_assert(TILE_Q == 16 && TILE_K == 16 && HEAD_DIM % 64 == 0, "a tile is one fragment");

// Accumulators of a warp. Scores: [8 keys][row lane / 4, and + 8; keys 2 * (lane % 4), and + 1].
// Output: the same rows, one Span per 64 columns; numbers 2 i and 2 i + 1 hold elements 2 i and 2 i
// + 1 of two pieces of 8 columns, at lane % 4 and at lane % 4 + 4.
typedef float Scores[2][4];
typedef float Span[8][4];

template <int COUNT>
FN void clear(float (&x)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0.0f;
}

// Row of an accumulator; the second is 8 further on
FN i32 lane_row() { return threadIdx.x % 32 / 4; }
FN i32 lane_column() { return threadIdx.x % 4 * 2; }

// The rows of one head of a tensor.
struct Rows {
    const unsigned char *first;
    i64 pitch;  // bytes from one row to the next
    i32 count;
};
FN struct Rows rows_of(const void *tensor, const i64 (&stride)[3], i32 batch, i32 head,
                       i32 count) {
    const i64 start = batch * stride[0] + head * stride[1];
    return {(const unsigned char *)tensor + 2 * start, 2 * stride[2], count};
}
// Loads eight elements of a row. Past the end it rereads the last row, whose weights are 0 there.
// Not __ldg: ptxas would hoist such a load out of its loop and spend registers on it.
FN uint4 load_piece(const struct Rows &rows, i32 row, i32 column) {
    const i64 inside = min_i32(row, rows.count - 1);
    return *(const uint4 *)(rows.first + inside * rows.pitch + 2 * column);
}
FN uint4 *piece_at(void *tensor, const i64 (&stride)[3], i32 batch, i32 head, i32 row,
                   i32 column) {
    const i64 start = batch * stride[0] + head * stride[1] + row * stride[2];
    return (uint4 *)((unsigned char *)tensor + 2 * (start + column));
}

// Sixteen rows as operands of products that reduce along them, 32 elements of each. A lane has 8
// consecutive elements of rows lane / 4 and + 8. The MMA expects another order, but both operands
// use the same one, so the sums are equal.
struct Slice {
    uint4 low, high;
};
FN struct Slice load_slice(const struct Rows &rows, i32 first, int slice) {
    const i32 row = first + lane_row(), column = 32 * slice + threadIdx.x % 4 * 8;
    return {load_piece(rows, row, column), load_piece(rows, row + 8, column)};
}
// s += a b^T
FN void multiply_along(Scores &s, const struct Slice &a, const struct Slice &b) {
    const u32 left[4] = {a.low.x, a.high.x, a.low.y, a.high.y};
    const u32 right[4] = {a.low.z, a.high.z, a.low.w, a.high.w};
    multiply(s[0], left, b.low.x, b.low.y);
    multiply(s[1], left, b.high.x, b.high.y);
    multiply(s[0], right, b.low.z, b.low.w);
    multiply(s[1], right, b.high.z, b.high.w);
}

// A span of sixteen rows as the operand of a product that reduces across them. A lane has 8
// elements of four rows, chosen such that four lanes hold 64 contiguous bytes of a row of the
// result.
typedef u32 Across[4][4];
FN void load_span(Across &x, const struct Rows &rows, i32 first, int u) {
    const i32 row = first + lane_column();
    const i32 column = 64 * u + (lane_row() / 2 + lane_row() % 2 * 4) * 8;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const uint4 own = load_piece(rows, row + r % 2 + r / 2 * 8, column);
        x[r][0] = own.x, x[r][1] = own.y, x[r][2] = own.z, x[r][3] = own.w;
    }
}
// o += w x
FN void multiply_span(Span &o, const u32 (&w)[4], const Across &x) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        constexpr u32 LOW = 0x5410, HIGH = 0x7632;  // byte selectors: halves of two words
        multiply(o[2 * i], w, __byte_perm(x[0][i], x[1][i], LOW),
                 __byte_perm(x[2][i], x[3][i], LOW));
        multiply(o[2 * i + 1], w, __byte_perm(x[0][i], x[1][i], HIGH),
                 __byte_perm(x[2][i], x[3][i], HIGH));
    }
}

// First column of a piece of an accumulator's row; `c` selects one of two.
FN i32 piece_column(int u, int c) { return 64 * u + 8 * (threadIdx.x % 4 + 4 * c); }
// A piece in storage precision: `scale` times the accumulator, plus `share` times what memory
// already holds.
FN uint4 pack_piece(const Span &o, int r, int c, float scale, float share, uint4 there) {
    const u32 before[4] = {there.x, there.y, there.z, there.w};
    u32 made[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 y = unpack(before[i]);
        const float low = o[2 * i][2 * r + c], high = o[2 * i + 1][2 * r + c];
        made[i] = pack(fmaf(y.x, share, low * scale), fmaf(y.y, share, high * scale));
    }
    return make_uint4(made[0], made[1], made[2], made[3]);
}

// Packs scores or weights as the A operand.
FN void pack_weights(u32 (&w)[4], const Scores &s) {
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = pack(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
}
