// From scores to logits by the options of a call: softcap * tanh(s / softcap) - slope * |p - k|,
// where p is the query's position with both ends aligned. No other CPU file names these options.
// Needs: vector.h; Place, Scores, UNIT, tokens. Gives, as formula_logits.h does: query_factor,
// make_logits, take_slopes.

// The factor of scores is folded into the transposed q.
FN float query_factor(const struct Attention *p) {
    return WITH_SOFTCAP ? p->scale / p->softcap : p->scale * UNIT;
}

#if WITH_SOFTCAP
// Relative error below 2e-7: near 0 an odd polynomial, where 1 - e^-2x would cancel.
FN vec tanh_vec(vec x) {
    const ivec sign = (ivec)x & (i32)0x80000000;
    const vec size = (vec)((ivec)x ^ sign);
    const vec z = x * x;
    vec y = splat(-5.7049803e-3f);  // minimax for (tanh(x) / x - 1) / x^2 up to 0.625
    y = y * z + 2.0639081e-2f;
    y = y * z - 5.3739712e-2f;
    y = y * z + 1.3331442e-1f;
    y = y * z - 3.3333281e-1f;
    const vec e = exp2_vec(size * (-2.0f * LOG2E));
    const vec far = (vec)((ivec)((1.0f - e) / (1.0f + e)) | sign);
    return either(size < 0.625f, x + x * z * y, far);
}
#endif

#if WITH_ALIBI
// |p - k| for LANES queries and one key.
FN vec distance(const struct Attention *p, struct Mask m, struct Place at, i32 k, i32 j) {
    i32 first;
    const vec lanes = queries_from(p, m, at.q0 + j * LANES, &first);
    const vec d = lanes + (float)(first + position_shift(p) - key_token(m, at.k0 + k));
    return max_vec(d, -d);
}
#endif

// `kept`, if given, receives the input of take_slopes: the tanh.
FN void make_logits(const struct Attention *p, struct Mask m, i32 head, struct Place at,
                    Scores scores, Scores kept) {
#if WITH_SOFTCAP
    const float cap = p->softcap * UNIT;
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 j = 0; j < at.vectors; j++) {
            const vec t = tanh_vec(load(&scores[k][j * LANES]));
            if (kept) store(&kept[k][j * LANES], t);
            store(&scores[k][j * LANES], cap * t);
        }
    }
#endif
#if WITH_ALIBI
    const float slope = p->alibi_slopes[head] * p->spacing * UNIT;
    for (i32 k = 0; k < at.keys; k++) {
        for (i32 j = 0; j < at.vectors; j++) {
            float *s = &scores[k][j * LANES];
            store(s, load(s) - slope * distance(p, m, at, k, j));
        }
    }
#endif
    (void)p, (void)m, (void)head, (void)at, (void)scores, (void)kept;
}

// Turns gradients of logits, LANES of a key, into gradients of scores. `fall` receives the head's
// share.
FN vec take_slopes(const struct Attention *p, struct Mask m, struct Place at, i32 k, i32 j, vec d,
                   Scores kept, vec *fall) {
#if WITH_ALIBI
    const ivec outside = lane_numbers() >= (float)(at.queries - j * LANES);
    *fall -= zero_where(outside, d * distance(p, m, at, k, j));
#endif
#if WITH_SOFTCAP
    const vec tanh = load(&kept[k][j * LANES]);
    d *= 1.0f - tanh * tanh;
#endif
    (void)p, (void)m, (void)at, (void)k, (void)j, (void)kept, (void)fall;
    return d;
}
