// WGMMA: the layout of operands, descriptors, fences, and the instructions.

// Columns are the elements of a token's row. A tile is stored as slabs of 64 columns of two bytes.
// A slab has a row of 128 bytes per token. The 16-byte pieces of a row are XOR-swizzled with
// row % 8: the 128-byte swizzle of TMA and WGMMA. Tiles are 1024-byte aligned, as this swizzle
// requires.
constexpr u32 SLAB_ROW = 128;
FN u32 swizzled(u32 row, u32 piece) { return row * SLAB_ROW + ((piece ^ (row % 8)) << 4); }

// Descriptor of a K-major operand: a k-step is 32 bytes, or 16 columns of two bytes.
FN u64 along_columns(u32 tile) { return (u64)(tile >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62; }
// Descriptor of an MN-major operand, reduced along tokens: 16 tokens are 2048 bytes; the next slab
// is `slab` bytes further on.
FN u64 along_tokens(u32 tile, u32 slab) {
    return (u64)(tile >> 4) | (u64)(slab >> 4) << 16 | 64ull << 32 | 1ull << 62;
}
// Offset of k-step `i` in a descriptor, in units of 16 bytes. A slab has four k-steps of columns.
FN u32 column_step(int i, u32 slab) { return (i % 4 * 32 + i / 4 * slab) >> 4; }
FN u32 token_step(int i) { return i * 16 * SLAB_ROW >> 4; }

// wgmma.fence: orders ordinary accesses to accumulators and register operands before the following
// WGMMAs.
FN void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FN void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
FN void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}
// Fences operands: keeps the compiler from moving accesses to these registers across this line.
template <int N>
FN void fence_operand(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(x[i]) :: "memory");
}
template <int N>
FN void fence_operand(u32 (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(x[i]) :: "memory");
}
template <int N>
FN void clear(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = 0.0f;
}

// The WGMMAs of a warpgroup. PRODUCTS in the config header lists them. Accumulators come in groups
// of eight registers. For n registers: OUT_n are their names in an instruction, IN_n their
// constraints, AFTER_n the names of the following operands.
#define R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define R8 "%8, %9, %10, %11, %12, %13, %14, %15"
#define R16 "%16, %17, %18, %19, %20, %21, %22, %23"
#define R24 "%24, %25, %26, %27, %28, %29, %30, %31"
#define R32 "%32, %33, %34, %35, %36, %37, %38, %39"
#define R40 "%40, %41, %42, %43, %44, %45, %46, %47"
#define R48 "%48, %49, %50, %51, %52, %53, %54, %55"
#define R56 "%56, %57, %58, %59, %60, %61, %62, %63"
#define R64 "%64, %65, %66, %67, %68, %69, %70, %71"
#define R72 "%72, %73, %74, %75, %76, %77, %78, %79"
#define R80 "%80, %81, %82, %83, %84, %85, %86, %87"
#define R88 "%88, %89, %90, %91, %92, %93, %94, %95"
#define R96 "%96, %97, %98, %99, %100, %101, %102, %103"
#define R104 "%104, %105, %106, %107, %108, %109, %110, %111"
#define R112 "%112, %113, %114, %115, %116, %117, %118, %119"
#define R120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define D(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), \
    "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define OUT_8 R0
