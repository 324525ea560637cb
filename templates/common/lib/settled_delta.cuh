// `out` was rounded to storage precision. dq and dk of a row that sees few keys, or few of any
// weight, show that: the sum of p dp over its keys has no such error. Where that differs from
// dout . out by more than the rounding explains, `out` is not of these keys alone, as of a mask in
// parts, and decides. `size` is the sum of |dout * out|.
// Needs: dot.cuh.
FN float settled_delta(float exact, float rounded, float size) {
    return fabsf(exact - rounded) <= ROUNDING * size ? exact : rounded;
}
FN float absolute_dot(uint4 a, uint4 b) {
    constexpr u32 SIZES = 0x7fff7fff;
    return dot(make_uint4(a.x & SIZES, a.y & SIZES, a.z & SIZES, a.w & SIZES),
               make_uint4(b.x & SIZES, b.y & SIZES, b.z & SIZES, b.w & SIZES));
}
