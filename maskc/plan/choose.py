"""Choose the forms of kernels and the schedules for a mask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from maskc.analysis.head_groups import HeadGroups
from maskc.core.dtypes import DType
from maskc.core.errors import TargetNotBuilt
from maskc.core.forms import MEDIUM, SMALL, TINY, TOGETHER
from maskc.core.problem import Direction, Problem
from maskc.core.target import SPARE, TARGETS, Target
from maskc.ir.selecting import place_of
from maskc.ir.types import MaskPart
from maskc.plan.cost import costs_of, when
from maskc.plan.families.family import Along
from maskc.plan.families.score_tables import reads_tables
from maskc.plan.families.table import family_of
from maskc.plan.forms import device_data, device_documents, device_topk, grid_boxes, mma16
from maskc.plan.forms.gathered_keys import chooses_keys, plan_gathered
from maskc.plan.forms.thresholds import by_threshold, plan_by_threshold
from maskc.plan.forms.tiles import check_rows, plan_tiles, selects_in_own_tiles
from maskc.plan.types import KernelPlan, selections


def plan(heads: HeadGroups, problem: Problem, target: Target) -> KernelPlan:
    """Plan a mask for one target; `alternatives` of the plan are further sources.

    Raises:
        MaskcError: the target has no kernel for this problem.
    """
    target.check(problem)
    check_rows(heads, problem, target)
    if problem.placed is not None:
        return _placed(heads, problem, target)
    if problem.dtype is DType.float8_e4m3fn:
        return _in_fp8(heads, problem, target)
    if problem.names_tile and any(ir.selections for ir in heads.masks):
        raise selects_in_own_tiles(heads, problem, target)
    drops = problem.dropout  # whose counters are of squares of consecutive tokens
    one = None if drops else by_threshold(heads, target)
    if one is not None:
        return plan_by_threshold(heads, one, problem, target)
    if chooses_keys(heads.masks, target) and not drops:
        return plan_gathered(heads, problem, target)
    family = family_of(target)
    main, *alternatives = _sources(heads, problem, target, family.along)
    forward, *others = (
        None if drops or _in_named_tile(candidate) else grid_boxes.in_boxes(candidate)
        for candidate in (main, *alternatives) if not candidate.form
    )  # fmt: skip
    alternatives = list(filter(None, (forward, *alternatives, *others)))
    planned = forward is None and not problem.names_tile
    reasons = (*main.reasons, *grid_boxes.why_no_boxes(main)) if planned else main.reasons
    if problem.score is not None and target.name == SPARE and selections(main.masks):
        why = "with a score formula, simt alone chooses single keys by q . k"
        reasons = (*reasons, why)
    parts = _parts(heads, problem, target)
    main = replace(main, parts=parts, reasons=reasons)
    if family.device_documents and device_documents.matches(main) and not drops:
        main = device_documents.listed(main)
        alternatives = list(map(device_documents.listed_alternative, alternatives))
    elif family.device_data and device_data.matches(main):
        main = device_data.listed(main)
    if family.topk_shared_bytes and selections(main.masks):
        main = device_topk.listed(main)
    return _with_choice(main, alternatives, bool(main.parts))


def _in_fp8(heads: HeadGroups, problem: Problem, target: Target) -> KernelPlan:
    """Plan a mask in E4M3: one source, in tiles of consecutive tokens.

    Raises:
        TargetNotBuilt: keys are chosen at run time.
    """
    for ir in heads.masks:
        if ir.selections:
            why = "what ranks keys reads q and k in half precision"
            hint = "convert q, k and v first: q.to(torch.bfloat16) * q_descale"
            at = place_of(ir, ir.selections[0])
            raise TargetNotBuilt(target.name, f"{problem.dtype.value} topk", why, hint, at=at)
    main = plan_tiles(heads, problem, target, Direction.forward, "")
    why = "E4M3: v is turned around before the pass, weights are rounded to E4M3, out is bfloat16"
    reasons = main.reasons[0], why, *main.reasons[1:]
    return replace(main, costs=costs_of(main), reasons=reasons)


def _placed(heads: HeadGroups, problem: Problem, target: Target) -> KernelPlan:
    """Plan a mask over sequences with their own lengths, and perhaps pages: a forward pass in tiles
    of consecutive keys, because other forms address keys by strides."""
    family = family_of(target)
    main = plan_tiles(heads, problem, target, Direction.forward, "")
    small = Along(target.name, Direction.forward, SMALL)
    alternatives = []
    if small in family.along and _goes_along(small, main):
        alternatives.append(plan_tiles(heads, problem.planned, target, small.direction, small.form))
    if family.device_data and device_data.matches(main):
        main = device_data.listed(main)
    return _with_choice(main, alternatives)


def _parts(heads: HeadGroups, problem: Problem, target: Target) -> tuple[MaskPart[KernelPlan], ...]:
    """The parts of the one mask that all heads share, if some run over residue classes of the
    tokens, or over listed tokens.

    Dropout and score formulas depend on the original q and k, which kernels for residue classes do
    not have.
    """
    regrouped = any(part.stride > 1 and part.keys is None for part in heads.parts)
    if problem.dropout or (problem.score is not None and regrouped):
        return ()
    return tuple(part.over(_part(part.inner, problem, target)) for part in heads.parts)


def _part(heads: HeadGroups, problem: Problem, target: Target) -> KernelPlan:
    """Plan a part of a mask. Parts have no replacement on other targets."""
    along = tuple(along for along in family_of(target).along if along.target == target.name)
    main, *alternatives = _sources(heads, problem, target, along)
    return _with_choice(main, alternatives, True)


def _sources(
    heads: HeadGroups, problem: Problem, target: Target, along: tuple[Along, ...]
) -> list[KernelPlan]:
    """Return the plan in tiles of consecutive tokens, and the plans of further sources."""
    main = plan_tiles(heads, problem, target, Direction.forward, "")
    alternatives = [
        plan_tiles(heads, problem.planned, TARGETS[source.target], source.direction, source.form)
        for source in along
        if _goes_along(source, main)
    ]
    if selections(main.masks) or device_documents.matches(main) or problem.dropout:
        alternatives = list(map(_together_only, alternatives))  # the device may list columns alone
    return [main, *alternatives]


def _in_named_tile(plan: KernelPlan) -> bool:
    """Whether the user names the tile of a plan, or its stages."""
    return plan.problem.names_tile and plan.direction is Direction.forward


_MEDIUM_Q = 128
"""The queries of medium tiles. If the first source has as few, its tiles are the same. Packed
documents take 1 to 18 % more time in them than in the better one of the other tiles, with one mask
1.3 % less (benchmarks/results/short-rows-trial-h200.json)."""


def _goes_along(source: Along, main: KernelPlan) -> bool:
    """Whether a plan has a further source with these tiles. If the user names a forward tile, there
    is no other."""
    if _in_named_tile(main) and source[:2] == (main.target.name, main.direction):
        return False
    padded = TARGETS[source.target].padded(main.problem, source.direction, source.form)
    if not family_of(main.target).has(source.form, padded):
        return False
    if source.form == MEDIUM and (main.tile.q <= _MEDIUM_Q or device_documents.matches(main)):
        return False
    if source.form == TINY and padded != main.problem:
        return False
    if source.direction not in TARGETS[source.target].passes(main.problem):
        return False
    if main.problem.dropout and source.form == TINY:
        return False
    if (source.form, source.direction) == (TINY, Direction.backward) and reads_tables(main.problem):
        return False  # whose launches have no room for what tables get
    return source.form != TINY or mma16.matches(
        tuple(mask.ir for mask in main.masks), source.direction
    )


def _together_only(plan: KernelPlan) -> KernelPlan:
    """Return the plan without the mode that computes dq in a separate launch."""
    if (plan.form, plan.direction) != (SMALL, Direction.backward):
        return plan
    family = family_of(plan.target)
    return replace(plan, schedule=family.schedule(plan.padded, (), plan.direction, TOGETHER))


def _with_choice(
    main: KernelPlan, others: Sequence[KernelPlan], of_parts: bool = False
) -> KernelPlan:
    """Return the plan and its alternatives with the costs of their modes; see `costs_of`."""
    alternatives = tuple(
        replace(other, costs=costs_of(other, of_parts)) if other.target == main.target else other
        for other in others
    )
    reasons = (*main.reasons, *(_why_other(other) for other in alternatives if other.form))
    return replace(main, alternatives=alternatives, costs=costs_of(main, of_parts), reasons=reasons)


def _why_other(plan: KernelPlan) -> str:
    """Describe a source that a call may take instead of the first of its pass."""
    how = plan.schedule.reason
    if plan.boxes:
        how = f"boxes of a grid, {grid_boxes.box_note(plan.boxes)}"
    which = "backward: " if plan.direction is Direction.backward else ""
    return f"{which}or {how}: {device_documents.WHEN if plan.documents else when(plan)}"