#define OUT_16 OUT_8 ", " R8
#define OUT_24 OUT_16 ", " R16
#define OUT_32 OUT_24 ", " R24
#define OUT_40 OUT_32 ", " R32
#define OUT_48 OUT_40 ", " R40
#define OUT_56 OUT_48 ", " R48
#define OUT_64 OUT_56 ", " R56
#define OUT_72 OUT_64 ", " R64
#define OUT_80 OUT_72 ", " R72
#define OUT_88 OUT_80 ", " R80
#define OUT_96 OUT_88 ", " R88
#define OUT_104 OUT_96 ", " R96
#define OUT_112 OUT_104 ", " R104
#define OUT_120 OUT_112 ", " R112
#define OUT_128 OUT_120 ", " R120
#define IN_8 D(0)
#define IN_16 IN_8, D(8)
#define IN_24 IN_16, D(16)
#define IN_32 IN_24, D(24)
#define IN_40 IN_32, D(32)
#define IN_48 IN_40, D(40)
#define IN_56 IN_48, D(48)
#define IN_64 IN_56, D(56)
#define IN_72 IN_64, D(64)
#define IN_80 IN_72, D(72)
#define IN_88 IN_80, D(80)
#define IN_96 IN_88, D(88)
#define IN_104 IN_96, D(96)
#define IN_112 IN_104, D(104)
#define IN_120 IN_112, D(112)
#define IN_128 IN_120, D(120)
#define AFTER_8 "%8", "%9", "%10", "%11", "%12", "%13"
#define AFTER_16 "%16", "%17", "%18", "%19", "%20", "%21"
#define AFTER_24 "%24", "%25", "%26", "%27", "%28", "%29"
#define AFTER_32 "%32", "%33", "%34", "%35", "%36", "%37"
#define AFTER_40 "%40", "%41", "%42", "%43", "%44", "%45"
#define AFTER_48 "%48", "%49", "%50", "%51", "%52", "%53"
#define AFTER_56 "%56", "%57", "%58", "%59", "%60", "%61"
#define AFTER_64 "%64", "%65", "%66", "%67", "%68", "%69"
#define AFTER_72 "%72", "%73", "%74", "%75", "%76", "%77"
#define AFTER_80 "%80", "%81", "%82", "%83", "%84", "%85"
#define AFTER_88 "%88", "%89", "%90", "%91", "%92", "%93"
#define AFTER_96 "%96", "%97", "%98", "%99", "%100", "%101"
#define AFTER_104 "%104", "%105", "%106", "%107", "%108", "%109"
#define AFTER_112 "%112", "%113", "%114", "%115", "%116", "%117"
#define AFTER_120 "%120", "%121", "%122", "%123", "%124", "%125"
#define AFTER_128 "%128", "%129", "%130", "%131", "%132", "%133"

// d = a b, or d += a b if `add`: 64 x `columns`, in `n` registers of a thread. `kind`: the k extent
// and operand types. `flags`: which operands are MN-major. With a in shared memory:
#define PRODUCT_OF_TILES(name, columns, n, kind, flags) \
    OF_TILES(name, columns, n, kind, flags, OUT_##n, (IN_##n), AFTER_##n)
#define OF_TILES(...) OF_TILES_(__VA_ARGS__)
#define OF_TILES_(name, columns, n, kind, flags, out, in, a_, b_, add_, ...) \
    FN void name(float (&d)[n], u64 a, u64 b, bool add) { \
        asm volatile( \
            "{\n" \
            ".reg .pred add;\n" \
            "setp.ne.b32 add, " add_ ", 0;\n" \
            "wgmma.mma_async.sync.aligned.m64n" #columns kind " {" out "}, " \
            a_ ", " b_ ", add, 1, 1" flags ";\n" \
            "}" \
            : BARE in : "l"(a), "l"(b), "r"((int)add)); \
    }
// With a in registers:
#define PRODUCT_OF_REGISTERS(name, columns, n, kind, flags) \
    OF_REGISTERS(name, columns, n, kind, flags, OUT_##n, (IN_##n), AFTER_##n)
#define OF_REGISTERS(...) OF_REGISTERS_(__VA_ARGS__)
#define OF_REGISTERS_(name, columns, n, kind, flags, out, in, a_, b_, c_, d_, tile_, add_) \
    FN void name(float (&d)[n], const u32 *a, u64 b, bool add) { \
        asm volatile( \
            "{\n" \
            ".reg .pred add;\n" \
            "setp.ne.b32 add, " add_ ", 0;\n" \
            "wgmma.mma_async.sync.aligned.m64n" #columns kind " {" out "}, " \
            "{" a_ ", " b_ ", " c_ ", " d_ "}, " tile_ ", add, 1, 1" flags ";\n" \
            "}" \
            : BARE in : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add)); \
    }
// Removes the parentheses around a list of constraints.
#define BARE(...) __VA_ARGS__
#define HALVES "k16.f32." ELEMENT "." ELEMENT
#define BFLOATS "k16.f32.bf16.bf16"
#define BYTES "k32.f32.e4m3.e4m3"
#if E4M3_POOLS
#define F16S "k16.f32.f16.f16"
#endif

PRODUCTS
