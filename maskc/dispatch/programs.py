"""Programs: the complete ways to run one pass over the tokens of a call, and what each would cost.

A program is a source in one of its modes, or the launches of a mask in parts. `programs_of` lists
the programs of one source, with the reason where one cannot run; `in_parts` adds up launches;
`cheapest` is the only place that compares programs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from maskc.core.boxes import Boxes
from maskc.core.bundle import (
    DEFAULT,
    DETERMINISTIC,
    DOCUMENT_ROWS,
    EXCLUSIVE_DQ,
    INTERLEAVED,
    NOT_EXCLUSIVE_DQ,
    PACK_GQA,
    PERSISTENT,
    SEPARATE_DQ,
    Launch,
    Mode,
    SourceUnit,
)
from maskc.core.cost import Cost, Items, Tally, at_least, stretch_of
from maskc.core.problem import OF_HEADS, Direction, Feature, TileShape
from maskc.core.sizes import Sizes
from maskc.dispatch.call import Pass
from maskc.layout.work.tile_counts import Adders

_FEW_PAIRS = 1 << 14
"""Limit on queries times keys, of all heads and sequences, up to which a backward pass sums over
all pairs to compute delta: 25 us if one block has all of them. From about thirty rows on, the
rounding of `out` no longer dominates the errors of dq and dk."""

_UNEVEN = 4
"""Rows with more than this many times the mean number of tiles are long. `separate_dq` never cuts
rows, so a long one would run alone at the end."""

_SHORT = 32
"""A row with at most this many tiles is never long, however few the others have."""

_TURNS = 1.05
"""Cost of adding to dq in a fixed order, relative to atomic additions (dense masks and windows 1.02
to 1.11, sinks 1.2)."""

_FEW_ADDERS, _MANY_COLUMNS = 3, 32
"""Limits of `adds_in_steps`."""

_STEPS = 0.95
"""Cost of a fixed order where `adds_in_steps` holds (windows at 16k, 16 heads, D 128, H200: 2
columns 0.86 and 0.91, 3 columns 0.97, 5 columns 1.03; D 64, small tiles: 0.93, 0.98 and 1.03)."""

_EXPOSED = 0.2
"""With interleaved heads, the share of what persistent blocks hide of a row that they do not hide.
Times relative to those of `persistent` are then predicted to 3 % for causal masks and windows of
512 and 1024 keys at 8k, and to 5 % for windows of 128 (D 64, 128 and 256, 2 to 8 heads, H200)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Inputs of the choice between the programs of one source."""

    tally: Tally | None
    """The tile counts, exact or expected; None if nothing is known."""
    adders: Adders | None = None
    """Who adds to tiles of dq in a backward pass; None if that is not known."""
    listed: bool = False
    """Whether the host makes the work list."""
    shared: bool = False
    """Whether several items of the work list add to the same tile column."""
    items: Items | None = None
    """The work items of a pass of all heads; None where nobody counted them."""

    @property
    def adds_in_steps(self) -> bool:
        """Whether few columns add to a tile of dq, each from a later row on than the one before.

        A fixed order of additions then takes less time than writing the zeros that atomic additions
        start from. There must be so many columns that waiting at the start does not count.
        """
        adders = self.adders
        if adders is None or not self.listed or self.shared:
            return False
        return 1 < adders.most <= _FEW_ADDERS and adders.in_steps >= _MANY_COLUMNS


class Source(Protocol):
    """A kernel source, planned or emitted, that runs a pass in one of several modes."""

    @property
    def tile(self) -> TileShape:
        """The tile that one step computes."""

    @property
    def modes(self) -> tuple[tuple[str, Mode], ...]:
        """Modes by name; empty if the source has one mode only."""

    @property
    def costs(self) -> tuple[Cost, ...]:
        """The cost of each mode; empty if nothing is known."""

    @property
    def boxes(self) -> Boxes | None:
        """The boxes, where tiles are boxes of a grid."""

    @property
    def only_once(self) -> bool:
        """Whether it only serves backward passes that store dq."""


S = TypeVar("S", bound=Source)


@dataclass(frozen=True)
class Program(Generic[S]):
    """One complete way to run one pass."""

    unit: S
    mode: str
    """The mode of the source that is launched."""
    cycles: float = 0.0
    """Predicted cycles on one multiprocessor; each distinct list of tiles counts once."""
    obstacle: str = ""
    """Why it cannot run; empty if it can."""
    overhead: float = 0.0
    """Cycles of all multiprocessors together that it costs however few heads there are: a call of
    several launches pays it several times."""
    idle: float = 0.0
    """More cycles, counted like `cycles`, as the work of all heads fills the multiprocessors
    unevenly; 0 where the choice may not depend on the number of heads."""
    starts: float = 0.0
    """Likewise, while its launches start."""

    @property
    def time(self) -> float:
        """The cycles by which programs of a whole mask are compared."""
        return self.cycles + self.idle + self.starts

    @property
    def runs_in_parts(self) -> bool:
        """Whether it runs a mask in parts; then `unit` is the source of the whole mask."""
        return self.mode == PARTS

    @property
    def name(self) -> str:
        """Name in reports: the tile and the mode."""
        if self.runs_in_parts:
            return "in parts"
        tile = self.unit.tile
        boxes = "boxes of " if self.unit.boxes is not None else ""
        return f"{boxes}{tile.q} x {tile.k} {MODE_NAMES[self.mode]}".strip()


PARTS = "parts"
"""The mode of a program that runs a mask in parts."""
MODE_NAMES = {
    DEFAULT: "", PERSISTENT: "persistent", PACK_GQA: "pack_gqa",
    INTERLEAVED: "interleaved", DETERMINISTIC: "in order",
    EXCLUSIVE_DQ: "exclusive dq", SEPARATE_DQ: "separate dq", DOCUMENT_ROWS: "rows of documents",
}  # fmt: skip
"""Names of modes in reports."""


def few_pairs(sizes: Sizes) -> bool:
    """Return whether a call has so few pairs that dq and dk show how `out` was rounded.

    A sum over all pairs then costs next to nothing.
    """
    return sizes.batch * sizes.heads_q * sizes.n_q * sizes.n_kv <= _FEW_PAIRS


def programs_of(
    unit: S, wanted: Pass, facts: Facts, sizes: Sizes, accumulates: bool = False,
    interleaved: int = 0,
) -> Iterator[Program[S]]:  # fmt: skip
    """List the programs of one source, with predicted cycles.

    Of equal ones the first is preferred.

    Args:
        unit: the source.
        wanted: the pass.
        facts: the tiles of the pass.
        sizes: of the call.
        accumulates: whether results are joined with those of another launch.
        interleaved: query heads that are rows of one tile. The only program is then INTERLEAVED;
            `facts` and `sizes` count these as one head, and cycles are those of each. 0: none are.
    """
    modes = dict(unit.modes) or {DEFAULT: Mode(())}
    backward = wanted.direction is Direction.backward
    sharing = sizes.heads_kv / sizes.heads_q if backward and sizes.heads_q else 1.0
    obstacles = _backward(unit, wanted, facts, sizes, accumulates) if backward else _forward(wanted)
    obstacles, heads = ({INTERLEAVED: ""}, interleaved) if interleaved else (obstacles, 1)
    for mode, obstacle in obstacles.items():
        if mode in modes:
            cycles = _cycles(unit, mode, facts, sharing)
            launches = modes[mode].usual_launches
            overhead = _overhead(unit, mode, launches, facts, cycles)
            joined = unit.costs[0].launch.join * sizes.n_q if accumulates and unit.costs else 0.0
            idle, starts = 0.0, 0.0
            if not wanted.deterministic:
                waiting = _waiting_backward if backward else _waiting_forward
                idle, starts = waiting(unit, mode, launches, facts, sizes, cycles)
            cycles, idle, starts = (cycles + joined) / heads, idle / heads, starts / heads
            yield Program(unit, mode, cycles, obstacle, overhead, idle, starts)


def _forward(wanted: Pass) -> dict[str, str]:
    whole_rows = Feature.entmax in wanted.features
    return {DEFAULT: "", PERSISTENT: "entmax looks at whole rows" if whole_rows else ""}


def _backward(
    unit: Source, wanted: Pass, facts: Facts, sizes: Sizes, accumulates: bool
) -> dict[str, str]:
    exclusive = _why_not_exclusive_dq(unit, wanted, facts, accumulates)
    plain = ""
    if wanted.deterministic and DETERMINISTIC in dict(unit.modes):
        plain = "not for deterministic=True: atomic additions have no fixed order"
    ordered = ""
    if not wanted.deterministic and not facts.adds_in_steps:
        ordered = "only with deterministic=True: columns would wait for each other"
    needless = "" if exclusive else "dq needs no sum"
    separate = _why_not_separate_dq(wanted, facts, sizes) or needless
    return {
        EXCLUSIVE_DQ: exclusive, DETERMINISTIC: ordered, DEFAULT: plain, SEPARATE_DQ: separate,
    }  # fmt: skip


def _why_not_exclusive_dq(unit: Source, wanted: Pass, facts: Facts, accumulates: bool) -> str:
    """Why a pass does not store dq instead of adding to it; empty if it may."""
    if accumulates:
        return "dq is added to that of another launch"
    if wanted.features & NOT_EXCLUSIVE_DQ:
        return "its kernel lacks a feature of the call"
    if facts.adders is None:
        return "the number of tiles of a row is unknown"
    if facts.adders.most > 1:
        return "some rows have several tiles"
    if wanted.deterministic and facts.shared:
        return "several items share a tile column"
    if unit.only_once and not (facts.tally is not None and facts.tally.lone == facts.tally.tiles):
        return "some columns have several tiles"
    return ""


def _why_not_separate_dq(wanted: Pass, facts: Facts, sizes: Sizes) -> str:
    """Return why dq cannot be computed in a separate launch; empty if it can."""
    tally, adders = facts.tally, facts.adders
    if wanted.features & OF_HEADS:
        return "its kernel lacks gradients of slopes and sink logits"
    if few_pairs(sizes):
        return "there are few pairs"
    if tally is None or adders is None:
        return "the number of tiles of a row is unknown"
    others = (tally.tiles - adders.most) / max(1, adders.rows - 1)  # a long one of a few
    even = adders.most * adders.rows <= _UNEVEN * tally.tiles
    if not even or adders.most > _UNEVEN * max(others, _SHORT):
        return "one row is far longer than the others"
    return ""


def _cycles(unit: Source, mode: str, facts: Facts, sharing: float) -> float:
    """Predict the cycles of a program.

    Args:
        unit, mode: the program.
        facts: its tiles.
        sharing: key heads for each query head, in a backward pass: tile columns are theirs.

    Returns:
        0 where the source has no coefficients or nothing is known of the tiles; infinite for a mode
        that has no coefficients.
    """
    tally = facts.tally
    if not unit.costs:
        return 0.0
    costs = {cost.mode: cost for cost in unit.costs}
    factor, more = 1.0, 0.0
    if mode == DETERMINISTIC and mode not in costs:
        mode, factor = DEFAULT, _STEPS if facts.adds_in_steps else _TURNS
    elif mode == EXCLUSIVE_DQ and mode not in costs:
        mode = DEFAULT
    elif mode == INTERLEAVED and mode not in costs:
        mode, more = PERSISTENT, _hidden(unit, PERSISTENT) - _hidden(unit, mode)
    cost = costs.get(mode)
    if cost is None:
        return math.inf
    if tally is None:
        return 0.0
    columns = (1 - sharing) * (cost.row * tally.rows + cost.lone * tally.lone)
    return factor * (cost.cycles(tally) + more * tally.rows - columns)


def _hidden(unit: Source, mode: str) -> float:
    """Return the cycles of a row that persistent blocks hide behind the next row."""
    rows = {cost.mode: cost.row for cost in unit.costs}
    if mode not in (PERSISTENT, INTERLEAVED) or not {DEFAULT, PERSISTENT} <= rows.keys():
        return 0.0
    share = 1 - _EXPOSED if mode == INTERLEAVED else 1.0
    return share * max(0, rows[DEFAULT] - rows[PERSISTENT])


def _overhead(
    unit: Source, name: str, launches: tuple[Launch, ...], facts: Facts, cycles: float
) -> float:
    """Return the cycles of all multiprocessors while launches start, and while the last row runs.

    Of the two launches of SEPARATE_DQ each has about half of a row's cycles.
    """
    if not unit.costs or facts.tally is None or math.isinf(cycles):
        return 0.0
    launch, row = unit.costs[0].launch, cycles / max(1, facts.tally.rows)
    blocks = max((kernel.resident for kernel in launches), default=1)
    alone = launch.alone * blocks * (row / 2 if name == SEPARATE_DQ else row)
    waits = launch.multiprocessors * min(alone, launch.last_row)
    return len(launches) * launch.start + waits


def _waiting_forward(
    unit: Source, name: str, launches: tuple[Launch, ...], facts: Facts, sizes: Sizes,
    cycles: float,
) -> tuple[float, float]:  # fmt: skip
    """Return the cycles of a forward pass while multiprocessors are idle; arguments as of
    `_waiting_backward`.

    All programs have one launch, whose start they need not compare. A persistent block hides a part
    of each row behind the next one, but has no row to hide its last one.
    """
    tally, items, exposed = facts.tally, facts.items, 0.0
    if not unit.costs or tally is None or items is None or not items.tiles or math.isinf(cycles):
        return 0.0, 0.0
    launch = unit.costs[0].launch
    resident = max((kernel.resident for kernel in launches), default=1)
    if hidden := _hidden(unit, name):
        blocks = min(items.count, launch.multiprocessors * resident)
        exposed = hidden * blocks * tally.tiles / items.tiles  # of distinct lists: each counts once
    return items.stretch(launch, resident) * (cycles + exposed) - cycles, 0.0


def _waiting_backward(
    unit: Source, name: str, launches: tuple[Launch, ...], facts: Facts, sizes: Sizes,
    cycles: float,
) -> tuple[float, float]:  # fmt: skip
    """Return the cycles of a backward pass while multiprocessors are idle, and while its launches
    start, both counted like its other cycles.

    Args:
        unit, name: the source and the mode.
        launches: of the mode.
        facts: its tiles.
        sizes: of the call.
        cycles: of the program without either.
    """
    tally, rows = facts.tally, -(-sizes.n_q // unit.tile.q)
    if unit.boxes is not None:
        rows = unit.boxes.counts(sizes.n_q)[0]
    heads = sizes.batch * sizes.heads_q
    if not unit.costs or tally is None or not tally.queries or not heads or math.isinf(cycles):
        return 0.0, 0.0
    lists, launch = tally.queries / rows, unit.costs[0].launch  # distinct ones: each counts once
    of_rows = None
    if facts.items is not None and facts.adders is not None and name == SEPARATE_DQ:
        of_rows = facts.adders.items(facts.items, heads / lists)
    resident = max((kernel.resident for kernel in launches), default=1)
    stretch = stretch_of(launch, resident, facts.items, of_rows)
    starts = len(launches) * launch.step * lists / heads
    return _idle(unit, name, tally, stretch, cycles), starts


def _idle(unit: Source, name: str, tally: Tally, stretch: float, cycles: float) -> float:
    """Return the cycles of a backward pass while multiprocessors are idle.

    Launches before and after that of the tiles, which prepare and finish dq, are short: only
    EXCLUSIVE_DQ stores dq tile by tile, in no more time than others need to add to it.
    """
    costs = {cost.mode: cost for cost in unit.costs}
    usual = costs.get(DEFAULT)
    cost = costs.get(name, usual)
    of_dq = 0 if cost is None else cost.query * tally.queries
    idle = (stretch - 1) * (cycles - of_dq)
    if name != EXCLUSIVE_DQ:
        return idle
    added = math.inf if usual is None else usual.query * tally.queries
    return idle + max(0.0, min(stretch * of_dq, added) - of_dq)


def cheapest(
    units: Sequence[S],
    programs: Callable[[S, Facts], Sequence[Program[S]]],
    facts_of: Callable[[S], Facts],
    n_kv: int,
    parts: Callable[[Program[S]], Program[S]] | None = None,
) -> Program[S]:
    """Return the program that can run and has the fewest predicted cycles; of equal ones the first.

    Tiles are counted only for sources that might beat a program that is known. The count of boxes
    of a grid cannot be bounded by that of other tiles.

    Args:
        units: the sources, the one with the largest tiles first, which are no boxes.
        programs: lists the programs of a source.
        facts_of: counts the tiles of a source.
        n_kv: keys.
        parts: returns the program that runs the mask in parts, given the best one that runs it
            whole; None if the mask has no parts.
    """
    first = facts_of(units[0])
    best = least(programs(units[0], first))
    if first.tally is None:
        return best
    for unit in units[1:]:
        if unit.boxes is None:
            bound = at_least(first.tally, units[0].tile, unit.tile, n_kv)
            if _cycles_at_least(unit, bound) >= best.time:
                continue
        other = least(programs(unit, facts_of(unit)), best)
        if other.time < best.time:
            best = other
    return best if parts is None else least([best, parts(best)])


def _cycles_at_least(unit: Source, bound: Tally) -> float:
    """A lower bound of the cycles of every program of a source with at least these tiles."""
    if not bound.queries:
        return min((cost.cycles(bound) for cost in unit.costs), default=0.0)
    # of a backward pass; columns count less where query heads share them
    cycles = (cost.tile * bound.tiles + cost.query * bound.queries for cost in unit.costs)
    return _STEPS * min(cycles, default=0.0)


def least(programs: Sequence[Program[S]], otherwise: Program[S] | None = None) -> Program[S]:
    """Return the program that can run and has the least predicted time.

    Args:
        programs: of one source.
        otherwise: the result where none can run; None takes the first program.
    """
    able = [program for program in programs if not program.obstacle]
    fallback = programs[0] if otherwise is None else otherwise
    return min(able, key=lambda program: program.time, default=fallback)


class Launched(NamedTuple):
    """A launch of a mask in parts."""

    program: Program[Any]
    classes: int = 1
    """Residue classes that it runs over."""
    share: float = 1.0
    """The share of the call's heads that it runs."""


ANY_HEADS = 32
"""Heads assumed to share a launch if the choice must not depend on the batch."""


def in_parts(
    whole: Program[S], launches: Iterable[Launched], sizes: Sizes, invariant: bool = False,
    stops: bool = False,
) -> Program[S]:  # fmt: skip
    """Return the program of a mask in parts.

    Its cycles include what its launches cost more than that of the whole mask, so both compare.

    Args:
        whole: the best program of the whole mask.
        launches: of all parts.
        sizes: of the call.
        invariant: whether bits may not depend on the number of sequences.
        stops: whether to take no more launches once the parts are slower than the whole mask. Each
            adds to the cycles, so the result is then slower than `whole` too.
    """
    cycles, overhead = 0.0, -whole.overhead
    heads = ANY_HEADS if invariant else max(1, sizes.batch * sizes.heads_q)
    for program, classes, share in launches:
        cycles += share * classes * program.cycles
        overhead += share * program.overhead
        if stops and cycles + overhead / heads > whole.cycles:
            break
    waiting = whole.idle + whole.starts  # of the whole mask: the comparison leaves it out
    return Program(whole.unit, PARTS, cycles + overhead / heads, idle=waiting)


Emitted = Program[SourceUnit]
"""A program of a bundle."""
