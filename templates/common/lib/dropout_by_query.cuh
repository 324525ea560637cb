// Which of a thread's weights dropout keeps, in fragments of matrix units whose rows are queries.
// Needs: dropout.h, dropout_bits.cuh. Gives: draw_by_query.

// Element 4 i + 2 r + e is of query q + 8 r and key k + 8 i + e: q is lane / 4 and k 2 * (lane % 4)
// behind multiples of 16. A thread has whole counters.
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
