#pragma once
// What formulas of masks are computed in: 32 bits, or 64 where a call's lengths, numbers or data
// could take something beyond. The includer defines FN.

#ifndef WITH_WIDE
#define WITH_WIDE 0
#endif
#if WITH_WIDE
typedef i64 Integer;
#else
typedef i32 Integer;
#endif
FN Integer min_int(Integer a, Integer b) { return a < b ? a : b; }
FN Integer max_int(Integer a, Integer b) { return a > b ? a : b; }
// Division and remainder that round towards minus infinity, as the mask's formulas mean them.
FN Integer floor_div(Integer a, Integer b) { return a / b - (a % b < 0); }
FN Integer floor_mod(Integer a, Integer b) { return a % b + (a % b < 0 ? b : 0); }
// An end of tiles or tokens: what lies beyond all of them may be anything beyond them.
FN i32 range_end(Integer x) {
#if WITH_WIDE
    const Integer most = 1 << 30;
    x = x < -most ? -most : x > most ? most : x;
#endif
    return x;
}
