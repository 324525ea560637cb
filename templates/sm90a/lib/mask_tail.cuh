// Mask of gathered keys: all are live, and only columns past the last key are hidden. All rows,
// which are heads, see the same columns. Needs: bits.cuh, visible.cuh.

// The first `count` columns, counted from the tile's first.
FN struct Visible columns_before(i32 count) {
    const i32 own = own_before(count - (i32)(threadIdx.x % 4) * 2);
    struct Visible seen;
#pragma unroll
    for (int w = 0; w < WORDS; w++)
        seen.word[0][w] = seen.word[1][w] = bits_before(min_i32(own - 32 * w, 32));
    return seen;
}
