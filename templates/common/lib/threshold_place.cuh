// Of one head; all of them, [batch, heads_q, n_q] times `low` and `end`, lie just before `rest`.
FN int2 *thresholds_of(const struct Attention &p, const float *rest, i32 batch, i32 head) {
    const i64 words = ((i64)p.batch * p.heads_q * p.n_q * 2 + 31) / 32 * 32;
    return (int2 *)(rest - words) + ((i64)batch * p.heads_q + head) * p.n_q;
}
