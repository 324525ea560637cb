// Block-wide sums and maxima, returned to all threads. The includer defines FN, THREADS and ALL.
// Gives: warp_sum, warp_max, block_sums, block_max.

// Over a warp, in all lanes.
FN i32 warp_sum(i32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(ALL, x);
#else
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(ALL, x, step);
    return x;
#endif
}
FN i32 warp_max(i32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL, x);
#else
    for (int step = 16; step > 0; step /= 2) {
        const i32 other = __shfl_xor_sync(ALL, x, step);
        x = other > x ? other : x;
    }
    return x;
#endif
}

// Sums over a block, in all threads.
template <int COUNT>
FN void block_sums(i32 (&x)[COUNT]) {
    __shared__ i32 part[THREADS / 32][COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const i32 sum = warp_sum(x[i]);
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32][i] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        x[i] = 0;
        for (int j = 0; j < THREADS / 32; j++) x[i] += part[j][i];
    }
    __syncthreads();
}

// Maximum over a block, in all threads.
FN i32 block_max(i32 x) {
    __shared__ i32 part[THREADS / 32];
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) x = part[i] > x ? part[i] : x;
    __syncthreads();
    return x;
}
