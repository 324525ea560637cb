"""Programs of masks in parts: cycles by hand, and which program a call takes."""

from __future__ import annotations

import pytest

import maskc as mc
from maskc.core.bundle import DEFAULT, SEPARATE_DQ, Grid, Launch, Mode
from maskc.core.coefficients import assumed, costs, measured, priced, unpriced
from maskc.core.cost import Cost, LaunchCost, Tally
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


# ------------------------------------------------------------------ coefficients


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
