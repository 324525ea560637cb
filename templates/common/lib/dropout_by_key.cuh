// Which of a thread's weights dropout keeps, in fragments of matrix units whose rows are keys.
// Needs: dropout.h, dropout_bits.cuh. Gives: draw_by_key.

// Element 4 i + 2 r + e is of key k + 8 r and query q + 8 i + e: k is lane / 4 and q 2 * (lane % 4)
// behind multiples of 16. A counter has the pairs of two neighbours among the keys, which threads
// have that are four lanes apart: of their two queries each draws one, and sends the other's half.
template <int N>
FN void draw_by_key(struct Staying<N> &stay, const struct Dropout &d, i32 q, i32 k, i32 head,
                    i32 batch) {
    none(stay);
    const bool odd = k & 1;
#pragma unroll
    for (int i = 0; i < N / 8; i++) {  // squares of 16 x 16 pairs
        const struct Draws draws = draws_at(d, q + 16 * i + odd, k, head, batch);
        const u32 *const w = draws.word;
        u32 words[2][2];  // of query q + e, and eight behind it
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
