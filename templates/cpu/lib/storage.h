// Rows and tiles of tensors in memory; arithmetic is fp32. Needs: storage_*.h.

// Offset of a row of a [batch, heads, tokens, dim] tensor, in elements.
FN i64 row_offset(const i64 *stride, i32 batch, i32 head, i32 token) {
    return batch * stride[0] + head * stride[1] + token * stride[2];
}

FN void clear(float *at, i32 floats) {
    for (i32 i = 0; i < floats; i += LANES) store(at + i, (vec){0});
}

// Reads `columns` elements as floats, then pads with zeros to a whole vector. Returns x * 0 summed
// in each lane: NaN if an element is NaN or infinite.
FN vec load_row(float *to, const element *from, i32 columns) {
    vec trace = {0};
    i32 j = 0;
    for (; j + LANES <= columns; j += LANES) {
        const vec x = widen(*(const stored *)(from + j));
        trace += x * 0.0f;
        store(to + j, x);
    }
    if (columns % LANES) {
        element rest[LANES] = {0};
        for (i32 i = 0; j + i < columns; i++) rest[i] = from[j + i];
        const vec x = widen(*(const stored *)rest);
        trace += x * 0.0f;
        store(to + j, x);
    }
    return trace;
}

FN void store_row(element *to, const float *from, i32 columns, float factor) {
    i32 j = 0;
    for (; j + LANES <= columns; j += LANES) {
        *(stored *)(to + j) = narrow(load(from + j) * factor);
    }
    if (columns % LANES) {
        element rest[LANES];
        *(stored *)rest = narrow(load(from + j) * factor);
        for (i32 i = 0; j + i < columns; i++) to[j + i] = rest[i];
    }
}

// Loads `rows` tokens of a tensor, packed `ld` floats apart. Returns whether every element is
// finite.
FN i32 load_tile(float *to, i32 ld, const void *tensor, const i64 *stride, i32 batch, i32 head,
                 i32 token, i32 rows, i32 columns) {
    const element *from = (const element *)tensor + row_offset(stride, batch, head, token);
    vec trace = {0};
    for (i32 i = 0; i < rows; i++) trace += load_row(to + i * ld, from + i * stride[2], columns);
    return sum_lanes(trace) == 0.0f;
}

// Stores a tile times `factor`.
FN void store_tile(void *tensor, const i64 *stride, i32 batch, i32 head, i32 token,
                   const float *from, i32 ld, i32 rows, i32 columns, float factor) {
    element *to = (element *)tensor + row_offset(stride, batch, head, token);
    for (i32 i = 0; i < rows; i++) store_row(to + i * stride[2], from + i * ld, columns, factor);
}

// Adds a tile times `factor` to what the rows hold.
FN void add_tile(void *tensor, const i64 *stride, i32 batch, i32 head, i32 token,
                 const float *from, i32 ld, i32 rows, i32 columns, float factor) {
    element *to = (element *)tensor + row_offset(stride, batch, head, token);
    float sum[MAX_LD];
    for (i32 i = 0; i < rows; i++) {
        load_row(sum, to + i * stride[2], columns);
        for (i32 j = 0; j < columns; j += LANES) {
            store(sum + j, load(sum + j) + load(from + i * ld + j) * factor);
        }
        store_row(to + i * stride[2], sum, columns, 1.0f);
    }
}
