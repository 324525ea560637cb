// Between the two matrix products: scores to logits, the mask, and the online softmax.

// Accumulator layout of WGMMA: element 4 i + 2 r + e of a thread is in row 16 warp + lane / 4 + 8 r
// and column 8 i + 2 (lane % 4) + e.
typedef float Scores[TILE_K / 2];
typedef float Output[HEAD_DIM_V / 2];

// Factor from scores (or logits, if PAIRWISE_LOGITS) to powers of two. Not 0: the mask's -inf would
// become NaN.
FN float unit_of(const struct Attention &p) {
    return fmaxf(fabsf(left_scale(p)) * LOG2E, 1e-30f);
}

// With a negative scale, scores are negated first in every tile, so that row maxima work.
FN bool flips(const struct Attention &p) { return left_scale(p) < 0.0f; }
FN void negate(Scores &s) {
#pragma unroll
    for (int i = 0; i < TILE_K / 2; i++) s[i] = -s[i];
}

#if WITH_PAIR_RING
// Whether sums of weights show that tops need not rise: p v is done before weights are made.
constexpr bool SUMS_DECIDE = PAIR_RING && PV_WAIT == 0 && !DROPS;
#endif

// Online softmax of a thread's two rows. Exponentials are relative to `top`, the row maximum, which
// is updated only when a score of the warp exceeds it by RESCALE_THRESHOLD powers of two. All
// threads of a quad have the same tops; each lane has its own partial sums.
struct Softmax {
    float top[2], sum[2];
    float base[2];    // addend of exponents: -top * unit, or 0 if nothing was visible; see base_of
    float factor[2];  // the last rescale factor of the output
#if WITH_PAIR_RING
    i32 settled;  // whether all tops of the warp are known and not far from 0
#endif
};

FN void start(struct Softmax &x) {
#pragma unroll
    for (int r = 0; r < 2; r++) x.top[r] = MINUS_INFINITY, x.sum[r] = 0.0f, x.base[r] = 0.0f;
#if WITH_PAIR_RING
    x.settled = 0;
#endif
}

#if FORMULA_FAR
// NEAR_BY_ROWS: compresses the logits of a tile (score_far.cuh) if the maximum of a row is far from
// 0, or almost. Otherwise logits that are far below have weight 0 whether they are compressed or
// not. A maximum is compressed like the other logits, because their order stays.
FN void near_rows(Scores &s, float (&peak)[2]) {
    bool far = false;
#pragma unroll
    for (int r = 0; r < 2; r++)
        far |= (peak[r] >= 0x1p20f)
             | ((peak[r] <= 256.0f - 0x1p20f) & (peak[r] > MINUS_INFINITY));
    if (!far) return;
#pragma unroll
    for (int i = 0; i < TILE_K / 2; i++) s[i] = near_logit(s[i]);
#pragma unroll
    for (int r = 0; r < 2; r++) peak[r] = near_logit(peak[r]);
}
FN bool raise_tops(Scores &s, float unit, float margin, struct Softmax &x) {
#else
// Updates the row maxima. Returns whether they changed, so that the accumulators must be rescaled.
FN bool raise_tops(const Scores &s, float unit, float margin, struct Softmax &x) {
#endif
    float peak[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float part[4];
#pragma unroll
        for (int i = 0; i < 4; i++) part[i] = fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]);
#pragma unroll
        for (int i = 4; i < TILE_K / 8; i++)
            part[i % 4] = fmaxf(part[i % 4], fmaxf(s[4 * i + 2 * r], s[4 * i + 2 * r + 1]));
        peak[r] = fmaxf(fmaxf(part[0], part[1]), fmaxf(part[2], part[3]));
    }
#if FORMULA_FAR
    if (NEAR_BY_ROWS) near_rows(s, peak);
#endif
    const bool far = peak[0] > x.top[0] + margin || peak[1] > x.top[1] + margin;
    x.factor[0] = x.factor[1] = 1.0f;
    if (!__any_sync(0xffffffff, far)) return false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        peak[r] = quad_max(peak[r]);
        const float top = peak[r] > x.top[r] + margin ? peak[r] : x.top[r];
        const float finite = top == MINUS_INFINITY ? 0.0f : top;
        x.factor[r] = fast_exp2((x.top[r] - finite) * unit);
        x.top[r] = top;
        x.base[r] = base_of(finite, unit);
        x.sum[r] = __fmul_rn(x.sum[r], x.factor[r]);
    }
#if WITH_PAIR_RING
    if (SUMS_DECIDE) {
        const float farthest = fmaxf(fabsf(x.top[0]), fabsf(x.top[1]));
        x.settled = uniform(__all_sync(0xffffffff, farthest < 0x1p19f));
    }
#endif
    return true;
}

// Turns the scores of one row into exponentials.
FN void exponentials(Scores &s, int r, float unit, struct Softmax &x) {
    float even = 0.0f, odd = 0.0f;
#pragma unroll
    for (int i = 0; i < TILE_K / 8; i++) {
        float *y = &s[4 * i + 2 * r];
        y[0] = fast_exp2(fmaf(y[0], unit, x.base[r]));
        y[1] = fast_exp2(fmaf(y[1], unit, x.base[r]));
        even += y[0];
        odd += y[1];
    }
    x.sum[r] += even + odd;
}

#if WITH_PAIR_RING
// SUMS_DECIDE: makes the weights of a tile without its maxima, which cost an instruction for each
// score. If no sum exceeds 2^RESCALE_THRESHOLD, no weight does. Otherwise, or before the tops are
// settled, returns false; scores and sums are then as before.
FN bool weigh(Weights &weights, const Scores &s, float unit, struct Softmax &x) {
    if (!x.settled) return false;
    float sum[2][2] = {};
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++) {
        const int r = i % 2;
        const float even = fast_exp2(fmaf(s[2 * i], unit, x.base[r]));
        const float odd = fast_exp2(fmaf(s[2 * i + 1], unit, x.base[r]));
        sum[r][0] += even;
        sum[r][1] += odd;
        weights[i] = pack(even, odd);
    }
    const float more[2] = {sum[0][0] + sum[0][1], sum[1][0] + sum[1][1]};
    constexpr float MAX_SUM = 1 << (int)RESCALE_THRESHOLD;
    if (__any_sync(0xffffffff, more[0] > MAX_SUM || more[1] > MAX_SUM)) return false;
    x.sum[0] += more[0];
    x.sum[1] += more[1];
    return true;
}
#endif

FN void rescale(Output &o, const struct Softmax &x) {
#pragma unroll
    for (int i = 0; i < HEAD_DIM_V / 2; i++) o[i] *= x.factor[i / 2 % 2];
}
