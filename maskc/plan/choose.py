"""Chooses how a mask runs: tile and threads from the family's schedule, lists or closed forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from maskc.analysis.facts import MaskFacts, analyse
from maskc.core import expr as E
from maskc.core.abi import MAX_ARRAYS
from maskc.core.boxes import Boxes
from maskc.core.bundle import ONCE, LayoutRecipe
from maskc.core.coefficients import SMALL, TINY
from maskc.core.errors import SelectionNotCompiled, TooManyArrays
from maskc.core.problem import Direction, Problem, TileShape
from maskc.core.selection import Selection
from maskc.core.target import TARGETS, Target
from maskc.ir.lift import Lifted, lift
from maskc.ir.relayout import Extents, parts
from maskc.ir.selecting import place_of
from maskc.ir.types import MaskIR
from maskc.layout.tiles.document_tiles import beside_documents
from maskc.layout.tiles.relative_bits import parts_by_distance
from maskc.plan import cpu, documents, gather, selecting, sm80, sm90a, thresholds, tiny
from maskc.plan.boxes import boxes_for, grid_masks
from maskc.plan.cost import GRID, costs_of
from maskc.plan.gathering import chooses_keys, gathering
from maskc.plan.intervals import chosen_atom, intervals, intervals_beside
from maskc.plan.ranges import row_ranges
from maskc.plan.reasons import why_layout, why_lists, why_no_boxes, why_other, why_partial
from maskc.plan.recipe import difficulty, layout_recipe
from maskc.plan.runs import run_length
from maskc.plan.sm90a_backward import backward_schedule, small_backward_schedule
from maskc.plan.thresholds import CHOOSE
from maskc.plan.types import Heads, Plan, PlannedMask, PlannedPart, Schedule, selections

FEW, MANY = 3, 1 << 16
"""Intervals per row that are cheaper than bits from memory; more than any row has."""

_FORWARD, _BACKWARD = Direction.forward, Direction.backward
_SCHEDULES: dict[tuple[str, Direction, str], Callable[[Problem], Schedule]] = {
    ("cpu", _FORWARD, ""): cpu.schedule,
    ("sm80", _FORWARD, CHOOSE): sm80.choose_schedule,
    ("sm90a", _FORWARD, ""): sm90a.forward_schedule,
    ("sm90a", _FORWARD, SMALL): sm90a.small_schedule,
    ("sm90a", _FORWARD, TINY): tiny.forward_schedule,
    ("sm90a", _FORWARD, CHOOSE): sm90a.choose_schedule,
    ("sm90a", _BACKWARD, ""): backward_schedule,
    ("sm90a", _BACKWARD, SMALL): small_backward_schedule,
    ("sm90a", _BACKWARD, TINY): tiny.backward_schedule,
}
"""By family, pass and form; a family without a backward entry has both passes in one source."""

_ALONG: dict[str, tuple[tuple[str, Direction, str], ...]] = {
    "sm_90a": (
        ("sm_90a", _FORWARD, SMALL),
        ("sm_90a", _FORWARD, TINY),
        ("sm_90a", _BACKWARD, ""),
        ("sm_90a", _BACKWARD, SMALL),
        ("sm_90a", _BACKWARD, TINY),
        ("sm_80", _FORWARD, ""),
    ),
}
"""For a target the sources that go along: its smaller tiles, its other pass, and what runs calls it
cannot."""


_PARTED = ("cpu", "sm80", "sm90a")
"""Families whose kernels join results with those of other keys."""


def plan(heads: Heads, problem: Problem, target: Target, whole: bool = True) -> Plan:
    """The plan for one target, with the plans whose sources go along.

    Args:
        whole: False for a part of a mask, which has no parts of its own and no stand-ins.

    Raises:
        MaskcError: the target has no kernel for this problem.
    """
    one = thresholds.by_threshold(heads, target)
    if one is not None:
        return _by_threshold(heads, one, problem, target)
    if chooses_keys(heads.masks, target):
        return _gathered(heads, problem, target)
    main = _plan(heads, problem, target, _FORWARD, "")
    also = tuple(
        _plan(heads, problem, TARGETS[name], direction, form)
        for name, direction, form in _ALONG.get(target.name, ())
        if (whole or name == target.name) and _has(form, direction, main)
    )
    if selections(main.masks) or _documents(main):
        also = tuple(map(_together_only, also))  # lists may come from the device, by columns alone
    if whole:
        forward, *others = (_in_boxes(each) for each in (main, *also) if not each.form)
        also = tuple(filter(None, (forward, *also, *others)))
        reasons = main.reasons if forward else (*main.reasons, *why_no_boxes(main))
        main = replace(main, parts=_parts(heads, problem, target), reasons=reasons)
        if target.family in documents.FAMILIES and _documents(main):
            main = _listed(main)
            also = tuple(
                _listed(each) if (each.form, each.direction) == (SMALL, _FORWARD) else each
                for each in also
            )
        if target.family in selecting.SHARED and selections(main.masks):
            why = selecting.why_host(main.masks)
            reasons = (*main.reasons, selecting.reason(main.masks))
            main = replace(main, selecting=not why, reasons=reasons)
    return _with_choice(main, also)


def _has(form: str, direction: Direction, main: Plan) -> bool:
    """Whether a plan has such tiles beside its own."""
    if form == TINY:
        return tiny.suits(main.problem, tuple(mask.ir for mask in main.masks), direction)
    return form != SMALL or main.problem.head_dim in sm90a.SMALL_HEAD_DIMS


def _together_only(plan: Plan) -> Plan:
    """The plan of a pass without the mode that makes dq in a launch of its own."""
    if (plan.form, plan.direction) != (SMALL, _BACKWARD):
        return plan
    return replace(plan, schedule=small_backward_schedule(plan.problem, apart=False))


def _by_threshold(heads: Heads, one: Selection, problem: Problem, target: Target) -> Plan:
    """The plan of a mask with keys that are chosen one by one: whole, in one size of tiles."""
    hulls = thresholds.hulls(heads, one)
    pairs = [thresholds.lifted_pair(ir.keep, one) for ir in heads.masks]
    forward, *backward = (
        _with_thresholds(_plan(hulls, problem, target, direction, ""), pairs)
        for direction in target.directions
    )
    found = thresholds.candidates(heads, one)
    chooser = _plan(found, problem, target, _FORWARD, CHOOSE)
    count = max(len(mask.lifted.args) for mask in chooser.masks)
    masks = tuple(
        replace(mask, lifted=_padded(mask.lifted, count, one.k)) for mask in chooser.masks
    )
    chooser = replace(chooser, masks=masks, chosen=count)
    reasons = (*forward.reasons, thresholds.REASON, f"those: {chooser.schedule.reason}")
    return replace(forward, reasons=reasons, chooser=chooser, also=tuple(backward))


def _padded(lifted: Lifted, count: int, k: int) -> Lifted:
    more = count - len(lifted.args)
    args = (*lifted.args, *(E.ZERO for _ in range(more)), E.const(k))
    return replace(lifted, args=args, rests=(*lifted.rests, *(None,) * (more + 1)))


def _with_thresholds(plan: Plan, pairs: list[tuple[Lifted, E.Expr]]) -> Plan:
    """The plan of the hulls with what they keep anyway; intervals serve both or neither."""
    masks = []
    for mask, (lifted, spared) in zip(plan.masks, pairs, strict=True):
        own = () if spared == E.NEVER else intervals(spared)
        ranges = row_ranges(lifted.shape, plan.tile) if mask.ranges else None
        beside = None if own is None or plan.distances else intervals(lifted.shape)
        masks.append(replace(mask, lifted=lifted, ranges=ranges, intervals=beside, spared=spared,
                             spared_intervals=own if beside is not None else None))  # fmt: skip
    if any(mask.intervals is None for mask in masks):
        masks = [replace(mask, intervals=None, spared_intervals=None) for mask in masks]
    use_ranges, schedule = all(mask.ranges for mask in masks), plan.schedule
    if plan.direction is _BACKWARD:
        schedule = backward_schedule(plan.problem, thresholds=True)
    elif plan.target.family == "sm90a":  # comparing takes the registers that a stream needs
        modes = tuple((name, mode) for name, mode in schedule.modes if name == "usual")
        schedule = replace(schedule, modes=modes)
    return replace(plan, masks=tuple(masks), distances=False, thresholds=True,
                   use_ranges=use_ranges, schedule=schedule)  # fmt: skip


def _with_choice(main: Plan, also: tuple[Plan, ...]) -> Plan:
    """The plan and those that go along, with costs where a call chooses between two of a pass."""
    chosen = {each.direction for each in also if each.form}
    also = tuple(
        replace(each, costs=costs_of(each))
        if each.target == main.target and each.direction in chosen else each
        for each in also
    )  # fmt: skip
    reasons = (*main.reasons, *(why_other(each) for each in also if each.form))
    costs = costs_of(main) if main.direction in chosen else ()
    return replace(main, also=also, costs=costs, reasons=reasons)


def _plan(
    heads: Heads, problem: Problem, target: Target, direction: Direction, form: str
) -> Plan:  # fmt: skip
    """One of the plans, alone.

    Raises:
        MaskcError: see `plan`.
    """
    target.check(problem)
    _check_selections(heads, target)
    reads = {name for ir in heads.masks for name in E.arrays(ir.keep)}
    if len(reads) > MAX_ARRAYS:
        raise TooManyArrays(len(reads), MAX_ARRAYS)
    schedule = _schedule(heads, problem, target, direction, form)
    masks = _planned_all(heads, schedule.tile)
    if len({mask.lifted.shape for mask in masks}) > 1:
        masks = tuple(map(_untold, masks))
    use_ranges = all(mask.ranges for mask in masks)
    runs = tuple(min(run_length(mask.ir.keep, x) for mask in masks) for x in (E.K, E.Q))
    by_distance = None
    if target.family == "sm90a" and form != TINY:  # whose partial tiles test pairs
        by_distance = _with_distances(masks)
    masks, distances = by_distance or masks, by_distance is not None
    return Plan(
        problem, target, schedule, schedule.tile, use_ranges, masks, heads.facts, heads.of_head,
        (
            schedule.reason, why_lists(masks, use_ranges), *map(why_layout, masks),
            *([why_partial(masks, distances, runs)] if target.family == "sm90a" else []),
        ), distances, runs, direction, form,
    )  # fmt: skip


def _in_boxes(plan: Plan) -> Plan | None:
    """The same in boxes of a grid; None where the masks are no products over one, or tiles of
    consecutive tokens are as good."""
    if plan.target.family != "sm90a":
        return None
    tile, schedule = plan.tile, plan.schedule
    found = grid_masks(tuple(mask.ir for mask in plan.masks))
    if not found or not (plan.runs[0] % tile.k or plan.runs[1] % tile.q):
        return None
    backward = plan.direction is _BACKWARD
    schedules = (schedule,) if backward else sm90a.grid_schedules(plan.problem)
    by_tile = {each.tile: each for each in schedules}
    chosen = boxes_for(found, tuple(by_tile), plan.direction)
    if chosen is None:
        return None
    tile, *sides = chosen
    schedule = by_tile[tile]
    boxes = Boxes(found[0].extents, *sides, schedule.score_queries if backward else tile.k)
    masks = tuple(replace(mask, axes=own.axes) for mask, own in zip(plan.masks, found, strict=True))
    # Finding a token of a box while dq is at hand takes more registers than there are.
    modes = tuple((name, mode) for name, mode in schedule.modes if name != ONCE)
    return replace(plan, form=GRID, masks=masks, boxes=boxes, distances=False, use_ranges=False,
                   tile=tile, schedule=replace(schedule, modes=modes))  # fmt: skip


def _check_selections(heads: Heads, target: Target) -> None:
    """Refuse what a target has no kernels for.

    Raises:
        SelectionNotCompiled: blocks that are too small.
    """
    for ir in heads.masks:
        for each in ir.selections:
            if each.block < target.least_block:
                found = "single keys" if each.block == 1 else f"blocks of {each.block} keys"
                at = place_of(ir, each)
                raise SelectionNotCompiled(target.name, found, target.least_block, at=at)


def _gathered(heads: Heads, problem: Problem, target: Target) -> Plan:
    """The plan of a mask that chooses single keys, for heads together.

    Raises:
        SelectionNotCompiled: there are no kernels for such a choice; and see `plan`.
    """
    target.check(problem)
    made = gathering(heads.masks)
    if isinstance(made, str):
        at = place_of(heads.masks[0], heads.masks[0].selections[0])
        raise SelectionNotCompiled(target.name, made, target.least_block, at=at)
    (ir,), (facts,) = heads.masks, heads.facts
    plans = []
    for form, direction, schedule in gather.schedules(problem, target):
        mask = _planned(ir, facts, schedule.tile)
        plans.append(Plan(
            problem, target, schedule, schedule.tile, False, (mask,), heads.facts, heads.of_head,
            (), direction=direction, form=form,
        ))  # fmt: skip
    of_tiles: dict[Direction, list[str]] = {}
    for each in plans:
        of_tiles.setdefault(each.direction, []).append(each.schedule.reason)
    reasons = *map("; or ".join, of_tiles.values()), *gather.reasons(made, target)
    main, *also = plans
    return replace(main, gathering=made, also=tuple(also), reasons=reasons)


def _documents(plan: Plan) -> bool:
    """Whether all heads have one mask, of documents and something that reads no data, which runs
    whole and tests pairs one by one."""
    mask, *others = plan.masks
    alone = beside_documents(mask.ir.keep, tuple(mask.ir.data)) is not None
    return alone and not (others or plan.parts or plan.distances or mask.intervals is not None)


def _listed(plan: Plan) -> Plan:
    """A forward plan whose tile lists may be made on the device.

    Rows are then never cut, wherever lists come from, as the host cannot know in time how much
    memory the parts would take.
    """
    schedule = replace(plan.schedule, work=replace(plan.schedule.work, uneven_tiles=0))
    (mask,) = plan.masks
    beside = beside_documents(mask.lifted.shape, tuple(mask.ir.data))
    found = None if beside is None else intervals(beside)
    *reasons, partial = plan.reasons
    if found is not None:
        several = f"{len(found)} interval{'s' * (len(found) != 1)}"
        partial = (
            f"partial tiles of one document: bits of {several} per row; of others pairs are tested"
        )
    return replace(
        plan, schedule=schedule, masks=(replace(mask, intervals=found),), documents=True,
        reasons=(*reasons, partial, documents.REASON),
    )  # fmt: skip


_PASS = 4
"""Tiles of 128 keys per row that take as long as one more pass over the rows does beside its own:
q, k, v and out are read or written again, and out and lse joined."""


def _together(extents: Extents) -> Mapping[int, int]:
    """Strides that run with a lesser one, where the tiles that lie between their keys take less
    time than a pass of their own."""
    chosen: dict[int, int] = {}
    base = 1
    for stride, extent in extents.items():
        more = None if extent is None else extent * (stride / base - 1) / 128
        if base not in chosen or stride % base or more is None or more >= _PASS:
            base = stride
        chosen[stride] = base
    return chosen


def _parts(heads: Heads, problem: Problem, target: Target) -> tuple[PlannedPart, ...]:
    """The parts of the one mask that all heads share, if some run over residue classes."""
    if target.family not in _PARTED or len(heads.masks) > 1 or heads.masks[0].selections:
        return ()
    found = parts(heads.masks[0], _together)
    if all(part.stride == 1 for part in found):
        return ()
    return tuple(
        PlannedPart(
            part.stride,
            plan(Heads((part.ir,), (analyse(part.ir),), ()), problem, target, whole=False),
            part.aligned,
            part.keys,
        )
        for part in found
    )


def _schedule(
    heads: Heads, problem: Problem, target: Target, direction: Direction, form: str
) -> Schedule:
    """The family's schedule; sm_80 alone asks the masks how high its tiles should be."""
    if target.family == "sm80" and not form:
        return sm80.for_masks(problem, heads.masks)
    return _SCHEDULES[target.family, direction, form](problem)


