// Sums and the greatest over a block, in all threads. The includer defines FN, THREADS and ALL.
// Gives: block_sums, block_max.

// Sums over a block, in all threads.
template <int COUNT>
FN void block_sums(i32 (&x)[COUNT]) {
    __shared__ i32 part[THREADS / 32][COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const i32 sum = __reduce_add_sync(ALL, x[i]);
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

// The greatest over a block, in all threads.
FN i32 block_max(i32 x) {
    __shared__ i32 part[THREADS / 32];
    x = __reduce_max_sync(ALL, x);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) x = part[i] > x ? part[i] : x;
    __syncthreads();
    return x;
}
