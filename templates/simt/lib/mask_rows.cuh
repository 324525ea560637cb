// Selects how the live columns of rows are found.

#include "common/lib/bits.cuh"

#include "simt/lib/square_columns.cuh"

#include "common/lib/plain_rows.cuh"

[[maybe_unused]] constexpr bool DATA_FIT = true;

#include "common/lib/rows.cuh"

#include "simt/lib/visible.cuh"
