// Gradients of tables over gathered keys, where there are none: see gen/gather_tables.cuh.j2.

struct TableSums {};
FN void add_to_tables(struct TableSums &, int, float, float, i32, i32, i32, i32,
                      const struct Attention &) {}
FN void end_tables(const struct TableSums &, int, bool, i32, i32, i32, const struct Attention &) {}
