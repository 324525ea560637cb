// Products of fp32 tiles. Needs: vector.h.

// A left operand: element (i, t) is at[i * row + t * step], so either tile may be transposed.
struct Left {
    const float *at;
    i64 row, step;
};

// c[i][:] += sum over t < depth of a(i, t) * b[t][:], for one block of sums in registers. `rows`
// and `vectors` are constants wherever this is inlined.
INLINE void multiply_block(float *c, i32 c_ld, struct Left a, const float *b, i32 b_ld, i32 depth,
                           const i32 rows, const i32 vectors) {
    vec sum[BLOCK_ROWS][BLOCK_VECTORS];
#pragma GCC unroll 8
    for (i32 i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (i32 j = 0; j < vectors; j++) sum[i][j] = load(c + i * c_ld + j * LANES);
    for (i32 t = 0; t < depth; t++) {
        vec line[BLOCK_VECTORS];
#pragma GCC unroll 8
        for (i32 j = 0; j < vectors; j++) line[j] = load(b + t * b_ld + j * LANES);
#pragma GCC unroll 8
        for (i32 i = 0; i < rows; i++) {
            const float weight = a.at[i * a.row + t * a.step];
#pragma GCC unroll 8
            for (i32 j = 0; j < vectors; j++) sum[i][j] += weight * line[j];
        }
    }
#pragma GCC unroll 8
    for (i32 i = 0; i < rows; i++)
#pragma GCC unroll 8
        for (i32 j = 0; j < vectors; j++) store(c + i * c_ld + j * LANES, sum[i][j]);
}

// One column of blocks, `vectors` wide.
INLINE void multiply_strip(float *c, i32 c_ld, struct Left a, const float *b, i32 b_ld, i32 rows,
                           i32 depth, const i32 vectors) {
    for (; rows >= BLOCK_ROWS; rows -= BLOCK_ROWS) {
        multiply_block(c, c_ld, a, b, b_ld, depth, BLOCK_ROWS, vectors);
        c += BLOCK_ROWS * c_ld;
        a.at += BLOCK_ROWS * a.row;
    }
    switch (rows) {
    case 5: multiply_block(c, c_ld, a, b, b_ld, depth, 5, vectors); break;
    case 4: multiply_block(c, c_ld, a, b, b_ld, depth, 4, vectors); break;
    case 3: multiply_block(c, c_ld, a, b, b_ld, depth, 3, vectors); break;
    case 2: multiply_block(c, c_ld, a, b, b_ld, depth, 2, vectors); break;
    case 1: multiply_block(c, c_ld, a, b, b_ld, depth, 1, vectors); break;
    }
}

// c[i][:] += sum over t of a(i, t) * b[t][:] for `rows` rows of `vectors` vectors. Every sum runs
// over t in ascending order for any shape, so a row's bits do not depend on its neighbors.
static void multiply(float *c, i32 c_ld, struct Left a, const float *b, i32 b_ld, i32 rows,
                     i32 vectors, i32 depth) {
    i32 j = 0;
    for (; j + BLOCK_VECTORS <= vectors; j += BLOCK_VECTORS) {
        multiply_strip(c + j * LANES, c_ld, a, b + j * LANES, b_ld, rows, depth, BLOCK_VECTORS);
    }
    if (j + 2 <= vectors) {
        multiply_strip(c + j * LANES, c_ld, a, b + j * LANES, b_ld, rows, depth, 2);
        j += 2;
    }
    if (j < vectors) multiply_strip(c + j * LANES, c_ld, a, b + j * LANES, b_ld, rows, depth, 1);
}

// The same sums over live pairs only, for a partial tile whose b has a NaN or infinity: 0 * NaN
// would be NaN. `live` has the layout of a.
static void multiply_live(float *c, i32 c_ld, struct Left a, const float *b, i32 b_ld, i32 rows,
                          i32 vectors, i32 depth, const i32 *live) {
    for (i32 i = 0; i < rows; i++) {
        for (i32 t = 0; t < depth; t++) {
            const i64 at = i * a.row + t * a.step;
            if (!live[at]) continue;
            for (i32 j = 0; j < vectors; j++) {
                float *sum = c + i * c_ld + j * LANES;
                store(sum, load(sum) + a.at[at] * load(b + t * b_ld + j * LANES));
            }
        }
    }
}

FN void add_product(float *c, i32 c_ld, struct Left a, const float *b, i32 b_ld, i32 rows,
                    i32 vectors, i32 depth, const i32 *live) {
    if (live) {
        multiply_live(c, c_ld, a, b, b_ld, rows, vectors, depth, live);
    } else {
        multiply(c, c_ld, a, b, b_ld, rows, vectors, depth);
    }
}
