"""Query heads as rows of one tile: which calls, and what the kernel is told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import maskc as mc
from maskc.runtime import CompiledMask
from tests.support.fake_cuda import Tensor
from tests.support.fake_hopper import Machine, given

FULL = mc.full()


@pytest.fixture
def machine(monkeypatch) -> Machine:
    return Machine(monkeypatch)


def compiled(mask: mc.Mask = FULL, **more) -> CompiledMask:
    return mask.compile(head_dim=64, dtype="bfloat16", target="sm_90a", **more)


def mode_of(machine: Machine) -> str:
    """Return the mode of the latest build."""
    return machine.built[-1][1]


@pytest.mark.parametrize(("heads", "n"), [((4, 2), 1), ((4, 2), 3), ((12, 4), 16), ((64, 1), 1)])
def test_heads_of_one_are_rows_of_a_tile(machine, heads, n):
    compiled()(*given(n=n, n_kv=500, heads=heads))
    block, group = machine.driver.block, heads[0] // heads[1]
    assert mode_of(machine) == "pack_gqa"
    assert (block.heads_q, block.heads_kv) == (heads[1], heads[1])
    assert (block.n_q, block.queries, block.tile_rows) == (group * n, n, 1)
    assert block.items == 2 * heads[1]
    for name in ("q", "out"):
        assert list(getattr(block, f"{name}_stride")) == [heads[0] * n * 64, group * n * 64, 64]
    assert list(block.lse_stride) == [heads[0] * n, group * n, 1]
    assert list(block.k_stride) == [heads[1] * 500 * 64, 500 * 64, 64]
    _, _, dims, strides, box = machine.driver.encoded[0]
    assert (dims, box[:2]) == ((64, group * n, heads[1], 2), (64, 64))
    assert strides[0] == 128
    assert strides[1:] == (group * n * 128, heads[0] * n * 128) or heads[1] == 1


def test_a_row_that_fits_no_small_tile_takes_a_large_one(machine):
    compiled()(*given(n=24, n_kv=500, heads=(16, 4)))
    assert machine.driver.block.n_q == 96
    assert machine.driver.encoded[0][4][1] == 192
    compiled()(*given(n=49, n_kv=500, heads=(16, 4)))
    assert machine.driver.block.queries == machine.driver.block.n_q == 49
    assert mode_of(machine) != "pack_gqa"


@pytest.mark.parametrize(
    ("kv_heads", "blocks"), [(4, 2), (132, 2), (133, 3), (198, 3), (199, 2), (280, 3), (512, 2)]
)
def test_as_many_blocks_share_a_multiprocessor_as_suit_the_rows(machine, kv_heads, blocks):
    """Two, or three where as many waves of three have room for all rows."""
    call = given(n=1, n_kv=1024, heads=(2 * kv_heads, kv_heads))
    compiled()(*call)
    launch = next(call for call in machine.driver.calls if call[0] == "launch")
    allowed = max(call[3] for call in machine.driver.calls if call[0] == "attribute")
    shared, reserved, most = launch[8], 1024, 228 * 1024
    assert most // (shared + reserved) == blocks
    assert shared <= allowed


def test_one_query_lies_anywhere(machine):
    """Tokens before heads: several queries of a head are then not one after another."""
    mask = compiled()
    for n, packed in ((1, True), (2, False)):
        _, k, v = given(n=n, n_kv=700, heads=(8, 2))
        mask(Tensor((2, 8, n, 64), (n * 512, 64, 512, 1)), k, v)
        assert (machine.driver.block.heads_q == 2) == packed


def test_some_calls_are_not_packed(machine):
    few = given(n=2, n_kv=300, heads=(8, 2))
    compiled()(*few, normalizer="entmax")
    assert mode_of(machine) != "pack_gqa"
    compiled(mc.per_head([FULL] * 4 + [mc.causal()] * 4), n_heads=8)(*few)
    assert mode_of(machine) != "pack_gqa"
    compiled()(*given(n=9, n_kv=300, heads=(2, 2)))
    assert mode_of(machine) != "pack_gqa"
    compiled()(*given(n=8, n_kv=300, heads=(2, 2)))
    assert mode_of(machine) == "pack_gqa"
    by_head = np.ones((8, 1, 5), np.int32)
    compiled(mc.block_table("t", 64))(*few, t=by_head)
    assert mode_of(machine) != "pack_gqa"
    compiled(mc.block_table("t", 64))(*few, t=by_head[:1])
    assert mode_of(machine) == "pack_gqa"
    compiled(mc.block_table("t", 64))(*few, t=np.ones((2, 1, 1, 5), np.int32))
    assert mode_of(machine) == "pack_gqa"


def test_sources_without_the_mode_do_without(machine):
    mask = compiled()
    units = tuple(
        replace(unit, modes=tuple(m for m in unit.modes if m[0] != "pack_gqa"))
        for unit in mask.bundle.units
    )
    CompiledMask(replace(mask.bundle, units=units), "sm_90a")(*given(n=1, n_kv=9, heads=(4, 2)))
    assert machine.driver.block.heads_q == 4
