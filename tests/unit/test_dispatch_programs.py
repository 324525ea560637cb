"""Programs of masks in parts: cycles by hand, and which program a call takes."""

from __future__ import annotations

import heapq
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskc as mc
from maskc.core.bundle import DEFAULT, EXCLUSIVE_DQ, SEPARATE_DQ, Grid, Launch, Mode
from maskc.core.coefficients import assumed, costs, measured, priced, unpriced
from maskc.core.cost import Cost, Items, LaunchCost, Tally
from maskc.core.problem import Direction, TileShape
from maskc.core.sizes import Sizes
from maskc.dispatch.call import Pass
from maskc.dispatch.programs import PARTS, Facts, Launched, Program, cheapest, in_parts, programs_of
from maskc.layout.work.tile_counts import Adders

FORWARD, BACKWARD = Direction.forward, Direction.backward
SIZES = Sizes(2, 4, 4, 100, 100)
LAUNCH = LaunchCost(start=1000, join=3, multiprocessors=10, alone=0.5, last_row=90)


class Source:
    tile, boxes, only_once = TileShape(64, 64), None, False

    def __init__(self, *costs: Cost, blocks: int = 1, launches: int = 1) -> None:
        launch = Launch("attention_forward", Grid.items, 128, resident=blocks)
        merge = Launch("attention_merge", Grid.merges, 128, resident=9)  # few calls need it
        self.costs = costs
        self.modes = tuple((cost.mode, Mode((*[launch] * launches,))) for cost in costs)
        self.modes += (("other", Mode((merge,))),)


def program(source: Source, tally: Tally, direction=FORWARD, accumulates=False) -> Program:
    wanted = Pass(direction, frozenset(), False, ("cuda", 0))
    facts = Facts(tally, Adders(2, 4))
    programs = programs_of(source, wanted, facts, SIZES, accumulates)
    (one,) = (program for program in programs if not program.obstacle)
    return one


@pytest.mark.parametrize(("blocks", "row"), [(1, 60), (2, 90)])
def test_a_launch_costs_its_start_and_its_last_row(blocks, row):
    """4 rows of 100 + 20 cycles. Alone, a row takes half of that, times the blocks, at most 90."""
    source = Source(Cost(DEFAULT, 100, 10, 0, launch=LAUNCH), blocks=blocks)
    chosen = program(source, Tally(4, 8, 0))
    assert (chosen.cycles, chosen.overhead) == (480, 1000 + 10 * row)


def test_of_dq_apart_each_launch_has_half_a_row():
    cost = Cost(SEPARATE_DQ, 100, 10, 0, launch=LAUNCH)
    chosen = program(Source(cost, launches=2), Tally(4, 8, 0), BACKWARD)
    assert (chosen.cycles, chosen.overhead) == (480, 2 * 1000 + 10 * 30)


def test_every_query_is_joined():
    source = Source(Cost(DEFAULT, 100, 10, 0, launch=LAUNCH))
    alone, joined = (program(source, Tally(4, 8, 0), FORWARD, adds) for adds in (False, True))
    assert joined.cycles == alone.cycles + 3 * 100
    assert joined.overhead == alone.overhead


def test_sources_without_costs_have_none():
    chosen = program(Source(Cost(DEFAULT, 0, 0, 0)), Tally(4, 8, 0), FORWARD, True)
    assert (chosen.cycles, chosen.overhead) == (0, 0)


def launched(cycles: float, overhead: float, *shares: float) -> Launched:
    return Launched(Program(Source(), DEFAULT, cycles, overhead=overhead), *shares)


def test_parts_add_up():
    """Classes share a launch; a sequence alone is a launch of half of the heads. What launches cost
    beyond the one of the whole mask is shared by 8 heads, or by 32 where bits are invariant."""
    whole = Program(Source(), DEFAULT, 900, overhead=400)
    parts = [launched(100, 800), launched(50, 600, 3, 0.5), launched(50, 600, 3, 0.5)]
    for invariant, heads in ((False, 8), (True, 32)):
        chosen = in_parts(whole, parts, SIZES, invariant)
        assert chosen.cycles == 100 + 150 + (800 + 600 - 400) / heads
        assert (chosen.mode, chosen.unit, chosen.obstacle) == (PARTS, whole.unit, "")
    more = Sizes(16, 4, 4, 100, 100)
    both = [in_parts(whole, parts[:1], sizes, True).cycles for sizes in (SIZES, more)]
    assert both[0] == both[1]


