// The two matrix products of attention, for both passes. Needs: constants.cuh, tensors.cuh. Gives:
// Shared, clear, add, multiply_rows, add_strip, keep_weights.
//
// A block of 16 x 16 threads computes a tile of the result. A thread keeps R x C neighboring
// numbers of it in registers. For each step of the sum it multiplies R numbers of the left operand
// by C of the right one, so that each number read from shared memory is used C or R times. Both
// operands are stored with the steps as rows, `operand[step][row or column]`, so that a thread
// reads its neighbors as vectors of four.

// Shared memory of a block.
struct Operands {
    float left[DEPTH][MAX_TILE + PAD], right[DEPTH][MAX_TILE + PAD];
};
struct Shared {
    union {  // operands of the current product
        struct Operands operands;
        float strip[MAX_TILE][STRIP + PAD];
    };
    float weights[MAX_TILE][MAX_TILE + PAD];  // of all pairs, from one product to the next
};

template <int R, int C>
FN void clear(float (&x)[R][C]) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++) x[r][c] = 0.0f;
}

template <int R, int C>
FN void add(float (&x)[R][C], const float (&y)[R][C]) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < C; c++) x[r][c] += y[r][c];
}

// One step of a sum. With nan_safe, a weight of -0 marks a hidden pair: its product is skipped,
// because 0 * NaN would be NaN.
template <bool WEIGHTED>
FN float add_product(float a, float b, float sum) {
    if (WITH_NAN_SAFE && WEIGHTED && __float_as_uint(a) == 0x80000000u) return sum;
    return fmaf(a, b, sum);
}

// x[r][c] += sum over steps of left[step][row r of this thread] * right[step][its column c]
template <int STEPS, bool WEIGHTED, int R, int C, int LEFT, int RIGHT>
FN void multiply(float (&x)[R][C], const float (*left)[LEFT], const float (*right)[RIGHT]) {
    const i32 row = R * thread_down(), column = C * thread_across();
#pragma unroll 4
    for (int step = 0; step < STEPS; step++) {
        float a[R], b[C];
#pragma unroll
        for (int r = 0; r < R; r += 4) *(float4 *)&a[r] = *(const float4 *)&left[step][row + r];
#pragma unroll
        for (int c = 0; c < C; c += 4) *(float4 *)&b[c] = *(const float4 *)&right[step][column + c];
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int c = 0; c < C; c++) x[r][c] = add_product<WEIGHTED>(a[r], b[c], x[r][c]);
    }
}

// COUNT rows and DEPTH columns of a tensor on their way to shared memory. They are loaded to
// registers before the previous ones are multiplied, which hides the latency. A warp loads four
// rows by eight columns.
template <int COUNT>
struct Columns {
    float x[COUNT / 32][DEPTH / 8];

    template <int WIDTH>
    FN void load(const struct Rows<WIDTH> &rows, i32 row, i32 column) {
        row += threadIdx.x / 8, column += threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < COUNT / 32; i++)
#pragma unroll
            for (int j = 0; j < DEPTH / 8; j++) x[i][j] = rows.at(row + 32 * i, column + 8 * j);
    }
    // Transposes: columns become rows. PAD puts the 32 numbers of a warp into 32 different banks.
    FN void store(float (*to)[MAX_TILE + PAD]) const {
        const i32 row = threadIdx.x / 8, column = threadIdx.x % 8;
#pragma unroll
        for (int i = 0; i < COUNT / 32; i++)
#pragma unroll
            for (int j = 0; j < DEPTH / 8; j++) to[column + 8 * j][row + 32 * i] = x[i][j];
    }
};

// x[r][c] = (row r of this thread, of `left`) . (row c, of `right`): scores from q and k, and dp
// from dout and v. With BY_PIECES, sums are formed in pieces of PIECE columns, in the same order as
// delta, which is subtracted from dp: in rows with few keys, the rounding errors of both then
// cancel.
template <int WIDTH, bool BY_PIECES = false, int R, int C>
FN void multiply_rows(float (&x)[R][C], struct Shared &shared, const struct Rows<WIDTH> &left,
                      i32 first_left, const struct Rows<WIDTH> &right, i32 first_right) {
    struct Columns<SIDE * R> a;
    struct Columns<SIDE * C> b;
    clear(x);
    a.load(left, first_left, 0);
    b.load(right, first_right, 0);
    constexpr int TIMES = BY_PIECES ? PIECE / DEPTH : 1;
#pragma unroll 1
    for (i32 first = 0; first < WIDTH; first += TIMES * DEPTH) {
        float piece[R][C];
        clear(piece);
#pragma unroll
        for (int i = 0; i < TIMES; i++) {
            const i32 column = first + i * DEPTH;
            if (column >= WIDTH) break;
            __syncthreads();  // what lay there is no longer read
            a.store(shared.operands.left);
            b.store(shared.operands.right);
            __syncthreads();
            if (column + DEPTH < WIDTH) {
                a.load(left, first_left, column + DEPTH);
                b.load(right, first_right, column + DEPTH);
            }
            multiply<DEPTH, false>(BY_PIECES ? piece : x, shared.operands.left,
                                   shared.operands.right);
        }
        if (BY_PIECES) add(x, piece);
    }
}

// Stores the weights of a tile to shared memory as the left operand of `add_strip`: transposed, so
// that the tile's columns are the steps of the sum. The caller has just run multiply_rows, so no
// thread still reads the previous weights.
template <int R, int C>
FN void keep_weights(struct Shared &shared, const float (&x)[R][C]) {
    const i32 row = R * thread_down(), column = C * thread_across();
#pragma unroll
    for (int c = 0; c < C; c++)
#pragma unroll
        for (int r = 0; r < R; r += 4)
            *(float4 *)&shared.weights[column + c][row + r] =
                make_float4(x[r][c], x[r + 1][c], x[r + 2][c], x[r + 3][c]);
}

// x += weights times COUNT rows of a tensor, for a strip of its columns: v and dout with p, k and q
// with the gradients of scores.
template <int COUNT, int WIDTH, int R>
FN void add_strip(float (&x)[R][4], struct Shared &shared, const struct Rows<WIDTH> &rows,
                  i32 first_row, i32 first_column) {
    const i32 row = threadIdx.x / STRIP, column = threadIdx.x % STRIP;
    __syncthreads();  // the previous operands are no longer read, and all weights are stored
#pragma unroll 8
    for (i32 i = row; i < COUNT; i += THREADS / STRIP)
        shared.strip[i][column] = rows.at(first_row + i, first_column + column);
    __syncthreads();
    multiply<COUNT, true>(x, shared.weights, shared.strip);
}
