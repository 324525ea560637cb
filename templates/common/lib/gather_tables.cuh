// Gradients of the score formula's tables over gathered keys, see gen/gather_tables.cuh.j2. Without
// GATHER_TABLES the formula reads none. Gives: TableSums, add_to_tables, end_tables.

#if GATHER_TABLES
#include "common/lib/score_sums.cuh"

extern "C" __global__ void __launch_bounds__(BLOCK)
attention_backward_tables(const __grid_constant__ struct Attention p) {
    finish_tables(p, BLOCK);
}
#else
struct TableSums {};
FN void add_to_tables(struct TableSums &, int, float, float, i32, i32, i32, i32,
                      const struct Attention &) {}
FN void end_tables(const struct TableSums &, int, bool, i32, i32, i32, const struct Attention &) {}
#endif
