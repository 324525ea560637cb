// Stores rows of a gradient through shared memory. Needs: backward_products.cuh.

// Stores a warp's rows times `factor`, or adds them to those in memory. `tile` is shared memory for
// as many rows, owned by the warp; `first` is the first row's token, of `tokens`.
template <int PIECES = PIECES_QK, int COUNT>
#if WIDE
FN void store_rows(const float (&x)[COUNT][OWN_GROUPS][4], unsigned char *tile, void *tensor,
#else
FN void store_rows(const float (&x)[COUNT][HEAD_DIM / 8][4], unsigned char *tile, void *tensor,
#endif
                   const i64 (&stride)[3], struct Place at, i32 first, i32 tokens, float factor,
                   bool accumulates) {
    const i32 lane = threadIdx.x % 32;
    unsigned char *const rows = head_rows(tensor, stride, at.batch, at.head);
    __syncwarp();
#pragma unroll
    for (int m = 0; m < COUNT; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const i32 row = 16 * m + lane / 4 + 8 * r, token = first + row;
#pragma unroll
#if WIDE
            for (int i = 0; i < OWN_GROUPS; i++) {
                const i32 n = first_group() + i;
                float2 sum = make_float2(x[m][i][2 * r] * factor, x[m][i][2 * r + 1] * factor);
#else
            for (int n = 0; n < HEAD_DIM / 8; n++) {
                float2 sum = make_float2(x[m][n][2 * r] * factor, x[m][n][2 * r + 1] * factor);
#endif
                if (accumulates && token < tokens && (!PADDED || n < PIECES)) {
                    const u32 *const there = (const u32 *)(rows + token * stride[2] * 2);
                    const float2 before = unpack(there[4 * n + lane % 4]);
                    sum.x += before.x, sum.y += before.y;
                }
                *((u32 *)(tile + place(row, n)) + lane % 4) = pack(sum.x, sum.y);
            }
        }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 16 * COUNT; i += 32 / SPAN) {
        const i32 row = i + lane / SPAN, token = first + row;
        uint4 *const to = (uint4 *)(rows + token * stride[2] * 2);
#pragma unroll
#if WIDE
        for (int j = 0; j < OWN_GROUPS; j += SPAN) {
            const i32 chunk = first_group() + j + lane % SPAN;
#else
        for (int j = 0; j < CHUNKS; j += SPAN) {
            const i32 chunk = j + lane % SPAN;
#endif
            if (PADDED && chunk >= PIECES) continue;
            if (token < tokens) to[chunk] = *(const uint4 *)(tile + place(row, chunk));
        }
    }
}
