// Operand policy for 16-bit tensors: tiles and weights; the rest is in values_halves.cuh.
// Counterpart: operands_bytes.cuh. Needs: constants.cuh, device.cuh. Gives: SLAB_COLUMNS,
// OPERAND_SLABS, VALUE_SLABS, QK_STEPS, PV_STEPS, K_BYTES, V_STAGE, RESCALE_THRESHOLD, base_of,
// Weights, to_weights; for pools in E4M3 also P_EXPONENT_OFFSET.

[[maybe_unused]] constexpr int SLAB_COLUMNS = 64, OPERAND_SLABS = SLABS;  // of a tile of q or k
[[maybe_unused]] constexpr int VALUE_SLABS = SLABS_V;                      // of a tile of v
[[maybe_unused]] constexpr int QK_STEPS = HEAD_DIM / 16, PV_STEPS = TILE_K / 16;  // of products
constexpr u32 K_BYTES = OPERAND_SLABS * K_SLAB;
[[maybe_unused]] constexpr u32 V_STAGE = VALUE_SLABS * K_SLAB;  // bytes of a stage of v

#if E4M3_POOLS
// p and the values of E4M3 pools are in f16: one instruction converts two codes to f16, and p has
// three more bits than in bf16. f16 ends at 65504 and loses bits below 2^-14. Therefore all
// exponentials are scaled by 2^P_EXPONENT_OFFSET: p stays below 2^(8 + 7), and keys of long rows
// count down to 2^-32 of the row's largest weight.
constexpr float RESCALE_THRESHOLD = 8.0f, P_EXPONENT_OFFSET = 7.0f;
FN float base_of(float top, float unit) { return fmaf(-top, unit, P_EXPONENT_OFFSET); }

typedef u32 Weights[TILE_K / 4];  // p in f16, as the A operand of p v
FN void to_weights(Weights &weights, const float (&s)[TILE_K / 2]) {
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(weights[i]) : "f"(s[2 * i + 1]), "f"(s[2 * i]));
}
#else
// Rescale threshold: a row's maximum is updated only when a score exceeds it by this many powers of
// two, so p stays below 2^8.
[[maybe_unused]] constexpr float RESCALE_THRESHOLD = 8.0f;
FN float base_of(float top, float unit) { return -top * unit; }

typedef u32 Weights[TILE_K / 4];  // p in storage precision, as the A operand of p v
FN void to_weights(Weights &weights, const float (&s)[TILE_K / 2]) {
#pragma unroll
    for (int i = 0; i < TILE_K / 4; i++) weights[i] = pack(s[2 * i], s[2 * i + 1]);
}
#endif
