#pragma once
// Integer helpers for indices and formulas. The includer defines FN.

FN i32 min_i32(i32 a, i32 b) { return a < b ? a : b; }
FN i32 max_i32(i32 a, i32 b) { return a > b ? a : b; }
