"""Which pairs Hopper's kernels hide: the bits of every lane of a tile, by the kernels' own text.

The functions that turn a tile into a thread's bits run in the emulator. Every lane's bits are put
back where the lane's scores lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from maskc.core.boxes import Boxes
from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.dispatch.tables import Tables, make_tables
from maskc.layout import Chosen, bind_arrays
from tests.support.probe import Block, Probe

_FORWARD = """
extern "C" __global__ void __launch_bounds__(TILE_Q * 2)
probe(const __grid_constant__ struct Attention p, const int *tiles, unsigned char *all_live) {
    const int *const tile = tiles + 3 * blockIdx.x;  // head, tile row, index of the column
    unsigned char *const live = all_live + (size_t)blockIdx.x * TILE_Q * TILE_K;
    const int lane = threadIdx.x % 32, q = threadIdx.x / 32 * 16 + lane / 4;
    const int place = tile[1] * TILE_Q + q, first = tile[2] * KEY_STEP;
    const struct Place at = {0, tile[0]};
    struct MaskRow kept;
    const struct Visible early = prefetch_mask<ByQuery>(p, at, place, first);
    const struct Visible seen = visible<ByQuery>(p, at, place, first, kept, early);
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < OWN; i++)
            live[(q + 8 * r) * TILE_K + i / 2 * 8 + lane % 4 * 2 + i % 2] =
                word_of(seen, r, i / 32) >> i % 32 & 1;
}
"""
_BACKWARD = """
extern "C" __global__ void __launch_bounds__(TILE_K * 2)
probe(const __grid_constant__ struct Attention p, const int *tiles, unsigned char *all_live) {
    const int *const tile = tiles + 3 * blockIdx.x;
    unsigned char *const live = all_live + (size_t)blockIdx.x * TILE_Q * TILE_K;
    const int lane = threadIdx.x % 32, k = threadIdx.x / 32 * 16 + lane / 4;
    for (int part = 0; part < TILE_Q / QUERIES; part++) {
        struct MaskRow kept;
        const struct Visible seen = visible<ByKey>(p, {0, tile[0]}, tile[2] * TILE_K + k,
                                                   tile[1] * TILE_Q + part * QUERIES, kept, {});
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < QUERIES / 4; i++) {
                const int q = part * QUERIES + i / 2 * 8 + lane % 4 * 2 + i % 2;
                live[q * TILE_K + k + 8 * r] = word_of(seen, r, 0) >> i & 1;
            }
    }
}
"""


class HostBits:
    """The pairs that one source hides in partial tiles."""

    def __init__(self, bundle: Bundle, unit: SourceUnit, packed: int = 1) -> None:
        """
        Args:
            packed: heads whose queries are rows of one tile.
        """
        text = _BACKWARD if Direction.backward in unit.directions else _FORWARD
        self._probe = Probe(unit.source, text, ("PACK_GQA",) if packed > 1 else ())
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
        block, queries = Block(tables), n_q
        n_q *= self._packed
        rows, columns = unit.tiles(n_q, n_kv)
        block.set(queries=queries, n_q=n_q, n_kv=n_kv, batch=1, heads_q=heads, tile_rows=rows,
                  tile_cols=columns)  # fmt: skip
        tiles = [
            (head, row, index, first)
            for head, row in np.ndindex(heads, rows)
            for index, first in self._columns(tables, row, columns)
        ]
        asked = np.array([tile[:3] for tile in tiles], np.int32)
        live = np.zeros((len(tiles), tile.q, tile.k), np.uint8)
        side = tile.k if direction is Direction.backward else tile.q
        self._probe.launch(len(tiles), 2 * side, block.structure, asked, live)
        found = np.zeros((heads, rows * tile.q, columns * tile.k), dtype=bool)
        for (head, row, _, first), one in zip(tiles, live, strict=True):
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
        """Order by token instead of by place; places without a token come last."""
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
