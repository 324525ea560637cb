// Tensors are float16.

#define ROUNDED_OUT 1
#define OUT_ROUNDING 0x1p-10f  // relative error of a stored number
#include "cpu/lib/storage_halves.h"

// Moves the fields of a half to their places in a float, and corrects the exponent by a
// multiplication, which also normalizes subnormals. Not _Float16: compilers do not vectorize it.
FN vec widen(stored x) {
    const uvec bits = __builtin_convertvector((halves)x, uvec);
    const vec number = (vec)((bits & 0x7fff) << 13) * 0x1p112f;
    const uvec special = (uvec)((bits & 0x7c00) == 0x7c00) & 0x7f800000;  // Inf and NaN
    return (vec)((uvec)number | special | (bits & 0x8000) << 16);
}

// Rounds to the nearest half, ties to even.
FN stored narrow(vec x) {
    const uvec sign = (uvec)x & 0x80000000;
    const uvec size = (uvec)x ^ sign;
    const uvec normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
    const uvec small = (uvec)((vec)size + 0.5f) - 0x3f000000;  // 2^-24 is the last bit of 0.5
    const uvec is_small = (uvec)((ivec)size < 0x38800000);     // below 2^-14: subnormal halves
    const uvec is_large = (uvec)((ivec)size >= 0x477ff000);    // rounds to 65536 or more
    const uvec is_nan = (uvec)(x != x);
    const uvec large = 0x7c00 | (is_nan & 0x200);
    const uvec number = (is_small & small) | (~is_small & normal);
    return __builtin_convertvector((is_large & large) | (~is_large & number) | sign >> 16, halves);
}
