// Address of the thresholds of one head. [batch, heads_q, n_q] pairs of `low` and `end` end just
// before `rest`. Gives: thresholds_of.
FN int2 *thresholds_of(const struct Attention &p, const float *rest, i32 batch, i32 head) {
    const i64 words = ((i64)p.batch * p.heads_q * p.n_q * 2 + 31) / 32 * 32;
    return (int2 *)(rest - words) + ((i64)batch * p.heads_q + head) * p.n_q;
}
