// Tensors are bfloat16, the upper half of an fp32 number. Old GPUs have no rounding instruction for
// it. Gives: Element, HALF, ROUNDING, number_of, stored.

typedef unsigned short Element;
[[maybe_unused]] constexpr bool HALF = true;  // results are rounded when stored
[[maybe_unused]] constexpr float ROUNDING = 0x1p-8f;  // relative error of a stored number

FN float number_of(Element x) { return __uint_as_float((u32)x << 16); }
FN Element stored(float x) {  // to the nearest, ties to even
    const u32 bits = __float_as_uint(x);
    if (x != x) return 0x7fff;
    return (Element)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
