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

// Two numbers that bf16 holds exactly.
FN u32 upper_halves(float low, float high) {
    return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
}
// Four numbers of E4M3 as two pairs in storage precision, which holds them exactly.
FN uint2 widen(u32 four) {
    if constexpr (BFLOAT16) {
        float a, b, c, d;
        asm("{\n"
            ".reg .b16 first, second, low, high;\n"
            ".reg .b32 pair;\n"
            "mov.b32 {first, second}, %4;\n"
            "cvt.rn.f16x2.e4m3x2 pair, first;\n"
            "mov.b32 {low, high}, pair;\n"
            "cvt.f32.f16 %0, low;\n"
            "cvt.f32.f16 %1, high;\n"
            "cvt.rn.f16x2.e4m3x2 pair, second;\n"
            "mov.b32 {low, high}, pair;\n"
            "cvt.f32.f16 %2, low;\n"
            "cvt.f32.f16 %3, high;\n"
            "}" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "r"(four));
        return make_uint2(upper_halves(a, b), upper_halves(c, d));
    } else {
        uint2 pairs;
        asm("{\n"
            ".reg .b16 first, second;\n"
            "mov.b32 {first, second}, %2;\n"
            "cvt.rn.f16x2.e4m3x2 %0, first;\n"
            "cvt.rn.f16x2.e4m3x2 %1, second;\n"
            "}" : "=r"(pairs.x), "=r"(pairs.y) : "r"(four));
        return pairs;
    }
}

// Converts every third group of eight rows, from group `turn` on. At each step a warp converts 64
// columns of four rows, or the last 32 of eight. A lane reads eight columns and writes 16 bytes of
// an operand; its row is such that neither reads nor writes conflict in banks.
//
// The bytes go back to the copying thread (`read`) as soon as all of them are in registers. Writes
// begin once the consumers have read the tile before (`free`).
template <int DIM>
FN void convert_tile(unsigned char *to, const unsigned char *from, u64 &read, u64 &free,
                     u32 parity, u32 turn) {
    constexpr int GROUPS_OF_ROWS = TILE_K / 8, STEPS = DIM / 32;
    constexpr int TURNS = (GROUPS_OF_ROWS + CONVERTING_WARPS - 1) / CONVERTING_WARPS;
    constexpr int AT_ONCE = STEPS > 4 ? 1 : TURNS * STEPS > 12 ? 12 / STEPS : TURNS;
    constexpr u32 GROUP = 8 * SLAB_ROW;  // bytes
    const u32 lane = threadIdx.x % 32;
    const u32 row = lane / 8 % 2 * 4 + lane / 16, piece = lane % 8;
    const u32 late_row = lane / 4 % 2 * 4 + lane / 8 % 2 * 2 + lane / 16, late_piece = lane % 4;
    // Offsets at step `i`. Rows of the odd steps are two further on.
    const auto source = [=](int i) {
        if (DIM % 64 && i == STEPS - 1)
            return turn * GROUP + i / 4 * K_SLAB
                   + swizzled(late_row, i / 2 % 2 * 4 + late_piece / 2) + late_piece % 2 * 8;
        const u32 first = turn * GROUP + swizzled(row, piece / 2) + piece % 2 * 8;
        return i / 4 * K_SLAB + (first ^ (i % 2 * 2 * (SLAB_ROW + 16)) ^ (i / 2 % 2 * 64));
    };
    const auto target = [=](int i) {
        if (DIM % 64 && i == STEPS - 1)
            return turn * GROUP + i / 2 * K_SLAB + swizzled(late_row, late_piece);
        const u32 first = turn * GROUP + swizzled(row, piece);
        return i / 2 * K_SLAB + (first ^ (i % 2 * 2 * (SLAB_ROW + 16)));
    };
#pragma unroll
    for (int first = 0; first < TURNS; first += AT_ONCE) {
        uint2 x[AT_ONCE][STEPS];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const u32 further = (first + j) * CONVERTING_WARPS;
            if (further + CONVERTING_WARPS > GROUPS_OF_ROWS && turn + further >= GROUPS_OF_ROWS)
                break;
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                x[j][i] = *(const uint2 *)(from + source(i) + further * GROUP);
        }
        if (first + AT_ONCE >= TURNS) {
            __syncwarp();
            if (lane == 0) arrive(read);
        }
        if (first == 0) wait(free, parity);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const u32 further = (first + j) * CONVERTING_WARPS;
            if (further + CONVERTING_WARPS > GROUPS_OF_ROWS && turn + further >= GROUPS_OF_ROWS)
                break;
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                const uint2 low = widen(x[j][i].x), high = widen(x[j][i].y);
                *(uint4 *)(to + target(i) + further * GROUP) =
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
        convert_tile<HEAD_DIM>(shared.k[at], shared.pool_k[at], shared.pool_k_free[at],
                               shared.k_free[at], stage.phase ^ 1, turn);
        if (threadIdx.x == 32) shared.next[at] = word;
        hand_on(shared.k_full[at]);
        turn = turn == 0 ? CONVERTING_WARPS - 1 : turn - 1;
        wait(shared.pool_v_full[at], stage.phase);
        convert_tile<HEAD_DIM_V>(shared.v[at], shared.pool_v[at], shared.pool_v_free[at],
                                 shared.v_free[at], stage.phase ^ 1, turn);
        hand_on(shared.v_full[at]);
        turn = turn == 0 ? CONVERTING_WARPS - 1 : turn - 1;
        stage.next();
    }
}
