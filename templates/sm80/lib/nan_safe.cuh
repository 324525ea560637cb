// nan_safe: non-finite rows of v reach only the queries that see their keys. Needs: load.cuh,
// softmax.cuh.

#if WITH_NAN_SAFE
FN bool is_finite(u32 bits) { return (bits & EXPONENT) != EXPONENT; }
FN u32 only_finite(u32 pair) {
    return (is_finite(pair) ? pair & 0xffff : 0) | (is_finite(pair >> 16) ? pair & 0xffff0000 : 0);
}
// The infinity or NaN of a 16-bit number as fp32; 0 for a finite number.
FN float not_finite(u32 bits) {
    const u32 sign = (bits & 0x8000) << 16, nan = (bits & 0x7fff) > EXPONENT ? 0x400000 : 0;
    return is_finite(bits) ? 0.0f : __int_as_float(sign | 0x7f800000 | nan);
}

// p is 0 if the mask hides the key, or if it underflowed although an exact exponential is positive.
// 0 * inf is NaN in both cases. So non-finite values are replaced by zeros in the tile, and added
// here to the queries that see their key. not_zero() keeps rescaling from erasing them.
FN void quarantine(Output &o, unsigned char *v_tile, struct Seen seen) {
    bool found = false;
#pragma unroll 1
    for (i32 i = make_opaque(threadIdx.x); i < TILE_K * CHUNKS; i += THREADS) {
        const uint4 x = ((const uint4 *)v_tile)[i];
        found |= only_finite(x.x) != x.x || only_finite(x.y) != x.y || only_finite(x.z) != x.z
            || only_finite(x.w) != x.w;
    }
    if (!__syncthreads_or(found)) return;
    const i32 lane = make_opaque(threadIdx.x) % 32;
#pragma unroll 1
    for (i32 i = 0; i < TILE_K; i++) {
        u32 sees[ROWS / 2];  // bits 0 and 16, from the quad's lane with the key's column
#pragma unroll
        for (int m = 0; m < ROWS / 2; m++)
            sees[m] = __shfl_sync(0xffffffff, seen.word[m], lane / 4 * 4 + i % 8 / 2)
                >> (i / 8 * 2 + i % 2);
#pragma unroll
#if WIDE
        for (int n = 0; n < OWN_GROUPS; n++) {
            const u32 pair = *(const u32 *)(v_tile + place(i, first_group() + n) + 4 * (lane % 4));
#else
        for (int n = 0; n < HEAD_DIM / 8; n++) {
            const u32 pair = *(const u32 *)(v_tile + place(i, n) + 4 * (lane % 4));
#endif
            if (only_finite(pair) == pair) continue;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const bool sees_it = sees[r / 2] >> (16 * (r % 2)) & 1;
                o[r / 2][n][r % 2 * 2] += sees_it ? not_finite(pair) : 0.0f;
                o[r / 2][n][r % 2 * 2 + 1] += sees_it ? not_finite(pair >> 16) : 0.0f;
            }
        }
    }
    __syncthreads();
#pragma unroll 1
    for (i32 i = make_opaque(threadIdx.x); i < TILE_K * CHUNKS; i += THREADS) {
        uint4 &x = ((uint4 *)v_tile)[i];
        x = {only_finite(x.x), only_finite(x.y), only_finite(x.z), only_finite(x.w)};
    }
    __syncthreads();
}
#endif
