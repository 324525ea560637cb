// Numbers in memory are fp32.
// Gives: Element, HALF, ROUNDING, number_of, stored.

typedef float Element;
[[maybe_unused]] constexpr bool HALF = false;  // whether results are rounded when they are stored
[[maybe_unused]] constexpr float ROUNDING = 0x1p-23f;  // of a stored number, relative

FN float number_of(Element x) { return x; }
FN Element stored(float x) { return x; }
