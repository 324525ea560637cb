// Reads which blocks were selected, as bits of a thread's columns. The table has one row per
// CHOSEN_Q queries, with one bit per CHOSEN_K keys. Needs: visible.cuh; CHOSEN_Q, CHOSEN_K,
// CELL_KEYS, CELL_QUERIES, OF_CHOSEN, OF_OTHERS, chosen_table, chosen_pitch of the mask.

// The pairs of interval i that count: selected ones, unselected ones, or all.
FN u32 of_interval(int i, u32 chosen) {
    return OF_CHOSEN >> i & 1 ? chosen : OF_OTHERS >> i & 1 ? ~chosen : ~0u;
}

// The blocks of a tile that a query selected; bit 0 is the block of the tile's first key.
FN u32 blocks_of(const struct Mask &m, i32 query, i32 first_k, i32 n_kv) {
    const i32 *const words = chosen_table(m) + query / CHOSEN_Q * chosen_pitch(m);
    const u32 first = (u32)first_k / CHOSEN_K, low = words[first / 32];
    if (32 * CHOSEN_K % TILE_K == 0) return low >> first % 32;  // one word holds all
    const u32 last = (u32)(min_i32(first_k + TILE_K, n_kv) - 1) / CHOSEN_K;
    return __funnelshift_r(low, words[last / 32], first % 32);
}
// Expands blocks to bits of a thread's keys.
FN void cover(u32 (&own)[WORDS], u32 blocks, i32 first_k) {
    constexpr bool ALIGNED = TILE_K % CHOSEN_K == 0 || CHOSEN_K % TILE_K == 0;
    const i32 offset = ALIGNED ? 0 : (u32)first_k % CHOSEN_K;
#pragma unroll
    for (int w = 0; w < WORDS; w++) own[w] = 0;
#pragma unroll
    for (int i = 0; i < TILE_K / CELL_KEYS; i++) {
        const u32 chosen = blocks >> (offset + CELL_KEYS * i) / CHOSEN_K & 1;
        const u64 columns = (((u64)1 << CELL_KEYS / 4) - 1) << CELL_KEYS / 4 * i;
#pragma unroll
        for (int w = 0; w < WORDS; w++) own[w] |= chosen ? (u32)(columns >> 32 * w) : 0;
    }
}

// The thread's queries that selected a key. Bits past the last query are undefined.
FN u32 choosing(const struct Mask &m, i32 key, i32 first_q, i32 n_q) {
    const u32 block = (u32)key / CHOSEN_K;
    const i32 *const words = chosen_table(m) + block / 32;
    u32 own = 0;
    if (CELL_QUERIES % 8 == 0) {
#pragma unroll
        for (int i = 0; i < 4 * OWN / CELL_QUERIES; i++) {
            const u32 row = (u32)min_i32(first_q + CELL_QUERIES * i, n_q - 1) / CHOSEN_Q;
            const u32 chosen = (u32)words[row * chosen_pitch(m)] >> block % 32 & 1;
            own |= chosen ? (u32)(((u64)1 << CELL_QUERIES / 4) - 1) << CELL_QUERIES / 4 * i : 0;
        }
    } else {
        const i32 q = first_q + threadIdx.x % 4 * 2;
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const u32 row = (u32)min_i32(q + i / 2 * 8 + i % 2, n_q - 1) / CHOSEN_Q;
            own |= ((u32)words[row * chosen_pitch(m)] >> block % 32 & 1) << i;
        }
    }
    return own;
}
