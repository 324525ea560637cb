"""Masks of single keys that heads choose together. Kernels need three formulas: the candidates, the
chosen pairs that the mask keeps, and the other pairs that it keeps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from maskc.analysis.head_groups import HeadGroups
from maskc.core import abi
from maskc.core import expr as E
from maskc.core.errors import SelectionNotCompiled
from maskc.core.expr import Expr
from maskc.core.forms import WIDE
from maskc.core.problem import Direction, Problem
from maskc.core.selection import Score, Selection, Share
from maskc.core.target import Target
from maskc.ir.lift import Lifted, lift
from maskc.ir.selecting import place_of
from maskc.ir.simplify import simplify
from maskc.ir.types import MaskIR
from maskc.layout.topk import indexer as G
from maskc.plan.families.table import family_of
from maskc.plan.intervals import Interval, intervals
from maskc.plan.masks import mask_for
from maskc.plan.types import Formula, Gathering, KernelPlan


def chooses_keys(masks: tuple[MaskIR, ...], target: Target) -> bool:
    """Whether some selection chooses single keys, on a target that may gather them."""
    return bool(family_of(target).gathered) and any(
        selection.block == 1 for ir in masks for selection in ir.selections
    )


def gathering(masks: tuple[MaskIR, ...]) -> Gathering | str:
    """Return how the lists of a mask are built, or why they cannot be."""
    ir, *others = masks
    if others or len(ir.selections) > 1:
        return "single keys, by several selections or in masks that differ by head"
    (one,) = ir.selections
    obstacle = _obstacle(ir, one)
    if obstacle:
        return f"single keys {obstacle}"
    parts = (("allowed", one.allowed[0]), ("chosen", _with(ir.keep, one.name, 1)),
             ("beside", _with(ir.keep, one.name, 0)))  # fmt: skip
    made, count = [], 0
    for name, formula in parts:
        made.append(_formula(name, formula, count))
        count += len(made[-1].lifted.args)
    if made[2].spans is None:
        return "single keys, together with others that are not a few intervals per query"
    if count > abi.MAX_CONSTANTS:
        return f"single keys, in a mask with more than {abi.MAX_CONSTANTS} constants"
    return Gathering(one, *made)


def _obstacle(ir: MaskIR, one: Selection) -> str:
    """Return the reason why no kernel gathers keys for this mask; empty if one does."""
    name = {one.name}
    reads = one.reads.union(E.arrays(ir.keep)) - name
    if one.score not in (Score.given, Score.indexer):
        return f"by {one.score.value}"
    if one.score is Score.given and one.share is Share.head:
        return "by scores of each head (share='head')"
    if one.q_block > 1:
        return "for several queries together"
    if len(one.allowed) > 1:
        return "among pairs that differ by head"
    return f"in a mask that reads data ({', '.join(sorted(reads))})" if reads else ""


def _with(keep: Expr, name: str, value: int) -> Expr:
    """Return the mask with a constant in place of every entry of a selection's table."""
    number = E.const(value)

    def known(node: Expr) -> Expr | None:
        return number if isinstance(node, E.Load) and node.array == name else None

    return simplify(E.transform(keep, known))


def _formula(name: str, formula: Expr, first: int) -> Formula:
    """The formula with its constants numbered from `first` on."""
    lifted = lift(formula, lists=False)
    spans = intervals(lifted.shape)
    renamed = {f"c{i}": f"c{first + i}" for i in range(len(lifted.args))}
    names: dict[Expr, Expr] = {E.Sym(old): E.Sym(new) for old, new in renamed.items()}

    def moved(expr: Expr) -> Expr:
        return E.substitute(expr, names)

    shape = moved(lifted.shape)
    sources = tuple((moved(made), source) for made, source in lifted.sources)
    if spans is not None:
        spans = tuple(
            Interval(span.keys.substituted(names), span.queries.substituted(names))
            for span in spans
        )
    counts = frozenset(renamed[name] for name in lifted.counts)
    rests = tuple(None if rest is None else moved(rest) for rest in lifted.rests)
    return Formula(name, Lifted(shape, lifted.args, sources, rests, counts), spans)


def plan_gathered(heads: HeadGroups, problem: Problem, target: Target) -> KernelPlan:
    """Plan a mask that chooses single keys for several heads together.

    Raises:
        SelectionNotCompiled: there are no kernels for such a choice; and see `plan`.
    """
    target.check(problem)
    made = gathering(heads.masks)
    if isinstance(made, str):
        chooser = next(ir for ir in heads.masks if ir.selections)
        at = place_of(chooser, chooser.selections[0])
        raise SelectionNotCompiled(target.name, made, target.least_block, at=at)
    (ir,), (facts,) = heads.masks, heads.facts
    plans = []
    family = family_of(target)
    for direction, form in family.gathered:
        schedule = family.schedule(
            target.padded(problem, direction, form), heads.masks, direction, form
        )
        mask = mask_for(ir, facts, schedule.tile)
        plans.append(KernelPlan(
            problem, target, schedule, schedule.tile, False, (mask,), heads.facts, heads.of_head,
            (), direction=direction, form=form,
        ))  # fmt: skip
    of_tiles: dict[Direction, list[str]] = {}
    for candidate in plans:
        of_tiles.setdefault(candidate.direction, []).append(candidate.schedule.reason)
    reasons = (
        *map("; or ".join, of_tiles.values()),
        *_reasons(made, {candidate.form for candidate in plans}, target),
    )
    main, *alternatives = plans
    return replace(main, gathering=made, alternatives=tuple(alternatives), reasons=reasons)


def _reasons(made: Gathering, forms: Collection[str], target: Target) -> Iterator[str]:
    """The reasons that explain() gives."""
    groups = "all query heads" if _shared(made) else "the query heads of a key/value head"
    always = " and the keys that are always kept" if made.alongside.lifted.shape != E.NEVER else ""
    yield (
        f"keys are gathered: the GPU lists the best {made.selection.k}{always} for each query; "
        f"{groups} share a list; nothing waits for the host"
    )
    wide = ", and 65 to 128 as much as 128" if WIDE in forms else ""
    yield (
        "rows of a tile are the heads of a key/value head; with fewer than 64 heads the rest is "
        f"padding, so one head costs as much as 64{wide}"
    )
    yield f"scores of an indexer are stored for as many queries as fit in {G.SCORE_BYTES >> 20} MiB"
    if Direction.backward in target.directions:
        yield (
            "backward passes choose the keys again; dk and dv are summed in fp32, or in 64-bit "
            "integers with deterministic=True"
        )


def _shared(made: Gathering) -> bool:
    """Whether all heads of a sequence have one list."""
    return made.selection.share is Share.all or made.selection.score is Score.indexer
