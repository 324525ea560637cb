// Bits that tell which of a thread's N pairs dropout keeps. They are drawn while a product is under
// way, and wait in a register for 32 pairs.
// Needs: device.cuh. Gives: Staying, none, put, drop, drop_pairs.

template <int N>
struct Staying {
    u32 bits[(N + 31) / 32];
};
template <int N>
FN void none(struct Staying<N> &stay) {
#pragma unroll
    for (int i = 0; i < (N + 31) / 32; i++) stay.bits[i] = 0;
}
template <int N>
FN void put(struct Staying<N> &stay, int i, bool stays) {
    if (stays) stay.bits[i / 32] |= 1u << i % 32;
}
template <int N>
FN bool has(const struct Staying<N> &stay, int i) {
    return stay.bits[i / 32] >> i % 32 & 1;
}

// x times a factor where pairs stay, else 0.
template <int N>
FN void drop(float (&x)[N], const struct Staying<N> &stay, float factor = 1.0f) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = has(stay, i) ? x[i] * factor : 0.0f;
}
// The same of numbers in storage precision, two in a word.
template <int N>
FN void drop_pairs(u32 (&x)[N], const struct Staying<2 * N> &stay) {
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] &= (has(stay, 2 * i) ? 0xffff : 0) | (has(stay, 2 * i + 1) ? 0xffff0000 : 0);
}

// The seed, the same in all lanes.
FN struct Dropout dropout_of(const struct Attention &p) {
    struct Dropout d = dropout_of(p.dropout_seed_at, p.dropout_seed, p.dropout_least,
                                  p.dropout_first_q, p.dropout_first_k);
    d.key[0] = uniform((i32)d.key[0]), d.key[1] = uniform((i32)d.key[1]);
    return d;
}
