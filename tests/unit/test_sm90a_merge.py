"""Rows of tiles in parts: what Hopper's items leave and its merge makes of it, against fp64.

The kernel's own text runs in the emulator, see tests/support/host_merge.py.
"""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.bundle import PACK_GQA, Grid, WorkList
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.core.target import TARGETS
from maskc.dispatch.launch_plan import _blocks
from maskc.dispatch.tables import Tables
from maskc.layout import Spans, forward_work
from maskc.plan.families.sm90a import LONG_KEYS
from tests.support.host_merge import HostMerge

SM_90A = TARGETS["sm_90a"]
HEADS, N, KEYS, TILE_K, BATCH = 2, 300, 410, 40, 2


def unit_of(dim: int):
    plan = driver.plan_kernel(mc.causal(), driver.problem(dim, None, HEADS, "bfloat16"), SM_90A)
    return driver.emit_bundle(plan).unit("sm_90a", Direction.forward)


def work_of(tile_rows: int):
    """Row 1 of every head has all tiles, the others one each."""
    count = np.ones((1, tile_rows), np.int64)
    count[0, 1] = -(-KEYS // TILE_K)
    nothing = np.zeros_like(count)
    spans = Spans(nothing, count, nothing, nothing)
    return forward_work(spans, np.zeros((BATCH, HEADS), int), HEADS, N, KEYS, WorkList(9, 4))


def exact(q, k, v, live, unit, sinks):
    """(out, lse) of one head in fp64."""
    scores = np.where(live, q @ k.T * unit * np.log(2), -np.inf)
    if sinks is not None:
        scores = np.concatenate([scores, np.full((len(q), 1), float(sinks))], axis=1)
    top = np.maximum(scores.max(axis=1), -1e30)[:, None]
    weights = np.exp(scores - top)
    total = weights.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        out = weights[:, : len(k)] @ v / total[:, None]
        return np.where(total[:, None] > 0, out, 0), top[:, 0] + np.log(total)


def leave_parts(kernel, work, q, k, v, live, unit, tile):
    """Make what items leave: their tops may be 8 powers of two too low."""
    rng = np.random.default_rng(2)
    for item in work.items[: work.filled]:
        if not item[7]:
            continue
        head, rows = item[1], slice(tile * item[0], tile * item[0] + tile)
        keys = slice(item[2] * TILE_K, (item[2] + item[3]) * TILE_K)
        scores = np.where(live[rows, keys], q[head, rows] @ k[head, keys].T, -np.inf)
        top = scores.max(axis=1)
        top = (top - rng.uniform(0, 8 / unit, len(top))).astype(np.float32)
        level = np.where(np.isinf(top), 0, top) * np.float32(unit)  # as the kernel rounds it
        weights = np.exp2(scores * unit - level[:, None])
        padded = np.zeros((tile, q.shape[2]), np.float32)
        tops, sums = np.full(tile, -np.inf, np.float32), np.zeros(tile, np.float32)
        padded[: len(top)], tops[: len(top)] = weights @ v[head, keys], top
        sums[: len(top)] = weights.sum(axis=1)
        kernel.leave(item[7] - 1, unit, tops, sums, padded)


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("dim", SM_90A.head_dims)
def test_parts_become_rows(dim, sinks):
    """Rows that see nothing, or nothing of some parts; tokens before heads; the last tile short."""
    unit, rng = unit_of(dim), np.random.default_rng(dim)
    tile, lines = unit.tile.q, BATCH * HEADS
    work = work_of(-(-N // tile))
    assert work.parts == 3 * lines
    q, k, v = (rng.standard_normal((lines, n, dim)) for n in (N, KEYS, KEYS))
    q[:, ::3] *= 60  # rows that no level but their own suits
    live = rng.random((N, KEYS)) < 0.5
    live[tile + 3] = live[tile + 70, :170] = live[tile + 40, 160:] = False
    logits = np.array([-np.inf, 2.5], np.float32)
    out = np.full((BATCH, N, HEADS, dim), 0x7FC0, np.uint16)
    lse = np.full((BATCH, HEADS, N), np.nan, np.float32)
    kernel = HostMerge(unit, sinks)
    kernel.set(
        delta=np.full(work.parts * tile * unit.row_floats, np.nan, np.float32), out=out, lse=lse,
        out_stride=(N * HEADS * dim, dim, HEADS * dim), lse_stride=(HEADS * N, N, 1),
        heads_q=HEADS, n_q=N,
        work=np.concatenate([work.items, work.merges]), items=work.filled, empty=work.empty,
        sink_logits=logits,
    )  # fmt: skip
    scale = float(np.float32(1.7 / np.sqrt(dim)))
    leave_parts(kernel, work, q, k, v, live, scale, tile)
    launch = unit.mode().launches[1]
    sizes = Sizes(BATCH, HEADS, HEADS, N, KEYS)
    kernel.merge(_blocks(unit, sizes, Tables((), (), 0, {}, work), launch, 132))

    rows = slice(tile, min(2 * tile, N))
    found = (out.astype(np.uint32) << 16).view(np.float32).transpose(0, 2, 1, 3)
    for line, (batch, head) in enumerate(np.ndindex(BATCH, HEADS)):
        sink = logits[head] if sinks else None
        want, level = exact(q[line, rows], k[line], v[line], live[rows], scale, sink)
        np.testing.assert_allclose(found[batch, head, rows], want, rtol=2**-8, atol=1e-6)
        with np.errstate(invalid="ignore"):
            np.testing.assert_allclose(lse[batch, head, rows], level, rtol=1e-5, atol=1e-5)
    others = np.ones(N, bool)
    others[rows] = False
    assert np.isnan(found[:, :, others]).all()
    assert np.isnan(lse[:, :, others]).all()


def test_plans_cut_long_rows_only():
    for dim in SM_90A.head_dims:
        unit = unit_of(dim)
        assert (unit.work.most_tiles, unit.work.uneven_tiles) == (0, LONG_KEYS // unit.tile.k)
        assert (unit.work.few_tiles, unit.work.heads) == (8 if unit.tile.k == 64 else 4, 0)
        for name, mode in unit.modes:
            if name == PACK_GQA:
                (forward,) = mode.launches
                assert (forward.entry, forward.grid) == ("attention_forward", Grid.items)
                continue
            forward, merge = mode.launched(frozenset())
            assert (forward.entry, merge.entry) == ("attention_forward", "attention_merge")
            assert (merge.grid, merge.threads, unit.tile.q % merge.per_block) == (
                Grid.merges, 128, 0,
            )  # fmt: skip
            assert f"MERGE_ROWS = {merge.per_block}," in unit.source
        assert "PART_FLOATS = TILE_Q * (HEAD_DIM_V + 2);" in unit.source
        assert unit.row_floats == dim + 2
