#pragma once
// Tensors are bfloat16. Gives ELEMENT, the type's name in PTX, and what depends on it.

#define ELEMENT "bf16"
[[maybe_unused]] constexpr bool BFLOAT16 = true;
[[maybe_unused]] constexpr float ROUNDING = 0x1p-8f;  // relative error of a stored number
[[maybe_unused]] constexpr unsigned EXPONENT = 0x7f80;  // exponent bits; all set: infinity or NaN
[[maybe_unused]] constexpr unsigned ONE = 0x3f80;  // 1.0
