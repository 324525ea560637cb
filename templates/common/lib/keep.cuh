// Dropout bits for tensor-core kernels; without WITH_DROPOUT all pairs are kept. The bits of a
// thread's N pairs are drawn while a matrix product runs, and occupy one register per 32 pairs.
// Needs: device.cuh. Gives: DROPS, Staying, none, put, has, drop, drop_pairs, dropout_of,
// kept_scale, kept_factor, stays, draw_by_key, draw_by_query.

#if WITH_DROPOUT
#include "common/lib/dropout.h"

#define DROPS 1

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

// Multiplies kept elements by `factor` and zeroes the others.
template <int N>
FN void drop(float (&x)[N], const struct Staying<N> &stay, float factor = 1.0f) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = has(stay, i) ? x[i] * factor : 0.0f;
}
// The same for numbers in storage precision, two per word.
template <int N>
FN void drop_pairs(u32 (&x)[N], const struct Staying<2 * N> &stay) {
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] &= (has(stay, 2 * i) ? 0xffff : 0) | (has(stay, 2 * i + 1) ? 0xffff0000 : 0);
}

// The dropout state; uniform in a warp.
FN struct Dropout dropout_of(const struct Attention &p) {
    struct Dropout d = dropout_of(p.dropout_seed_at, p.dropout_seed, p.dropout_least,
                                  p.dropout_first_q, p.dropout_first_k);
    d.key[0] = uniform((i32)d.key[0]), d.key[1] = uniform((i32)d.key[1]);
    return d;
}

// 1 / (fraction kept).
FN float kept_scale(const struct Attention &p) { return p.dropout_scale; }

// Whether one pair is kept.
FN bool stays(const struct Dropout &d, i32 q, i32 k, i32 head, i32 batch) {
    return stays(draws_at(d, q, k, head, batch), d.least, q, k);
}
// Its factor; usable in divergent code.
FN float kept_factor(const struct Attention &p, i32 q, i32 k, i32 head, i32 batch) {
    const struct Dropout d = dropout_of(p.dropout_seed_at, p.dropout_seed, p.dropout_least,
                                        p.dropout_first_q, p.dropout_first_k);
    return stays(d, q, k, head, batch) ? p.dropout_scale : 0.0f;
}

// Draws for fragments whose rows are keys. Element 4 i + 2 r + e belongs to key k + 8 r and query q
// + 8 i + e, where k % 16 is lane / 4 and q % 16 is 2 * (lane % 4). A counter covers two
// neighboring keys, which belong to threads four lanes apart: each of them draws for one of the two
// queries and sends the other half to its partner.
template <int N>
FN void draw_by_key(struct Staying<N> &stay, const struct Dropout &d, i32 q, i32 k, i32 head,
                    i32 batch) {
    none(stay);
    const bool odd = k & 1;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {  // squares of 16 x 16 pairs
        const struct Draws draws = draws_at(d, q + 16 * i + odd, k, head, batch);
        const u32 *const w = draws.word;
        u32 words[2][2];  // for query q + e, and q + e + 8
#pragma unroll
        for (int y = 0; y < 2; y++) {
            const u32 own = odd ? w[2 + y] : w[y];
            const u32 other = __shfl_xor_sync(0xffffffff, odd ? w[y] : w[2 + y], 4);
            words[0][y] = odd ? other : own, words[1][y] = odd ? own : other;
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const u32 word = words[j % 2][j / 4];
            put(stay, 8 * i + j, (j / 2 % 2 ? word >> 16 : word & 0xffff) >= d.least);
        }
    }
}

// Draws for fragments whose rows are queries. Element 4 i + 2 r + e belongs to query q + 8 r and
// key k + 8 i + e, where q % 16 is lane / 4 and k % 16 is 2 * (lane % 4). Each counter belongs to
// one thread.
template <int N>
FN void draw_by_query(struct Staying<N> &stay, const struct Dropout &d, i32 q, i32 k, i32 head,
                      i32 batch) {
    none(stay);
#pragma unroll
    for (int i = 0; i < N / 8; i++) {  // squares of 16 x 16 pairs
        const struct Draws draws = draws_at(d, q, k + 16 * i, head, batch);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const u32 word = draws.word[2 * (j % 2) + j / 2 % 2];
            put(stay, 8 * i + j, (j / 4 ? word >> 16 : word & 0xffff) >= d.least);
        }
    }
}
#else
#define DROPS 0

struct Dropout {};
template <int N>
struct Staying {};
FN struct Dropout dropout_of(const struct Attention &) { return {}; }
FN float kept_scale(const struct Attention &) { return 1.0f; }
FN float kept_factor(const struct Attention &, i32, i32, i32, i32) { return 1.0f; }
FN bool stays(const struct Dropout &, i32, i32, i32, i32) { return true; }
template <int N>
FN bool has(const struct Staying<N> &, int) {
    return true;
}
template <int N>
FN void draw_by_query(struct Staying<N> &, const struct Dropout &, i32, i32, i32, i32) {}
template <int N>
FN void draw_by_key(struct Staying<N> &, const struct Dropout &, i32, i32, i32, i32) {}
template <int N>
FN void drop(float (&)[N], const struct Staying<N> &, float = 1.0f) {}
template <int N>
FN void drop_pairs(u32 (&)[N], const struct Staying<2 * N> &) {}
#endif
