// Integers in score formulas, and exact sums of table gradients. Needs: FN, score_bits, score_join,
// score_plus. Gives: score_add, score_sum.

#ifdef __CUDACC__
#define NOT_A_NUMBER __int_as_float(0x7fffffff)
#else
#define NOT_A_NUMBER __builtin_nanf("")
#endif
#define OUTSIDE (-2147483647 - 1)  // an entry outside its table; not a valid index

FN i64 min_i64(i64 a, i64 b) { return a < b ? a : b; }
FN i64 max_i64(i64 a, i64 b) { return a > b ? a : b; }
// Division and remainder that round towards minus infinity.
FN i32 quotient_i32(i32 a, i32 b) { return a / b - (a % b < 0); }
FN i64 quotient_i64(i64 a, i64 b) { return a / b - (a % b < 0); }
FN i32 remainder_i32(i32 a, i32 b) { return a % b + (a % b < 0 ? b : 0); }
FN i64 remainder_i64(i64 a, i64 b) { return a % b + (a % b < 0 ? b : 0); }
FN i32 score_trunc(float x) {
    return x != x ? OUTSIDE : x >= 2147483647.0f ? 2147483647 : x <= -2147483648.0f ? OUTSIDE
                                                              : (i32)x;
}
// As in torch: NaN propagates.
FN float score_min(float a, float b) { return a < b || a != a ? a : b; }
FN float score_max(float a, float b) { return a > b || a != a ? a : b; }
FN float score_sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }
FN float score_step(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? 0.0f : x == x ? 0.5f : x; }

// A sum that does not depend on the order of its terms, for deterministic gradients: an array of
// integers with 32 bits each that covers every bit position of an fp32 number. A term is added to
// two of them; each has room for 2^31 terms. The last one counts terms that are not finite.
enum { SUM_WORDS = 10, SUM_MARK = 9, SCORE_SLOTS = 8 };

FN void score_add_exactly(i64 *sum, float x) {
    const unsigned bits = score_bits(x);
    const i32 exponent = (i32)(bits >> 23 & 255);
    if (exponent == 255) {
        score_join(sum + SUM_MARK, 1);
        return;
    }
    const i64 digits = (bits & 0x7fffff) | (exponent ? 0x800000 : 0);
    const i32 shift = exponent ? exponent - 1 : 0;  // subnormals have the least exponent
    const i64 term = (bits >> 31 ? -digits : digits) * ((i64)1 << shift % 32);
    score_join(sum + shift / 32, term & 0xffffffff);
    score_join(sum + shift / 32 + 1, term >> 32);
}

// The sum of all terms so far, as a number. Carries beyond 32 bits first.
FN float score_sum(i64 *sum) {
    if (sum[SUM_MARK]) return NOT_A_NUMBER;
    for (i32 i = 0; i + 1 < SUM_MARK; i++) {
        sum[i + 1] += sum[i] >> 32;
        sum[i] &= 0xffffffff;
    }
    double total = 0.0, unit = 0x1p107;  // of word 8: 2^(32 * 8 - 149)
    for (i32 i = SUM_MARK - 1; i >= 0; i--, unit *= 0x1p-32) total += (double)sum[i] * unit;
    return (float)total;
}

FN void score_add(float *gradient, i64 *sums, i64 place, float x) {
    if (place < 0 || x == 0.0f) return;
    if (sums)
        score_add_exactly(sums + place * SUM_WORDS, x);
    else
        score_plus(gradient + place, x);
}