@pytest.mark.parametrize(
    ("parts", "taken"), [((100, 100, 40), 3), ((100, 201, 1), 2), ((330, 1, 1), 1)]
)
def test_launches_are_planned_until_parts_are_slower(parts, taken):
    """The whole mask takes 300 cycles and 400 of overhead, which 8 heads share."""
    whole, planned = Program(Source(), DEFAULT, 300, overhead=400), []
    launches = (planned.append(cycles) or launched(cycles, 200) for cycles in parts)
    chosen = in_parts(whole, launches, SIZES, stops=True)
    assert len(planned) == taken
    every = in_parts(whole, [launched(cycles, 200) for cycles in parts], SIZES)
    assert (chosen.time > whole.time) is (every.time > whole.time)


@pytest.mark.parametrize(
    ("cycles", "obstacle", "taken"),
    [(119, "", PARTS), (120, "", DEFAULT), (121, "", DEFAULT), (1, "odd lengths", DEFAULT)],
)
def test_parts_are_one_more_program(cycles, obstacle, taken):
    """The whole mask is 1 row of 120 cycles, in the better of two sources."""
    sources = [Source(Cost(DEFAULT, row, 10, 0)) for row in (200, 100)]

    def programs(source: Source, facts: Facts) -> list[Program]:
        wanted = Pass(FORWARD, frozenset(), False, ("cuda", 0))
        return list(programs_of(source, wanted, facts, SIZES))

    def parts(whole: Program) -> Program:
        assert (whole.unit, whole.cycles) == (sources[1], 120)
        return Program(whole.unit, PARTS, cycles, obstacle)

    facts = Facts(Tally(1, 2, 0))
    chosen = cheapest(sources, programs, lambda source: facts, 100, parts)
    assert chosen.mode == taken
    assert chosen.name == ("in parts" if taken == PARTS else "64 x 64")


# ------------------------------------------------------------------ turns


def greedy(tiles: list[int], slots: int) -> int:
    """The time until the last block ends, each taking the longest item that is left."""
    ends = [0] * slots
    for size in sorted(tiles, reverse=True):
        heapq.heapreplace(ends, ends[0] + size)
    return max(ends)


@pytest.mark.parametrize("count", [1, 9, 10, 11, 19, 20])
def test_up_to_two_turns_of_equal_items_take_as_long_as_they_are(count):
    load = Items(count, 7 * count, 7)
    assert load.stretch(LAUNCH, 1) == pytest.approx(greedy([7] * count, 10) / (0.7 * count))


@given(st.lists(st.integers(1, 30), min_size=1, max_size=300), st.integers(1, 3))
def test_turns_are_bounded(tiles, resident):
    """By evenly divided work, and by blocks that never run faster alone; many items are even."""
    load = Items(len(tiles), sum(tiles), max(tiles))
    launch = replace(LAUNCH, alone=1.0)
    stretch, even = load.stretch(launch, resident), sum(tiles) / (10 * resident)
    assert 1 <= load.stretch(LAUNCH, resident) <= stretch
    assert stretch * even >= max(tiles) - 1e-9
    worst = max(tiles) + len(tiles) * sum(tiles) / len(tiles) / (10 * resident)
    assert stretch * even <= worst + sum(tiles) / len(tiles)
    many = Items(1000 * load.count, 1000 * load.tiles, load.longest)
    assert many.stretch(launch, resident) < 1.1 or load.count < 10


def test_a_lone_block_has_its_multiprocessor_for_itself():
    """Ten blocks of a multiprocessor of two: each takes half a turn's work in 0.75 of its time."""
    launch = replace(LAUNCH, alone=0.75)
    assert Items(10, 10, 1).stretch(launch, 2) == pytest.approx(0.75 * 2)
    assert Items(20, 20, 1).stretch(launch, 2) == 1


def waiting(mode: str, heads: int, deterministic: bool = False) -> Program:
    """Two columns of 64 tiles, whose rows have one tile in one column each."""
    launch = replace(LAUNCH, step=500)
    costs = (
        Cost(DEFAULT, 0, 100, 0, query=70, launch=launch),
        Cost(EXCLUSIVE_DQ, 0, 100, 0, query=20, launch=launch),
    )
    facts = Facts(Tally(2, 128, 0, 0, 128), Adders(1, 128), items=Items(2 * heads, 128 * heads, 64))
    wanted = Pass(BACKWARD, frozenset(), deterministic, ("cuda", 0))
    source = Source(*costs, launches=2)
    programs = programs_of(source, wanted, facts, Sizes(heads, 1, 1, 128 * 64, 128))
    (one,) = (program for program in programs if program.mode == mode)
    return one


