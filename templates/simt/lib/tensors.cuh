// Rows of one head of one sequence, with any strides. Gives: Rows, rows_of, row_of.

// A tensor [batch, heads, tokens, WIDTH]: the tokens of one head. Offsets have 64 bits.
template <int WIDTH>
struct Rows {
    Element *first;
    i64 stride;  // elements between tokens
    i32 count;   // tokens

    // An element; 0 outside of the tensor, which adds nothing to a product.
    FN float at(i32 row, i32 column) const {
        const bool inside = row < count && column < WIDTH;
        return inside ? number_of(first[row * stride + column]) : 0.0f;
    }
};

template <int WIDTH>
FN struct Rows<WIDTH> rows_of(const void *tensor, const i64 (&stride)[3], i32 batch, i32 head,
                              i32 count) {
    return {(Element *)tensor + batch * stride[0] + head * stride[1], stride[2], count};
}

// A number per row, such as lse.
FN float &row_of(float *numbers, const i64 (&stride)[3], i32 batch, i32 head, i32 row) {
    return numbers[batch * stride[0] + head * stride[1] + row * stride[2]];
}
