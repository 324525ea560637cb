// No pair is kept whatever its score. Gives what spared_pairs.cuh gives.

constexpr bool SPARES = false;
template <class Side>
FN void spare(u32 (&)[WORDS], const struct Mask &, i32, i32, i32, i32) {}
