// Functions of score formulas, with errors below 2e-7 of each value, and sums by several threads.
// Except for those of the C library they are plain arithmetic without calls, so that compilers
// vectorize loops over pairs. Needs: FN, LOG2E, LN2, INFINITE.

FN unsigned score_bits(float x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}
FN float score_float(unsigned bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

FN float score_fetch(const float *from) { return *from; }
FN i32 score_fetch_integer(const i32 *from) { return *from; }

FN float score_abs(float x) { return score_float(score_bits(x) & 0x7fffffff); }
FN float score_sqrt(float x) { return __builtin_sqrtf(x); }
FN float score_floor(float x) {
    if (!(score_abs(x) < 8388608.0f)) return x;  // integers, infinities and NaN
    const float whole = (float)(i32)x;
    return whole > x ? whole - 1.0f : whole;
}

// e^x = 2^n * e^f with f = x - n * log(2); log(2) is split into two parts, so that large x lose no
// digits.
FN float score_exp(float x) {
    const float round = 12582912.0f;  // 1.5 * 2^23: a sum with it has no fraction bits
    const float shifted = x * LOG2E + round, n = shifted - round;
    const float f = ((x - n * 0.693359375f) + n * 2.12194440e-4f) * LOG2E;
    float y = 1.5353363e-4f;  // minimax for (2^f - 1) / f
    y = y * f + 1.3398875e-3f;
    y = y * f + 9.6184369e-3f;
    y = y * f + 5.5503324e-2f;
    y = y * f + 2.4022648e-1f;
    y = y * f + 6.9314718e-1f;
    const float power = score_float((score_bits(shifted) + 126) << 23);  // half of 2^n
    const float found = (y * f + 1.0f) * power * 2.0f;
    return x > 88.72f ? INFINITE : x < -87.3f ? 0.0f : found;
}

FN float score_log(float x) {
    const float scaled = x < 0x1p-126f ? x * 0x1p24f : x;
    const i32 exponent = ((i32)score_bits(scaled) - 0x3f3504f3) >> 23;
    const float f = score_float(score_bits(scaled) - ((unsigned)exponent << 23)) - 1.0f;
    const float s = f / (f + 2.0f), z = s * s;  // log(1 + f) = 2 artanh(f / (2 + f))
    const float series = z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z * (1.0f / 9))));
    const float power = (float)(exponent - (x < 0x1p-126f ? 24 : 0));
    const float found = power * LN2 + (2.0f * s + 2.0f * s * series);
    return x > 0.0f ? (x == INFINITE ? x : found) : x == 0.0f ? -INFINITE : __builtin_nanf("");
}

FN float score_tanh(float x) {
    const float size = score_abs(x), z = x * x;
    float y = -5.7049803e-3f;  // minimax for (tanh(x) / x - 1) / x^2 up to 0.625
    y = y * z + 2.0639081e-2f;
    y = y * z - 5.3739712e-2f;
    y = y * z + 1.3331442e-1f;
    y = y * z - 3.3333281e-1f;
    const float e = score_exp(size * -2.0f);
    const float far = (1.0f - e) / (1.0f + e);
    return size < 0.625f ? x + x * z * y : x < 0.0f ? -far : x == x ? far : x;
}

FN float score_sigmoid(float x) { return 1.0f / (1.0f + score_exp(-x)); }

// Functions of the C library, pair by pair.
FN float score_erf(float x) { return __builtin_erff(x); }
FN float score_gelu(float x) { return 0.5f * x * (1.0f + __builtin_erff(0.70710678f * x)); }
FN float score_sin(float x) { return __builtin_sinf(x); }
FN float score_cos(float x) { return __builtin_cosf(x); }

FN void score_join(i64 *to, i64 x) { __atomic_fetch_add(to, x, __ATOMIC_RELAXED); }
FN void score_plus(float *to, float x) {
    unsigned before = __atomic_load_n((unsigned *)to, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n((unsigned *)to, &before,
                                        score_bits(score_float(before) + x), 1, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED)) {
    }
}
