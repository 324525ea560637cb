// Keys selected one by one. Needs: softmax.cuh. Gives: keep_chosen.

#include "common/lib/thresholds.cuh"

// Keeps the selected ones among the candidate pairs, and pairs that are kept with any score. Bits
// as in Seen.
FN void keep_chosen(struct Seen &seen, const Scores &s, const struct Attention *p,
                    const struct Block &block, i32 first_k) {
    const i32 q = lane_query(block.work), k = lane_key(first_k);
    const int2 *const rows = thresholds_of(*p, p->delta, block.work.batch, block.work.head);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const i32 row = min_i32(q + 8 * r, p->n_q - 1);
        const int2 there = __ldg(rows + row);
        const struct Threshold threshold = threshold_from(__int_as_float(there.x), there.y);
        const bool any = threshold.low != threshold.low;
#if HAS_ALWAYS_KEPT
        u32 kept = 0;
#pragma unroll 1
        // In a separate loop: formulas need the registers of the scores
        for (int i = 0; i < TILE_K / 4; i++) {
            const i32 column = min_i32(k + i / 2 * 8 + i % 2, p->n_kv - 1);
            kept |= (u32)(always_kept(block.mask, row, column, p->n_q, p->n_kv) != 0) << i;
        }
#else
        u32 kept = 0;
#endif
#pragma unroll
        for (int i = 0; i < TILE_K / 4; i++) {
            const i32 column = k + i / 2 * 8 + i % 2;
            const bool before = column < there.y;
            const float score = s[r / 2][i / 2][r % 2 * 2 + i % 2];
            kept |= (u32)(chosen_by(threshold, score, before) | (any & before)) << i;
        }
        seen.word[r / 2] &= kept << 16 * (r % 2) | 0xffffu << 16 * (1 - r % 2);
    }
}
