"""Who adds to a tile of dq after whom, in deterministic mode: the kernel's own text on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.bundle import DETERMINISTIC
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.core.target import TARGETS
from maskc.dispatch.tables import make_tables
from tests.support.probe import Block, Probe

SM_90A = TARGETS["sm_90a"]
_RANKS = """
extern "C" __global__ void __launch_bounds__(32)
probe(const __grid_constant__ struct Attention p, const int *tiles, int count, int *ranks) {
    for (int i = threadIdx.x; i < count; i += 32)
        ranks[i] = rank_of(p, 0, tiles[2 * i], tiles[2 * i + 1]);
}
"""


@pytest.mark.parametrize("name", ["random", "prefix", "causal", "window"])
def test_all_columns_of_a_row_take_turns(name):
    """From the last to the first: nobody is left out, none comes twice."""
    rng = np.random.default_rng(0)
    mask, n_q, n_kv, data = {
        "random": (mc.block_table("t", 128), 900, 9000, {"t": rng.random((8, 71)) < 0.4}),
        "prefix": (mc.causal() | mc.where(lambda q, k: k < 700), 3000, 3000, {}),
        "causal": (mc.causal(), 2000, 2300, {}),
        "window": (mc.window(100, 300), 900, 3000, {}),
    }[name]
    bundle = driver.emit_bundle(
        driver.plan_kernel(mask, driver.problem(128, None, 1, "bfloat16"), SM_90A)
    )
    unit = bundle.unit("sm_90a", Direction.backward)
    probe = Probe(unit.source, _RANKS, (unit.mode(DETERMINISTIC).macro,))
    arrays = {key: value.astype(np.int32)[None] for key, value in data.items()}
    tables = make_tables(
        bundle, unit, Sizes(1, 1, 1, n_q, n_kv), dict(bundle.params), arrays, Direction.backward,
        not unit.ranges,
    )  # fmt: skip
    rows, columns = unit.tiles(n_q, n_kv)
    block = Block(tables)
    block.set(n_q=n_q, n_kv=n_kv, batch=1, heads_q=1, tile_rows=rows, tile_cols=columns)
    layout = mask.layout(n_q, n_kv, block=(unit.tile.q, unit.tile.k), **data)
    tiles = np.stack([np.repeat(np.arange(rows), np.diff(layout.row_ptr)), layout.col], 1)
    tiles, ranks = np.ascontiguousarray(tiles, np.int32), np.full(len(tiles), -1, np.int32)
    probe.launch(1, 32, block.structure, tiles, len(tiles), ranks)
    for row in range(rows):
        own = tiles[:, 0] == row
        last_first = ranks[own][np.argsort(-tiles[own, 1])]
        assert last_first.tolist() == list(range(own.sum()))
