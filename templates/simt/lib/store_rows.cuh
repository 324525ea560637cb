// Epilogue of a forward pass: out from the weighted sums of values, and lse from the sums of
// weights. Needs: softmax.cuh, tensors.cuh, places.cuh. Gives: store_rows.

FN void store_rows(const struct Attention &p, const struct Place &at, struct RowState &rows,
                   const float (&o)[STRIPS][ROWS][4]) {
    finish(rows);
    const i32 first = at.tile * TILE_Q + ROWS * thread_down();
    float known[ROWS];  // for masks in several parts: lse of earlier parts
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const bool accumulates = p.accumulates && first + r < p.n_q;
        known[r] = accumulates ? row_of(p.lse, p.lse_stride, at.batch, at.head, first + r) : 0.0f;
    }
    __syncwarp();  // all threads of a row have read what one of them will overwrite
    const struct Rows<HEAD_DIM_V> out =
        rows_of<HEAD_DIM_V>(p.out, p.out_stride, at.batch, at.head, p.n_q);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const i32 q = first + r;
        float factor = 1.0f, before = 0.0f;
        if (WITH_SINKS) join(rows, r, p.sink_logits[at.head], factor);
        if (p.accumulates) before = join(rows, r, known[r], factor);
        if (q >= p.n_q) continue;
        // A row without keys has out 0 and lse -inf; so has a row whose sink has weight 0.
        const bool empty = rows.sum[r] == 0.0f;
        const float whole = empty ? 0.0f : 1.0f / rows.sum[r];
        const float scale = not_zero(factor * whole), share = not_zero(before * whole);
        const float lse = WITH_ENTMAX ? rows.peak[r] : rows.peak[r] + logf(rows.sum[r]);
        if (thread_across() == 0)
            row_of(p.lse, p.lse_stride, at.batch, at.head, q) = empty ? MINUS_INFINITY : lse;
#pragma unroll
        for (int i = 0; i < STRIPS; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const i32 column = i * STRIP + 4 * thread_across() + c;
                if (column >= HEAD_DIM_V) continue;
                Element &to = out.first[q * out.stride + column];
                float x = empty ? 0.0f : o[i][r][c] * scale;
                if (p.accumulates && !empty) x += number_of(to) * share;
                to = stored(x);
            }
    }
}
