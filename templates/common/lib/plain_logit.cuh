// The logit of one pair as it is defined, for where time does not count.
// Needs: device.cuh, Attention. Gives: plain_logit.

FN float plain_logit(const struct Attention &p, float score, i32 head, i32 q, i32 k) {
    score *= p.scale;
#if WITH_SOFTCAP
    score = p.softcap * (1.0f - 2.0f / (fast_exp2(score / p.softcap * (2.0f * LOG2E)) + 1.0f));
#endif
#if WITH_ALIBI
    score -= p.alibi_slopes[head] * p.spacing * fabsf((float)(q + (p.n_kv - p.n_q) - k));
#endif
    return score;
}
