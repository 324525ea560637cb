// delta, the base of the gradients of a row's scores. Needs: gradients.cuh, sums.cuh. Gives: the
// launches attention_backward_delta and _few.

// The sum of |out * dout|, which bounds the error that a rounded `out` causes in out . dout. If the
// sum over a row's pairs differs by more, `out` also contains other keys (a mask in several parts).
FN float size_of_terms(const struct Attention &p, const struct Place &at, const struct Head &h,
                       i32 q) {
    const struct Rows<HEAD_DIM_V> out =
        rows_of<HEAD_DIM_V>(p.out, p.out_stride, at.batch, at.head, p.n_q);
    float sum = 0.0f;
    for (i32 column = thread_across(); column < HEAD_DIM_V; column += SIDE)
        sum += fabsf(out.at(q, column) * h.dout.at(q, column));
    return row_sum(sum);
}

// delta as the mean of dout . v over the keys of a row, weighted by u (softmax: by the weights), so
// that the gradients of its scores sum to 0. Needs a pass over the row's tiles.
FN void find_means(const struct Attention &p, struct Shared &shared) {
    const struct Place at = row_place(p);
    __shared__ struct Head h;
    if (threadIdx.x == 0) h = head_of(p, at);
    __syncthreads();
    const struct TileList list = row_tiles(&p, h.mask, at.batch, at.head, at.tile);
    const i32 first_q = at.tile * TILE_Q, first = first_q + ROWS * thread_down();
    float sum[ROWS] = {}, sum_u[ROWS] = {}, lse[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) lse[r] = load_row(p, at.batch, at.head, first + r).lse;
#pragma unroll 1
    for (i32 i = 0; i < list.count; i++) {
        const struct Tile tile = tile_at(list, i);
        const i32 first_k = tile.index * TILE_K;
        float x[ROWS][COLS], dp[ROWS][COLS];
        multiply_rows<HEAD_DIM_V, true>(dp, shared, h.dout, first_q, h.v, first_k);
        multiply_rows<HEAD_DIM>(x, shared, h.q, first_q, h.k, first_k);
        const u32 seen = visible<ROWS, COLS, false>(p, h.mask, tile.full, first_q, first_k);
        make_logits(x, h.kind, seen, first_q, first_k);
#if WITH_DROPOUT
        drop(dp, draw<ROWS, COLS, false>(p, at.batch, at.head, first_q, first_k), p.dropout_scale);
#endif
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                const float u = weigh(p, x[r][c], lse[r]).u;
                sum[r] += u == 0.0f ? 0.0f : u * dp[r][c];
                sum_u[r] += u;
            }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const i32 q = first + r;
        float delta = row_sum(sum[r]);
        float *const to = delta_of(p, at.batch, at.head) + q;
        if (WITH_ENTMAX) {
            const float all = row_sum(sum_u[r]);
            delta = all == 0.0f ? 0.0f : delta / all;
        } else {
            const float size = size_of_terms(p, at, h, q);
            if (q < p.n_q && !(fabsf(delta - *to) <= ROUNDING * size)) delta = *to;
        }
        __syncwarp();  // all threads of the row have read what one of them will overwrite
        if (thread_across() == 0 && q < p.n_q) *to = delta;
    }
}

// With softmax, delta = out . dout: one warp per row, one lane per piece, and pieces are added in
// the order of multiply_rows. For a row with one key, both sums are then bit-identical, and its
// gradients are exactly zero.
FN void find_deltas(const struct Attention &p) {
    static_assert(HEAD_DIM_V <= 32 * PIECE, "a warp has all pieces of a row");
    const struct Place at = row_place(p);
    const struct Head h = head_of(p, at);
    const struct Rows<HEAD_DIM_V> out =
        rows_of<HEAD_DIM_V>(p.out, p.out_stride, at.batch, at.head, p.n_q);
    for (i32 i = threadIdx.x / 32; i < TILE_Q; i += THREADS / 32) {
        const i32 q = at.tile * TILE_Q + i;
        const i32 first = threadIdx.x % 32 * PIECE;
        float piece = 0.0f, sum = 0.0f;
#pragma unroll 4
        for (i32 column = first; column < first + PIECE && column < HEAD_DIM_V; column++)
            piece = fmaf(out.at(q, column), h.dout.at(q, column), piece);
#pragma unroll
        for (int i = 0; i * PIECE < HEAD_DIM_V; i++) sum += __shfl_sync(0xffffffff, piece, i);
        if (threadIdx.x % 32 == 0 && q < p.n_q) delta_of(p, at.batch, at.head)[q] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
attention_backward_delta(const __grid_constant__ struct Attention p) {
#if WITH_ENTMAX
    __shared__ __align__(16) struct Shared shared;
    find_means(p, shared);
#else
    find_deltas(p);
#endif
}

// With few pairs in a call, the rounding of the stored `out` would dominate the error of dq and dk.
extern "C" __global__ void __launch_bounds__(THREADS)
attention_backward_few(const __grid_constant__ struct Attention p) {
    if constexpr (HALF && !WITH_ENTMAX) {
        __shared__ __align__(16) struct Shared shared;
        find_means(p, shared);
    }
}
