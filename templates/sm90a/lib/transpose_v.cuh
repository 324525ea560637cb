// FP8 WGMMAs need K-major operands, so v is transposed before the pass, tile by tile, directly into
// the layout that it will have in shared memory. Needs: tokens.cuh, work.cuh, wgmma.cuh.

// A tile has one row of TILE_K bytes per column of v. Its 16-byte pieces are swizzled as WGMMA
// expects: by row % 8 for rows of 128 bytes, by row / 2 % 4 for rows of 64 bytes.
static_assert(TILE_K == 128 || TILE_K == 64, "the widths of swizzled rows");
FN u32 swizzled_v(u32 row, u32 piece) {
    return row * TILE_K + ((piece ^ (TILE_K == 128 ? row % 8 : row / 2 % 4)) << 4);
}
FN u64 along_keys(u32 tile) {
    return (u64)(tile >> 4) | 1ull << 16 | (u64)(8 * TILE_K >> 4) << 32
           | (TILE_K == 128 ? 1ull : 2ull) << 62;
}

// The tiles of a key/value head: [tile columns][V_BYTES].
FN unsigned char *v_tiles_of(const struct Attention &p, struct Place at) {
    return p.v_transposed + (i64)(at.batch * p.heads_kv + at.head) * p.tile_cols * V_BYTES;
}

// Of 16 consecutive keys, word t of the operand holds 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, because a
// thread holds the weights of these keys. Keys past the last one are 0.
constexpr int TRANSPOSE_THREADS = 256;
constexpr u32 V_ROW = HEAD_DIM + 4;  // bytes of a key, padded against bank conflicts

extern "C" __global__ void __launch_bounds__(TRANSPOSE_THREADS)
attention_transpose_v(const __grid_constant__ struct Attention p,
                      const __grid_constant__ struct Maps) {
    const i32 heads = p.batch * p.heads_kv;
    const i32 column = blockIdx.x / (u32)heads;
    const struct Place at = place_of(blockIdx.x % (u32)heads, p.heads_kv);
    unsigned char *const turned = memory, *const rows = memory + V_BYTES;
    constexpr int PIECES = HEAD_DIM / 16;
#pragma unroll 4
    for (i32 i = threadIdx.x; i < TILE_K * PIECES; i += TRANSPOSE_THREADS) {
        const i32 own = i / PIECES, token = key_at(column * TILE_K + own);
        uint4 x = make_uint4(0, 0, 0, 0);
        if (token < p.n_kv)
            x = __ldg((const uint4 *)((const char *)p.v + row_offset(p.v_stride, at, token))
                      + i % PIECES);
        u32 *const to = (u32 *)(rows + own * V_ROW) + i % PIECES * 4;
        to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
    }
    __syncthreads();
    for (i32 i = threadIdx.x; i < HEAD_DIM / 4 * (TILE_K / 16); i += TRANSPOSE_THREADS) {
        const i32 d = i % (HEAD_DIM / 4) * 4, piece = i / (HEAD_DIM / 4);
        u32 y[4][4];  // four columns of v, 16 keys each
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const unsigned char *const from = rows + (piece * 16 + 2 * t) * V_ROW + d;
            const u32 a = *(const u32 *)from, b = *(const u32 *)(from + V_ROW);
            const u32 c = *(const u32 *)(from + 8 * V_ROW);
            const u32 e = *(const u32 *)(from + 9 * V_ROW);
            const u32 ab = __byte_perm(a, b, 0x5140), ce = __byte_perm(c, e, 0x5140);
            const u32 above = __byte_perm(a, b, 0x7362), beside = __byte_perm(c, e, 0x7362);
            y[0][t] = __byte_perm(ab, ce, 0x5410), y[1][t] = __byte_perm(ab, ce, 0x7632);
            y[2][t] = __byte_perm(above, beside, 0x5410);
            y[3][t] = __byte_perm(above, beside, 0x7632);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            *(uint4 *)(turned + swizzled_v(d + j, piece)) =
                make_uint4(y[j][0], y[j][1], y[j][2], y[j][3]);
    }
    __syncthreads();
    uint4 *const to = (uint4 *)(v_tiles_of(p, at) + (i64)column * V_BYTES);
    for (i32 i = threadIdx.x; i < (i32)V_BYTES / 16; i += TRANSPOSE_THREADS)
        to[i] = ((const uint4 *)turned)[i];
}
