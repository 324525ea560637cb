// Interval arithmetic for formulas on a tile, with 64-bit bounds. Needs: FN, formulas.h.

struct Span {
    i64 low, high;
};
FN struct Span span(i64 low, i64 high) {
    struct Span found;
    found.low = low, found.high = high;
    return found;
}
// Whether some, and whether all, of the values low .. high are in a list of ids.
FN struct Span listed_between(const i32 *bits, i64 low, i64 high) {
    i32 some = 0, all = 1;
    for (i64 word = low >> 5; word <= high >> 5; word++) {
        const i64 first = word << 5;
        const unsigned from = low > first ? (unsigned)(low - first) : 0;
        const unsigned to = high < first + 31 ? (unsigned)(high - first) : 31;
        const unsigned mask = (0xffffffffu >> (31 - to)) & (0xffffffffu << from);
        const unsigned own = (unsigned)bits[word] & mask;
        some |= own != 0, all &= own == mask;
    }
    return span(all, some);
}
