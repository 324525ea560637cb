"""Parts of tile rows and their merge: the text of Hopper's kernel, in the emulator."""

from __future__ import annotations

import ctypes

import numpy as np

from maskc.core.bundle import SourceUnit
from maskc.core.problem import Feature
from tests.support.probe import Block, Probe

_LEAVE = """
extern "C" __global__ void __launch_bounds__(128)
probe(const __grid_constant__ struct Attention p, int part, float unit, const float *top,
      const float *sum, const float *rows) {
    const int thread = threadIdx.x;
    const int row = 64 * blockIdx.x + thread / 32 * 16 + thread % 32 / 4;
    Output o;
    float tops[2], sums[2];
    for (int r = 0; r < 2; r++) {
        tops[r] = top[row + 8 * r], sums[r] = sum[row + 8 * r] / 4;  // of four threads
        for (int i = 0; i < HEAD_DIM / 8; i++)
            for (int e = 0; e < 2; e++)
                o[4 * i + 2 * r + e] = rows[(row + 8 * r) * HEAD_DIM + 8 * i + thread % 4 * 2 + e];
    }
    store_part(o, tops, sums, unit, part_at(p, part), blockIdx.x);
}
"""


class HostMerge(Block):
    """The argument block of one call, its parts, and what becomes of them."""

    def __init__(self, unit: SourceUnit, sinks: bool) -> None:
        super().__init__()
        macros = (Feature.sinks.macro,) if sinks else ()
        self._leave = Probe(unit.source, _LEAVE, macros)
        self._merge = Probe(unit.source, "", macros, "attention_merge")
        self._groups = unit.tile.q // 64

    def leave(self, part: int, unit: float, *numbers: np.ndarray) -> None:
        """A part: fp32 [TILE_Q] tops, [TILE_Q] sums of exponentials, [TILE_Q, HEAD_DIM] output."""
        arrays = [np.ascontiguousarray(x, np.float32) for x in numbers]
        self._leave.launch(self._groups, 128, self.structure, int(part), float(unit), *arrays)

    def merge(self, blocks: int) -> None:
        """The launch; it has no use for the maps of tensors."""
        maps = (ctypes.c_uint64 * 256)()
        self._merge.launch(blocks, 128, self.structure, maps)
