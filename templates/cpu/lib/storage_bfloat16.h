// Tensors are bfloat16.

#define ROUNDED_OUT 1
#define OUT_ROUNDING 0x1p-8f  // relative error of a stored number
#include "cpu/lib/storage_halves.h"

FN vec widen(stored x) { return (vec)(__builtin_convertvector((halves)x, uvec) << 16); }

// Rounds to the nearest bfloat16, ties to even. A NaN stays one even if its payload is in the low
// bits.
FN stored narrow(vec x) {
    const uvec bits = (uvec)x;
    const uvec rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uvec nan = (uvec)(x != x);
    return __builtin_convertvector((nan & (bits >> 16 | 0x40)) | (~nan & rounded), halves);
}
