// Order-preserving integer images of floats. Gives: image_of, number_of.

// Integers in the order of the floats; both zeros have the same image. NaNs have some other image.
FN u32 image_of(float x) {
    const i32 bits = __float_as_int(x + 0.0f);
    return bits ^ (bits >> 31 | 0x80000000);
}
FN float number_of(u32 image) {
    return __uint_as_float(image >> 31 ? image ^ 0x80000000u : ~image);
}
