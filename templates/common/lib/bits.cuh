#pragma once
// Intervals of columns as bits.

FN u32 bits_from(i32 first) {  // all bits from `first` on; none from 32 on, unlike <<
    u32 y;
    asm("shl.b32 %0, %1, %2;" : "=r"(y) : "r"(~0u), "r"(max_i32(first, 0)));
    return y;
}
FN u32 bits_before(i32 end) {
    u32 y;
    asm("shr.u32 %0, %1, %2;" : "=r"(y) : "r"(~0u), "r"(max_i32(32 - end, 0)));
    return y;
}
