// Sums and maxima over the threads of a row, and over a block. Needs: constants.cuh. Gives:
// row_max, row_sum, block_sum.

// The 16 threads of a row of the square are half a warp.
FN float row_max(float x) {
#pragma unroll
    for (int by = SIDE / 2; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, by));
    return x;
}
FN float row_sum(float x) {
#pragma unroll
    for (int by = SIDE / 2; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffff, x, by);
    return x;
}

// The order is fixed, so the sum is deterministic. All threads get it.
FN float block_sum(float x) {
    __shared__ float part[THREADS / 32];
#pragma unroll
    for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(0xffffffff, x, by);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < THREADS / 32; i++) sum += part[i];
    return sum;
}
