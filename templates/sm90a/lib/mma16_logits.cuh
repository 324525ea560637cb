// What scores become: logits in powers of two, and minus infinity.

struct Logit {
    float unit;       // of a score, or of what the soft cap makes of it
    float sharpness;  // of the soft cap: tanh(scale x / cap) is 1 - 2 / (2^(sharpness x) + 1)
    float slope;      // of ALiBi
};
FN struct Logit logit_of(const struct Attention &p, i32 head) {
    struct Logit logit;
    logit.unit = (WITH_SOFTCAP ? p.softcap : p.scale) * LOG2E;
    logit.sharpness = WITH_SOFTCAP ? 2.0f * LOG2E * p.scale * fast_reciprocal(p.softcap) : 0.0f;
    logit.slope = WITH_ALIBI ? p.alibi_slopes[head] * p.spacing * LOG2E : 0.0f;
    return logit;
}

// Of queries first_q + lane / 4, and + 8.
FN void make_logits(Scores &s, const struct Attention &p, const struct Logit &logit, i32 first_q,
                    i32 first_k) {
    const i32 q = first_q + lane_row(), k = first_k + lane_column();
    const float distance = (float)(q + (p.n_kv - p.n_q) - k);
    (void)distance;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float x = s[n][e];
#if WITH_SOFTCAP
            // tanh by one exponential: the approximate instruction is too coarse for logits.
            x = 1.0f - 2.0f * fast_reciprocal(fast_exp2(x * logit.sharpness) + 1.0f);
#endif
            x *= logit.unit;
#if WITH_ALIBI
            x -= logit.slope * fabsf(distance + (8 * (e / 2) - 8 * n - e % 2));
#endif
            s[n][e] = x;
        }
}

// Whether some pairs of a tile are dead, or lie past the end.
FN bool is_masked(const struct Attention &p, struct Tile tile, i32 first_q, i32 first_k) {
    return !tile.full || p.n_q - first_q < TILE_Q || p.n_kv - first_k < TILE_K;
}
FN void hide_rest(Scores &s, const struct Attention &p, const struct Mask &mask, i32 full,
                  i32 first_q, i32 first_k) {
    const i32 n_q = p.n_q, n_kv = p.n_kv;
    const i32 q = first_q + lane_row(), k = first_k + lane_column();
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const i32 row = q + 8 * (e / 2), column = k + 8 * n + e % 2;
            const bool inside = row < n_q && column < n_kv;
            if (!inside || !(full || keep(mask, row, column, n_q, n_kv)))
                s[n][e] = MINUS_INFINITY;
        }
}
