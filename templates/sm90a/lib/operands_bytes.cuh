// Operand policy for FP8 (E4M3) tensors: tiles and weights; the rest is in values_bytes.cuh.
// Counterpart with the same names: operands_halves.cuh. Needs: constants.cuh, device.cuh. Gives: as
// that one, and V_BYTES, P_EXPONENT_OFFSET.

// q, k and v have one byte per element and out has two, so a tile of q is half as wide as a tile of
// out.
constexpr int SLAB_COLUMNS = 128, OPERAND_SLABS = (HEAD_DIM + 127) / 128;
[[maybe_unused]] constexpr int VALUE_SLABS = OPERAND_SLABS;
constexpr int QK_STEPS = HEAD_DIM / 32, PV_STEPS = TILE_K / 32;
constexpr u32 K_BYTES = OPERAND_SLABS * K_SLAB, V_STAGE = K_BYTES;
constexpr u32 V_BYTES = HEAD_DIM * TILE_K;  // of v^T

// All exponentials are scaled by 2^P_EXPONENT_OFFSET, to use the range of E4M3: it ends at 448, and
// has full precision from 2^-6 on. P_EXPONENT_OFFSET is an integer, so that 1 stays exact.
constexpr float RESCALE_THRESHOLD = 1.75f, P_EXPONENT_OFFSET = 7.0f;
FN float base_of(float top, float unit) { return fmaf(-top, unit, P_EXPONENT_OFFSET); }

typedef u32 Weights[TILE_K / 8];
// Packs four numbers to E4M3, the first in the lowest byte. NaN stays NaN.
FN u32 pack_bytes(float a, float b, float c, float d) {
    u32 x;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
        "mov.b32 %0, {low, high};\n"
        "}" : "=r"(x) : "f"(a), "f"(b), "f"(c), "f"(d));
    return x;
}
// Of 16 keys of a row, a thread holds two of the first eight and two of the others, where the A
// operand expects four consecutive ones. v^T lists its keys in the same permuted order; see
// transpose_v.cuh.
FN void to_weights(Weights &weights, const float (&s)[TILE_K / 2]) {
#pragma unroll
    for (int i = 0; i < TILE_K / 8; i++) {
        const float *const x = s + i / 2 * 8 + i % 2 * 2;
        weights[i] = pack_bytes(x[0], x[1], x[4], x[5]);
    }
}
