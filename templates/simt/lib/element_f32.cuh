// Tensors are fp32. Gives: Element, HALF, ROUNDING, number_of, stored.

typedef float Element;
[[maybe_unused]] constexpr bool HALF = false;  // results are not rounded when stored
[[maybe_unused]] constexpr float ROUNDING = 0x1p-23f;  // relative error of a stored number

FN float number_of(Element x) { return x; }
FN Element stored(float x) { return x; }
