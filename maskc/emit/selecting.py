"""The source that makes run-time selections on the device."""

from __future__ import annotations

from maskc.core import expr as E
from maskc.core.bundle import Mode, SourceUnit
from maskc.core.expr import Expr
from maskc.core.problem import TileShape
from maskc.core.selection import Score, Selection
from maskc.core.widths import largest, reach
from maskc.emit.c_printer import CPrinter
from maskc.emit.environment import render
from maskc.emit.predicate import wrapped
from maskc.emit.spec import SelectionText, SelectSpec
from maskc.layout.topk.sizes import FORM, class_shape
from maskc.plan.families.table import family_of
from maskc.plan.forms import device_topk as selecting
from maskc.plan.types import KernelPlan, selections

_SCORES = {
    Score.qk: "PRODUCTS",
    Score.block_mean: "MEANS",
    Score.indexer: "INDEXER",
    Score.given: "GIVEN",
}
"""The scores' kinds as the template names them."""
_MOST = (1 << 31) - 1


def select_unit(plan: KernelPlan) -> SourceUnit:
    """The source; its formulas have constants as they are, and parameters from the call."""
    found = selections(plan.masks)
    params = sorted({name for mask in plan.masks for name in mask.ir.params})
    problem = plan.problem
    spec = SelectSpec(
        problem.dtype, problem.head_dim, len(params),
        tuple(_text(i, one, len(found), params) for i, one in enumerate(found)),
        (
            f"Run-time selections and their tile lists, made on the device: {plan.target.name}, "
            f"{problem.dtype.value}, head_dim {problem.head_dim}.",
            "Written by `maskc compile`; change the pattern, not this file.",
        ),
    )  # fmt: skip
    return SourceUnit(
        plan.target.name, render("common/select.cu.j2", spec), TileShape(1, 1), False, (),
        (("usual", Mode(selecting.launches(family_of(plan.target).topk_shared_bytes))),), form=FORM,
        reach=tuple(
            largest(reach(_with_arguments(one.allowed[0], params))) for one in found
        ),
    )  # fmt: skip


def _text(index: int, one: Selection, count: int, params: list[str]) -> SelectionText:
    down, across = class_shape(one.q_block, one.block)
    ways = sum(1 << way for way in range(1 << count) if way >> index & 1)
    lines = tuple(wrapped(CPrinter(())(_with_arguments(one.allowed[0], params))).splitlines())
    return SelectionText(
        index, min(one.k, _MOST), one.block, one.q_block, _SCORES[one.score], down, across, ways,
        lines,
    )  # fmt: skip


def _with_arguments(allowed: Expr, params: list[str]) -> Expr:
    """The formula with `c0`, `c1`, ... for parameters, by name."""

    def number(node: Expr) -> Expr | None:
        return E.Sym(f"c{params.index(node.name)}") if isinstance(node, E.Param) else None

    return E.transform(allowed, number)
