"""Predict costs of plans with the cost model, and choose the program of a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from maskc.core import coefficients
from maskc.core.boxes import Boxes, axis_relations
from maskc.core.bundle import EXCLUSIVE_DQ, N_KV_OF_ALL, LayoutRecipe, Mode
from maskc.core.coefficients import source_name, step_size
from maskc.core.cost import Cost, Items
from maskc.core.forms import SMALL
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction, TileShape
from maskc.core.sizes import Sizes
from maskc.core.tensors import HOST
from maskc.dispatch.call import Pass
from maskc.dispatch.listed_split import (
    ListedLines,
    listed_in_turn,
    of_all,
    tokens_of,
    whole_facts,
)
from maskc.dispatch.programs import (
    PARTS,
    Facts,
    Launched,
    Program,
    in_parts,
    least,
    programs_of,
)
from maskc.dispatch.residue_split import in_turn, obstacle
from maskc.dispatch.stand_ins import LONGEST, SAMPLE, of_documents
from maskc.layout import load_of, views
from maskc.layout.inputs.max_seqlen import promises
from maskc.layout.tiles.document_tiles import without_documents
from maskc.layout.work.tile_counts import adders_of, tally_of
from maskc.plan.families.table import family_of
from maskc.plan.types import KernelPlan, PlannedMask

USUAL_HEADS = 16
"""Heads assumed for predicted times if a mask is not compiled for a number of heads."""
Tiles = Callable[[KernelPlan, PlannedMask, int, int], BlockLayout]
"""(plan, one of its masks, n_q, n_kv) -> its live tiles."""


def when(plan: KernelPlan) -> str:
    """Say when a call takes this plan instead of the first of its pass."""
    reads = any(mask.ir.data or mask.ir.selections for mask in plan.masks)
    by = "at a call's lengths, with typical data" if reads else "at a call's lengths"
    return f"used if predicted to be faster {by}"


def launch_share(plan: KernelPlan) -> float:
    """Return the launch overhead of a plan's source, relative to that of most sources."""
    forms = coefficients.measured(plan.target.name)
    launch_us = forms.get(source_name(plan.direction, plan.form), {}).get("launch_us")
    return 1.0 if launch_us is None else launch_us / forms["card"]["launch_us"]


def costs_of(plan: KernelPlan, of_parts: bool = False) -> tuple[Cost, ...]:
    """Return the costs of a plan's modes; empty if unknown.

    Args:
        of_parts: whether the plan belongs to a mask in parts, or to a part: such plans always have
            costs.
    """
    size = 1.0
    other = plan.boxes is not None or plan.problem.names_tile
    if other and plan.direction is Direction.forward:
        default_schedule = family_of(plan.target).schedule(
            plan.padded.planned, (), plan.direction, ""
        )
        size = step_size(plan.tile.k, default_schedule.tile.k)
    modes = dict(plan.schedule.modes)
    tables = coefficients.measured(plan.target.name)
    rest = (plan.padded.head_dim, modes, size, plan.tests, plan.padded.head_dim_v)
    costs = coefficients.costs(tables, plan.direction, plan.form, *rest)
    if costs or not of_parts:
        return costs
    return coefficients.assumed(plan.target.name, plan.direction, plan.tile)


def layout_at(
    plan: KernelPlan, mask: PlannedMask, n_q: int, n_kv: int, params: Mapping[str, int] = {},
    arrays: Mapping[str, np.ndarray] = {},
) -> BlockLayout:  # fmt: skip
    """Return the tiles of one mask of a plan, which must read no other data; parameters default to
    their defaults."""
    from maskc.layout import build
    from maskc.layout.tiles.grid_tiles import box_layout

    if plan.boxes is None:
        return build(mask.recipe, n_q, n_kv, params, arrays)
    return box_layout(plan.boxes, axis_relations(mask.axes, plan.boxes.grid(n_q), {}))


def title(plan: KernelPlan) -> str:
    """The tiles of a plan in a few words."""
    size = f"{plan.tile.q} x {plan.tile.k}"
    return f"{'boxes' if plan.boxes else 'tiles'} of {size}"


def smaller(plan: KernelPlan) -> Iterator[KernelPlan]:
    """The plans of the same pass in smaller tiles."""
    return (e for e in plan.alternatives if e.form == SMALL and e.direction is plan.direction)


@dataclass(frozen=True)
class Candidate:
    """A plan in the form of a source, from which programs are made."""

    plan: KernelPlan

    @property
    def tile(self) -> TileShape:
        return self.plan.tile

    @property
    def modes(self) -> tuple[tuple[str, Mode], ...]:
        return self.plan.schedule.modes

    @property
    def costs(self) -> tuple[Cost, ...]:
        return self.plan.costs or costs_of(self.plan)

    @property
    def boxes(self) -> Boxes | None:
        return self.plan.boxes

    @property
    def only_once(self) -> bool:
        return [name for name, _ in self.modes] == [EXCLUSIVE_DQ]


