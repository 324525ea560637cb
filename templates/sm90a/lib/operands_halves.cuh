// Operand policy for 16-bit tensors: tiles and weights; the rest is in values_halves.cuh.
// Counterpart: operands_bytes.cuh. Needs: constants.cuh, device.cuh. Gives: SLAB_COLUMNS,
// OPERAND_SLABS, VALUE_SLABS, QK_STEPS, PV_STEPS, K_BYTES, V_STAGE, STALE, base_of, Weights,
// to_weights.

[[maybe_unused]] constexpr int SLAB_COLUMNS = 64, OPERAND_SLABS = SLABS;  // of a tile of q or k
[[maybe_unused]] constexpr int VALUE_SLABS = SLABS_V;                      // of a tile of v
[[maybe_unused]] constexpr int QK_STEPS = HEAD_DIM / 16, PV_STEPS = TILE_K / 16;  // of products
constexpr u32 K_BYTES = OPERAND_SLABS * K_SLAB;
[[maybe_unused]] constexpr u32 V_STAGE = VALUE_SLABS * K_SLAB;  // bytes of a stage of v

// Rescale threshold: a row's maximum is updated only when a score exceeds it by this many powers of
// two, so p stays below 2^8.
[[maybe_unused]] constexpr float STALE = 8.0f;
FN float base_of(float top, float unit) { return -top * unit; }

typedef u32 Weights[TILE_K / 4];  // p in storage precision, as the A operand of p v
FN void to_weights(Weights &weights, const float (&s)[TILE_K / 2]) {
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++) weights[i] = pack(s[2 * i], s[2 * i + 1]);
}
