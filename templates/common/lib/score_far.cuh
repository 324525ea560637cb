// Compresses logits far from 0, as of a mask that adds finfo.min or -1e9. Kernels multiply logits
// by log2(e) and store the sum of a row in its lse; from 2^20 on, fp32 has too few digits for that.
// Such logits are mapped monotonically to magnitudes between 2^20 and 2^21. A row of equal logits
// then has equal weights in both passes; next to any other logit, their weight is still 0. Needs:
// FN, SCORE_FAR. Gives: near_logit, near_logits.

#if SCORE_FAR
// A float's bits, read as an integer, increase with the float. The 108 octaves above 2^20, divided
// by 128, fit into one octave. Infinities and NaN stay.
FN float near_logit(float x) {
    constexpr unsigned FAR = 0x49800000, TOP = 0x7f800000;  // 2^20, infinity
    const unsigned bits = (unsigned)__float_as_int(x), beyond = (bits & 0x7fffffff) - FAR;
    const unsigned near = (bits & 0x80000000) | (FAR + (beyond >> 7));
    return beyond < TOP - FAR ? __int_as_float((i32)near) : x;
}
// The logits of a tile; few tiles have any that are far from 0. Several maxima at a time: each
// comparison of one chain would wait for the one before.
template <int N>
FN void near_logits(float (&x)[N]) {
    constexpr int CHAINS = N < 4 ? 1 : 4;
    float most[CHAINS] = {};
#pragma unroll
    for (int i = 0; i < N; i++) most[i % CHAINS] = fmaxf(most[i % CHAINS], fabsf(x[i]));
#pragma unroll
    for (int i = 1; i < CHAINS; i++) most[0] = fmaxf(most[0], most[i]);
    if (!(most[0] >= 0x1p20f)) return;
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = near_logit(x[i]);
}
#else
FN float near_logit(float x) { return x; }
template <int N>
FN void near_logits(float (&)[N]) {}
#endif
