// Rows of a tensor in shared memory: their layout, and their copies. Needs: ptx.cuh; PITCH, CHUNKS,
// SPAN, COPY_ROWS, THREADS.

// Offset of a 16-byte piece of a row in a tile. Groups of SPAN pieces are XOR-swizzled, so that the
// same piece of eight consecutive rows is in eight different bank groups.
FN u32 place(u32 row, u32 chunk) {
    return row * PITCH + 16 * (chunk ^ (row / (8 / SPAN) % SPAN));
}

// ldmatrix address of a lane for the first 16 x 16 block of a tile: its rows in order (operand A,
// or B transposed), or two halves of eight rows (operand B).
FN u32 lane_in_rows() {
    const u32 lane = make_opaque(threadIdx.x) % 32;
    return place(lane % 16, lane / 16);
}
FN u32 lane_in_halves() {
    const u32 lane = make_opaque(threadIdx.x) % 32;
    return place(lane % 8 + lane / 16 * 8, lane / 8 % 2);
}
// The address of the block `down` blocks below and `right` blocks to the right.
FN u32 fragment_at(u32 lane_address, int down, int right) {
    const u32 pieces = 2 * right;
    const u32 swapped = lane_address ^ (16 * (pieces % SPAN));
    return swapped + down * 16 * PITCH + 16 * (pieces - pieces % SPAN);
}

// The first row of one head of one sequence.
FN unsigned char *head_rows(const void *tensor, const i64 (&stride)[3], i32 batch, i32 head) {
    return (unsigned char *)tensor + 2 * (batch * stride[0] + head * stride[1]);
}

// Starts to copy rows first, first + 1, ... to a tile of COUNT rows; rows past `end` become zeros.
template <int COUNT, int PIECES = PIECES_QK>
FN void load_tile(u32 tile, const unsigned char *rows, const i64 (&stride)[3], i32 first, i32 end) {
    const i32 row = threadIdx.x / SPAN, chunk = threadIdx.x % SPAN;
    const unsigned char *from = rows + (first + row) * stride[2] * 2 + 16 * chunk;
    const u32 to = tile + place(row, chunk);
    const i32 left = end - first - row;
#pragma unroll
    for (int i = 0; i < COUNT; i += COPY_ROWS) {
#pragma unroll
        for (int j = 0; j < CHUNKS; j += SPAN)
            copy_async(to + i * PITCH + 16 * j, from + 16 * j,
                       i < left && (!PADDED || chunk + j < PIECES));
        from += COPY_ROWS * stride[2] * 2;
    }
    copy_commit();
}
