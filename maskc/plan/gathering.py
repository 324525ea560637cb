"""Masks of single keys that heads choose together, as parts that kernels test: what may be chosen,
what the mask keeps of the chosen pairs, and what it keeps of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from maskc.core import abi
from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.gathering import Gather, Span
from maskc.core.selection import Score, Selection, Share
from maskc.core.target import Target
from maskc.ir.lift import Lifted, lift
from maskc.ir.simplify import simplify
from maskc.ir.types import MaskIR
from maskc.plan.intervals import Interval, intervals

FAMILIES = ("sm80", "sm90a")
"""With such kernels."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A part of the mask, ready to be emitted."""

    name: str
    lifted: Lifted
    """With constants numbered over all parts."""
    spans: tuple[Interval, ...] | None
    """Its keys, query by query; None where they are not a few intervals."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """How a mask's lists are made."""

    selection: Selection
    allowed: Formula
    """What may be chosen."""
    chosen: Formula
    """What the mask keeps of the chosen pairs."""
    beside: Formula
    """What it keeps of the others."""

    @property
    def formulas(self) -> tuple[Formula, ...]:
        return self.allowed, self.chosen, self.beside

    @property
    def constants(self) -> tuple[Expr, ...]:
        return tuple(arg for formula in self.formulas for arg in formula.lifted.args)

    @property
    def recipe(self) -> Gather:
        """What the runtime needs of it."""
        values = {E.Sym(f"c{i}"): value for i, value in enumerate(self.constants)}
        spans = (each.keys for each in self.beside.spans or ())
        return Gather(self.constants, tuple(
            Span(*(E.substitute(x, values) for x in (span.guard, span.first, span.last)))
            for span in spans
        ), tuple(rest for formula in self.formulas for rest in formula.lifted.rests))  # fmt: skip


def chooses_keys(masks: tuple[MaskIR, ...], target: Target) -> bool:
    """Whether some selection chooses single keys, on a target that may gather them."""
    return target.family in FAMILIES and any(
        each.block == 1 for ir in masks for each in ir.selections
    )


def gathering(masks: tuple[MaskIR, ...]) -> Gathering | str:
    """How the lists of a mask are made, or why they cannot be."""
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
    if count > abi.MOST_CONSTANTS:
        return f"single keys, in a mask with more than {abi.MOST_CONSTANTS} constants"
    return Gathering(one, *made)


def _obstacle(ir: MaskIR, one: Selection) -> str:
    """What no kernel is there for."""
    own = {one.name}
    reads = set(E.arrays(ir.keep)).union(*map(E.arrays, one.allowed)) - own
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
    """The mask where every entry of a selection's table has this value."""
    number = E.const(value)

    def known(node: Expr) -> Expr | None:
        return number if isinstance(node, E.Load) and node.array == name else None

    return simplify(E.transform(keep, known))


def _formula(name: str, formula: Expr, first: int) -> Formula:
    """With its constants numbered from `first` on."""
    lifted = lift(formula, lists=False)
    spans = intervals(lifted.shape)
    names = {E.Sym(f"c{i}"): E.Sym(f"c{first + i}") for i in range(len(lifted.args))}

    def moved(expr: Expr) -> Expr:
        return E.substitute(expr, names)

    shape = moved(lifted.shape)
    sources = tuple((moved(made), found) for made, found in lifted.sources)
    if spans is not None:
        spans = tuple(
            Interval(*(
                replace(side, guard=moved(side.guard), first=moved(side.first),
                        last=moved(side.last))
                for side in (span.keys, span.queries)
            ))
            for span in spans
        )  # fmt: skip
    counts = frozenset(names[E.Sym(name)].name for name in lifted.counts)
    rests = tuple(None if rest is None else moved(rest) for rest in lifted.rests)
    return Formula(name, Lifted(shape, lifted.args, sources, rests, counts), spans)
