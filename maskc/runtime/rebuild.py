"""A bundle from the literals of a generated module. Formulas are parsed, nothing is executed."""

from __future__ import annotations

from base64 import b85decode

from maskc.core.bundle import Bundle, LayoutRecipe, SourceUnit, TileLoop, Variant
from maskc.core.data import DataDecl, DataKind
from maskc.core.dtypes import DType
from maskc.core.expr import ALWAYS
from maskc.core.expr_text import parse_expr
from maskc.core.problem import Problem, TileShape


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
    report: str,
) -> Bundle:
    """All that was compiled."""
    return Bundle(
        name, Problem(head_dim, head_dim_v, DType.parse(dtype), n_heads), masks, of_head, arrays,
        data, params, kernels, report,
    )  # fmt: skip


def mask(keep: str, *recipes: LayoutRecipe, shape: int, args: tuple[str, ...]) -> Variant:
    """One of the distinct masks among the heads; `tiles(...)` leave the formula to it."""
    formula = parse_expr(keep)
    own = (LayoutRecipe(r.tile, formula, r.loops, r.fixed, r.square) for r in recipes)
    return Variant(formula, shape, tuple(map(parse_expr, args)), tuple(own))


def tiles(
    q: int,
    k: int,
    *loops: TileLoop,
    numeric: bool = False,
    fixed: tuple[tuple[str, int], ...] = (),
    square: bool = False,
) -> LayoutRecipe:
    """How lengths become tiles; numeric where no closed form was proved."""
    return LayoutRecipe(TileShape(q, k), ALWAYS, None if numeric else loops, fixed, square)


def loop(first: str, last: str, *, full: bool, where: str = "True", step: int = 1) -> TileLoop:
    """The tiles first, first + step, ..., last of each tile row where `where` holds."""
    return TileLoop(parse_expr(where), parse_expr(first), parse_expr(last), step, full)


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
    """Something the mask reads at call time; `values` are int32 in base 85."""
    return DataDecl(name, DataKind[kind], arrays, block, options, b85decode(values), shape)


def kernel(
    target: str, text: str, *, tile: tuple[int, int], ranges: bool, threads: int, shared: int
) -> SourceUnit:
    """One source and how it is launched."""
    return SourceUnit(target, text, TileShape(*tile), ranges, threads, shared)
