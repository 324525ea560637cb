"""Which pairs Hopper's kernels hide, without a GPU: their bits, from the same text on the CPU.

The functions that turn a tile into a thread's bits are plain C but for a few intrinsics, for which
the shims below stand. Every lane's bits are put back where the lane's scores lie. Lanes run one
after another, so a warp is run again for each vote that its lanes take, when all have voted.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping

import numpy as np

from maskc.build.hostcc import host_compiler
from maskc.core.abi import structure
from maskc.core.boxes import Boxes
from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.dispatch.tables import Tables, make_tables
from maskc.layout import Chosen, bind_arrays
from maskc.testing.emulator.shared_object import library

_SHIMS = """
#include <stdint.h>
#include <setjmp.h>
#define FN inline
typedef uint32_t u32;
typedef uint64_t u64;
struct { unsigned x; } threadIdx;
template <typename T> FN T __ldg(const T *from) { return *from; }
FN u32 __funnelshift_r(u32 low, u32 high, u32 by) {
    return (u32)((((uint64_t)high << 32 | low) >> (by & 31)));
}
FN u32 __brev(u32 x) {
    u32 y = 0;
    for (int i = 0; i < 32; i++) y |= (x >> i & 1) << (31 - i);
    return y;
}
FN int __popc(u32 x) { return __builtin_popcount(x); }
FN int __ffs(u32 x) { return __builtin_ffs(x); }
static u32 votes[64], voting;
static unsigned voted, taken;
static jmp_buf out;
FN u32 __ballot_sync(u32, bool own) {
    if (taken < voted) return votes[taken++];
    voting |= (u32)own << threadIdx.x;
    longjmp(out, 1);
}
template <class Lane> FN void run_warp(Lane lane) {
    voted = 0;
    for (volatile bool again = true; again;) {
        again = false, voting = 0;
        for (threadIdx.x = 0; threadIdx.x < 32; threadIdx.x++) {
            taken = 0;
            if (setjmp(out) == 0) lane(threadIdx.x);
            else again = true;
        }
        if (again) votes[voted++] = voting;
    }
}
"""
_CLAMPED = """
FN u32 bits_from(i32 first) { return first >= 32 ? 0u : ~0u << max_i32(first, 0); }
FN u32 bits_before(i32 end) { return end <= 0 ? 0u : ~0u >> max_i32(32 - end, 0); }
"""
_FORWARD = """
extern "C" void tile(const Attention *p, int head, int row, int index, unsigned char *live) {
    for (int warp = 0; warp < TILE_Q / 16; warp++)
        run_warp([&](int lane) {
            const int q = 16 * warp + lane / 4;
            const int place = row * TILE_Q + q, first = index * KEY_STEP;
            MaskRow kept;
            const Visible early = prefetch_mask<ByQuery>(*p, {0, head}, place, first);
            const Visible seen = visible<ByQuery>(*p, {0, head}, place, first, kept, early);
            for (int r = 0; r < 2; r++)
                for (int i = 0; i < OWN; i++)
                    live[(q + 8 * r) * TILE_K + i / 2 * 8 + lane % 4 * 2 + i % 2] =
                        word_of(seen, r, i / 32) >> i % 32 & 1;
        });
}
"""
_BACKWARD = """
extern "C" void tile(const Attention *p, int head, int row, int column, unsigned char *live) {
    for (int part = 0; part < TILE_Q / QUERIES; part++)
        for (int warp = 0; warp < TILE_K / 16; warp++)
            run_warp([&](int lane) {
                const int k = 16 * warp + lane / 4;
                MaskRow kept;
                const Visible seen = visible<ByKey>(*p, {0, head}, column * TILE_K + k,
                                                    row * TILE_Q + part * QUERIES, kept, {});
                for (int r = 0; r < 2; r++)
                    for (int i = 0; i < OWN; i++) {
                        const int q = part * QUERIES + i / 2 * 8 + lane % 4 * 2 + i % 2;
                        live[q * TILE_K + k + 8 * r] = word_of(seen, r, 0) >> i & 1;
                    }
            });
}
"""


def _between(text: str, first: str, last: str) -> str:
    start = text.index(first)
    return text[start : text.index(last, start)]


def _source(unit: SourceUnit, queries: int, packed: bool) -> str:
    text, backward = unit.source, Direction.backward in unit.directions
    own = queries // 4 if backward else unit.tile.k // 4
    seen = _between(text, "// The query at a row", "FN void apply_mask")
    seen = re.sub(r"FN u32 bits_(from|before)\(.*?\n}\n", "", seen, flags=re.DOTALL)
    mask = _between(text, "FN i32 min_i32", "constexpr int HEAD_DIM")
    grid = _between(text, "// Tiles are boxes", "#define ELEMENT_POLICY") if unit.boxes else ""
    return "".join([
        _SHIMS,
        _between(text, "typedef int i32;", "\n};\n") + "\n};\n",
        f"#define PACKED {int(packed)}\n"
        f"constexpr int TILE_Q = {unit.tile.q}, TILE_K = {unit.tile.k}, QUERIES = {queries};\n",
        f"constexpr int KEY_STEP = {1 if unit.by_documents else 'TILE_K'};\n",
        f"constexpr int OWN = {own}, HEAD_DIM = 64;\n#define HEAD_GRADIENT 0\n",
        "struct Place { i32 batch, head; };\n",
        mask, grid, _between(text, "// Places count the tokens", "FN i32 keys_end"), _CLAMPED, seen,
        _BACKWARD if backward else _FORWARD,
    ])  # fmt: skip


class HostBits:
    """The pairs that one source hides in partial tiles."""

    def __init__(self, bundle: Bundle, unit: SourceUnit, queries: int, packed: int = 1) -> None:
        """
        Args:
            queries: that a warpgroup of a backward pass has of a tile.
            packed: heads whose queries are rows of one tile.
        """
        command = [*host_compiler().command, "-x", "c++", "-std=c++17", "-O1"]
        self._tile = library(command, _source(unit, queries, packed > 1)).tile
        self._bundle, self._unit, self._packed = bundle, unit, packed

    def live(
        self, n_q: int, n_kv: int, heads: int, chosen: Mapping[str, Chosen] | None = None,
        **data: object,
    ) -> np.ndarray:  # fmt: skip
        """bool [heads, n_q * packed, n_kv] as every tile's threads see it; where tiles begin with
        documents, of the tiles that are listed, full ones included.

        Args:
            chosen: what run-time selections have chosen.
        """
        unit, tile = self._unit, self._unit.tile
        sizes = Sizes(1, heads, heads, n_q, n_kv)
        arrays = bind_arrays(self._bundle.data, data, n_q, n_kv) | (chosen or {})
        params = dict(self._bundle.params)
        direction = unit.directions[0]
        tables = make_tables(self._bundle, unit, sizes, params, arrays, direction, not unit.ranges)
        block, kept = structure()(), []
        for name, values in tables.parts:
            kept.append(np.ascontiguousarray(values, dtype=np.int32))
            setattr(block, name, kept[-1].ctypes.data)
        for i, slot in enumerate(tables.slots):
            kept.append(np.ascontiguousarray(slot.values, dtype=np.int32))
            block.array[i], block.array_batch[i] = kept[-1].ctypes.data, slot.batch
            block.array_head[i], block.array_row[i] = slot.head, slot.row
        block.queries, n_q = n_q, n_q * self._packed
        block.n_q = n_q
        block.n_kv, block.batch, block.heads_q = n_kv, 1, heads
        rows, columns = block.tile_rows, block.tile_cols = unit.tiles(n_q, n_kv)
        found = np.zeros((heads, rows * tile.q, columns * tile.k), dtype=bool)
        one = np.zeros((tile.q, tile.k), dtype=np.uint8)
        for head, row in np.ndindex(heads, rows):
            for index, first in self._columns(tables, row, columns):
                place = one.ctypes.data_as(ctypes.c_void_p)
                self._tile(ctypes.byref(block), head, row, index, place)
                own = found[head, row * tile.q : (row + 1) * tile.q, first : first + tile.k]
                seen = one[:, : own.shape[1]]
                assert not one[:, own.shape[1] :].any(), "keys past the end"
                assert not (own & seen).any(), "a pair in two tiles"
                own |= seen.astype(bool)
        if unit.boxes is not None:
            found = self._by_token(found, unit.boxes, n_q)
        assert not found[:, :, n_kv:].any(), "keys past the end"
        return found[:, :n_q, :n_kv]

    def _columns(self, tables: Tables, row: int, columns: int) -> Iterator[tuple[int, int]]:
        """(index as words have it, first key) of a row's tiles."""
        if not self._unit.by_documents:
            yield from ((column, column * self._unit.tile.k) for column in range(columns))
            return
        lists = dict(tables.parts)
        for word in lists["row_tiles"][slice(*lists["row_ptr"][0, row : row + 2])]:
            yield int(word) >> 1, int(word) >> 1

    def _by_token(self, found: np.ndarray, boxes: Boxes, tokens: int) -> np.ndarray:
        """The same by token instead of by place; what is no token comes last."""
        order = (places(boxes.grid(tokens), box) for box in (boxes.q, boxes.k))
        rows, columns = (np.argsort(np.where(x < 0, 1 << 40, x), kind="stable") for x in order)
        return found[:, rows][:, :, columns]


def places(grid: tuple[int, ...], box: tuple[int, ...]) -> np.ndarray:
    """The token of every place of the boxes that cover a grid, one box after another; -1 where
    there is none."""
    counts = [-(-extent // side) for extent, side in zip(grid, box, strict=True)]
    found = [
        [o * side + i for o, side, i in zip(outer, box, inner, strict=True)]
        for outer in np.ndindex(*counts)
        for inner in np.ndindex(*box)
    ]
    at = np.array(found).T
    inside = np.all(at < np.array(grid)[:, None], axis=0)
    clipped = np.minimum(at, np.array(grid)[:, None] - 1)
    return np.where(inside, np.ravel_multi_index(tuple(clipped), grid), -1)
