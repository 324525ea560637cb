// Rows of one head of one sequence, wherever they lie.
// Gives: Rows, rows_of, row_of.

// A tensor [batch, heads, tokens, WIDTH]: the tokens of one head. Offsets have 64 bits.
template <int WIDTH>
struct Rows {
    Element *first;
    i64 stride;  // elements from one token to the next
    i32 count;   // tokens

    // An element; outside of the tensor there are zeros, which add nothing to a product.
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

// Numbers that rows have one of: lse.
FN float &row_of(float *numbers, const i64 (&stride)[3], i32 batch, i32 head, i32 row) {
    return numbers[batch * stride[0] + head * stride[1] + row * stride[2]];
}
