// Bits of the keys that a query sees, and their list. Needs: gather_rows.cuh, gather_best.cuh.
// Gives: settle_bits, list_bits.

// Sets or clears the bit of one of the best.
FN void settle_bit(struct Choice &c, const struct Gathered &p, const struct Mask &m,
                   const struct Row &row, i32 from, i32 key) {
    u32 *const word = c.kept + (key - from) / 32;
    const u32 bit = 1u << (key - from) % 32;
    if (chosen(m, row.query, key, p.n_q, p.n_kv))
        atomicOr(word, bit);
    else
        atomicAnd(word, ~bit);
}
FN void settle_bits(struct Choice &c, const struct Gathered &p, const struct Mask &m,
                    const struct Row &row, const struct Best &best, i32 from, i32 to) {
    for (i32 i = threadIdx.x; i < best.count; i += THREADS) {
        const i32 key = key_of(c.list[i]);
        if (c.list[i] >= best.least && key >= from && key < to)
            settle_bit(c, p, m, row, from, key);
    }
    if (best.count >= 0) return;
    struct Hull hull = choice_hull(m, row.query, p.n_q, p.n_kv);
    hull.first = max_i32(hull.first, from), hull.last = min_i32(hull.last, to);
    each_score(p, row, hull, [&](float x, i32 key) {
        if (candidate(x, key) >= best.least && may(p, m, row, hull, key))
            settle_bit(c, p, m, row, from, key);
    });
}

// Lists the keys with set bits in ascending order; returns their number. Each warp takes
// consecutive words.
FN i32 list_bits(const struct Choice &c, i32 *list, i32 from, i32 to) {
    const i32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, words = (to - from + 31) / 32;
    const i32 own = (words + THREADS - 1) / THREADS * 32;
    const i32 first = warp * own + lane, last = min_i32((warp + 1) * own, words);
    i32 count = 0, all;
    for (i32 word = first; word < last; word += 32) count += __popc(c.kept[word]);
    i32 place = __shfl_sync(ALL, block_before(count, all), 0);  // first position of the warp
#pragma unroll 1
    for (i32 word = first; word - lane < last; word += 32) {
        u32 bits = word < last ? c.kept[word] : 0;
        const i32 set = __popc(bits);
        i32 after = set;
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            const i32 other = __shfl_up_sync(ALL, after, by);
            after += lane >= by ? other : 0;
        }
        i32 *at = list + place + after - set;
        for (; bits; bits &= bits - 1) *at++ = from + 32 * word + __ffs((i32)bits) - 1;
        place += __shfl_sync(ALL, after, 31);
    }
    return all;
}
