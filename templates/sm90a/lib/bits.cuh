// Intervals of a thread's own columns as bits.

FN u32 bits_from(i32 first) {  // all from bit `first` on; none from 32 on, unlike <<
    u32 y;
    asm("shl.b32 %0, %1, %2;" : "=r"(y) : "r"(~0u), "r"(max_i32(first, 0)));
    return y;
}
FN u32 bits_before(i32 end) {
    u32 y;
    asm("shr.u32 %0, %1, %2;" : "=r"(y) : "r"(~0u), "r"(max_i32(32 - end, 0)));
    return y;
}
// How many of a thread's columns lie before `column`, counted from its first one.
FN i32 own_before(i32 column) {
    const i32 x = max_i32(column, 0);
    return x / 8 * 2 + min_i32(x % 8, 2);
}
