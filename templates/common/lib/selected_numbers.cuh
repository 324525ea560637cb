// Elements that selections rank by, and blocks of tokens joined to one row. Needs: element_*.cuh,
// selected_arguments.h.

// ---------------------------------------------------------------- numbers

FN float from_half(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
FN float from_bfloat(u16 x) { return __uint_as_float((u32)x << 16); }
FN float from_e4m3(u32 x) {  // fp16: fields 7 bits higher, exponent bias 8 more
    if ((x & 0x7f) == 0x7f) return __uint_as_float(0x7fc00000);
    return 256.0f * from_half((x & 0x80) << 8 | (x & 0x7f) << 7);
}
// An element of q or k.
FN float number(u16 x) {
    return BFLOAT16 ? from_bfloat(x) : from_half(x);
}
FN float element(const void *from, i64 place) { return number(((const u16 *)from)[place]); }
// An element of a tensor that a selection ranks by.
enum { SCORES, INDEX_Q, INDEX_K, INDEX_W, FACTORS };
FN float ranked(const struct Selected &p, i32 which, i32 batch, i32 head, i32 row, i32 column) {
    const i64 *const step = p.ranked_stride + 4 * which;
    const i64 place = batch * step[0] + head * step[1] + row * step[2] + column * step[3];
    const void *const from = p.ranked[which];
    if (p.ranked_type[which] == 0) return ((const float *)from)[place];
    if ((which == INDEX_Q || which == INDEX_K) && p.ranked_type[which] == 3)
        return from_e4m3(((const unsigned char *)from)[place]);
    const u16 half = ((const u16 *)from)[place];
    return p.ranked_type[which] == 1 ? from_half(half) : from_bfloat(half);
}

// Increases with the score; 1 for NaN, equal for both zeros, and 0 is reserved for non-candidates.
FN u32 ascending(float score) {
    if (score != score) return 1;
    const u32 bits = __float_as_uint(score + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

template <class T>
FN T warp_sum(T x) {
#pragma unroll
    for (int by = 16; by; by /= 2) x += __shfl_xor_sync(ALL, x, by);
    return x;
}

// ---------------------------------------------------------------- blocks of tokens, as one row

// Sums or averages the rows of a block, one warp each; side 0 is queries, 1 is keys. `number`
// counts over all selections; indices past this one's belong to others.
template <class S>
FN void join_rows(const struct Selected &p, i32 number) {
    const i32 queries = S::Q_BLOCK > 1 ? p.batch * p.heads_q * p.rows[S::INDEX] : 0;
    const i32 side = number >= queries, rest = number - side * queries;
    const i32 size = side ? S::BLOCK : S::Q_BLOCK, heads = side ? p.heads_kv : p.heads_q;
    const i32 blocks = side ? p.columns[S::INDEX] : p.rows[S::INDEX], place = rest / blocks;
    if (number < 0 || place >= p.batch * heads) return;
    const i32 first = rest % blocks * size, last = min_i32(first + size, p.n[side]);
    const i64 *const step = side ? p.k_stride : p.q_stride;
    const void *const from = side ? p.k : p.q;
    const i64 base = place / heads * step[0] + place % heads * step[1];
    float *const to = p.joined[2 * S::INDEX + side] + (i64)rest * HEAD_DIM;
    for (i32 d = threadIdx.x % 32; d < HEAD_DIM; d += 32) {
        double sum = 0;
        for (i32 i = first; i < last; i++) sum += element(from, base + i * step[2] + d);
        to[d] = (float)(S::SCORE == MEANS ? sum / (last - first) : sum);
    }
}
