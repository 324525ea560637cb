"""Two forward sources for Hopper: what fits a multiprocessor, and which one a call takes."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.bundle import Grid
from maskc.core.cost import Cost, Tally, at_least
from maskc.core.problem import Direction, Feature, TileShape
from maskc.core.sizes import Sizes
from maskc.core.target import TARGETS
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.programs import Facts, cheapest, programs_of
from maskc.dispatch.selector import SourceSelector
from maskc.dispatch.tables import make_tables
from maskc.layout import build
from maskc.layout.work.tile_counts import tally_of
from maskc.plan.cost import choice
from maskc.plan.explain import explain
from maskc.plan.families import sm90a
from maskc.plan.recipe import layout_recipe
from tests.support.fake_hopper import BACKWARD, FORWARD, compiled, given
from tests.support.thorough import chiefly, pairwise

SM_90A = TARGETS["sm_90a"]
SMALL_DIMS = (32, 64, 96, 128)
REGISTERS, RESERVED = 64 * 1024, 1024
"""Of a multiprocessor; bytes of shared memory that the system takes of every block."""


def streaming(n_sinks: int, size: int) -> mc.Mask:
    return mc.causal() & (mc.sinks(n_sinks) | mc.window.hf(size))


@cache
def planned(mask: mc.Mask, dim: int):
    return driver.plan_kernel(mask, driver.problem(dim, None, 4, "bfloat16"), SM_90A)


# ------------------------------------------------------------------ schedules


@pytest.mark.parametrize("dim", SMALL_DIMS)
def test_blocks_fit_a_multiprocessor(dim):
    made = sm90a.small_schedule(driver.problem(dim, None, None, "bfloat16"))
    compute, copy = made.registers
    threads, blocks = 128 * (made.warpgroups + 1), made.min_blocks
    assert made.warpgroups == 1
    assert blocks > 1
    assert compute % 8 == copy % 8 == 0
    assert blocks * 128 * (compute + copy) <= REGISTERS
    launched = REGISTERS // (blocks * threads) // 8 * 8  # per thread, before they move
    assert compute + copy <= 2 * launched, "a block's registers move inside the block"
    assert [name for name, _ in made.modes] == ["default", "persistent", "pack_gqa"]
    for _, mode in made.modes:
        launch, *_ = mode.launches
        assert (launch.threads, launch.resident) == (threads, blocks)
        assert blocks * (launch.shared_bytes + RESERVED) <= SM_90A.shared_memory + RESERVED
    assert {each.rows for each in made.maps} == {64}


def test_one_more_block_would_not_fit():
    """Registers or shared memory are used up."""
    for dim in SMALL_DIMS:
        made = sm90a.small_schedule(driver.problem(dim, None, None, "bfloat16"))
        more = made.min_blocks + 1
        shared = max(mode.launches[0].shared_bytes for _, mode in made.modes)
        assert (
            more * 128 * sum(made.registers) > REGISTERS
            or more * (shared + RESERVED) > SM_90A.shared_memory + RESERVED
        )


def test_which_sources_a_bundle_has():
    for dim in SM_90A.head_dims:
        bundle = driver.emit_bundle(planned(mc.causal(), dim))
        found = bundle.choice("sm_90a", Direction.forward)
        forms = ["", *["_medium"] * (dim == 96), *["_small"] * (dim in SMALL_DIMS)]
        assert [unit.key for unit in found] == [f"sm_90a{form}" for form in forms]
        assert bundle.unit("sm_90a") is found[0]
        assert len({unit.key for unit in bundle.units}) == len(bundle.units)
        for unit in found:
            names = [cost.mode for cost in unit.costs]
            # pack_gqa is taken wherever it fits; interleaved heads cost what other modes tell.
            asked = [name for name, _ in unit.modes if name not in ("pack_gqa", "interleaved")]
            assert names == asked
            assert bundle.variants[0].recipe(unit.tile) in bundle.variants[0].recipes
            assert f"{unit.tile.q} queries x {unit.tile.k} keys" in unit.source


# ------------------------------------------------------------------ the model


def tallies(mask: mc.Mask, n: int, dim: int) -> list[tuple[object, Tally]]:
    """Both sources of a mask with their tiles."""
    units = driver.emit_bundle(planned(mask, dim)).choice("sm_90a", Direction.forward)
    keep = driver.lowered(mask).keep
    layouts = [build(layout_recipe(keep, unit.tile), n, n, {}, {}) for unit in units]
    return [
        (unit, tally_of([layout], Direction.forward))
        for unit, layout in zip(units, layouts, strict=True)
    ]


def programs(unit, facts):
    wanted = Pass(Direction.forward, frozenset(), False, ("cuda", 0))
    return list(programs_of(unit, wanted, facts, Sizes(1, 1, 1, 4096, 4096)))


MASKS = {
    "streaming": streaming(16, 64),
    "blocks": mc.block_diagonal(16),
    "window": mc.window(127),
    "wide": mc.window(2000, 3),
    "causal": mc.causal(),
    "full": mc.full(),
    "lattice": mc.dilated(9, stride=100),
    "global": mc.window(20, 20) | mc.global_tokens(9),
    "nothing": mc.full() - mc.full(),
}


@pytest.mark.parametrize(
    ("name", "dim"),
    pairwise(
        list(MASKS), SMALL_DIMS,
        tried=[("streaming", 64), ("causal", 96), ("lattice", 128), ("nothing", 64)],
    ),
)  # fmt: skip
def test_the_choice_minimises_the_model(name, dim):
    for n in (0, 1, 64, 1000, 4096):
        counted = []
        found = dict(tallies(MASKS[name], n, dim))
        units = list(found)

        def tally(unit, found=found, counted=counted):
            counted.append(unit.key)
            return found[unit]

        taken = cheapest(units, programs, lambda unit: Facts(tally(unit)), n)
        everything = [each for u, t in found.items() for each in programs(u, Facts(t))]
        assert taken.cycles == min(each.cycles for each in everything)
        assert taken == next(each for each in everything if each.cycles == taken.cycles)
        assert len(counted) == len(set(counted))


@pytest.mark.parametrize("name", MASKS)
def test_the_bound_is_one_for_tiles_that_do_not_divide(name):
    for n in (1, 79, 80, 81, 320, 1000, 1537):
        large, tall = (build(layout_recipe(driver.lowered(MASKS[name]).keep, tile), n, n, {}, {})
                       for tile in (TileShape(64, 128), TileShape(80, 128)))  # fmt: skip
        many, few = (tally_of([each], Direction.backward) for each in (large, tall))
        least = at_least(many, large.tile, tall.tile, n)
        assert least.rows <= few.rows
        assert least.tiles <= few.tiles


@pytest.mark.parametrize("name", chiefly(list(MASKS), "streaming", "causal", "lattice"))
def test_the_bound_is_one(name):
    """The count of smaller tiles is never less than what the larger ones tell."""
    for n in (1, 63, 64, 191, 193, 1000, 1537):
        (large, many), *others = tallies(MASKS[name], n, 64)
        for small, few in others:
            least = at_least(many, large.tile, small.tile, n)
            assert least.rows <= few.rows
            assert least.tiles <= few.tiles
            assert least.masked <= few.masked
            assert least.lone == 0


def test_the_bound_spares_counting():
    units = [unit for unit, _ in tallies(mc.full(), 4096, 128)]
    shape = {unit.key: tally for unit, tally in tallies(mc.full(), 4096, 128)}

    def tally(unit):
        assert unit is units[0], "the small tiles of a full mask need not be counted"
        return shape[unit.key]

    assert cheapest(units, programs, lambda unit: Facts(tally(unit)), 4096).unit is units[0]


@pytest.mark.parametrize("dim", SMALL_DIMS)
def test_what_anchors_take(dim):
    def taken(mask, n):
        return choice(planned(mask, dim), n, n, heads=1000)[0].unit.plan.form

    assert taken(streaming(16, 64), 4096) == "small"
    assert (
        taken(mc.block_diagonal(16), 4096) == {32: "small", 64: "tiny", 96: "small", 128: ""}[dim]
    )
    for mask in (mc.full(), mc.causal()):
        assert taken(mask, 16384) == ""
    if dim == 128:  # that of the anchor; at 64 both take about as long
        assert taken(mc.window(4095), 16384) == ""


def test_medium_tiles_where_large_ones_fill_badly():
    for dim in (80, 96, 112):
        taken = [choice(planned(mc.full(), dim), n, n, heads=1000)[0].name for n in (256, 576)]
        assert taken == ["128 x 128 persistent", "192 x 96 persistent"]
    taken = choice(planned(mc.window(255), 96), 8192, 8192, heads=1000)[0].name
    assert taken == "128 x 128 persistent"


def test_which_masks_have_medium_tiles():
    def forms(mask, dim=80, **options):
        return {unit.form for unit in mask.compile(dim, target="sm_90a", **options).bundle.units}

    bias = mc.table("bias")
    biased = mc.score(lambda s, q, k, h: s + bias[h, q, k])
    documents = mc.causal() & mc.documents("doc")
    assert all("medium" in forms(mc.causal(), dim) for dim in (72, 96, 112))
    assert not any("medium" in forms(mc.causal(), dim) for dim in (64, 128, 192))
    assert "medium" not in forms(documents)
    assert "medium" not in forms(mc.causal(), tile=(192, 96))
    assert "medium" not in forms(mc.causal(), score=biased), "the first source has these tiles"


def test_cycles_of_a_tally():
    cost = Cost("default", 100, 10, 1, lone=7, query=1000)
    assert cost.cycles(Tally(1, 200, 3)) == 100 + 2000 + 3
    assert cost.cycles(Tally(1, 2, 2, lone=1, queries=4)) == 100 + 20 + 2 + 7 + 4000


def test_explain_names_both():
    text = " ".join(explain(planned(streaming(16, 64), 128), 4096).split())
    assert "tiles of 128 x 128, 2 consumer warpgroups" in text
    assert "or tiles of 64 x 64, a consumer warpgroup" in text
    assert "2 blocks per multiprocessor: used if predicted to be faster" in text
    assert "choice 4096 x 4096: 64 x 64" in text
    assert "cycles of one head by program: 64 x 64" in text
    assert "choice 16384 x 16384: 128 x 128;" in " ".join(
        explain(planned(mc.causal(), 128), 16384).split()
    )


# ------------------------------------------------------------------ calls


SMALL = replace(
    FORWARD, text="small", tile=TileShape(32, 32), form="small",
    costs=(Cost("default", 10, 1, 0), Cost("persistent", 1, 2, 0)),
    modes=tuple(
        (name, replace(mode, launches=tuple(replace(x, resident=3) for x in mode.launches)))
        for name, mode in FORWARD.modes
    ),
)  # fmt: skip
LARGE = replace(FORWARD, costs=(Cost("default", 50, 3, 0), Cost("persistent", 5, 4, 0)))
UNITS = (LARGE, SMALL, BACKWARD)


def test_calls_take_the_cheaper_source(machine):
    mask = compiled("gaps", units=UNITS)
    mask(*given(n=128))  # one tile of 64, three of 32: 5 + 4 against 2 + 6
    assert machine.built == [("small", "persistent", [])]
    assert machine.driver.block.tile_rows == 4
    machine.built.clear()
    mask(*given(n=1200))  # many tiles: two of 32 for one of 64 and more
    assert machine.built == [("forward", "persistent", [])]
    assert machine.driver.block.tile_rows == 19
    machine.built.clear()
    compiled("gaps", units=(LARGE, BACKWARD))(*given(n=128))
    assert machine.built == [("forward", "persistent", [])]


def test_the_choice_ignores_heads_and_batch(machine):
    for n in (128, 1200):
        taken = set()
        for batch, heads in ((1, (1, 1)), (3, (4, 2)), (40, (16, 1))):
            machine.built.clear()
            compiled("gaps", units=UNITS)(*given(n=n, batch=batch, heads=heads))
            ((text, _, _),) = machine.built
            taken.add(text)
        assert len(taken) == 1


def test_streams_have_as_many_blocks_as_run_at_once(machine):
    mask = compiled("gaps", units=UNITS)
    mask(*given(n=128, batch=50))
    assert machine.launched() == [("attention_forward", 3 * 132, 384)]
    assert SMALL.mode("persistent").launches[0].grid is Grid.stream


def test_warmup_builds_both_sources(machine):
    mask = compiled(units=UNITS)
    mask.warmup()
    assert {(text, mode) for text, mode, _ in machine.built} == {
        (text, mode) for text in ("forward", "small") for mode in ("default", "persistent")
    } | {("backward", "default"), ("backward", "deterministic")}
    assert ("sm_90a_small", "persistent", frozenset()) in mask.all_reports
    assert mask.reports == {frozenset(): "forward default"}
    machine.built.clear()
    mask(*given(n=600))
    assert not machine.built


def test_data_per_sequence_do_not_choose():
    """The data of one sequence would otherwise decide over the bits of another."""
    mask = (mc.causal() & mc.documents("doc")) | mc.window(0)  # tiles begin where columns do
    bundle = driver.emit_bundle(planned(mask, 64))
    doc = np.arange(256, dtype=np.int32) // 16
    sizes = Sizes(2, 4, 4, 256, 256)
    unit = bundle.unit("sm_90a")
    selector = SourceSelector(bundle, SM_90A, lambda device: 132)
    wanted = Pass(Direction.forward, frozenset(), False, ("cuda", 0))
    for ids in (doc, np.zeros_like(doc)):  # one document, or sixteen
        taken = set()
        for shape in ((1, 256), (2, 256)):
            given_doc = np.ascontiguousarray(np.broadcast_to(ids, shape))
            arrays = {"doc.q": given_doc, "doc.k": given_doc}
            bound = Bound({}, arrays, ids.tobytes())
            taken.add(selector.choose(unit, wanted, bound, Place(sizes, {})).unit.key)
        assert len(taken) == 1
    arrays = {"doc.q": doc, "doc.k": doc}
    tables = make_tables(bundle, unit, sizes, {}, arrays, Direction.forward, True)
    assert tables.tally == Tally(2, 3, 3, lone=1)


def call_of(n: int) -> tuple[Bound, Place]:
    return Bound({}, {}, ()), Place(Sizes(1, 2, 2, n, n), {})


@pytest.mark.parametrize(
    ("mask", "n", "default", "deterministic"),
    [
        (mc.window(10) | mc.global_tokens(4), 262144, "", ""),
        (mc.window(10) | mc.global_tokens(4), 8192, "small", ""),
        (mc.causal() & (mc.sinks(16) | mc.window(63)), 8192, "small", "small"),
        (mc.causal(), 16384, "", ""),
        (mc.window(511), 8192, "small", "small"),
        (mc.window(1535), 8192, "", ""),
        (streaming(64, 1024), 131072, "", ""),
    ],
    ids=["long rows", "rows", "long columns", "dense", "window", "wide window", "nearly as fast"],
)
def test_small_tiles_where_blocks_wait_for_each_other(monkeypatch, mask, n, default, deterministic):
    monkeypatch.setattr("maskc.runtime.launch.built.multiprocessors", lambda device: 132)
    attn = mask.compile(head_dim=128, n_heads=2, target="sm_90a")
    selector = attn._planner.whole.selector
    first = selector.bundle.unit("sm_90a", Direction.backward)
    for wanted, form in ((False, default), (True, deterministic)):
        asked = Pass(Direction.backward, frozenset(), wanted, ("cuda", 0))
        found = selector.choose(first, asked, *call_of(n))
        assert found.unit.form == form


def test_the_source_for_documents_does_not_depend_on_earlier_calls():
    bundle = mc.documents("doc").compile(head_dim=128, target="sm_90a").bundle
    first, found = bundle.unit("sm_90a", Direction.backward), []
    on_device, place = Bound({}, {}, (), given="ids"), call_of(4096)[1]
    for order in ((False, True), (True, False)):
        selector = SourceSelector(bundle, SM_90A, lambda device: 132)
        asked = {each: Pass(Direction.backward, frozenset(), each, ("cuda", 0)) for each in order}
        found.append({
            each: selector.choose(first, wanted, on_device, place) for each, wanted in asked.items()
        })  # fmt: skip
    assert found[0] == found[1]
    assert [found[0][each].mode for each in (False, True)] == ["default", "deterministic"]


@pytest.mark.parametrize("feature", [Feature.alibi, Feature.sinks])
def test_gradients_of_heads_are_not_made_apart(feature):
    attn = mc.window(40).compile(head_dim=64, n_heads=2, target="sm_90a")
    selector, call = attn._planner.whole.selector, call_of(8192)
    first = selector.bundle.unit("sm_90a", Direction.backward)
    for features, apart in ((frozenset(), True), (frozenset({feature}), False)):
        asked = Pass(Direction.backward, features, False, ("cuda", 0))
        found = selector.choose(first, asked, *call)
        assert (found.mode == "separate_dq") == apart
