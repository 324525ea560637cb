#pragma once
// The range of a row's columns.
struct Bounds {
    i32 first, last;  // exclusive end
};
