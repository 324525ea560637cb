#pragma once
// The first of a row's columns and the one past its last.
struct Bounds {
    i32 first, last;  // past the end
};
