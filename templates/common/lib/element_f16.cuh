#pragma once
// Tensors are float16. Gives ELEMENT, the type's name in PTX, and what depends on it.

#define ELEMENT "f16"
[[maybe_unused]] constexpr bool BFLOAT16 = false;
[[maybe_unused]] constexpr float ROUNDING = 0x1p-10f;  // relative error of a stored number
[[maybe_unused]] constexpr unsigned EXPONENT = 0x7c00;  // exponent bits; all set: infinity or NaN
[[maybe_unused]] constexpr unsigned ONE = 0x3c00;
