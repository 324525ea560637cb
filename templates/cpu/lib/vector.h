// Vector types and the elementary functions on them.
// Needs: LANES.

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef i32 ivec __attribute__((vector_size(4 * LANES)));
typedef vec vec_in_memory __attribute__((aligned(4), may_alias));
typedef ivec ivec_in_memory __attribute__((aligned(4), may_alias));

FN vec load(const float *at) { return *(const vec_in_memory *)at; }
FN void store(float *at, vec x) { *(vec_in_memory *)at = x; }
FN vec splat(float x) { return x - (vec){0}; }
FN vec either(ivec which, vec a, vec b) { return (vec)((which & (ivec)a) | (~which & (ivec)b)); }
FN vec zero_where(ivec which, vec x) { return (vec)(~which & (ivec)x); }
FN vec max_vec(vec a, vec b) { return either(a > b, a, b); }

FN vec lane_numbers(void) {
    vec lanes;
    for (i32 i = 0; i < LANES; i++) lanes[i] = (float)i;
    return lanes;
}
FN float sum_lanes(vec x) {
    float sum = 0.0f;
    for (i32 i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

// (2^f - 1) / f for f in -0.5 .. 0.5: a minimax polynomial with relative error 2e-9.
FN vec exp2_slope(vec f) {
    vec y = splat(1.5353363e-4f);
    y = y * f + 1.3398875e-3f;
    y = y * f + 9.6184369e-3f;
    y = y * f + 5.5503324e-2f;
    y = y * f + 2.4022648e-1f;
    return y * f + 6.9314718e-1f;
}

// 2^x for x below 127, with relative error below 1e-7: exactly 1 at 0, exactly 0 below -125 and at
// -inf. NaN stays NaN.
FN vec exp2_vec(vec x) {
    const float round = 12582912.0f;  // 1.5 * 2^23: a sum with it has no fraction bits
    const vec shifted = x + round;
    const vec f = x - (shifted - round);  // -0.5 .. 0.5
    const vec y = exp2_slope(f) * f + 1.0f;
    const ivec power = ((ivec)shifted + 127) << 23;  // its low bits are the integer part of x
    return zero_where(x < -125.0f, y * (vec)power);
}

// The exponent of a normal positive number whose fraction lies in sqrt(1/2) .. sqrt(2).
FN ivec exponent_of(vec x) {
    const i32 half_root = 0x3f3504f3;  // the bits of sqrt(1/2)
    return ((ivec)x - half_root) >> 23;
}

FN vec fraction_of(vec x, ivec exponent) { return (vec)((ivec)x - (exponent << 23)); }

// log(2^exponent * (1 + f)) for f in sqrt(1/2) - 1 .. sqrt(2) - 1.
FN vec log_of_parts(ivec exponent, vec f) {
    const vec s = f / (f + 2.0f);  // log(1 + f) = 2 artanh(f / (2 + f))
    const vec z = s * s;
    const vec series = 1.0f + z * (1.0f / 3 + z * (1.0f / 5 + z * (1.0f / 7 + z * (1.0f / 9))));
    return __builtin_convertvector(exponent, vec) * LN2 + 2.0f * s * series;
}

// The natural logarithm of normal positive numbers, with error below 3e-7.
FN vec log_vec(vec x) {
    const ivec exponent = exponent_of(x);
    return log_of_parts(exponent, fraction_of(x, exponent) - 1.0f);
}

#if WITH_ENTMAX
// log(1 + y) for y > -1, with relative error below 3e-7, also for small y.
FN vec log1p_vec(vec y) {
    const vec x = 1.0f + y;
    const ivec exponent = exponent_of(x);
    return log_of_parts(exponent, either(exponent == 0, y, fraction_of(x, exponent) - 1.0f));
}

// 1 - e^-x for x >= 0, with relative error below 3e-7, also for small x.
FN vec one_less_exp(vec x) {
    const vec f = x * -LOG2E;
    return either(f > -0.5f, -f * exp2_slope(f), 1.0f - exp2_vec(f));
}
#endif

typedef float quad __attribute__((vector_size(16)));
typedef quad quad_in_memory __attribute__((aligned(4), may_alias));
#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) \
    __builtin_shuffle(a, b, (i32 __attribute__((vector_size(16)))){__VA_ARGS__})
#endif

// to[j][i] = factor * from[i][j]; both counts are multiples of four.
FN void transpose(float *to, i32 to_ld, const float *from, i32 from_ld, i32 rows, i32 columns,
                  float factor) {
    for (i32 i = 0; i < rows; i += 4) {
        for (i32 j = 0; j < columns; j += 4) {
            const float *in = from + i * from_ld + j;
            const quad a = *(const quad_in_memory *)in;
            const quad b = *(const quad_in_memory *)(in + from_ld);
            const quad c = *(const quad_in_memory *)(in + 2 * from_ld);
            const quad d = *(const quad_in_memory *)(in + 3 * from_ld);
            const quad ab = SHUFFLE(a, b, 0, 4, 1, 5), AB = SHUFFLE(a, b, 2, 6, 3, 7);
            const quad cd = SHUFFLE(c, d, 0, 4, 1, 5), CD = SHUFFLE(c, d, 2, 6, 3, 7);
            float *out = to + j * to_ld + i;
            *(quad_in_memory *)out = factor * SHUFFLE(ab, cd, 0, 1, 4, 5);
            *(quad_in_memory *)(out + to_ld) = factor * SHUFFLE(ab, cd, 2, 3, 6, 7);
            *(quad_in_memory *)(out + 2 * to_ld) = factor * SHUFFLE(AB, CD, 0, 1, 4, 5);
            *(quad_in_memory *)(out + 3 * to_ld) = factor * SHUFFLE(AB, CD, 2, 3, 6, 7);
        }
    }
}
