"""Tiles of 16 x 16 in registers: which masks have them, which calls take them, and what NVRTC makes
of them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.analysis.rows import tiles_alone
from maskc.core.bundle import EXCLUSIVE_DQ, Mode, SourceUnit
from maskc.core.cost import Cost, Tally
from maskc.core.problem import Direction, Feature, TileShape
from maskc.core.sizes import Sizes
from maskc.core.target import TARGETS
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.programs import Facts, cheapest, least, programs_of
from maskc.dispatch.selector import SourceSelector
from maskc.layout.work.tile_counts import Adders
from maskc.plan.cost import choice
from maskc.plan.explain import explain
from maskc.plan.families.sm90a_mma16 import HEAD_DIMS, TILE
from maskc.plan.forms.mma16 import MAX_KEYS
from maskc.plan.predict import milliseconds
from maskc.runtime import CompiledMask
from tests.support import sass
from tests.support.fake_hopper import backward, given
from tests.support.ledger import build
from tests.support.thorough import examples

SM_90A = TARGETS["sm_90a"]
FORWARD, BACKWARD = Direction.forward, Direction.backward
NONE: frozenset[Feature] = frozenset()
OF_ROWS = frozenset({Feature.softcap})
ALL = frozenset({Feature.softcap, Feature.alibi, Feature.sinks})
BLOCKS = mc.block_diagonal(16)
GAPS = mc.block_diagonal(8) & mc.where(lambda q, k: (q + k) % 3 > 0)
HEADS = mc.per_head([BLOCKS, GAPS, mc.block_diagonal(4) & mc.causal(), BLOCKS - mc.causal()])

LONG = BLOCKS & (
    mc.dilated(9, stride=3) | mc.strided(5) | mc.global_tokens([1, 5, 900])
    | mc.where(lambda q, k: (q * 3 + k) % 7 < 3)
)  # fmt: skip
"""Of a long formula."""


@cache
def planned(mask: mc.Mask, dim: int = 64, dtype: str = "bfloat16"):
    return driver.plan_kernel(mask, driver.problem(dim, None, 4, dtype), SM_90A)


def tiny_units(mask: mc.Mask, dim: int = 64, dtype: str = "bfloat16") -> dict[str, SourceUnit]:
    bundle = driver.emit_bundle(planned(mask, dim, dtype))
    return {unit.key: unit for unit in bundle.units if unit.form == "tiny"}


# ------------------------------------------------------------------ which masks have them

BOTH, ONE, NEITHER = {"sm_90a_tiny", "sm_90a_tiny_backward"}, {"sm_90a_tiny"}, set()
MASKS = {
    "blocks": (BLOCKS, BOTH),
    "small blocks": (mc.block_diagonal(4), BOTH),
    "blocks with gaps": (GAPS, BOTH),
    "chunks": (mc.chunked(8), BOTH),
    "heads": (HEADS, BOTH),
    "one key": (mc.window(0), BOTH),
    "blocks across tiles": (mc.block_diagonal(12), ONE),
    "blocks of 32": (mc.block_diagonal(32), ONE),
    "window": (mc.window(15), ONE),
    "window of a parameter": (mc.window(mc.param("w", 9)), ONE),
    "the longest window": (mc.window(MAX_KEYS - 1), ONE),
    "a longer one": (mc.window(MAX_KEYS), NEITHER),
    "sinks": (mc.causal() & (mc.sinks(4) | mc.window(9)), NEITHER),
    "blocks of 64": (mc.block_diagonal(64), NEITHER),
    "causal": (mc.causal(), NEITHER),
    "nothing": (mc.full() - mc.full(), NEITHER),
    "one long head": (mc.per_head([BLOCKS, BLOCKS, BLOCKS, mc.causal()]), NEITHER),
    "documents": (BLOCKS & mc.documents("doc"), NEITHER),
    "flags": (BLOCKS & mc.flags("f"), NEITHER),
    "selection": (mc.topk(2, mc.causal(), score="block_mean", block=64) & BLOCKS, NEITHER),
}


@pytest.mark.parametrize("name", MASKS)
def test_which_masks_have_tiny_tiles(name):
    mask, keys = MASKS[name]
    assert set(tiny_units(mask)) == keys


def test_other_head_dimensions_have_none():
    found = {dim for dim in SM_90A.head_dims if tiny_units(BLOCKS, dim)}
    assert found == set(HEAD_DIMS)


def test_what_a_source_is():
    for dim in HEAD_DIMS:
        forward, back = tiny_units(BLOCKS, dim).values()
        assert (forward.tile, back.tile) == (TILE, TILE)
        assert [name for name, _ in forward.modes] == ["default"]
        assert [name for name, _ in back.modes] == [EXCLUSIVE_DQ]
        assert back.only_once
        assert not forward.only_once
        for unit in (forward, back):
            assert (unit.maps, unit.work, unit.row_floats, unit.key_floats) == ((), None, 0, 0)
            ((_, mode),) = unit.modes
            (launch,) = mode.launches
            assert launch.shared_bytes == 0
            assert f"\n{launch.entry}(" in unit.source
        assert forward.offers(ALL)
        assert back.offers(OF_ROWS)
        assert not any(back.offers(frozenset({f})) for f in (Feature.alibi, Feature.sinks))
        assert not forward.offers(frozenset({Feature.entmax}))


@pytest.mark.parametrize("size", [1, 3, 4, 8, 12, 16, 24, 32])
def test_tiles_that_are_alone(size):
    """Proved where the exact tiles say so at all lengths that are looked at."""
    mask = mc.block_diagonal(size)
    found = [mask.layout(n, n, block=(16, 16)).to_dense() > 0 for n in range(1, 130)]
    alone = all(x.sum(0).max() <= 1 and x.sum(1).max() <= 1 for x in found)
    assert tiles_alone(TILE, driver.lowered(mask).keep) == alone


# ------------------------------------------------------------------ the model


class Source:
    tile, boxes = TileShape(64, 64), None

    def __init__(self, *costs: Cost) -> None:
        self.costs, self.modes = costs, tuple((cost.mode, Mode(())) for cost in costs)
        self.only_once = [cost.mode for cost in costs] == [EXCLUSIVE_DQ]


def programs(source: Source, facts: Facts) -> list:
    wanted = Pass(BACKWARD, NONE, False, ("cuda", 0))
    return list(programs_of(source, wanted, facts, Sizes(64, 4, 4, 256, 256)))


DEFAULT, STORED = Cost("default", 100, 10, 1), Cost(EXCLUSIVE_DQ, 60, 10, 1)


def test_costs_of_passes_that_store_dq():
    several, single, alone = (
        Facts(Tally(4, 8, 0), Adders(2)), Facts(Tally(4, 8, 0), Adders(1)),
        Facts(Tally(8, 8, 0, lone=8), Adders(1)),
    )  # fmt: skip
    both, only = Source(DEFAULT, STORED), Source(STORED)
    taken = [least(programs(both, x)) for x in (several, single, alone)]
    assert [each.cycles for each in taken] == [480, 320, 560]
    assert [each.mode for each in taken] == ["default", EXCLUSIVE_DQ, EXCLUSIVE_DQ]
    assert [bool(programs(only, x)[0].obstacle) for x in (several, single, alone)] == [
        True, True, False,
    ]  # fmt: skip
    assert not any(each.cycles for each in programs(Source(), several))


def test_a_source_that_cannot_run_is_not_taken():
    usual, only = Source(DEFAULT), Source(Cost(EXCLUSIVE_DQ, 0, 1, 0))
    for adders, lone, taken in ((2, 0, usual), (1, 0, usual), (1, 8, only)):
        facts = Facts(Tally(4, 8, 0, lone=lone), Adders(adders))
        program = cheapest([usual, only], programs, lambda _, facts=facts: facts, 64)
        assert program.unit is taken


@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_which_tiles_forward_calls_take(dim):
    for mask in (BLOCKS, mc.block_diagonal(4), mc.window(7)):
        assert choice(planned(mask, dim), 4096, 4096)[0].unit.plan.form == "tiny"
    wide = planned(mc.window(MAX_KEYS - 1), dim)
    assert choice(wide, 4096, 4096, heads=1000)[0].unit.plan.form == "small"


def test_predictions_speak_of_the_mode_that_runs():
    """Blocks of 16 took 31 us in small tiles, 25 in tiny ones; forward, in these, 9.3 (H200)."""
    plan = planned(BLOCKS)
    assert milliseconds(plan, BACKWARD, 4096, 4096, 16) == pytest.approx(0.0196, abs=0.0005)
    small = replace(
        plan,
        alternatives=tuple(
            alternative for alternative in plan.alternatives if alternative.form != "tiny"
        ),
    )
    assert milliseconds(small, BACKWARD, 4096, 4096, 16) == pytest.approx(0.0295, abs=0.0005)
    assert milliseconds(plan, FORWARD, 4096, 4096, 16) == pytest.approx(0.0102, abs=0.0005)


def test_explain_names_them():
    text = " ".join(explain(planned(BLOCKS), 4096).split())
    assert "or tiles of 16 x 16, a warp for a row of them, in registers: used if predicted" in text
    assert "backward: or tiles of 16 x 16, a warp for each, in registers: used if predicted" in text
    assert "choice 4096 x 4096: 16 x 16; cycles of one head by program: 16 x 16 " in text
    assert "16 x 16" not in explain(planned(mc.causal()), 4096)


# ------------------------------------------------------------------ calls

FEATURES = (Feature.softcap, Feature.alibi, Feature.sinks)


def selector_of(mask: mc.Mask) -> SourceSelector:
    """For a card with 132 multiprocessors."""
    return SourceSelector(driver.emit_bundle(planned(mask)), SM_90A, lambda device: 132)


DRAWN = {
    "blocks": BLOCKS, "gaps": GAPS, "window": mc.window(15), "wide": mc.block_diagonal(32),
    "crossing": mc.block_diagonal(12), "causal": mc.causal(),
    "sinks": mc.sinks(3) & mc.block_diagonal(16), "few queries": mc.where(lambda q, k: k < 9),
}  # fmt: skip


@cache
def drawn_selector(name: str) -> SourceSelector:
    return selector_of(DRAWN[name])


def chosen(selector, direction, n_q, n_kv, features=NONE, deterministic=False, joins=False):
    """(source, mode, tables) of a call."""
    asked = Pass(direction, features, deterministic, ("cuda", 0))
    call = Bound({}, {}, ()), Place(Sizes(1, 4, 2, n_q, n_kv), {}, accumulates=joins)
    first = selector.bundle.unit("sm_90a", direction)
    taken = selector.choose(first, asked, *call)
    return taken.unit, taken.mode, selector._tables_of(taken.unit, asked, *call)


@settings(max_examples=examples(200))
@drawn(
    st.sampled_from(list(DRAWN)), st.sampled_from(list(Direction)), st.integers(1, 700),
    st.integers(1, 700), st.sets(st.sampled_from(FEATURES)), st.booleans(), st.booleans(),
)  # fmt: skip
def test_whatever_is_taken_serves(name, direction, n_q, n_kv, features, deterministic, joins):
    features = frozenset(features)
    unit, mode, tables = chosen(
        drawn_selector(name), direction, n_q, n_kv, features, deterministic, joins
    )
    assert unit.serves(features, n_q, n_kv)
    assert mode in dict(unit.modes)
    if unit.only_once:
        assert tables.tally.lone == tables.tally.tiles
        assert tables.adders.most <= 1
        assert not joins
        assert not features & {Feature.alibi, Feature.sinks}


def test_which_calls_take_the_backward():
    maker = drawn_selector("blocks")

    def form(*args, **options):
        unit, mode, _ = chosen(maker, BACKWARD, *args, **options)
        return unit.form, mode

    assert form(4096, 4096) == form(4000, 4000) == form(77, 77) == ("tiny", EXCLUSIVE_DQ)
    assert form(4096, 4096, deterministic=True) == ("tiny", EXCLUSIVE_DQ)
    assert form(4096, 4096, features=OF_ROWS) == ("tiny", EXCLUSIVE_DQ)
    for other in ({"features": frozenset({Feature.sinks})}, {"joins": True}):
        taken = form(4096, 4096, **other)
        assert taken[0] != "tiny"
        assert taken[1] == "default"
    assert form(4096, 4100)[0] != "tiny", "blocks lie across tiles"


@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_launches(machine, dim):
    """A warp for 16 queries of a head; backward for 16 keys, or queries, and 64 elements."""
    bundle = driver.emit_bundle(planned(BLOCKS, dim))
    mask = CompiledMask(bundle, "sm_90a")
    q, k, v = (
        type(x)((*x.array.shape[:3], dim), pointer=x.array.pointer)
        for x in given(n=1000, batch=3, heads=(4, 2))
    )
    mask(q, k, v)
    assert mask.last_sources == ("sm_90a_tiny default",)
    assert machine.launched() == [("attention_forward", -(-63 * 4 * 3 // 4), 128)]
    backward(mask, q, k, v)
    assert mask.last_sources == ("sm_90a_tiny_backward exclusive_dq",)
    warps = 63 * 4 * 3 * dim // 64
    assert machine.launched() == [("attention_backward", -(-warps // 4), 128)]
    assert not machine.driver.encoded


def test_more_keys_than_queries_have_warps(machine):
    mask = CompiledMask(
        driver.emit_bundle(planned(mc.where(lambda q, k: (q == k) & (q < 9)))), "sm_90a"
    )
    q, k, v = given(n=20, n_kv=500, heads=(4, 4))
    backward(mask, q, k, v)
    assert mask.last_sources == ("sm_90a_tiny_backward exclusive_dq",)
    assert machine.launched() == [("attention_backward", 32 * 4 * 2 // 4, 128)]


def test_warmup_builds_what_serves(machine):
    bundle = driver.emit_bundle(planned(BLOCKS))
    mask = CompiledMask(bundle, "sm_90a")
    mask.warmup()
    texts = {unit.source: unit.key for unit in bundle.units}
    built = {(texts[text], mode) for text, mode, _ in machine.built}
    assert {("sm_90a_tiny", "default"), ("sm_90a_tiny_backward", EXCLUSIVE_DQ)} <= built
    machine.built.clear()
    mask.warmup(["sinks"])
    built = {texts[text] for text, _, _ in machine.built}
    assert "sm_90a_tiny" in built
    assert "sm_90a_tiny_backward" not in built


# ------------------------------------------------------------------ machine code

REGISTERS = 64 * 1024


def faults(job: tuple[SourceUnit, frozenset[Feature]]) -> list[str]:
    """Return what is wrong with the machine code of a source."""
    unit, features = job
    ((mode, made),) = unit.modes
    binary = build(unit, features, unit.directions, mode=mode)
    (launch,), (kernel,) = made.launches, binary.report.kernels
    found = []
    if any((kernel.stack, kernel.spill_stores, kernel.spill_loads, kernel.shared)):
        found.append(f"{kernel}: memory of its own")
    if launch.resident * launch.threads * kernel.registers > REGISTERS:
        found.append(f"{kernel.registers} registers: {launch.resident} blocks do not fit")
    if sass.disassembler():
        found += [op for op in ("LDL", "STL", "BAR", "LDS", "STS") if binary.count(op)]
        wanted = 16 if unit.directions == (FORWARD,) else 40  # at the least head dimension
        products = binary.count("HMMA")
        if products < wanted:
            found.append(f"{products} of {wanted} products")
    name = f"{unit.key}, {sorted(f.value for f in features)}"
    return [f"{name}: {each}" for each in found]


def gate(*wanted: tuple[SourceUnit, frozenset[Feature]]) -> None:
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        wrong = [each for found in pool.map(faults, wanted) for each in found]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", ["bfloat16"])
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_compiles_without_spills(dim, dtype):
    masks = (BLOCKS, GAPS, mc.window(15), HEADS, LONG)
    gate(*((unit, NONE) for mask in masks for unit in tiny_units(mask, dim, dtype).values()))


@pytest.mark.parametrize("mask", [BLOCKS, GAPS, HEADS], ids=["ranges", "lists", "heads"])
@pytest.mark.parametrize("dim", HEAD_DIMS)
def test_features_cost_no_spills(dim, mask):
    forward, back = tiny_units(mask, dim).values()
    gate(
        *((forward, frozenset({feature})) for feature in FEATURES), (forward, ALL), (back, OF_ROWS)
    )


def test_the_gate_can_fail():
    unit = tiny_units(BLOCKS)["sm_90a_tiny"]
    text = unit.source.replace(
        "    Output o;\n", "    volatile i32 x[9]; x[p.n_q % 9] = 1;\n    Output o;\n"
    )
    assert faults((replace(unit, text=text), NONE))
