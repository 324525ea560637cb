// The logit of one pair, straight from its definition, for code that is not time-critical. Needs:
// device.cuh, tokens_*.cuh. Gives: plain_logit.

FN float plain_logit(const struct Attention &p, float score, i32 head, i32 batch, i32 q, i32 k) {
    score *= p.scale;
#if WITH_SCORE
    const float q_minus_k = steps_from(p, batch, q, k).at(0, 0);
    q = query_token(p, batch, q), k = key_token(p, batch, k);
    return score_logit(score, q, k, q_minus_k, head, batch, p);
#else
#if SCORE_CAPS
    const float height = score_height(head, batch, p);
    score = height * (1.0f - 2.0f / (fast_exp2(score / height * (2.0f * LOG2E)) + 1.0f));
#endif
#if HEAD_GRADIENT
    score -= head_slope(p, head) * fabsf(steps_from(p, batch, q, k).at(0, 0));
#endif
    return score;
#endif
}
