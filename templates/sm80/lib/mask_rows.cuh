// Selects how the live columns of rows are found. Needs: mask_row.

#include "common/lib/bits.cuh"

#include "common/lib/quad_columns.cuh"

[[maybe_unused]] constexpr bool DATA_FIT = true;

#include "common/lib/rows.cuh"
