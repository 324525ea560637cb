// Reads an element of a tensor with a run-time dtype. Gives: element_at.

// Codes: 0 fp32, 1 bf16, 2 fp16.
FN float element_at(const void *from, i64 place, i32 code) {
    if (code == 0) return ((const float *)from)[place];
    const u32 bits = ((const unsigned short *)from)[place];
    if (code == 1) return __uint_as_float(bits << 16);
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)bits));
    return x;
}
