// Logits far from 0, as of a mask that adds finfo.min or -1e9. Kernels multiply logits by
// log2(e) and keep the sum of a row in its lse: from 2^20 on fp32 has no digits for that. Such
// logits move closer, between 2^20 and 2^21 in size, in the order that they have. A row of equal
// ones then has equal weights, in both passes, and beside any other logit they weigh nothing.
// Needs: FN, SCORE_FAR. Gives: near_logit, near_logits.

#if SCORE_FAR
// A number's bits, read as an integer, rise with the number: 108 octaves, divided by 128, fit into
// one. Infinities and what is no number stay.
FN float near_logit(float x) {
    constexpr unsigned FAR = 0x49800000, TOP = 0x7f800000;  // 2^20, infinity
    const unsigned bits = (unsigned)__float_as_int(x), beyond = (bits & 0x7fffffff) - FAR;
    const unsigned near = (bits & 0x80000000) | (FAR + (beyond >> 7));
    return beyond < TOP - FAR ? __int_as_float((i32)near) : x;
}
// Those of a tile, few of which have any that is far.
template <int N>
FN void near_logits(float (&x)[N]) {
    bool far = false;
#pragma unroll
    for (int i = 0; i < N; i++) far |= fabsf(x[i]) >= 0x1p20f;
    if (!far) return;
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = near_logit(x[i]);
}
#else
FN float near_logit(float x) { return x; }
template <int N>
FN void near_logits(float (&)[N]) {}
#endif
