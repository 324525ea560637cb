"""Parts of tile rows and their merge, without a GPU: the text of Hopper's kernel on the CPU.

What a thread leaves of a part and what it makes of all parts are plain C but for a few intrinsics,
for which the shims below stand; sums over a quad are given as if they had been taken.
"""

from __future__ import annotations

import ctypes

import numpy as np

from maskc.build.hostcc import host_compiler
from maskc.core.abi import structure
from maskc.core.bundle import SourceUnit
from maskc.testing.emulator.shared_object import library

_SHIMS = """
#include <math.h>
#include <stdint.h>
#include <string.h>
#define FN static inline
#define __grid_constant__
#define __global__
#define __launch_bounds__(threads)
#define __syncthreads()  // nothing is joined here: no thread reads what another one writes
typedef uint32_t u32;
struct Maps {};
struct { unsigned x; } threadIdx, blockIdx;
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
FN float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
FN float2 make_float2(float x, float y) { return {x, y}; }
template <typename T> FN T __ldg(const T *from) { return *from; }
FN float __fmul_rn(float x, float y) { return x * y; }
FN float __fadd_rn(float x, float y) { return x + y; }
FN float __fsub_rn(float x, float y) { return x - y; }
FN float fast_exp2(float x) { return exp2f(x); }
FN float fast_log2(float x) { return log2f(x); }
FN float fast_reciprocal(float x) { return 1.0f / x; }
FN float quad_sum(float x) { return x; }
FN u32 bf16(float x) {
    u32 bits;
    memcpy(&bits, &x, 4);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
FN u32 pack(float low, float high) { return bf16(low) | bf16(high) << 16; }
FN float2 unpack(u32) { return {0.0f, 0.0f}; }
#define MINUS_INFINITY (-INFINITY)
#define PACKED 0
constexpr bool GRID_TILES = false, PADDED = false;
constexpr int PIECES_V = 0;
template <typename A> FN float kept_scale(const A &) { return 1.0f; }
FN int min_i32(int a, int b) { return a < b ? a : b; }
template <typename A> FN int head_of_row(const A &, int head, int) { return head; }
constexpr float LOG2E = 1.4426950408889634f, LN2 = 0.6931471805599453f;
"""
_DRIVER = """
extern "C" void leave(const Attention *p, int part, float unit, const float *top,
                      const float *sum, const float *rows) {
    for (int group = 0; group < TILE_Q / 64; group++)
        for (threadIdx.x = 0; threadIdx.x < 128; threadIdx.x++) {
            const int thread = threadIdx.x, row = 64 * group + thread / 32 * 16 + thread % 32 / 4;
            Output o;
            float tops[2], sums[2];
            for (int r = 0; r < 2; r++) {
                tops[r] = top[row + 8 * r], sums[r] = sum[row + 8 * r];
                for (int i = 0; i < HEAD_DIM / 8; i++)
                    for (int e = 0; e < 2; e++)
                        o[4 * i + 2 * r + e] =
                            rows[(row + 8 * r) * HEAD_DIM + 8 * i + thread % 4 * 2 + e];
            }
            store_part(o, tops, sums, unit, part_at(*p, part), group);
        }
}
extern "C" void merge(const Attention *p, int blocks) {
    for (blockIdx.x = 0; blockIdx.x < (unsigned)blocks; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < 128; threadIdx.x++) attention_merge(*p, {});
}
"""


def _between(text: str, first: str, last: str) -> str:
    start = text.index(first)
    return text[start : text.index(last, start)]


class HostMerge:
    """The parts of one call, and what becomes of them."""

    def __init__(self, unit: SourceUnit, dim: int, sinks: bool) -> None:
        text = unit.source
        source = "".join([
            _SHIMS, f"#define WITH_SINKS {int(sinks)}\n",
            f"constexpr int TILE_Q = {unit.tile.q}, HEAD_DIM = {dim};\n",
            "typedef float Output[HEAD_DIM / 2];\n",
            _between(text, "typedef int i32;", "\n};\n"), "\n};\n",
            _between(text, "// Places count the tokens", "FN i32 keys_end"),
            _between(text, "struct alignas(16) Work {", "// What the copying warp tells"),
            _between(text, "// The logit of a sink", "// Adds that, or a sink,"),
            _DRIVER,
        ])  # fmt: skip
        command = [*host_compiler().command, "-x", "c++", "-std=c++17", "-O1"]
        self._library = library(command, source)
        self._block = structure()()
        self._kept: list[np.ndarray] = []

    def set(self, **members: np.ndarray | int | tuple[int, ...]) -> None:
        """Members of the argument block; arrays by address."""
        for name, value in members.items():
            if isinstance(value, np.ndarray):
                self._kept.append(value)
                value = value.ctypes.data
            elif isinstance(value, tuple):
                value = (ctypes.c_int64 * len(value))(*value)
            setattr(self._block, name, value)

    def leave(self, part: int, unit: float, *numbers: np.ndarray) -> None:
        """A part: fp32 [TILE_Q] tops, [TILE_Q] sums of exponentials, [TILE_Q, HEAD_DIM] output."""
        given = [np.ascontiguousarray(x, np.float32) for x in numbers]
        places = [ctypes.c_void_p(x.ctypes.data) for x in given]
        self._library.leave(ctypes.byref(self._block), int(part), ctypes.c_float(unit), *places)

    def merge(self, blocks: int) -> None:
        """The launch."""
        self._library.merge(ctypes.byref(self._block), blocks)
