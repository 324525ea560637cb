// Between the two products: visibility and the online softmax. Needs: constants.cuh. Gives: Scores,
// Seen, Output.

// A warp's accumulators: [fragment][8-column group][row lane / 4 and + 8, columns 2 * (lane % 4)
// and + 1].
typedef float Scores[FRAGMENTS][TILE_K / 8][4];
#if WIDE
typedef float Output[FRAGMENTS][OWN_GROUPS][4];
#else
typedef float Output[FRAGMENTS][HEAD_DIM / 8][4];
#endif

template <int GROUPS>
FN void clear(float (&x)[FRAGMENTS][GROUPS][4]) {
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
        for (int n = 0; n < GROUPS; n++) x[m][n][0] = x[m][n][1] = x[m][n][2] = x[m][n][3] = 0.0f;
}

#include "common/lib/tops.cuh"

// The keys of a tile that the thread's rows see, 16 bits per row and two rows per word: bit 16 * (r
// % 2) + 2 * n + e of word[r / 2] is row r, column 2 * (lane % 4) + 8 * n + e.
struct Seen {
    u32 word[ROWS / 2];
};

FN struct Seen everything() {
    struct Seen seen;
#pragma unroll
    for (int m = 0; m < ROWS / 2; m++) seen.word[m] = 0xffffffff;
    return seen;
}

FN void hide_rest(Scores &s, struct Seen seen) {
#pragma unroll
    for (int m = 0; m < FRAGMENTS; m++)
#pragma unroll
        for (int n = 0; n < TILE_K / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!(seen.word[m] >> (16 * (e / 2) + 2 * n + e % 2) & 1))
                    s[m][n][e] = MINUS_INFINITY;
}

// A rescale factor for out. With nan_safe it never underflows to 0, so that infinities in out are
// not erased.
FN float not_zero(float factor) {
    constexpr float MIN_NORMAL = 0x1p-126f;
    return WITH_NAN_SAFE && factor < MIN_NORMAL ? MIN_NORMAL : factor;
}

// Updates the row maxima if a logit is far above, and rescales the accumulators. All lanes of a
// quad have the same maxima; each lane has its own partial sums and outputs.
FN void raise_tops(const Scores &s, float unit, float (&top)[ROWS], float (&sum)[ROWS], Output &o) {
    float peak[ROWS], base[ROWS];
    bool far = false;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        base[r] = top[r];
        peak[r] = MINUS_INFINITY;
#pragma unroll
        for (int n = 0; n < TILE_K / 8; n++)
            peak[r] = fmaxf(peak[r], fmaxf(s[r / 2][n][r % 2 * 2], s[r / 2][n][r % 2 * 2 + 1]));
        peak[r] *= unit;
        far |= peak[r] - base[r] > RESCALE_THRESHOLD;
    }
    if (!__any_sync(0xffffffff, far)) return;
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        top[r] = fmaxf(base[r], quad_max(peak[r]));
        const float factor = not_zero(fast_exp2(base[r] - top[r]));
        sum[r] *= factor;
#pragma unroll
#if WIDE
        for (int n = 0; n < OWN_GROUPS; n++) {
#else
        for (int n = 0; n < HEAD_DIM / 8; n++) {
#endif
            o[r / 2][n][r % 2 * 2] *= factor;
            o[r / 2][n][r % 2 * 2 + 1] *= factor;
        }
    }
}
