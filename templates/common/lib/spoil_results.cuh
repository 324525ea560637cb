// Launched after a pass, in case its data turn out to be wrong. Needs: Lists, THREADS, BLOCKS,
// MAX_RESULTS, wait_for_launches. Gives: spoil_results.

// Overwrites results with a NaN of any precision.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
spoil_results(const __grid_constant__ struct Lists p) {
    wait_for_launches();
    if (!*p.verdict) return;
    const i64 step = (i64)gridDim.x * THREADS;
    for (int i = 0; i < MAX_RESULTS; i++) {
        if (!p.result[i]) continue;
        for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < p.result_words[i]; at += step)
            p.result[i][at] = -1;
    }
}
