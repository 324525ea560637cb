// Online softmax of rows whose keys come tile by tile. Needs: sums.cuh. Gives: RowState, start,
// add_scores, finish, weigh, level_of.

// State of a thread's rows. `sum` is the sum of e^(logit - peak) over the keys that this thread has
// seen; out, stored elsewhere, is the sum of the same weights times values. `peak` is the largest
// logit that any of the 16 threads of a row has seen, -inf if none.
struct RowState {
    float peak[ROWS], sum[ROWS];
};

FN void start(struct RowState &rows) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) rows.peak[r] = MINUS_INFINITY, rows.sum[r] = 0.0f;
}

// A rescale factor. With nan_safe it never becomes 0, so that infinities are not erased.
FN float not_zero(float factor) {
    constexpr float MIN_NORMAL = 0x1p-126f;
    return WITH_NAN_SAFE && factor < MIN_NORMAL ? MIN_NORMAL : factor;
}

// Turns the logits of a tile into weights. If they raise a row's peak, rescales the earlier sums.
FN void add_scores(struct RowState &rows, float (&x)[ROWS][COLS], u32 seen,
                   float (&o)[STRIPS][ROWS][4]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float peak = rows.peak[r];
#pragma unroll
        for (int c = 0; c < COLS; c++) peak = fmaxf(peak, x[r][c]);
        peak = row_max(peak);
        const float base = peak == MINUS_INFINITY ? 0.0f : peak;  // inf - inf is not a number
        const float shrink = not_zero(expf(rows.peak[r] - base));
        rows.peak[r] = peak;
        rows.sum[r] *= shrink;
#pragma unroll
        for (int c = 0; c < COLS; c++) {
            const bool sees = seen >> (COLS * r + c) & 1;
            const float weight = expf(x[r][c] - base);  // 0 if the pair is hidden
            rows.sum[r] += weight;
            x[r][c] = WITH_NAN_SAFE ? (sees ? not_zero(weight) : -0.0f) : weight;
        }
#pragma unroll
        for (int i = 0; i < STRIPS; i++)
#pragma unroll
            for (int c = 0; c < 4; c++) o[i][r][c] *= shrink;
    }
}

// Sums over the 16 threads of a row.
FN void finish(struct RowState &rows) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) rows.sum[r] = row_sum(rows.sum[r]);
}

// Adds one more key that is in no tile: the sink, or the result of an earlier launch, whose logit
// is its lse. Returns its weight; `factor` rescales the others.
FN float join(struct RowState &rows, int r, float value, float &factor) {
    const float peak = fmaxf(rows.peak[r], value);
    const float base = peak == MINUS_INFINITY ? 0.0f : peak;
    const float shrink = expf(rows.peak[r] - base), weight = expf(value - base);
    factor *= shrink;
    rows.sum[r] = rows.sum[r] * shrink + weight;
    rows.peak[r] = peak;
    return weight;
}