def _planned_all(heads: Heads, tile: TileShape) -> tuple[PlannedMask, ...]:
    """The masks of all heads. Closed forms of lists are sought in vain for one head only of those
    that are alike."""
    found: list[PlannedMask] = []
    hopeless: set[tuple[str, ...]] = set()
    for ir, facts in zip(heads.masks, heads.facts, strict=True):
        kind = difficulty(ir.keep)
        found.append(_planned(ir, facts, tile, kind not in hopeless))
        if found[-1].recipe.loops is None:
            hopeless.add(kind)
    return tuple(found)


def _planned(ir: MaskIR, facts: MaskFacts, tile: TileShape, closed: bool = True) -> PlannedMask:
    """Closed-form ranges are sought only where a query's keys are proved to be consecutive.

    Args:
        closed: whether closed forms of lists are sought.
    """
    lifted = lift(ir.keep)
    ranges = row_ranges(lifted.shape, tile) if facts.contiguous_rows.holds else None
    recipe = layout_recipe(ir.keep, tile) if closed else LayoutRecipe(tile, ir.keep, None)
    return PlannedMask(ir, lifted, recipe, ranges, intervals(lifted.shape, chosen_atom(ir, lifted)))


def _untold(mask: PlannedMask) -> PlannedMask:
    """The mask without intervals of what was chosen: kernels tell those of one formula alone."""
    told = any(each.chosen is not None for each in mask.intervals or ())
    return replace(mask, intervals=None) if told else mask


def _with_distances(masks: tuple[PlannedMask, ...]) -> tuple[PlannedMask, ...] | None:
    """The masks with the intervals that bits over k - q leave; None where a few intervals are
    cheaper, or where some mask is more than such bits and a few intervals."""
    if max(MANY if m.intervals is None else len(m.intervals) for m in masks) <= FEW:
        return None
    beside = [intervals_beside(mask.ir.keep, mask.lifted) for mask in masks]
    if None in beside or not any(parts_by_distance(mask.ir.keep)[0] for mask in masks):
        return None
    return tuple(replace(mask, intervals=found) for mask, found in zip(masks, beside, strict=True))
