// Gradients of the tables that the score formula reads, on Hopper: launches that follow
// backward.cuh. The output of gen/score_tables.cuh.j2 comes before this file.

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS, HEAD_DIM <= 128 ? 2 : 1)
attention_backward_pairs(const __grid_constant__ struct Attention p,
                         const __grid_constant__ struct Maps) {
    __shared__ __align__(16) float boards[by_pairs::WARPS][16 * by_pairs::PITCH];
#if ADDS_DIAGONALS
    if (SHIFTED && !SEPARATE_DQ && p.score_diagonals) return;  // the main launch already added them
#endif
    if (by_pairs::wanted(p)) by_pairs::add_column(p, boards);
}

#if ADDS_DIAGONALS
#if !SEPARATE_DQ
// Adds a block's share of a head's diagonal sums (one sum per distance) to the tables.
FN void give_diagonals(const struct Attention &p) {
    const i32 line = blockIdx.x / p.tile_rows, batch = line / p.heads_q, head = line % p.heads_q;
    const float *const from = diagonals_of(p, head, batch);
    const i32 step = p.tile_rows * PLAIN_THREADS;
    // The loop bound is uniform in a warp, because the body uses warp shuffles.
    for (i32 first = blockIdx.x % p.tile_rows * PLAIN_THREADS + threadIdx.x - threadIdx.x % 32;
         first < p.n_q + p.n_kv - 1; first += step) {
        const i32 far = first + (i32)threadIdx.x % 32 + 1 - p.n_kv;
        const float x = far < p.n_q ? from[far] : 0.0f;
        by_pairs::give(x, min_i32(far, p.n_q - 1), head, batch, p);
    }
}
#else
FN void give_diagonals(const struct Attention &) {}
#endif
#endif

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_tables(const __grid_constant__ struct Attention p,
                          const __grid_constant__ struct Maps) {
#if ADDS_DIAGONALS
    if (SHIFTED && !SEPARATE_DQ && p.score_diagonals) give_diagonals(p);
#endif
    finish_tables(p, PLAIN_THREADS);
}