def candidates(
    plan: KernelPlan, direction: Direction, n_q: int, n_kv: int
) -> tuple[Candidate, ...]:
    """The sources that may run a pass at these lengths, the one with the largest tiles first."""
    one_source = family_of(plan.target).one_source
    plans = [
        candidate for candidate in (plan, *plan.alternatives)
        if candidate.target == plan.target and (candidate.direction is direction or one_source)
    ]  # fmt: skip
    others = (
        candidate for candidate in plans[1:]
        if candidate.form and (candidate.boxes is None or candidate.boxes.hold(n_q, n_kv))
    )  # fmt: skip
    return tuple(map(Candidate, (*plans[:1], *others)))


Counted = Callable[[Candidate, int, int, Direction], Facts]
"""(source, n_q, n_kv, direction) -> its tiles."""


def programs_at(
    candidate: Candidate, facts: Facts, n_q: int, n_kv: int, direction: Direction | None = None,
    accumulates: bool = False, heads: int | None = None,
) -> list[Program[Candidate]]:  # fmt: skip
    """The programs of a planned source for one head with these tiles.

    Args:
        direction: the pass; that of the plan when None.
        accumulates: whether results are added to those of another launch.
        heads: of all sequences; None: so many that they keep a card busy.
    """
    wanted = Pass(direction or candidate.plan.direction, frozenset(), False, HOST)
    sizes = Sizes(heads or _MANY, 1, 1, n_q, n_kv)
    return list(programs_of(candidate, wanted, facts, sizes, accumulates))


_MANY = 1 << 20
"""Sequences of a call that keeps a card busy."""


def most_in_small_tiles(plan: KernelPlan) -> int | None:
    """Return the largest `max_seqlen` for which documents run in the smaller tiles, with parameters
    at their defaults; 0 if they never do, None if there is no such choice."""
    small = tuple(smaller(plan))
    ir = plan.masks[0].ir
    alongside = without_documents(ir.keep, tuple(ir.data)) if plan.documents and small else None
    if alongside is None:
        return None

    def cycles(candidate: Candidate, longest: int) -> float:
        tally = of_documents(candidate.tile, alongside, ir.params, longest, plan.direction)
        return least(programs_at(candidate, Facts(tally), SAMPLE, SAMPLE)).cycles

    large, others = Candidate(plan), tuple(map(Candidate, small))
    fitting = (
        promise for promise in reversed(promises(LONGEST))
        if min(cycles(other, promise) for other in others) < cycles(large, promise)
    )  # fmt: skip
    return next(fitting, 0)


def choice(
    plan: KernelPlan, n_q: int, n_kv: int, direction: Direction | None = None,
    heads: int | None = None,
) -> tuple[Program[Candidate], list[Program[Candidate]]] | None:  # fmt: skip
    """(the program that a call takes, all programs with predicted cycles); None if there is no
    choice, or it depends on data.

    Cycles count every distinct mask once.

    Args:
        plan: of the forward pass, or of the pass itself.
        n_q, n_kv: lengths.
        direction: the pass; that of the plan when None.
        heads: heads of all sequences, which share launches; None: those of one sequence, or
            USUAL_HEADS if the mask is not compiled for a number of heads.
    """
    direction = direction or plan.direction
    sources = candidates(plan, direction, n_q, n_kv)
    few = len(sources) < 2 and not (sources and plan.parts)
    if few or any(mask.ir.data for mask in plan.masks):
        return None
    lengths = n_q, n_kv, direction
    lines = _listed_lines(plan, n_q, n_kv)
    heads = heads or plan.problem.n_heads or USUAL_HEADS
    counted = partial(_of_listed, plan, lines) if lines else partial(_counted, heads=heads)
    programs = _programs(plan, *lengths, counted, heads=heads)
    best = least(programs)
    if plan.parts and n_q and n_kv:
        programs.append(_in_parts(plan, n_q, n_kv, direction, best, heads))
        best = least([best, programs[-1]])
    return best, programs


def runs_in_parts(
    plan: KernelPlan, n_q: int, n_kv: int, direction: Direction, heads: int | None = None
) -> bool:
    """Whether a call runs in parts; arguments as of `choice`."""
    chosen = choice(plan, n_q, n_kv, direction, heads) if plan.parts else None
    return chosen is not None and chosen[0].runs_in_parts


