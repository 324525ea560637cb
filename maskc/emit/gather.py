"""The source that lists single keys: an indexer's scores, and the best of a row of scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from maskc.core import expr as E
from maskc.core.bundle import SourceUnit
from maskc.core.dtypes import DType
from maskc.core.expr_text import to_python
from maskc.core.forms import LISTS
from maskc.core.problem import TileShape
from maskc.core.widths import largest, reach
from maskc.emit.data_lists import banner, lists_source
from maskc.emit.predicate import bounds_text, predicate_lines, reach_of
from maskc.emit.spec import ListsSpec, PredicateLine
from maskc.ir.types import MaskIR
from maskc.layout.topk import indexer as G
from maskc.plan.families import gather
from maskc.plan.families.family import Product
from maskc.plan.families.table import family_of
from maskc.plan.types import Formula, Gathering, KernelPlan

_NOTES = {
    "allowed": "Whether query q may choose key k.",
    "chosen": "Whether the mask keeps a pair that was chosen.",
    "beside": "Whether it keeps one that was not.",
}


@dataclass(frozen=True, slots=True)
class PartText:
    """A formula of the mask as C text."""

    name: str
    note: str
    predicate: tuple[PredicateLine, ...]


@dataclass(frozen=True, slots=True)
class _Products:
    """Inputs of the wrappers of matrix products."""

    products: tuple[Product, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatherSpec(ListsSpec):
    """Inputs of the template of this source."""

    dtype: DType
    formulas: tuple[PartText, ...]
    arg_notes: tuple[str, ...]
    allowed_spans: tuple[tuple[str, str], ...] | None
    """First and past-last key of each interval that a query may choose from; None: no such few."""
    alongside_spans: tuple[tuple[str, str], ...]
    """The interval of what the mask may keep besides; empty if that is nothing."""
    indexed: tuple[tuple[G.Indexing, int], ...]
    """Ways to compute an indexer's scores, and slabs of queries in flight."""
    score_threads: int
    """The threads of a block that scores keys."""
    list_blocks: int
    """Number of these blocks that a multiprocessor runs at once."""
    family: str
    score_tile: TileShape
    columns: int
    """The heads of queries that a step of a block that scores keys has."""
    schedule: _Products


def lists_unit(plan: KernelPlan, made: Gathering) -> SourceUnit:
    """The source; its lengths, tensors and constants come from calls."""
    (mask,) = plan.masks
    target, scoring = plan.target, family_of(plan.target).scoring
    if scoring is None:
        raise TypeError(f"{target.name} has no kernels over gathered keys")
    spec = GatherSpec(
        dtype=plan.problem.dtype,
        formulas=tuple(_text(mask.ir, formula) for formula in made.formulas),
        arg_notes=tuple(to_python(value) for value in made.constants),
        allowed_spans=_spans(made.allowed),
        alongside_spans=_alongside_spans(made.alongside),
        indexed=scoring.slots,
        score_threads=scoring.threads,
        threads=gather.THREADS,
        list_blocks=gather.list_blocks(made.selection.score),
        family=target.family,
        score_tile=TileShape(G.SCORE_QUERIES, scoring.keys),
        columns=gather.SCORE_COLUMNS,
        schedule=_Products(
            (
                Product("multiply_keys", gather.SCORE_COLUMNS),
                Product("multiply_e4m3", gather.SCORE_COLUMNS, elements="e4m3"),
            )
        ),
        banner=banner(
            "Lists of the keys that queries choose", plan, f", {plan.problem.dtype.value}"
        ),
    )
    modes = gather.list_modes(made.selection.score, scoring)
    return replace(
        lists_source(plan, "common/gather_lists.cu.j2", spec, (), LISTS),
        modes=modes, gather=made.recipe, reach=(largest(_reach(made)),),
    )  # fmt: skip


def _reach(made: Gathering) -> Iterator[E.Expr]:
    """Bounds on everything that is computed of the formulas."""
    for formula in made.formulas:
        yield from reach(formula.lifted.shape)
        for span in formula.spans or ():
            yield from reach_of(span.keys)


def _text(ir: MaskIR, formula: Formula) -> PartText:
    lines = predicate_lines(ir, formula.lifted, (), tiled=False)
    return PartText(formula.name, _NOTES[formula.name], lines)


def _alongside_spans(formula: Formula) -> tuple[tuple[str, str], ...]:
    """None if there is nothing."""
    return () if formula.lifted.shape == E.NEVER else _spans(formula) or ()


def _spans(formula: Formula) -> tuple[tuple[str, str], ...] | None:
    if formula.spans is None:
        return None
    return tuple(bounds_text(span.keys, "first") for span in formula.spans)
