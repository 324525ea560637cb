// Tensors are float16. Gives: Element, HALF, ROUNDING, number_of, stored.

typedef unsigned short Element;
[[maybe_unused]] constexpr bool HALF = true;  // results are rounded when stored
[[maybe_unused]] constexpr float ROUNDING = 0x1p-10f;  // relative error of a stored number

FN float number_of(Element x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
FN Element stored(float x) {
    Element y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
