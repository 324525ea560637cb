"""Kernels with work lists and modes: all but the kernels themselves."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

import maskc as mc
from maskc.core.bundle import Grid, Launch, LayoutRecipe, Variant, WorkList
from maskc.core.cost import Cost
from maskc.core.errors import CheckFailed, TargetNotBuilt
from maskc.core.expr_text import parse_expr
from maskc.dispatch.tables import check_spans
from maskc.layout import Spans, build, range_spans
from maskc.runtime import CompiledMask
from tests.support.fake_cuda import Tensor
from tests.support.fake_hopper import (
    BACKWARD,
    FORWARD,
    SPARE,
    TILE,
    Machine,
    backward,
    compiled,
    given,
)

# ------------------------------------------------------------------ work and modes


def test_blocks_follow_the_work(machine):
    mask, arrays = compiled(), given(n=600)
    mask(*arrays)
    block = machine.driver.block
    assert (block.items, block.empty, block.shared_items) == (10 * 4 * 2, 0, 0)
    assert machine.launched() == [("attention_forward", 80, 384)]
    assert block.counter - block.work == 4 * 8 * 80
    (tables,) = mask._planner.whole.selector.tables._values.values()
    assert tables.work.mean >= 2
    items = np.ctypeslib.as_array((ctypes.c_int32 * 640).from_address(block.work)).reshape(80, 8)
    np.testing.assert_array_equal(items, tables.work.items)
    pointers = tables.packed[1]
    assert block.counter - block.work == pointers["counter"] - pointers["work"]


def test_short_work_streams(machine):
    units = (
        replace(FORWARD, costs=(Cost("default", 50, 3, 0), Cost("persistent", 5, 4, 0))),
        BACKWARD,
    )
    mask, arrays = compiled("gaps", units=units), given(n=128)
    mask(*arrays)
    assert machine.built == [("forward", "persistent", [])]
    (tables,) = mask._planner.whole.selector.tables._values.values()
    assert (tables.work.mean, tables.work.filled, tables.work.empty) == (1.0, 8, 8)
    assert machine.launched() == [("attention_forward", 16, 384)]
    mask(*given(n=128, batch=50))
    assert machine.launched() == [("attention_forward", 132, 384)]
    assert len(machine.built) == 1
    mask(*given(n=60))
    assert machine.driver.block.empty == 8


def test_work_follows_heads_and_batch(machine):
    """Equal lengths with other heads are another work list."""
    mask = compiled()
    for batch, heads in ((1, (2, 1)), (2, (2, 2)), (2, (4, 2)), (1, (4, 4))):
        mask(*given(n=600, batch=batch, heads=heads))
        assert machine.driver.block.items == 10 * batch * heads[0]


MERGE = Launch("attention_merge", Grid.merges, 128, per_block=16)
PARTS = replace(
    FORWARD,
    modes=tuple((name, replace(m, launches=(*m.launches, MERGE))) for name, m in FORWARD.modes),
    work=WorkList(1 << 16, 4, uneven_tiles=1),
    row_floats=66,
)
"""Rows are computed in parts."""


def test_rows_in_parts_are_merged(machine):
    mask, arrays = compiled("documents", units=(PARTS,)), given(n=600)
    doc = np.zeros(600, np.int32)
    mask(*arrays, doc=doc)
    (tables,), (plan,) = (
        mask._planner.whole.selector.tables._values.values(),
        mask._plans._values.values(),
    )
    work, block = tables.work, machine.driver.block
    assert (work.parts, len(work.merges)) == (10 * 8 * 3, 10 * 8)
    assert machine.launched() == [("attention_forward", 240, 384), ("attention_merge", 320, 128)]
    assert (block.items, block.empty) == (240, 0)
    assert block.counter - block.work == 4 * 8 * (240 + 80)
    start = block.work + 4 * 8 * 240
    rows = np.ctypeslib.as_array((ctypes.c_int32 * 640).from_address(start)).reshape(80, 8)
    np.testing.assert_array_equal(rows, work.merges)
    assert plan.outputs[2].shape == (240 * 64 * 66,)
    delta, out = block.delta, block.out
    assert delta
    mask(*arrays, doc=doc)
    assert machine.driver.block.delta not in (0, delta, out), "a workspace of its own each time"
    sinks = Tensor((4,), pointer=7 << 20, dtype="float32")
    mask(*arrays, doc=doc, sink_logits=sinks)
    assert machine.driver.block.delta
    assert machine.driver.block.sink_logits == 7 << 20


def test_one_long_row_is_in_parts_and_a_graph_has_its_own_workspace(machine):
    doc = np.arange(600, dtype=np.int32) // 40
    mask, arrays = compiled("documents", units=(PARTS,)), given(n=600)
    mask(*arrays, doc=doc)
    assert [entry for entry, *_ in machine.launched()] == ["attention_forward"]
    assert not machine.driver.block.delta
    assert all(len(plan.outputs) == 2 for plan in mask._plans._values.values())
    doc[::70], doc[0] = 1000, 1000
    mask(*arrays, doc=doc)
    assert len(machine.launched()) == 2
    before = machine.driver.block.delta
    machine.library.current = 3  # being captured
    mask(*arrays, doc=doc)
    assert [entry for entry, *_ in machine.launched()] == ["attention_forward", "attention_merge"]
    assert machine.driver.block.delta not in (0, before)


WINDOW = LayoutRecipe(TILE, parse_expr("(k <= q) & (k >= q - 150)"), None)


def test_ranges_need_no_lists(machine, monkeypatch):
    """A closed-form source gets its tiles from the work list, and they can be checked."""
    monkeypatch.setenv("MASKC_CHECK", "1")
    units = (replace(FORWARD, ranges=True), replace(BACKWARD, ranges=True))
    mask, (q, k, v) = compiled(units=units), given(n=600)
    variant = Variant(WINDOW.keep, 0, (), (WINDOW,))
    made = replace(mask.bundle, variants=(variant,), params=())
    mask = CompiledMask(made, "sm_90a")
    mask(q, k, v)
    assert not machine.driver.block.row_ptr
    (tables,) = mask._planner.whole.selector.tables._values.values()
    np.testing.assert_array_equal(tables.work.items[-1], [0, 7, 0, 1, 0, 0, 1, 0])
    backward(mask, q, k, v)
    assert not machine.driver.block.col_ptr
    assert machine.driver.block.items == 2 * 2 * sum(min(4, 10 - i) for i in range(10))
    wrong = Spans(*(x.copy() for x in vars(range_spans(WINDOW, 64, 64, {}, {}, False)).values()))
    layout = build(WINDOW, 64, 64, {}, {})
    check_spans(wrong, layout)
    wrong.full_last[...] = 1
    with pytest.raises(CheckFailed, match="the lists give tile row 0 the tiles 0 to 0, with 0"):
        check_spans(wrong, layout)


def test_a_backward_launches_in_order(machine):
    mask, (q, k, v) = compiled(), given(n=600)
    dq, dk, dv = backward(mask, q, k, v)
    block = machine.driver.block
    assert (dq.array.pointer, dv.array.pointer) == (block.dq, block.dv)
    shared = 2 * 2 * 9  # columns of more than one tile are cut
    assert block.shared_items == shared
    rows = 2 * 4 * 640
    assert machine.launched() == [
        ("attention_rows", rows // 128, 128),
        ("attention_backward", block.items, 256),
        ("attention_keys", shared * 64 // 16, 128),
    ]
    assert block.row_ptr
    assert block.col_ptr
    assert machine.maps(2) == [1, 2]
    assert machine.driver.encoded[1][1] == dk.array.pointer
    (plan,) = mask._plans._values.values()
    assert plan.outputs[3].shape == (rows * 66 + shared * 64 * 128,)
    assert machine.built == [("backward", "default", [])]


def test_keys_are_left_out_where_nobody_shares_a_column(machine):
    alone = replace(BACKWARD, work=WorkList(1 << 16))
    mask, (q, k, v) = compiled(units=(FORWARD, alone)), given(n=600)
    backward(mask, q, k, v)
    assert [entry for entry, *_ in machine.launched()] == ["attention_rows", "attention_backward"]
    (plan,) = mask._plans._values.values()
    assert plan.outputs[3].shape == (2 * 4 * 640 * 66,)
    assert machine.driver.block.shared_items == 0


def test_counts_beyond_32_bits(machine):
    """The workspace of a large batch is counted without overflow."""
    mask, (q, k, v) = compiled(), given(n=64, batch=40000, heads=(16, 16))
    backward(mask, q, k, v)
    (plan,) = mask._plans._values.values()
    assert plan.outputs[3].shape == (40000 * 16 * 64 * 66,)
    assert plan.outputs[3].shape[0] > 1 << 31


def test_deterministic_is_a_mode(machine):
    mask, (q, k, v) = compiled(), given()
    backward(mask, q, k, v, deterministic=True)
    assert [entry for entry, *_ in machine.launched()] == ["attention_backward"]
    backward(mask, q, k, v)
    assert len(machine.launched()) == 3
    assert [name for _, name, _ in machine.built] == ["deterministic", "default"]
    without = replace(BACKWARD, modes=BACKWARD.modes[:1])
    backward(compiled(units=(FORWARD, without)), q, k, v, deterministic=True)
    assert len(machine.launched()) == 3


def test_warmup_builds_every_mode_of_both_passes(machine):
    mask, (q, k, v) = compiled(), given(n=600)
    mask.warmup(["sinks"])
    assert sorted(machine.built) == [
        ("backward", "default", ["sinks"]), ("backward", "deterministic", ["sinks"]),
        ("forward", "default", ["sinks"]), ("forward", "persistent", ["sinks"]),
    ]  # fmt: skip
    assert list(mask.reports.values()) == ["forward default"]
    assert set(mask.all_reports) == {
        (source, name, frozenset({*mask.reports}.pop()))
        for source, name in (
            ("sm_90a", "default"), ("sm_90a", "persistent"), ("sm_90a_backward", "default"),
            ("sm_90a_backward", "deterministic"),
        )
    }  # fmt: skip
    sinks = Tensor((4,), pointer=7 << 20, dtype="float32")
    mask(q, k, v, sink_logits=sinks)
    assert machine.driver.block.sink_logits == 7 << 20
    gradients = backward(mask, q, k, v, sink_logits=sinks)
    assert machine.driver.block.dsink == gradients[3].array.pointer
    assert len(machine.built) == 4


# ------------------------------------------------------------------ nan_safe


def test_nan_safe_runs_on_the_spare_kernel(machine):
    mask, (q, k, v) = compiled(), given()
    mask(q, k, v, nan_safe=True)
    assert machine.built == [("spare", "default", ["nan_safe"])]
    assert machine.launched() == [("attention_forward", 2 * 4 * 2, 128)]
    assert not machine.driver.encoded
    assert not machine.driver.block.work
    mask(q, k, v)
    assert machine.driver.block.work
    mask.warmup(["nan_safe"])
    assert len(machine.built) == 2


def test_nan_safe_that_nobody_has(machine):
    arrays = given()
    with pytest.raises(TargetNotBuilt, match=r"no nan_safe forward kernels.*\n.*target='sm_80'"):
        compiled(units=(FORWARD,))(*arrays, nan_safe=True)
    with pytest.raises(TargetNotBuilt, match=r"no nan_safe backward kernels.*\n.*target='simt'"):
        backward(compiled(), *arrays, nan_safe=True)
    with pytest.raises(TargetNotBuilt, match="sm_90a has no backward kernels"):
        backward(compiled(units=(FORWARD, SPARE)), *arrays)
    assert machine.launched() == []


# ------------------------------------------------------------------ heads as rows of a tile


FULL = mc.full()


def packed_mask(mask: mc.Mask = FULL, **more) -> CompiledMask:
    return mask.compile(head_dim=64, dtype="bfloat16", target="sm_90a", **more)


def mode_of(machine: Machine) -> str:
    """Return the mode of the latest build."""
    return machine.built[-1][1]


@pytest.mark.parametrize(("heads", "n"), [((4, 2), 1), ((4, 2), 3), ((12, 4), 16), ((64, 1), 1)])
def test_heads_of_one_are_rows_of_a_tile(machine, heads, n):
    packed_mask()(*given(n=n, n_kv=500, heads=heads))
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
    packed_mask()(*given(n=24, n_kv=500, heads=(16, 4)))
    assert machine.driver.block.n_q == 96
    assert machine.driver.encoded[0][4][1] == 192
    packed_mask()(*given(n=49, n_kv=500, heads=(16, 4)))
    assert machine.driver.block.queries == machine.driver.block.n_q == 49
    assert mode_of(machine) != "pack_gqa"


@pytest.mark.parametrize(
    ("kv_heads", "blocks"), [(4, 2), (132, 2), (133, 3), (198, 3), (199, 2), (280, 3), (512, 2)]
)
def test_as_many_blocks_share_a_multiprocessor_as_suit_the_rows(machine, kv_heads, blocks):
    """Two, or three where as many waves of three have room for all rows."""
    call = given(n=1, n_kv=1024, heads=(2 * kv_heads, kv_heads))
    packed_mask()(*call)
    launch = next(call for call in machine.driver.calls if call[0] == "launch")
    allowed = max(call[3] for call in machine.driver.calls if call[0] == "attribute")
    shared, reserved, most = launch[8], 1024, 228 * 1024
    assert most // (shared + reserved) == blocks
    assert shared <= allowed


def test_one_query_lies_anywhere(machine):
    """Tokens before heads: several queries of a head are then not one after another."""
    mask = packed_mask()
    for n, packed in ((1, True), (2, False)):
        _, k, v = given(n=n, n_kv=700, heads=(8, 2))
        mask(Tensor((2, 8, n, 64), (n * 512, 64, 512, 1)), k, v)
        assert (machine.driver.block.heads_q == 2) == packed


def test_some_calls_are_not_packed(machine):
    few = given(n=2, n_kv=300, heads=(8, 2))
    packed_mask()(*few, normalizer="entmax")
    assert mode_of(machine) != "pack_gqa"
    packed_mask(mc.per_head([FULL] * 4 + [mc.causal()] * 4), n_heads=8)(*few)
    assert mode_of(machine) != "pack_gqa"
    packed_mask()(*given(n=9, n_kv=300, heads=(2, 2)))
    assert mode_of(machine) != "pack_gqa"
    packed_mask()(*given(n=8, n_kv=300, heads=(2, 2)))
    assert mode_of(machine) == "pack_gqa"
    by_head = np.ones((8, 1, 5), np.int32)
    packed_mask(mc.block_table("t", 64))(*few, t=by_head)
    assert mode_of(machine) != "pack_gqa"
    packed_mask(mc.block_table("t", 64))(*few, t=by_head[:1])
    assert mode_of(machine) == "pack_gqa"
    packed_mask(mc.block_table("t", 64))(*few, t=np.ones((2, 1, 1, 5), np.int32))
    assert mode_of(machine) == "pack_gqa"


def test_sources_without_the_mode_do_without(machine):
    mask = packed_mask()
    units = tuple(
        replace(unit, modes=tuple(m for m in unit.modes if m[0] != "pack_gqa"))
        for unit in mask.bundle.units
    )
    CompiledMask(replace(mask.bundle, units=units), "sm_90a")(*given(n=1, n_kv=9, heads=(4, 2)))
    assert machine.driver.block.heads_q == 4
