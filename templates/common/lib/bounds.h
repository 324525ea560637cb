struct Bounds {
    i32 first, last;  // past the end
};
