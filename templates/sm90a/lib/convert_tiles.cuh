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
        return make_uint2(pack(a, b), pack(c, d));
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

// Sixteen columns of a row become two pieces of an operand. A warp reads consecutive pieces. Half
// of the lanes write their second piece first; eight lanes then write to different banks.
template <int DIM>
FN void convert_tile(unsigned char *to, const unsigned char *from) {
    constexpr i32 PIECES = DIM / 16;
#pragma unroll 2
    for (i32 i = threadIdx.x - 32; i < TILE_K * PIECES; i += 32 * CONVERTING_WARPS) {
        const u32 row = (u32)i / PIECES, piece = (u32)i % PIECES;
        const uint4 x = *(const uint4 *)(from + piece / 8 * K_SLAB + swizzled(row, piece % 8));
        unsigned char *const slab = to + piece / 4 * K_SLAB;
        const u32 second = piece / 4 % 2;
        const uint2 a = widen(second ? x.z : x.x), b = widen(second ? x.w : x.y);
        *(uint4 *)(slab + swizzled(row, piece % 4 * 2 + second)) = make_uint4(a.x, a.y, b.x, b.y);
        const uint2 c = widen(second ? x.x : x.z), d = widen(second ? x.y : x.w);
        *(uint4 *)(slab + swizzled(row, piece % 4 * 2 + 1 - second)) =
            make_uint4(c.x, c.y, d.x, d.y);
    }
}
// Hands a converted tile to the consumers, and its bytes back to the copying thread.
FN void hand_on(u64 &full, u64 &free) {
    publish_writes();
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        arrive(free);
        arrive(full);
    }
}

FN void convert_tiles(struct Shared &shared) {
    Ring<STAGES> stage;
    wait(shared.started, 0);
    i32 word = shared.first_word;
#pragma unroll 1
    while (!(word & END)) {
        const i32 at = stage.at;
        wait(shared.pool_k_full[at], stage.phase);
        word = shared.pool_next[at];
        wait(shared.k_free[at], stage.phase ^ 1);
        if (threadIdx.x == 32) shared.next[at] = word;
        convert_tile<HEAD_DIM>(shared.k[at], shared.pool_k[at]);
        hand_on(shared.k_full[at], shared.pool_k_free[at]);
        wait(shared.pool_v_full[at], stage.phase);
        wait(shared.v_free[at], stage.phase ^ 1);
        convert_tile<HEAD_DIM_V>(shared.v[at], shared.pool_v[at]);
        hand_on(shared.v_full[at], shared.pool_v_free[at]);
        stage.next();
    }
}
