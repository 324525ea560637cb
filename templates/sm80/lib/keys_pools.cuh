// Loader for a paged KV cache of E4M3 numbers. cp.async copies 16 of them to the place of their
// first eight in storage precision; the thread that copied them converts them there, so that
// nothing else waits. Rows as in keys_pages.cuh. Needs: load.cuh, PAGE_SIZE. Gives: load_keys,
// convert_keys, and the scales of pools.

#include "common/lib/pool_scales.cuh"

constexpr int POOL_PIECES = HEAD_DIM / 16;                        // 16-byte pieces of a row
constexpr int OWN_PIECES = TILE_K * POOL_PIECES / THREADS;        // of a tile, by thread
static_assert(TILE_K * POOL_PIECES % THREADS == 0, "threads convert equally many pieces");

// Piece `i` of the thread, among all of a tile.
FN u32 pool_piece(int i) { return threadIdx.x + i * THREADS; }

template <int PIECES = PIECES_QK>
FN void load_keys(u32 tile, const unsigned char *rows, const i64 (&stride)[3], i32 first,
                  const struct Attention &p, i32 batch) {
    const i32 count = __ldg(p.key_count + batch), entry = __ldg(p.first_page + batch);
#pragma unroll 2
    for (int i = 0; i < OWN_PIECES; i++) {
        const u32 row = pool_piece(i) / POOL_PIECES, piece = pool_piece(i) % POOL_PIECES;
        const i32 key = first + (i32)row;
        const i32 page = key < count ? __ldg(p.pages + entry + (u32)key / PAGE_SIZE) : -1;
        const bool inside = (u32)page < (u32)p.page_count;
        const i64 at = (inside ? page : 0) * stride[0] + (u32)key % PAGE_SIZE * stride[2];
        copy_async(tile + place(row, 2 * piece), rows + at + 16 * piece,
                   inside && (!PADDED || 2 * piece < PIECES));
    }
    copy_commit();
}

// Four numbers of E4M3 as two pairs in storage precision, which holds them exactly. Exponent and
// fraction move to their places; a power of two then corrects the bias, subnormal numbers included.
FN uint2 widen(u32 four) {
    const u32 bytes[2] = {__byte_perm(four, 0, 0x1404), __byte_perm(four, 0, 0x3424)};
    const u32 nans = (four & 0x7f7f7f7f) + 0x01010101;  // bit 7 of a byte: it is NaN
    u32 pairs[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 sign = bytes[i] & 0x80008000;
        if (BFLOAT16)
            asm("fma.rn.bf16x2 %0, %1, %2, %3;"
                : "=r"(pairs[i])
                : "r"((bytes[i] >> 4 & 0x07f007f0) | sign), "r"(0x7b807b80), "r"(0x80008000));
        else
            asm("fma.rn.f16x2 %0, %1, %2, %3;"
                : "=r"(pairs[i])
                : "r"((bytes[i] >> 1 & 0x3f803f80) | sign), "r"(0x5c005c00), "r"(0x80008000));
        if (nans & 0x80808080) {
            const u32 bits = __byte_perm(nans, 0, i ? 0x3424 : 0x1404) & 0x80008000;
            pairs[i] |= bits - (bits >> 15);
        }
    }
    return make_uint2(pairs[0], pairs[1]);
}

// Converts the pieces of a tile that the thread copied, once they have arrived.
FN void convert_keys(u32 tile) {
#pragma unroll 2
    for (int i = 0; i < OWN_PIECES; i++) {
        const u32 row = pool_piece(i) / POOL_PIECES, piece = pool_piece(i) % POOL_PIECES;
        uint4 *const first = (uint4 *)__cvta_shared_to_generic(tile + place(row, 2 * piece));
        uint4 *const second = (uint4 *)__cvta_shared_to_generic(tile + place(row, 2 * piece + 1));
        const uint4 x = *first;
        const uint2 a = widen(x.x), b = widen(x.y), c = widen(x.z), d = widen(x.w);
        *first = make_uint4(a.x, a.y, b.x, b.y);
        *second = make_uint4(c.x, c.y, d.x, d.y);
    }
}
