// Stores gradients of tokens. For masks in several parts, adds to what earlier parts stored. Needs:
// tensors.cuh. Gives: store_strip.

template <int WIDTH, int R>
FN void store_strip(const struct Rows<WIDTH> &to, const float (&x)[R][4], i32 first_row,
                    i32 first_column, float factor, bool accumulates) {
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const i32 row = first_row + R * thread_down() + r;
            const i32 column = first_column + 4 * thread_across() + c;
            if (row >= to.count || column >= WIDTH) continue;
            Element &at = to.first[row * to.stride + column];
            at = stored(x[r][c] * factor + (accumulates ? number_of(at) : 0.0f));
        }
}