def _programs(
    plan: KernelPlan, n_q: int, n_kv: int, direction: Direction, counted: Counted,
    accumulates: bool = False, heads: int | None = None,
) -> list[Program[Candidate]]:  # fmt: skip
    """The programs of all sources of a plan that runs whole."""
    programs = []
    for source in candidates(plan, direction, n_q, n_kv):
        facts = counted(source, n_q, n_kv, direction)
        programs += programs_at(source, facts, n_q, n_kv, direction, accumulates, heads)
    return programs


def _counted(
    source: Candidate, n_q: int, n_kv: int, direction: Direction, tiles: Tiles = layout_at,
    heads: int = 0,
) -> Facts:  # fmt: skip
    """Return the tiles of a source, counted one by one.

    Args:
        heads: of all sequences, whose work items are counted; 0 leaves these out.
    """
    layouts = [tiles(source.plan, mask, n_q, n_kv) for mask in source.plan.masks]
    items = items_of(source.plan, layouts, n_q, n_kv, heads)
    return Facts(tally_of(layouts, direction), adders_of(layouts), items=items)


def items_of(
    plan: KernelPlan, layouts: Sequence[BlockLayout], n_q: int, n_kv: int, heads: int
) -> Items | None:
    """Return the work items of so many heads; None where there are none."""
    rule = plan.schedule.work
    if not heads or rule is None:
        return None
    return load_of(layouts, plan.direction, rule, heads, n_q, n_kv)


def _listed_lines(plan: KernelPlan, n_q: int, n_kv: int) -> list[ListedLines]:
    """The lists of a mask in parts over listed tokens; masks in parts read no data here."""
    lists = ((part.listed, part.inner) for part in plan.parts if part.listed is not None)
    return [
        ListedLines(listed, part.masks[0].recipe.keep, tokens_of(listed, n_q, n_kv, {}, {})[0])
        for listed, part in (lists if n_q and n_kv else ())
    ]


def _of_listed(
    plan: KernelPlan, lines: list[ListedLines], source: Candidate, n_q: int, n_kv: int,
    direction: Direction,
) -> Facts:  # fmt: skip
    """The tiles of a source of a mask in parts over listed tokens, as calls count them."""
    base = plan.parts[0].inner
    plans = (base, *base.alternatives)
    recipes = (other.masks[0].recipe for other in plans if other.tile == source.tile)
    recipe = next(recipes, LayoutRecipe(source.tile, base.masks[0].recipe.keep, None))
    return whole_facts(recipe, lines, {}, n_q, n_kv, direction)


def _in_parts(
    plan: KernelPlan, n_q: int, n_kv: int, direction: Direction, whole: Program[Candidate],
    heads: int,
) -> Program[Candidate]:  # fmt: skip
    """The program that runs a mask in parts."""
    why = obstacle(plan.parts, n_q, n_kv)
    if why:
        return Program(whole.unit, PARTS, obstacle=why)
    listed = any(part.listed for part in plan.parts)
    launches = (_over_listed if listed else _over_classes)(plan, n_q, n_kv, direction, heads)
    return in_parts(whole, launches, Sizes(1, heads, heads, n_q, n_kv))


def _over_classes(
    plan: KernelPlan, n_q: int, n_kv: int, direction: Direction, heads: int
) -> Iterator[Launched]:
    """Yield the launches of parts over residue classes."""
    tiles = partial(layout_at, params={N_KV_OF_ALL: n_kv})
    for turn, number in enumerate(in_turn(plan.parts, direction)):
        part = plan.parts[number]
        for view in views(part.stride, part.keys, n_q, n_kv):
            if view.n_q and (view.n_kv or not (turn or direction is Direction.backward)):
                launched = heads * view.count
                counted = partial(_counted, tiles=tiles, heads=launched)
                of_view = (view.n_q, view.n_kv, direction, counted, turn > 0, launched)
                yield Launched(least(_programs(part.inner, *of_view)), view.count)


def _over_listed(
    plan: KernelPlan, n_q: int, n_kv: int, direction: Direction, heads: int
) -> Iterator[Launched]:
    """Yield the launches of parts over listed tokens."""
    lines = {line.listed.side: line for line in _listed_lines(plan, n_q, n_kv)}
    parts = {"" if part.listed is None else part.listed.side: part for part in plan.parts}
    for side, accumulates in listed_in_turn(direction):
        lengths, arrays = (n_q, n_kv), {}
        if side in lines:
            listed, _, tokens = lines[side]
            lengths = (tokens.size, n_kv) if side == "q" else (n_q, tokens.size)
            arrays = {listed.array: tokens}
        if side in parts and all(lengths):
            tiles = partial(layout_at, params=of_all(n_q, n_kv), arrays=arrays)
            counted = partial(_counted, tiles=tiles, heads=heads)
            of_part = (*lengths, direction, counted, accumulates, heads)
            programs = _programs(parts[side].inner, *of_part)
            yield Launched(least(programs))
