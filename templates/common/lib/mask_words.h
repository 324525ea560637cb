#pragma once
// Inputs of masks other than tokens and lengths. Needs: FN, formulas.h.

FN i32 listed(const i32 *bits, Integer value) {
    return (i32)((unsigned)bits[value >> 5] >> (value & 31) & 1);
}

// A constant of the mask: one word, or two if WIDE.
FN Integer constant(const i32 *args, i32 i) {
#if WITH_WIDE
    return (Integer)args[2 * i + 1] * 4294967296 + (unsigned)args[2 * i];
#else
    return args[i];
#endif
}
