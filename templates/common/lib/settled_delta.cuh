// `out` was rounded to storage precision. In rows with few keys, or with few keys of any weight,
// the error reaches dq and dk; the sum of p dp over the keys has no such error. If both differ by
// more than rounding explains, `out` also contains other keys (a mask in several parts), and dout .
// out must be used. `size` is the sum of |dout * out|. Needs: dot.cuh.
FN float settled_delta(float exact, float rounded, float size) {
    return fabsf(exact - rounded) <= ROUNDING * size ? exact : rounded;
}
FN float absolute_dot(uint4 a, uint4 b) {
    constexpr u32 SIZES = 0x7fff7fff;
    return dot(make_uint4(a.x & SIZES, a.y & SIZES, a.z & SIZES, a.w & SIZES),
               make_uint4(b.x & SIZES, b.y & SIZES, b.z & SIZES, b.w & SIZES));
}
