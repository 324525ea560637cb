// Tiles of E4M3 pools on their way to the operands of products. The copying thread fills a ring of
// stages with bytes; the other warps of its warpgroup convert each tile into the stage that WGMMAs
// read. Consumers, and the copying thread, notice nothing of it.
// Needs: ptx.cuh, wgmma.cuh, ring.cuh, items.cuh; Shared of the includer. Gives: PoolStages,
// pool_stages, convert_tiles.

// What the copying thread fills, by the names that it has without a conversion.
struct PoolStages {
    unsigned char (&q)[Q_TILES][Q_BYTES];
    unsigned char (&k)[STAGES][K_BYTES_IN_POOL];
    unsigned char (&v)[STAGES][V_BYTES_IN_POOL];
    u64 (&q_full)[Q_TILES], (&q_free)[Q_TILES];
    u64 (&k_full)[STAGES], (&k_free)[STAGES], (&v_full)[STAGES], (&v_free)[STAGES];
    u64 &started;
    i32 &first_word;
    i32 (&next)[STAGES];
    struct Row (&row)[Q_TILES];
};
FN struct PoolStages pool_stages(struct Shared &s) {
    return {s.q, s.pool_k, s.pool_v, s.q_full, s.q_free, s.pool_k_full, s.pool_k_free,
            s.pool_v_full, s.pool_v_free, s.started, s.first_word, s.pool_next, s.row};
}

// Four E4M3 codes as two pairs of f16, which holds them exactly, NaN included.
FN uint2 in_f16(u32 codes) {
    uint2 pairs;
    asm("{\n"
        ".reg .b16 first, second;\n"
        "mov.b32 {first, second}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, first;\n"
        "cvt.rn.f16x2.e4m3x2 %1, second;\n"
        "}" : "=r"(pairs.x), "=r"(pairs.y) : "r"(codes));
    return pairs;
}
// A pair of f16 in storage precision.
FN u32 stored(u32 pair) {
    if (!BFLOAT16) return pair;
    float a, b;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;\n"
        "}" : "=f"(a), "=f"(b) : "r"(pair));
    return pack(a, b);
}
// Keys meet q, and so have its type. Hopper converts E4M3 to f16 only: for four codes, bf16 takes
// eight instructions and f16 two. Values meet p, which is in f16, see operands_halves.cuh.
FN uint2 as_keys(u32 codes) {
    const uint2 pairs = in_f16(codes);
    return make_uint2(stored(pairs.x), stored(pairs.y));
}
FN uint2 as_values(u32 codes) { return in_f16(codes); }

// Converts a warp's share of a tile: every third group of eight rows, from group `turn` on. A lane
// reads eight codes at a time and writes them as 16 bytes of an operand; 32 columns of the eight
// rows are a step of the warp. Lanes take the rows in such an order that neither reads nor writes
// conflict in banks.
//
// Loads come before conversions: shared memory answers after about 30 cycles, and three warps do
// not hide that. The copying thread gets the stage back (`read`) once all codes are in registers.
// Writes begin when the consumers have read the previous tile (`free`).
template <int DIM, uint2 (&CONVERT)(u32)>
FN void convert_tile(unsigned char *to, const unsigned char *from, u64 &read, u64 &free,
                     u32 parity, u32 turn) {
    constexpr int GROUPS_OF_ROWS = TILE_K / 8, STEPS = DIM / 32;
    constexpr int SHARE = (GROUPS_OF_ROWS + CONVERTING_WARPS - 1) / CONVERTING_WARPS;  // groups
    // Groups that are loaded before the first is converted: as many as registers hold.
    constexpr int MAX_GROUPS = STEPS > 4 ? 1 : 12 / STEPS;
    constexpr int AT_ONCE = MAX_GROUPS < SHARE ? MAX_GROUPS : SHARE;
    const u32 lane = threadIdx.x % 32;
    const u32 row = lane / 4 % 2 * 4 + lane / 8 % 2 * 2 + lane / 16, eight = lane % 4;
    from += turn * 8 * SLAB_ROW;
    to += turn * 8 * SLAB_ROW;
    const u32 source = swizzled(row, eight / 2) + eight % 2 * 8, target = swizzled(row, eight);
    // Whether the warp has a group `i`: only the last one may be missing.
    const auto has = [=](int i) {
        return (i + 1) * CONVERTING_WARPS <= GROUPS_OF_ROWS
            || turn + i * CONVERTING_WARPS < GROUPS_OF_ROWS;
    };
#pragma unroll
    for (int first = 0; first < SHARE; first += AT_ONCE) {
        uint2 codes[AT_ONCE][STEPS];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (!has(first + i)) break;
            const auto group = from + (first + i) * CONVERTING_WARPS * 8 * SLAB_ROW;
#pragma unroll
            for (int j = 0; j < STEPS; j++)
                codes[i][j] = *(const uint2 *)(group + j / 4 * K_SLAB + (source ^ j % 4 * 32));
        }
        if (first + AT_ONCE >= SHARE) {
            __syncwarp();
            if (lane == 0) arrive(read);
        }
        if (first == 0) wait(free, parity);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            if (!has(first + i)) break;
            const auto group = to + (first + i) * CONVERTING_WARPS * 8 * SLAB_ROW;
#pragma unroll
            for (int j = 0; j < STEPS; j++) {
                const uint2 low = CONVERT(codes[i][j].x), high = CONVERT(codes[i][j].y);
                *(uint4 *)(group + j / 2 * K_SLAB + (target ^ j % 2 * 64)) =
                    make_uint4(low.x, low.y, high.x, high.y);
            }
        }
    }
}
// Hands a converted tile to the consumers.
FN void hand_on(u64 &full) {
    publish_writes();
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(full);
}

FN void convert_tiles(struct Shared &shared) {
    Ring<STAGES> stage;
    // Groups of rows do not divide by warps: the warp that has one more is another in each tile.
    u32 turn = threadIdx.x / 32 - 1;
    wait(shared.started, 0);
    i32 word = shared.first_word;
#pragma unroll 1
    while (!(word & END)) {
        const i32 at = stage.at;
        wait(shared.pool_k_full[at], stage.phase);
        word = shared.pool_next[at];
        convert_tile<HEAD_DIM, as_keys>(shared.k[at], shared.pool_k[at], shared.pool_k_free[at],
                                        shared.k_free[at], stage.phase ^ 1, turn);
        if (threadIdx.x == 32) shared.next[at] = word;
        hand_on(shared.k_full[at]);
        turn = turn == 0 ? CONVERTING_WARPS - 1 : turn - 1;
        wait(shared.pool_v_full[at], stage.phase);
        convert_tile<HEAD_DIM_V, as_values>(shared.v[at], shared.pool_v[at],
                                            shared.pool_v_free[at], shared.v_free[at],
                                            stage.phase ^ 1, turn);
        hand_on(shared.v_full[at]);
        turn = turn == 0 ? CONVERTING_WARPS - 1 : turn - 1;
        stage.next();
    }
}
