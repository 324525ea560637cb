"""Hopper's kernels, whole, where no GPU is: every form of both passes against fp64, in emulation.

Few and small cases of what tests/gpu asks of a card; what is drawn here is the order of threads.

Backward passes have four kinds of schedule, and tests of what they do have a head dimension of
each: 64 (tiles of 128 queries), 96 or 128 (of 64), 192 or 256 (products divided by columns), and
small tiles, whose rows stay in shared memory from 96 on.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import TooFewMultiprocessors
from maskc.dispatch import programs
from maskc.layout.work import deterministic_order as ordered
from maskc.layout.work import work_list
from maskc.patterns import block_diffusion
from maskc.runtime.launch.sequence import PartedPlan
from maskc.testing.emulator import machine
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import called, exact_and_rough, live_pairs, vectors, wrong
from tests.support.hopper import (
    BAND,
    WAYS,
    check,
    compiled,
    given,
    modes,
    parts_of,
    same_bits,
    with_rules,
)
from tests.support.residues import run_in_classes
from tests.support.thorough import alternating, chiefly, more, pairwise

ARROW = mc.causal() & (mc.window(30) | mc.global_tokens([3]))
TESTED = mc.causal() & (mc.strided(7) | mc.window(20)) - mc.global_tokens([60]).rows
APART = mc.where(lambda q, k: (q // 64 == k // 64) & (k % 3 > 0) & (q >= 130))
BITS = (
    mc.window(5, 5) | mc.dilated(5, stride=3) | mc.dilated(5, stride=9) | mc.dilated(5, stride=20)
)
HEADS = mc.per_head([mc.causal(), mc.window(9), mc.full() - mc.prefix(80), mc.sinks(2)])


@pytest.mark.parametrize(
    ("mode", "dim"), pairwise(WAYS, [64, 128], tried=[("persistent", 64), ("small default", 128)])
)
def test_forms(mode, dim):
    attn = compiled(BAND, dim, mode=mode)
    check(attn, given(130, 200, dim, batch=2), live_pairs(BAND, 130, 200))
    check(attn, given(200, 70, dim), live_pairs(BAND, 200, 70))


@pytest.mark.parametrize(
    ("dim", "mode"), [(96, "large"), more(96, "small"), (192, None), (256, None)]
)
def test_head_dimensions(dim, mode):
    attn = compiled(BAND, dim, "float16", mode=mode)
    check(attn, given(140, 140, dim, "float16"), live_pairs(BAND, 140, 140))


def test_pairs_tested_one_by_one_and_heads_of_their_own():
    check(compiled(TESTED, 64), given(150, 190, 64), live_pairs(TESTED, 150, 190))
    made = given(150, 130, 64, heads=4, kv_heads=2)
    check(compiled(HEADS, 64, heads=4), made, live_pairs(HEADS, 150, 130, heads=4))


@pytest.mark.parametrize("mode", ["large", "small"])
def test_intervals_of_rows_behind_floors(mode):
    mask = block_diffusion(block=16)
    check(compiled(mask, 64, mode=mode), given(280, 280, 64), live_pairs(mask, 280, 280))


@pytest.mark.parametrize(
    ("form", "scale"),
    alternating(
        [("large", 64, "float16"), ("small", 128, "bfloat16"), more(("large", 128, "float16")),
         more((None, 256, "bfloat16"))],
        [0.0, 1e-12, -3.0, 40.0],
    ),
)  # fmt: skip
def test_scales(form, scale):
    """In backward passes lse and delta are terms of products, lse by the unit of scores."""
    mode, dim, dtype = form
    mask, made = mc.window(90, 40), given(140, 90, dim, dtype)
    check(compiled(mask, dim, dtype, mode=mode), made, live_pairs(mask, 140, 90), scale=scale)


@pytest.mark.parametrize(
    ("form", "deterministic"),
    alternating([("large", 64), ("small", 64), ("small", 128)], [False, True]),
)
def test_features(form, deterministic):
    mode, dim = form
    attn, made = compiled(BAND, dim, mode=mode), given(150, 150, dim)
    live = live_pairs(BAND, 150, 150)
    both = vectors(["sink_logits", "alibi_slopes"], 2)
    check(attn, made, live, deterministic=deterministic, softcap=3.0, **both)
    check(attn, made, live, deterministic=deterministic, scale=-0.2)


@pytest.mark.parametrize("dim", [more(64), more(96), 128])
def test_gradients_of_queries_apart(dim):
    """In a launch of their own, by tile rows; nothing is added up, in whatever order."""
    attn = compiled(BAND, dim, mode="small separate_dq", most_tiles=2)
    check(attn, given(130, 200, dim, batch=2), live_pairs(BAND, 130, 200))
    check(attn, given(200, 70, dim), live_pairs(BAND, 200, 70), softcap=3.0)
    check(attn, given(130, 130, dim), live_pairs(BAND, 130, 130), scale=-0.2)
    for mask in (TESTED, BITS) if dim == 64 else ():  # how pairs are tested is one text for all
        check(compiled(mask, dim, "float16", mode="small separate_dq"),
              given(150, 190, dim, "float16"),
              live_pairs(mask, 150, 190))  # fmt: skip
    found = {mode for name, mode in modes(attn) if "backward" in name}
    assert found == {"separate_dq"}


def test_shares_of_columns_side_by_side(hopper):
    """Heads with masks of their own, and long columns, leave shares that are added in one order."""
    attn = compiled(HEADS, 64, heads=4, mode="small separate_dq", most_tiles=1)
    made = given(200, 200, 64, heads=4, kv_heads=2)
    check(attn, made, live_pairs(HEADS, 200, 200, heads=4))
    same_bits(attn, made, 1, hopper)


@pytest.mark.parametrize(("mode", "dim"), [("large", 64), ("small", 64), more("large", 128)])
def test_the_same_bits_in_any_order(hopper, mode, dim):
    attn, made = compiled(mc.full(), dim, mode=mode), given(200, 300, dim, heads=4)
    same_bits(attn, made, 2, hopper, deterministic=True)


@pytest.mark.parametrize(
    ("mask", "mode", "deterministic"),
    [(HEADS, "large", True), (ARROW, "small", False), more(ARROW, "large", False),
     more(ARROW, "large", True), more(HEADS, "large", False), more(HEADS, "small", True)],
)  # fmt: skip
def test_rows_and_columns_in_parts(hopper, mask, mode, deterministic):
    attn = compiled(mask, 64, heads=4, mode=mode, row_tiles=1, most_tiles=1)
    made = given(300, 300, 64, heads=4, kv_heads=2)
    check(attn, made, live_pairs(mask, 300, 300, heads=4), deterministic=deterministic)
    assert {"attention_merge", "attention_backward_finish_keys"} <= {e for e, _ in hopper.launches}
    if deterministic:
        same_bits(attn, made, 1, hopper, deterministic=True)


@pytest.mark.parametrize("dim", [more(64), 96, more(128)])
def test_zeros_are_written_while_other_heads_are_computed(monkeypatch, dim):
    """Run as with many heads: all tiles of dq but those of the first one, rows without a key
    too."""
    whole = machine.loaded

    def crowded(source, macros, only=()):
        source = source.replace("FEW_ITEMS = 256", "FEW_ITEMS = 0")
        return whole(re.sub(r"GROUP_TOKENS = \d+", "GROUP_TOKENS = 1", source), macros, only)

    monkeypatch.setattr(machine, "loaded", crowded)
    mask = mc.where(lambda q, k: (q - k < 40) & (k - q < 40) & (q > 300))
    attn = compiled(mask, dim, heads=4, mode="large")
    live = live_pairs(mask, 400, 400, heads=4)
    check(attn, given(400, 400, dim, batch=2, heads=4, kv_heads=2), live)
    check(attn, given(400, 400, dim, heads=4, kv_heads=4), live, **vectors(["alibi_slopes"], 4))


@pytest.mark.parametrize(
    ("dim", "mode"),
    [
        more(64, "large"),
        more(64, "small"),
        (96, "large"),
        more(128, "large"),
        (128, "small"),
        more(192, None),
    ],
)
def test_tiles_of_dq_that_one_column_has(hopper, dim, mode):
    """They are stored, not added up; rows of tiles without a key are zeros."""
    attn, made = compiled(APART, dim, mode=mode), given(330, 270, dim, heads=4, kv_heads=2)
    live = live_pairs(APART, 330, 270)
    check(attn, made, live, softcap=2.0)
    check(attn, made, live, deterministic=True)
    assert {mode for name, mode in modes(attn) if "backward" in name} == {"exclusive_dq"}
    assert "attention_backward_finish" not in {entry for entry, _ in hopper.launches}
    check(attn, made, live, **vectors(["alibi_slopes"], 4))
    assert "attention_backward_finish" in {entry for entry, _ in hopper.launches}


@pytest.mark.parametrize(
    ("mask", "in_turn"),
    [
        (mc.window(40), True),
        more(mc.window(9, 9) & mc.where(lambda q, k: k > 20), True),
        more(mc.chunked(256), False),  # columns that begin together wait for each other
        (mc.window(40) | mc.where(lambda q, k: k % 128 == 0), False),  # many add to the last rows
    ],
    ids=str,
)
@pytest.mark.parametrize("dim", [64, more(128)])
def test_few_columns_add_to_dq_in_turn(monkeypatch, dim, mask, in_turn):
    """Faster than zeros that all add to; with zeros where the lengths are short. As if no dq were
    made apart."""
    monkeypatch.setattr(programs, "_UNEVEN", 0)
    attn, made, live = compiled(mask, dim), given(530, 530, dim), live_pairs(mask, 530, 530)
    check(attn, made, live)
    assert {mode for name, mode in modes(attn) if "backward" in name} == {"default"}
    monkeypatch.setattr(programs, "_MANY_COLUMNS", 4)
    attn = compiled(mask, dim)
    check(attn, made, live)
    found = {mode for name, mode in modes(attn) if "backward" in name}
    assert found == {"deterministic" if in_turn else "default"}


@pytest.mark.parametrize(
    ("dim", "mode"),
    [
        (64, "large"),
        more(64, "small"),
        more(96, "large"),
        more(128, "large"),
        more(128, "small"),
        more(256, None),
    ],
)
def test_several_tiles_of_dq_for_a_row(hopper, monkeypatch, dim, mode):
    """Pretend that additions take long: heads have lists of their own, with tile rows of several
    tiles of dq; the bits are the same whoever comes first."""
    monkeypatch.setattr(ordered, "HOP", 100)
    scattered = mc.where(lambda q, k: (q // 64 * 5 + k // 64 * 3) % 7 < 3)
    mask = mc.per_head([scattered | mc.where(lambda q, k: q < 20), mc.window(50), scattered])
    attn, live = compiled(mask, dim, heads=3, mode=mode), live_pairs(mask, 450, 500, heads=3)
    made = given(450, 500, dim, batch=2, heads=3, kv_heads=3)
    check(attn, made, live, deterministic=True, **vectors(["alibi_slopes"], 3))
    same_bits(attn, made, 1, hopper, deterministic=True)
    assert attn._last[1].tables.further > 0


@pytest.mark.parametrize(
    ("dim", "mode"), [(64, "large"), (64, "small"), more(128, "large"), more(256, None)]
)
def test_columns_that_wait_for_each_other_both_ways(hopper, monkeypatch, dim, mode):
    """Pretend that three blocks are enough for that: random tiles, heads with tables of their
    own."""
    monkeypatch.setattr(ordered, "BLOCKS", machine.PROCESSORS)
    monkeypatch.setattr(ordered, "FEWEST", machine.PROCESSORS)
    table = np.random.default_rng(1).random((2, 9, 9)) < 0.6
    mask, data = mc.block_table("t", 64), {"t": table}  # on the host, which makes the turns
    attn, made = compiled(mask, dim, heads=2, mode=mode), given(570, 550, dim, heads=2, kv_heads=2)
    live = live_pairs(mask, 570, 550, data, heads=2)
    check(attn, made, live, data, deterministic=True)
    same_bits(attn, made, 2, hopper, data=data, deterministic=True)
    turns = dict(attn._last[1].tables.parts)["col_turns"]
    assert (turns >= ordered.HELD).any()
    monkeypatch.setattr(hopper, "usable", lambda stream: machine.PROCESSORS - 1, raising=False)
    attn, before = compiled(mask, dim, heads=2, mode=mode), len(hopper.launches)
    with pytest.raises(TooFewMultiprocessors, match=r"needs 3 .* may use 2\n"):
        called(attn, *made, data=data, deterministic=True)
    launched = {entry for entry, _ in hopper.launches[before:]}
    assert "attention_forward" in launched
    assert not any("backward" in entry for entry in launched)
    check(attn, made, live, data)


def test_heads_packed_into_tiles():
    attn = compiled(mc.causal(), 64)
    check(attn, given(2, 700, 64, heads=16, kv_heads=2), live_pairs(mc.causal(), 2, 700))
    assert "pack_gqa" in {mode for _, mode, _ in attn.all_reports}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("dim", [64, more(96), more(128), more(192)])
def test_packed_rows_in_parts(hopper, monkeypatch, dim, deterministic):
    """Rows and parts that see nothing; bits that do not depend on who is last; no second launch,
    and counters that are left as they were found.

    Bits of a deterministic pass depend neither on the batch nor on the card.
    """
    mask = mc.where(lambda q, k: (k // 64 + q) % 3 != 1) & mc.causal()
    attn = with_rules(compiled(mask, dim), {"few_tiles": 1}, {})
    made = given(3, 900, dim, batch=2, heads=10, kv_heads=2)
    options = {"deterministic": deterministic, **vectors(["sink_logits"], 10)}
    monkeypatch.setattr(work_list, "_ITEM_COST", 0)
    check(attn, made, live_pairs(mask, 3, 900), **options)
    whole = called(attn, *made[:3], **options)
    for number, seed in ((1, 0), (1, 1000), (132, 2000)):
        monkeypatch.setattr(work_list, "_MULTIPROCESSORS", number if deterministic else 132)
        again = with_rules(attn, {}, {})
        hopper.seed = seed
        hopper.launches.clear()
        results = called(again, *made[:3], **options)
        assert all(torch.equal(results[name], x) for name, x in whole.items())
        assert {entry for entry, _ in hopper.launches} == {"attention_forward"}
        assert parts_of(again)
        if deterministic:
            alone = called(again, *(x[1:] for x in made[:3]), **options)
            assert all(torch.equal(x, whole[name][1:]) for name, x in alone.items())


@pytest.fixture
def in_parts(monkeypatch):
    run_in_classes(monkeypatch)


@pytest.mark.parametrize("n", [201, more(260)])
def test_residue_classes(in_parts, n):
    mask = mc.window(20) | mc.dilated(20, stride=2) | mc.dilated(20, stride=4)
    check(compiled(mask, 64), given(n, n, 64), live_pairs(mask, n, n))


@pytest.mark.parametrize("n", [200, more(310)])
def test_a_part_that_stores_dq(in_parts, n):
    """One part has a stride whose classes have one tile of keys; the other part joins its own."""
    mask = mc.causal() & (mc.window(40) | mc.where(lambda q, k: (q - k) % 16 == 0))
    attn = compiled(mask, 64)
    check(attn, given(n, n, 64), live_pairs(mask, n, n))
    found = {mode for name, mode in modes(attn) if "backward" in name}
    assert "exclusive_dq" in found
    assert found - {"exclusive_dq"} in ({"default"}, {"separate_dq"})


@pytest.mark.parametrize("lengths", [(130, 260), (260, 130)], ids=str)
def test_keys_of_a_residue(in_parts, lengths):
    """Landmarks: the keys of one residue, or two, are tensors of their own."""
    mask = mc.causal() & (mc.window(20) | mc.strided(16, 15) | mc.strided(16, 14))
    attn, live = compiled(mask, 64), live_pairs(mask, *lengths)
    made = given(*lengths, 64, batch=2)
    check(attn, made, live, deterministic=True, **vectors(["sink_logits"], 2))
    assert isinstance(attn._last[1], PartedPlan)
    check(attn, made, live, **vectors(["alibi_slopes"], 2))
    assert isinstance(attn._last[1], PartedPlan)


@pytest.mark.parametrize(
    ("mask", "n"),
    [
        (mc.where(lambda q, k: (abs(q % 20 - k % 20) <= 3) & (q // 20 >= k // 20)), 260),
        (mc.where(lambda q, k: (q % 10 <= k % 10) & (q // 10 % 4 >= k // 10 % 4)), 280),
        (mc.where(lambda q, k: (abs(q % 64 - k % 64) <= 50) & (q // 64 >= k // 64)), 192),
    ],
    ids=["image", "video", "whole rows"],
)
def test_boxes_of_a_grid(mask, n):
    attn = compiled(mask, 64, mode="grid")
    check(attn, given(n, n, 64), live_pairs(mask, n, n))


@pytest.mark.parametrize("kind", ["packed", "any"])
def test_documents_on_the_device(kind, hopper):
    mask, rng = mc.documents("doc") & mc.causal(), np.random.default_rng(0)
    doc = np.repeat(np.arange(300), rng.integers(1, 90, 300))[:300]
    doc = np.stack([doc, doc // 2 if kind == "packed" else rng.integers(0, 3, 300)])
    made, attn = given(300, 300, 64, batch=2), compiled(mask, 64)
    live = torch.tensor(np.stack([mask.dense(300, doc=own) for own in doc]))
    check(attn, made, live[:, None], {"doc": torch.tensor(doc)})
    assert "make_lists" in {entry for entry, _ in hopper.launches}


def test_sm80():
    attn = BAND.compile(head_dim=64, target="sm_80")
    check(attn, given(140, 200, 64, batch=2), live_pairs(BAND, 140, 200))


FAULTS = {
    "v is read before it is there": ("wait(shared.v_full[last.at], last.phase);", ""),
    "k is overwritten": ("wait(shared.k_free[stage.at], stage.phase ^ 1);", ""),
    "scores are read under way": (
        "products_wait<1>();\n        fence_operand(s);",
        "fence_operand(s);",
    ),
    "out leaves before it is whole": (
        "publish_writes();\n    sync_threads(8 + group, 128);",
        "publish_writes();",
    ),
}
"""Waits of the forward that are left out."""


@pytest.mark.parametrize("name", chiefly(list(FAULTS), *list(FAULTS)[1:3]))
def test_what_these_tests_would_find(monkeypatch, name):
    whole, (text, instead) = machine.loaded, FAULTS[name]

    def faulty(source, macros, only=()):
        assert text in source
        return whole(source.replace(text, instead), macros, only)

    q, k, v, _ = made = given(300, 700, 64)
    live = live_pairs(mc.causal(), 300, 700)
    sides = exact_and_rough(*made, live, backward=False)
    assert not wrong(called(compiled(mc.causal(), mode="default"), q, k, v), *sides)
    monkeypatch.setattr(machine, "loaded", faulty)
    attn = compiled(mc.causal(), mode="default")
    found = []
    for _ in range(5):
        try:
            found += wrong(called(attn, q, k, v), *sides)
        except machine.Fault as fault:
            found.append(fault)
    assert found
