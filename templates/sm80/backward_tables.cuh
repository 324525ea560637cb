// Gradients of the tables that the score formula reads: launches that follow backward.cuh. The
// output of gen/score_tables.cuh.j2 comes before this file.

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS, HEAD_DIM <= 128 ? 2 : 1)
attention_backward_pairs(const __grid_constant__ struct Attention p) {
    __shared__ __align__(16) float boards[by_pairs::WARPS][16 * by_pairs::PITCH];
    if (by_pairs::wanted(p)) by_pairs::add_column(p, boards);
}

extern "C" __global__ void __launch_bounds__(PLAIN_THREADS)
attention_backward_tables(const __grid_constant__ struct Attention p) {
    finish_tables(p, PLAIN_THREADS);
}
