// Scales that differ by head: of scores and results. Needs: softmax.cuh. Gives: Factors,
// factors_of, set_factors, multiply_all, multiply_scores.

// The scales of a row's scores and results.
struct Factors {
    float unit, margin, scores, out;
#if WITH_FP8
    float slope;  // of distances, in the unit of scores
#endif
};
FN struct Factors factors_of(const struct Attention &) { return {}; }
FN void set_factors(struct Factors &x, const struct Attention &p, float scores, float out) {
    x.scores = scores;
    x.out = out;
    x.unit = PAIRWISE_LOGITS ? unit_of(p) : unit_of(p) * x.scores;
    x.margin = RESCALE_THRESHOLD * fast_reciprocal(x.unit);
}
template <int N>
FN void multiply_all(float (&x)[N], float by) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] *= by;
}
FN void multiply_scores(Scores &s, const struct Factors &x) {
    if (PAIRWISE_LOGITS) multiply_all(s, x.scores);
}
