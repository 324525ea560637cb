#pragma once
// Converts two numbers in storage precision to fp32. Needs: common/lib/device.cuh.

FN float2 unpack(u32 pair) {
    if (BFLOAT16)
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
    float2 x;
    asm("{\n"
        ".reg .b16 low, high;\n"
        "mov.b32 {low, high}, %2;\n"
        "cvt.f32.f16 %0, low;\n"
        "cvt.f32.f16 %1, high;\n"
        "}" : "=f"(x.x), "=f"(x.y) : "r"(pair));
    return x;
}
