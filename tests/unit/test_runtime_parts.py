"""Masks in parts over residue classes: the same attention as dense pairs, in C and in NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.analysis import head_groups as heads
from maskc.core.bundle import PartBundle
from maskc.core.problem import Direction, Feature
from maskc.core.sizes import Sizes
from maskc.dispatch.residue_split import slices
from maskc.ir import relayout
from maskc.layout import classes
from maskc.runtime import CompiledMask, planner
from maskc.runtime.launch.sequence import PartedPlan
from tests.support.decisions import Call, Decider
from tests.support.fake_cuda import Tensor
from tests.support.fake_hopper import Machine
from tests.support.fake_hopper import compiled as on_card
from tests.support.fake_hopper import given as tensors
from tests.support.thorough import alternating, chiefly, examples, more
from tests.unit.test_runtime_attention import case, close, compare, path, quiet  # noqa: F401

MASKS = {
    "dilated": mc.dilated(9, stride=7),
    "both sides": mc.dilated(4, 3, stride=2) | mc.window(1),
    "window or slashes": mc.causal() & (mc.window(8) | mc.where(lambda q, k: (q - k) % 8 == 0)),
    "exponential": mc.window(3) | mc.dilated(3, stride=2) | mc.dilated(3, stride=4),
    "document or dilated": (mc.documents("doc") & mc.window(2)) | mc.dilated(6, stride=5),
    "width": mc.dilated(mc.param("w", 6), stride=3),
}
DATA = {"document or dilated": lambda n: {"doc": np.arange(n) // 9}}


@pytest.fixture
def always(monkeypatch):
    """Every stride is a part of its own; the plans that were made."""
    made = []
    monkeypatch.setattr(heads, "strides_together", relayout.alone)
    monkeypatch.setattr(
        driver, "_analyse_heads", driver._analyse_heads.__wrapped__
    )  # not remembered
    whole = planner.CallPlanner._parted
    monkeypatch.setattr(
        planner.CallPlanner, "_parted", lambda *args: made.append(whole(*args)) or made[-1]
    )
    return made


def mask_of(name: str, dtype="float32", dims=(32, 48), tile=None) -> CompiledMask:
    whole = MASKS[name].compile(
        head_dim=dims[0], head_dim_v=dims[1], dtype=dtype, target="cpu", tile=tile
    )
    return CompiledMask(whole.bundle, "cpu", in_parts=True)


@pytest.mark.parametrize(
    ("name", "extras"),
    alternating(
        chiefly(list(MASKS), "dilated", "both sides", "document or dilated"), [False, True]
    ),
)
def test_both_passes(path, name, extras, always):  # noqa: F811
    mask = quiet(mask_of(name), path)
    for n_q, n_kv in ((130, 130), (61, 93), (93, 61), (20, 20), (1, 40), (40, 12), (130, 154)):
        if name in DATA and n_q != n_kv:
            continue
        if name == "window or slashes" and (n_q - n_kv) % 8:
            continue  # there it holds at other lengths only; see below
        data = DATA[name](n_q) if name in DATA else {}
        keep = MASKS[name].dense(n_q, n_kv, **data)
        compare(mask, case(n_q, n_kv, extras=extras), keep, 2e-5, **data)
    assert always
    assert all(isinstance(plan, PartedPlan) for plan in always)


@pytest.mark.parametrize(
    ("dtype", "tile", "bound"),
    [("bfloat16", None, 3e-2), more("float16", None, 3e-2), ("float32", (128, 16), 1e-5)],
    ids=str,
)
def test_half_precision_and_other_tiles(dtype, tile, bound, always):
    """Rounded once per part. Rows of an earlier part are as many as queries of a tile."""
    mask = mask_of("exponential", dtype, tile=tile)
    compare(mask, case(dtype=dtype), MASKS["exponential"].dense(130, 150), bound)


def test_parameters_reach_the_parts(always):
    mask, given_case = mask_of("width"), case()
    for w in (1, 4, 20):
        compare(mask, given_case, MASKS["width"].dense(130, 150, w=w), 1e-5, w=w)


def test_the_same_bits_whatever_the_threads(always, monkeypatch):
    found = []
    for threads in ("1", "5"):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        mask, given_case = mask_of("exponential"), case()
        out, lse = mask(*given_case.qkv, return_lse=True)
        found.append([out, lse, *mask.backward(*given_case.qkv, out, lse, given_case.dout)])
    for left, right in zip(*found, strict=True):
        np.testing.assert_array_equal(left, right)


def test_lengths_that_break_a_class_run_whole(monkeypatch):
    """q - k is a multiple of the stride, but distances are not: parts do not hold."""
    called = []
    whole = planner.CallPlanner._parted
    monkeypatch.setattr(
        planner.CallPlanner, "_parted", lambda *args: called.append(1) or whole(*args)
    )
    mask = mc.causal() & mc.where(lambda q, k: (q - k) % 64 == 0)
    attn = mask.compile(head_dim=16, dtype="float32", target="cpu")
    for n_kv, parted in ((1024, True), (1088, True), (1025, False)):
        called.clear()
        given_case = case(1024, n_kv, (1, 1), 1, (16, 16))
        out = attn(*given_case.qkv)
        assert bool(called) == parted
        dense = mask.dense(1024, n_kv)
        from maskc.reference.attention import attention

        close(out, attention(*given_case.qkv, dense)[0], 1e-5)


def test_other_sequences_do_not_decide():
    """Documents of another sequence have other tiles; a sequence's bits are its own."""
    mask = mc.documents("doc") | mc.dilated(63, stride=16)
    attn = mask.compile(head_dim=16, dtype="float32", target="cpu")
    given_case = case(2048, 2048, (1, 1), 2, (16, 16))
    same = np.arange(2048) // 700
    outs = [
        attn(*given_case.qkv, doc=np.stack([other, same]))[1]
        for other in (np.arange(2048) // 64, np.zeros(2048, int))
    ]
    np.testing.assert_array_equal(*outs)


def test_queries_of_a_class_without_keys():
    """They may see keys of another part: with so few keys a mask runs whole."""
    mask = mc.dilated(4, 4, stride=3) | mc.where(lambda q, k: (q - k) % 4 == 0)
    whole = mask.compile(head_dim=32, head_dim_v=48, dtype="float32", target="cpu")
    attn = CompiledMask(whole.bundle, "cpu", in_parts=True)
    given_case = case(5, 1, extras=True)
    compare(attn, given_case, mask.dense(5, 1), 1e-5)


@pytest.mark.parametrize(
    ("name", "n", "parted"), [("wide", 32, False), ("wide", 4096, True), ("dilated", 4096, False)]
)
def test_parts_run_where_they_pay(name, n, parted):
    """Short classes fill no tile, nor do few keys."""
    mask = mc.dilated(63, stride=16) if name == "wide" else MASKS[name]
    decider = Decider(mask, Call("cpu", 32, (1, 1)))
    for direction in Direction:
        assert in_parts(decider, direction, n) == parted


def in_parts(decider: Decider, direction: Direction, n: int, deterministic: bool = False) -> bool:
    """Whether a call runs in parts."""
    sources, _ = decider.decision(direction, deterministic, n, n, {})
    return "part 0 " in sources


def test_tables_that_only_count_tiles_are_not_packed():
    """Only what runs is packed, when it is copied to a device."""
    decider = Decider(mc.patterns.landmark(), Call("sm_90a", 64))
    assert in_parts(decider, Direction.backward, 3072)
    planner = decider.planner
    made = [tables for built in (planner.whole, *planner.parts)
            for tables in built.selector.tables._values.values()]  # fmt: skip
    assert len(made) > 3
    assert not any("packed" in vars(tables) for tables in made)
    assert [tables.size for tables in made] == [tables.packed[0].nbytes for tables in made]


def test_launches_count_more_the_fewer_heads_share_them():
    """Whole, such a call has one launch and twice the tiles. The number of sequences decides only
    where bits may depend on it."""
    decider = Decider(mc.patterns.landmark(), Call("sm_90a", 64, (1, 1)))
    for direction, n in ((Direction.forward, 1536), (Direction.backward, 3072)):
        runs = {}
        for batch in (1, 512):
            decider.call = Call("sm_90a", 64, (1, 1), batch)
            runs[batch] = [in_parts(decider, direction, n, fixed) for fixed in (False, True)]
        assert [runs[batch][0] for batch in (1, 512)] == [False, True]
        assert runs[1][1] == runs[512][1]


@settings(max_examples=examples(200))
@given(
    st.integers(1, 9), st.integers(1, 3), st.integers(1, 3), st.integers(0, 40),
    st.integers(0, 40), st.booleans(), st.booleans(),
)  # fmt: skip
def test_slices_hold_every_row_once(stride, batch, heads, n_q, n_kv, swapped, per_head):
    """Row by row: addresses of all launches together are those of the tensors."""

    def strides(heads, tokens, dim):
        if swapped:
            return tokens * heads * dim, dim, heads * dim, 1
        return heads * tokens * dim, tokens * dim, dim, 1

    sizes = Sizes(batch, 2 * heads, heads, n_q, n_kv)
    by = {
        "q": strides(2 * heads, n_q, 8), "k": strides(heads, n_kv, 8),
        "lse": (2 * heads * n_q, n_q, 1),
    }  # fmt: skip
    features = frozenset([Feature.alibi] if per_head else ())
    seen: dict[str, list[int]] = {name: [] for name in by}
    for place in slices(stride, sizes, by, 2, features):
        own = place.sizes
        for name, heads_of, tokens, size in (
            ("q", own.heads_q, own.n_q, 2), ("k", own.heads_kv, own.n_kv, 2),
            ("lse", own.heads_q, own.n_q, 4),
        ):  # fmt: skip
            shift = place.shifts.get(name, 0)
            assert shift % size == 0
            steps = place.strides[name]
            for at in np.ndindex(own.batch, heads_of, tokens):
                seen[name].append(shift // size + sum(map(int.__mul__, at, steps[:3])))
        if per_head and stride > 1:
            assert own.heads_q == sizes.heads_q
    for name, heads_of, tokens in (
        ("q", 2 * heads, n_q),
        ("k", heads, n_kv),
        ("lse", 2 * heads, n_q),
    ):
        every = [
            sum(map(int.__mul__, at, by[name][:3])) for at in np.ndindex(batch, heads_of, tokens)
        ]
        assert sorted(seen[name]) == sorted(every)


def test_classes_count_rows():
    for stride in (1, 2, 5, 64):
        for n_q, n_kv in ((0, 3), (7, 3), (64, 130)):
            found = classes(stride, n_q, n_kv)
            assert sum(one.count * one.n_q for one in found) == n_q
            assert sum(one.count * one.n_kv for one in found) == n_kv


def test_launches_on_a_card(monkeypatch):
    """Strided views, results joined, the sink once; no launch keeps an lse of its own."""
    machine = Machine(monkeypatch)
    own = on_card().bundle
    parts = (PartBundle(1, own), PartBundle(4, own))
    mask = CompiledMask(replace(own, parts=parts), "sm_90a", in_parts=True)
    q, k, v = tensors(n=150)
    sinks = Tensor((4,), pointer=7 << 20, dtype="float32")
    mask(q, k, v, sink_logits=sinks)
    assert [name for name, _, _ in machine.launched()] == ["attention_forward"] * 3
    block = machine.driver.block  # of both sequences, tokens 2, 6, ... and 3, 7, ...
    assert (block.accumulates, block.spacing, block.batch, block.heads_q) == (1, 4.0, 2, 8)
    assert (block.n_q, block.n_kv) == (37, 37)
    assert list(block.q_stride) == [64, 150 * 64, 4 * 64]
    assert list(block.lse_stride) == [1, 150, 4]
    assert block.q == (1 << 20) + 2 * 2 * 64
    assert not block.sink_logits
