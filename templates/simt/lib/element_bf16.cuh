// Numbers in memory are bfloat16: the upper half of an fp32 number. Old cards have no instruction
// that rounds to it.
// Gives: Element, HALF, ROUNDING, number_of, stored.

typedef unsigned short Element;
[[maybe_unused]] constexpr bool HALF = true;  // whether results are rounded when they are stored
[[maybe_unused]] constexpr float ROUNDING = 0x1p-8f;  // of a stored number, relative

FN float number_of(Element x) { return __uint_as_float((u32)x << 16); }
FN Element stored(float x) {  // to the nearest, ties to even
    const u32 bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (Element)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
