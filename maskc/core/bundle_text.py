"""Bundles from plain text: the vocabulary of generated modules.

A generated module spells its formulas as Python expressions in strings; these functions read them
back. `emit.module` writes what this module reads.
"""

from __future__ import annotations

from base64 import b85decode
from collections.abc import Mapping

from maskc.core.boxes import Boxes
from maskc.core.bundle import (
    Bundle,
    Grid,
    IdList,
    Launch,
    LayoutRecipe,
    Mode,
    PartBundle,
    SourceUnit,
    TensorMap,
    TileLoop,
    Variant,
    WorkList,
)
from maskc.core.cost import Cost
from maskc.core.data import DataDecl, DataKind
from maskc.core.dtypes import DType
from maskc.core.expr import Expr
from maskc.core.expr_text import parse_expr
from maskc.core.gather import Gather, Span
from maskc.core.problem import Direction, Feature, Problem, TileShape
from maskc.core.selection import Score, Selection, Share


def loop(first: str, last: str, *, step: int = 1, where: str = "True", full: bool) -> TileLoop:
    """Tiles first, first + step, ..., last of each tile row ti where the guard holds."""
    return TileLoop(parse_expr(where), parse_expr(first), parse_expr(last), step, full)


def tiles(
    q: int,
    k: int,
    *loops: TileLoop,
    fixed: tuple[tuple[str, int], ...] = (),
    square: bool = False,
    numeric: bool = False,
) -> tuple[TileShape, tuple[TileLoop, ...] | None, tuple[tuple[str, int], ...], bool]:
    """How lengths become tiles of q queries x k keys; `numeric` where no closed form was found."""
    return TileShape(q, k), None if numeric else loops, fixed, square


def mask(
    keep: str, *layouts: tuple, shape: int = 0, args: tuple[str, ...] = (),
    axes: tuple[str, ...] = (), rests: tuple[str | None, ...] = (),
    lists: tuple[tuple[str, str, tuple[tuple[int, int], ...]], ...] = (),
) -> Variant:  # fmt: skip
    """One of the distinct masks among the heads; `lists` as (low, high, ranges)."""
    formula = parse_expr(keep)
    recipes = tuple(
        LayoutRecipe(tile, formula, loops, fixed, square) for tile, loops, fixed, square in layouts
    )
    ids = tuple(IdList(_parse(low), _parse(high), ranges) for low, high, ranges in lists)
    return Variant(
        formula, shape, tuple(map(_parse, args)), recipes, tuple(map(_parse, axes)),
        _rests(rests), ids,
    )  # fmt: skip


def _parse(text: str) -> Expr:
    return parse_expr(text)


def _rests(texts: tuple[str | None, ...]) -> tuple[Expr | None, ...]:
    return tuple(None if text is None else parse_expr(text) for text in texts)


def data(
    name: str,
    kind: str,
    arrays: tuple[str, ...],
    *,
    block: int = 1,
    options: tuple[int, ...] = (),
    values: str = "",
    shape: tuple[int, ...] = (),
) -> DataDecl:
    """A data atom; `values` is base-85 text of int32 numbers where they are known."""
    return DataDecl(name, DataKind[kind], arrays, block, options, b85decode(values), shape)


def launch(
    entry: str,
    grid: str,
    *,
    threads: int,
    shared: int = 0,
    per_block: int = 1,
    resident: int = 1,
    feature: str = "",
    mode: str = "usual",
    macro: str = "",
) -> tuple[str, str, Launch]:
    """One launch of a CUDA source, and the mode it is part of; launches of a mode run in order."""
    needed = Feature(feature) if feature else None
    return mode, macro, Launch(entry, Grid[grid], threads, shared, per_block, resident, needed)


def kernel(
    target: str,
    source: str,
    *launches: tuple[str, str, Launch],
    tile: tuple[int, int],
    ranges: bool,
    passes: tuple[str, ...] = ("forward",),
    maps: tuple[tuple, ...] = (),
    work: Mapping[str, int] | None = None,
    row_floats: int = 0,
    key_floats: int = 0,
    distances: bool = False,
    by_documents: bool = False,
    form: str = "",
    costs: tuple[tuple[str, int, int, int], ...] = (),
    boxes: tuple | None = None,
    gather: tuple[tuple[str, ...], tuple[tuple[str, str, str], ...], tuple] | None = None,
    reach: tuple[str, ...] = (),
) -> SourceUnit:
    """One source and how to launch it: `maps` as (tensor, rows) or (tensor, rows, box), `work`
    as fields of WorkList, `costs` as (mode, cycles per row, per tile, more per masked tile),
    `boxes` as fields of Boxes, `gather` as those of Gather."""
    modes: dict[str, Mode] = {}
    for mode, macro, launched in launches:
        before = modes[mode].launches if mode in modes else ()
        modes[mode] = Mode((*before, launched), macro)
    return SourceUnit(
        target,
        source,
        TileShape(*tile),
        ranges,
        directions=tuple(map(Direction, passes)),
        modes=tuple(modes.items()),
        maps=tuple(TensorMap(*each) for each in maps),
        work=None if work is None else WorkList(**work),
        row_floats=row_floats,
        key_floats=key_floats,
        distances=distances,
        by_documents=by_documents,
        form=form,
        costs=tuple(Cost(*each) for each in costs),
        boxes=None if boxes is None else Boxes(*boxes),
        gather=None if gather is None else _gather(*gather),
        reach=tuple(map(_parse, reach)),
    )


def _gather(
    constants: tuple[str, ...], beside: tuple[tuple[str, str, str], ...],
    rests: tuple[str | None, ...] = (),
) -> Gather:  # fmt: skip
    spans = tuple(Span(*map(_parse, each)) for each in beside)
    return Gather(tuple(map(_parse, constants)), spans, _rests(rests))


def bundle(
    name: str,
    *,
    head_dim: int,
    head_dim_v: int,
    dtype: str,
    n_heads: int | None,
    masks: tuple[Variant, ...],
    of_head: tuple[int, ...],
    arrays: tuple[str, ...],
    data: tuple[DataDecl, ...],
    params: tuple[tuple[str, int], ...],
    kernels: tuple[SourceUnit, ...],
    unread: tuple[str, ...] = (),
    parts: tuple[PartBundle, ...] = (),
    selections: tuple[Selection, ...] = (),
    report: str = "",
) -> Bundle:
    """Everything a generated module holds."""
    problem = Problem(head_dim, head_dim_v, DType.parse(dtype), n_heads)
    return Bundle(
        name, problem, masks, of_head, arrays, data, params, kernels, unread, parts, selections,
        report=report,
    )  # fmt: skip


def selection(
    name: str,
    k: int,
    *allowed: str,
    score: str = "qk",
    block: int = 1,
    q_block: int = 1,
    share: str = "head",
) -> Selection:
    """What topk chooses among the pairs that `allowed` holds for: one formula, or one per head."""
    formulas = tuple(map(_parse, allowed))
    return Selection(name, k, Score(score), block, q_block, Share(share), formulas)


def part(stride: int, own: Bundle, *, aligned: bool = False, keys: int | None = None) -> PartBundle:
    """Pieces of the mask that run together, over the residue classes modulo `stride`; or over all
    queries and the `keys` of one residue."""
    return PartBundle(stride, own, aligned, keys)
