"""The source that makes run-time selections on the device."""

from __future__ import annotations

from dataclasses import replace

from maskc.core import expr as E
from maskc.core.bundle import SourceUnit
from maskc.core.expr import Expr
from maskc.core.selection import Score, Selection
from maskc.core.widths import largest, reach
from maskc.emit.c_printer import CPrinter
from maskc.emit.data_lists import banner, lists_source
from maskc.emit.predicate import wrapped
from maskc.emit.spec import SelectionText, SelectSpec
from maskc.layout.topk.sizes import FORM, THREADS, class_shape
from maskc.plan.families.table import family_of
from maskc.plan.forms import device_topk as selecting
from maskc.plan.list_making import BLOCKS
from maskc.plan.types import KernelPlan, selections

_SCORES = {
    Score.qk: "PRODUCTS",
    Score.block_mean: "MEANS",
    Score.indexer: "INDEXER",
    Score.given: "GIVEN",
}
"""The scores' kinds as the template names them."""
_MAX = (1 << 31) - 1


def select_unit(plan: KernelPlan) -> SourceUnit:
    """The source; its formulas have constants as they are, and parameters from the call."""
    selected = selections(plan.masks)
    params = sorted({name for mask in plan.masks for name in mask.ir.params})
    problem = plan.problem
    spec = SelectSpec(
        dtype=problem.dtype,
        head_dim=problem.head_dim,
        n_args=len(params),
        selections=tuple(_text(i, one, len(selected), params) for i, one in enumerate(selected)),
        threads=THREADS,
        banner=banner(
            "Run-time selections and their tile lists, made on the device",
            plan,
            f", {problem.dtype.value}, head_dim {problem.head_dim}",
        ),
        blocks=BLOCKS,
    )
    launches = selecting.launches(family_of(plan.target).topk_shared_bytes)
    made = lists_source(plan, "common/select.cu.j2", spec, launches, FORM)
    bounds = (largest(reach(_with_arguments(one.allowed[0], params))) for one in selected)
    return replace(made, reach=tuple(bounds))


def _text(index: int, one: Selection, count: int, params: list[str]) -> SelectionText:
    down, across = class_shape(one.q_block, one.block)
    ways = sum(1 << way for way in range(1 << count) if way >> index & 1)
    lines = tuple(wrapped(CPrinter(())(_with_arguments(one.allowed[0], params))).splitlines())
    return SelectionText(
        index, min(one.k, _MAX), one.block, one.q_block, _SCORES[one.score], down, across, ways,
        lines,
    )  # fmt: skip


def _with_arguments(allowed: Expr, params: list[str]) -> Expr:
    """The formula with `c0`, `c1`, ... for parameters, by name."""

    def number(node: Expr) -> Expr | None:
        return E.Sym(f"c{params.index(node.name)}") if isinstance(node, E.Param) else None

    return E.transform(allowed, number)