def test_few_heads_leave_multiprocessors_idle():
    """3 heads have 6 items for 10 multiprocessors; 2 launches are shared by 3 heads."""
    one = waiting(DEFAULT, 3)
    assert one.cycles == 128 * 100 + 128 * 70
    assert one.idle == pytest.approx((10 / 6 - 1) * 128 * 100)
    assert one.starts == pytest.approx(2 * 500 / 3)
    stored = waiting(EXCLUSIVE_DQ, 3)
    assert stored.idle == pytest.approx((10 / 6 - 1) * (128 * 100 + 128 * 20))


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 100])
def test_storing_dq_never_takes_longer_than_adding_to_it(heads):
    assert waiting(EXCLUSIVE_DQ, heads).time <= waiting(DEFAULT, heads).time


def test_deterministic_passes_do_not_depend_on_heads():
    few, many = (waiting(EXCLUSIVE_DQ, heads, True) for heads in (1, 100))
    assert (
        (few.idle, few.starts, few.time) == (many.idle, many.starts, many.time) == (0, 0, few.time)
    )


# ------------------------------------------------------------------ coefficients


@pytest.mark.parametrize(
    ("mask", "tests"), [(mc.patterns.natten_2d(kernel=13), 12), (mc.causal() & mc.sinks(4), 0)]
)
def test_conditions_on_a_grid_cost_cycles(mask, tests):
    """Two quotients, two remainders, four extremes and four comparisons; boxes read bits."""
    units = [unit for unit in mask.compile(64, target="sm_90a").bundle.units if unit.costs]
    assert {unit.tests for unit in units if not unit.boxes} == {tests}
    assert {unit.tests for unit in units if unit.boxes} <= {0}
    free, tested = (
        costs(measured("sm_90a"), FORWARD, "", 64, {DEFAULT}, 1.0, n)[0].masked for n in (0, tests)
    )
    assert tested - free == tests * measured("sm_90a")["large"]["64"][DEFAULT]["test"]


def test_launches_cost_as_much_on_cards_without_a_number_of_their_own():
    (usual,) = costs(measured("sm_90a"), FORWARD, "", 128, {DEFAULT})
    (backward,) = costs(measured("sm_90a"), BACKWARD, "", 128, {DEFAULT})
    launch = usual.launch
    assert launch.start == pytest.approx(6.5e3 * 1.7 * 132)
    assert launch.last_row == pytest.approx(18e3 * 1.7)
    assert (launch.multiprocessors, launch.alone) == (132, 0.75)
    assert launch.join == pytest.approx(0.11 * 128)
    assert backward.launch.join == pytest.approx(3.2 * 128)


def test_unmeasured_targets_count_pairs():
    """A tile row of 64 queries and 2 tiles, one of them partial."""
    tile = TileShape(64, 32)
    (cost,) = assumed("cpu", FORWARD, tile)
    assert cost.cycles(Tally(1, 2, 1)) == pytest.approx(64 * 64 + 2.3 * 64 * 32, abs=1)
    (backward,) = assumed("sm_80", BACKWARD, tile)
    assert backward.cycles(Tally(3, 2, 0, queries=1)) == 384 * 64 + 2 * 64 * 32
    assert (backward.launch.join, backward.launch.start) == (384, 132 * 67_000)


@pytest.mark.parametrize("target", ["sm_90a", "sm_80", "cpu"])
def test_sources_of_a_mask_in_parts_have_costs_without_being_compiled(target):
    """Also on targets that nobody measured, where other masks have none."""
    dtype = "float32" if target == "cpu" else "bfloat16"
    bundle = mc.patterns.landmark().compile(64, dtype=dtype, target=target).bundle
    again = priced(unpriced(bundle))
    assert not any(unit.costs for unit in unpriced(bundle).units)
    for one, other in ((bundle, again), *zip(bundle.parts, again.parts, strict=True)):
        units = (getattr(part, "bundle", part).units for part in (one, other))
        for unit, same in zip(*units, strict=True):
            if unit.target == target and unit.directions:
                assert unit.costs == same.costs != ()
    causal = mc.causal().compile(64, dtype=dtype, target=target).bundle
    assert all(bool(unit.costs) == (target == "sm_90a") for unit in causal.units[:1])
