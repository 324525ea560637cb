// Rows of new tokens on their way into pages, perhaps turned by a rotary embedding or rounded to
// E4M3. A warp has a row: of queries, which go elsewhere, of keys or of values.
// Needs: gather_element.cuh, PagedRows. Gives: append_rows.

enum { QUERIES, KEYS, VALUES };

// Rounds an fp32 number to E4M3: to nearest even, limited to +-448.
FN unsigned char e4m3_of(float x) {
    const u32 bits = __float_as_uint(x), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
    if (size > 0x7f800000) return sign | 0x7f;  // NaN
    if (size >= 0x43e80000) return sign | 0x7e;  // 464 and more: 448
    if (size < 0x3c800000) {  // below 2^-6 there are multiples of 2^-9
        const float multiple = __uint_as_float(size) * 512.0f;
        return sign | (u32)__float2ll_rn(multiple);
    }
    const u32 odd = size >> 20 & 1, rounded = size + 0x7ffff + odd;
    const u32 code = (rounded >> 20) - (120 << 3);
    return sign | (code < 0x7e ? code : 0x7e);
}
FN void store_element(void *to, i64 place, float x, i32 code) {
    if (code == 0) {
        ((float *)to)[place] = x;
        return;
    }
    if (code == 3) {
        ((unsigned char *)to)[place] = e4m3_of(x);
        return;
    }
    unsigned short bits;
    if (code == 1) {
        const u32 own = __float_as_uint(x), even = 0x7fff + (own >> 16 & 1);
        bits = (own & 0x7fffffff) > 0x7f800000 ? own >> 16 | 0x40 : (own + even) >> 16;
    } else {
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    }
    ((unsigned short *)to)[place] = bits;
}

// Element i of a row after the rotary embedding, which rotates pairs of elements.
FN float turned(const struct PagedRows &p, const void *from, i64 row, i32 i, i32 code, i32 at) {
    const i32 half = p.rotated / 2;
    const i32 pair = p.interleaved ? i / 2 : i % half;
    const bool second = p.interleaved ? i % 2 : i >= half;
    const i32 other = p.interleaved ? i ^ 1 : second ? i - half : i + half;
    const i32 line = at < 0 ? 0 : at < p.lines ? at : p.lines - 1;
    const i64 place = line * p.line_step + pair;
    const float c = element_at(p.cosine, place, p.angle_code);
    const float s = element_at(p.sine, place, p.angle_code);
    const float x = element_at(from, row + i, code), y = element_at(from, row + other, code);
    return second ? __fmaf_rn(x, c, y * s) : __fmaf_rn(x, c, -(y * s));
}

extern "C" __global__ void __launch_bounds__(THREADS)
append_rows(const __grid_constant__ struct PagedRows p) {
    const i32 lane = threadIdx.x % 32, heads = p.heads[0] + p.heads[1] + p.heads[2];
    const i64 warps = (i64)gridDim.x * (THREADS / 32), all = (i64)p.tokens * heads;
    for (i64 at = (i64)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; at < all; at += warps) {
        const i32 token = (i32)(at / heads);
        i32 head = (i32)(at - (i64)token * heads), kind = QUERIES;
        while (head >= p.heads[kind]) head -= p.heads[kind++];
        const i64 slot = p.slots[token];
        if (kind != QUERIES && slot < 0) continue;
        const i64 page = slot / p.page_size, inside = slot - page * p.page_size;
        if (kind != QUERIES && page >= p.page_count) continue;
        const i64 from = token * p.source_step[2 * kind] + head * p.source_step[2 * kind + 1];
        const i64 *const step = p.to_step + 3 * kind;
        const i64 to = kind == QUERIES ? token * step[0] + head * step[1]
                                       : page * step[0] + head * step[1] + inside * step[2];
        const float *const scales = p.scale[kind];
        const float scale = scales ? scales[head * p.scale_step[kind]] : p.number[kind];
        const i32 turns = kind == VALUES ? 0 : p.rotated, code = p.source_code;
        for (i32 i = lane; i < p.dim[kind]; i += 32) {
            const float x = i < turns ? turned(p, p.source[kind], from, i, code,
                                               p.token_position[token])
                                      : element_at(p.source[kind], from + i, code);
            store_element(p.to[kind], to + i, scale == 1.0f ? x : __fdiv_rn(x, scale),
                          p.to_code[kind]);
        }
    }
}
