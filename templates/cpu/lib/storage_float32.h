// Tensors are fp32. Gives element, stored (LANES elements), widen and narrow.

#define ROUNDED_OUT 0  // `out` is not rounded
typedef float element;
typedef vec stored __attribute__((aligned(4), may_alias));  // LANES elements

FN vec widen(stored x) { return x; }
FN stored narrow(vec x) { return x; }
