// Prefix sums over a warp and over a block. The includer defines FN, THREADS and ALL.

// Sum of `count` of a lane and of those before it.
FN i32 warp_until(i32 count) {
    const i32 lane = threadIdx.x % 32;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        const i32 other = __shfl_up_sync(ALL, count, by);
        count += lane >= by ? other : 0;
    }
    return count;
}
// Exclusive prefix sum of `count`; `all` receives the total.
FN i32 block_before(i32 count, i32 &all) {
    __shared__ i32 part[THREADS / 32];
    const i32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    i32 sum = warp_until(count);
    if (lane == 31) part[warp] = sum;
    __syncthreads();
    all = 0;
    for (int i = 0; i < THREADS / 32; i++) {
        sum += i < warp ? part[i] : 0;
        all += part[i];
    }
    __syncthreads();
    return sum - count;
}
