// Attention in fp32 on CUDA cores. A query sees four sinks and a causal window of
// 128 keys. q, k, v and out are [heads, n, D]; lse is [heads, n].

constexpr int D = 64;     // head dimension
constexpr int ROWS = 64;  // queries of a block, one per thread
constexpr int KEYS = 32;  // keys of a tile
constexpr int SINKS = 4;
constexpr int WINDOW = 128;
#define MINUS_INFINITY __int_as_float(0xff800000)

// ---- the mask

// Return whether query q sees key k.
__device__ bool keep(int q, int k) {
    return k <= q && (k < SINKS || q - k < WINDOW);
}

enum TileClass { EMPTY, PARTIAL, FULL };

// Return the class of a tile: queries q0 to q1 and keys k0 to k1, all inclusive.
__device__ TileClass classify(int q0, int q1, int k0, int k1) {
    const bool all_in_future = k0 > q1;
    const bool all_too_old = k0 >= SINKS && q0 - k1 >= WINDOW;
    if (all_in_future || all_too_old) return EMPTY;
    const bool all_in_past = k1 <= q0;
    const bool all_near = q1 - k0 < WINDOW;
    return all_in_past && all_near ? FULL : PARTIAL;
}

// ---- the kernel

extern "C" __global__ void __launch_bounds__(ROWS)
    attention(const float *q, const float *k, const float *v, float *out,
              float *lse, int n, float scale) {
    __shared__ float keys[KEYS][D];
    __shared__ float values[KEYS][D];

    const int blocks_per_head = (n + ROWS - 1) / ROWS;
    const int head = blockIdx.x / blocks_per_head;
    const int first_q = blockIdx.x % blocks_per_head * ROWS;
    const int last_q = min(first_q + ROWS, n) - 1;
    const int row = first_q + threadIdx.x;  // the query of this thread
    const bool exists = row < n;            // the last block may have idle threads
    const long long start = (long long)head * n * D;

    float query[D], acc[D];
    for (int d = 0; d < D; d++) {
        query[d] = exists ? q[start + row * D + d] * scale : 0;
        acc[d] = 0;
    }
    float row_max = MINUS_INFINITY, row_sum = 0;

    for (int first_k = 0; first_k <= last_q; first_k += KEYS) {
        const int last_k = min(first_k + KEYS, n) - 1;
        const TileClass tile = classify(first_q, last_q, first_k, last_k);
        if (tile == EMPTY) continue;  // uniform: all threads of the block agree

        __syncthreads();  // all threads are done with the previous tile
        for (int i = threadIdx.x; i < (last_k - first_k + 1) * D; i += ROWS) {
            keys[i / D][i % D] = k[start + first_k * D + i];
            values[i / D][i % D] = v[start + first_k * D + i];
        }
        __syncthreads();  // the tile is complete

        for (int j = 0; j <= last_k - first_k; j++) {
            if (tile == PARTIAL && !keep(row, first_k + j)) continue;
            float score = 0;
            for (int d = 0; d < D; d++) score += query[d] * keys[j][d];

            const float new_max = fmaxf(row_max, score);
            const float rescale = expf(row_max - new_max);  // 0 at the first key
            const float weight = expf(score - new_max);
            row_sum = row_sum * rescale + weight;
            for (int d = 0; d < D; d++)
                acc[d] = acc[d] * rescale + weight * values[j][d];
            row_max = new_max;
        }
    }

    if (!exists) return;
    const bool has_keys = row_sum > 0;
    for (int d = 0; d < D; d++)
        out[start + row * D + d] = has_keys ? acc[d] / row_sum : 0;
    lse[(long long)head * n + row] =
        has_keys ? row_max + logf(row_sum) : MINUS_INFINITY;
}
