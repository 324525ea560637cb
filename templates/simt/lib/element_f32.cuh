// Numbers in memory are fp32.
// Gives: Element, HALF, number_of, stored.

typedef float Element;
[[maybe_unused]] constexpr bool HALF = false;  // whether results are rounded when they are stored

FN float number_of(Element x) { return x; }
FN Element stored(float x) { return x; }
