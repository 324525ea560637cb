// Masks that depend on k - q alone, as bits in memory.

// Bit DISTANCE_PAD + n_q - 1 + k - q of a mask tells whether query q sees key k; what makes them is
// maskc/layout/tiles/relative_bits.py.
constexpr i32 DISTANCE_PAD = 256;
FN const u32 *distances_of(const struct Attention &p, i32 head) {
    const i32 words = (p.n_q + p.n_kv + 2 * DISTANCE_PAD + 31) / 32;
    return (const u32 *)p.distances + (i64)(p.head_variant ? p.head_variant[head] : 0) * words;
}
// 32 bits from `place` on.
FN u32 bits_at(const u32 *bits, i32 place) {
    const u32 *const at = bits + (u32)place / 32;
    return __funnelshift_r(__ldg(at), __ldg(at + 1), place);
}
// Of 32 columns those that a thread has, two of every eight: bits 8 i + e become 2 i + e.
FN u32 own_of(u32 bits) { return (bits & 0x03030303u) * 0x01041040u >> 24; }
