// From scores to weights, given lse. Needs: vector.h, scores.h. Gives: Weight, weigh.

struct Weight {
    vec p;  // weight of v in out; 0 if the score is -inf
    vec u;  // dp/dscore at constant lse
};

// Hidden pairs have no weight even if lse is NaN: otherwise a NaN of other pairs would reach their
// keys.
FN ivec hidden(vec score) { return score == -INFINITE; }

#if WITH_ENTMAX
// alpha-entmax (Peters, Niculae and Martins, 2019), with a = alpha - 1: p = x^(1/a),  u = x^(1/a -
// 1),  x = max(0, 1 + a * (score - lse)). lse is the number that makes the weights of a row sum to
// 1. The paper's threshold tau is a * lse - 1; lse keeps its precision as alpha approaches 1, where
// it becomes softmax's lse.
FN struct Weight weigh(const struct Attention *p, vec score, vec lse) {
    const float a = p->alpha_minus_1;
    const vec y = a * (score - lse);
    const ivec none = 1.0f + y <= 0.0f;
    const vec x = zero_where(none, 1.0f + y);
    vec u = x;                // alpha 1.5
    if (a == 1.0f) {          // alpha 2, sparsemax
        u = 1.0f + 0.0f * x;  // NaN if x is
    } else if (a != 0.5f) {
        u = exp2_vec(log1p_vec(y) * ((1.0f - a) / a * LOG2E));
    }
    u = zero_where(none | hidden(score), u);
    return (struct Weight){zero_where(hidden(score), u * x), u};
}

// Whether some weight of a tile is positive or NaN.
static i32 any_weight(const struct Attention *p, struct Place at, Scores scores,
                      const float *lse) {
    for (i32 j = 0; j < at.vectors * LANES; j += LANES) {
        ivec none = (ivec){0} == 0;
        for (i32 k = 0; k < at.keys; k++) {
            none &= 1.0f + p->alpha_minus_1 * (load(&scores[k][j]) - load(lse + j)) <= 0.0f;
        }
        for (i32 i = 0; i < LANES; i++) {
            if (!none[i]) return 1;
        }
    }
    return 0;
}

// Sets `live` to the pairs with a positive weight, instead of those that the mask keeps.
FN void live_weights(struct Place at, Scores weights, Live live) {
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 q = 0; q < TILE_Q; q++) live[k][q] = weights[k][q] != 0.0f;
    }
}
#else
FN struct Weight weigh(const struct Attention *p, vec score, vec lse) {
    const vec weight = zero_where(hidden(score), exp2_vec(POWER * (score - lse)));
    (void)p;
    return (struct Weight){weight, weight};
}
#endif
