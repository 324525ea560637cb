"""The pipeline, one stage a line: mask -> IR -> pieces -> facts -> plan -> bundle -> callable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from maskc.core.bundle import Bundle
from maskc.core.captured import HELD, Held
from maskc.core.dtypes import DType
from maskc.core.errors import DataRange, HeadsUnknown, SelectionNotCompiled
from maskc.core.expr import NEVER
from maskc.core.problem import Problem, TileShape
from maskc.core.selection import RANKING
from maskc.core.target import Target
from maskc.dsl.mask import Mask
from maskc.dsl.slots import emptied, emptied_together

if TYPE_CHECKING:
    import numpy as np

    from maskc.core.bundle import LayoutRecipe
    from maskc.core.layout import BlockLayout
    from maskc.ir.types import MaskIR
    from maskc.plan.types import Heads, Plan
    from maskc.runtime.compiled import CompiledMask

# ------------------------------------------------------------------ compiling


def compile(
    mask: Mask,
    *,
    head_dim: int,
    head_dim_v: int | None = None,
    n_heads: int | None = None,
    dtype: object = "bfloat16",
    target: str | None = None,
    name: str = "mask",
) -> CompiledMask:
    """See Mask.compile."""
    from maskc.build.bundles import remembered
    from maskc.runtime.compiled import CompiledMask
    from maskc.runtime.device import default_target

    mask, held = emptied(mask)
    wanted = problem(head_dim, head_dim_v, n_heads, dtype)
    chosen = Target.named(target or default_target(wanted))
    plan = cache(lambda: planned(mask, wanted, chosen))

    def report() -> str:
        from maskc.plan.explain import explain

        return explain(plan())

    inputs = (mask, tuple(_places(mask)), wanted, chosen.name, name)
    bundle = remembered(inputs, lambda: bundled(plan(), name))
    return CompiledMask(bundle, chosen.name, report, held=held)


def problem(head_dim: int, head_dim_v: int | None, n_heads: int | None, dtype: object) -> Problem:
    """The problem a call of compile describes."""
    return Problem(head_dim, head_dim_v or head_dim, DType.parse(dtype), n_heads)


def planned(mask: Mask, problem: Problem, target: Target) -> Plan:
    """Stages 2 to 5: lower, decompose, analyse, plan."""
    from maskc.plan.choose import plan

    return plan(understood(mask, problem.n_heads), problem, target)


def bundled(plan: Plan, name: str = "mask") -> Bundle:
    """Stage 6: emit."""
    from maskc.emit.emitter import emit

    return emit(plan, name)


def generate(
    mask: Mask, name: str, problem: Problem, targets: tuple[Target, ...], title: str
) -> dict[str, str]:
    """The generated module of a mask and its sources: file name -> text.

    Args:
        name: the module's name.
        targets: one kernel source each.
        title: the first line of the module's docstring.

    Raises:
        SelectionNotCompiled: keys are chosen one by one on a GPU.
    """
    from maskc.emit.emitter import merged
    from maskc.emit.held import filled
    from maskc.emit.module import module_files
    from maskc.plan.explain import explain

    plans = [planned(mask, problem, target) for target in targets]
    for plan in plans:
        if plan.chooser is not None:  # whose bundle is not the mask that a module speaks of
            what, least = "single keys in a generated module", plan.target.least_block
            raise SelectionNotCompiled(plan.target.name, what, least, at=getattr(mask, "loc", None))
    report = "\n".join(map(explain, plans))
    bundle = merged([bundled(plan, name) for plan in plans], report)
    _, held = emptied(mask)
    if held is not None:
        _check_below_0(held)
        bundle = filled(bundle, held)
    return module_files(bundle, str(mask), title)


def _check_below_0(held: Held) -> None:
    """Refuse formulas whose indices below 0 may decide: a module does not look for such pairs.

    Raises:
        DataRange.
    """
    from maskc.ir.simplify import simplify
    from maskc.layout import below_0

    for reading, pairs in below_0(held):
        if simplify(pairs) != NEVER:
            found = "an index may be below 0 where nothing in the formula rules it out"
            hint = "guard it, as (q >= 1) & (doc[q - 1] == doc[k]) does, or clamp it with max"
            raise DataRange("a captured array", found, hint, at=reading.at)


def understood(mask: Mask, n_heads: int | None = None) -> Heads:
    """Stages 2 to 4: the distinct masks of all heads, in pieces, with their facts."""
    mask, _ = emptied(mask)
    return _understood(mask, n_heads, tuple(_places(mask)))


def _places(mask: Mask) -> Iterator[object]:
    """Where every term stands: equal masks of different places are told apart by these alone."""
    yield getattr(mask, "loc", None)
    for child in getattr(mask, "children", ()):
        yield from _places(child)


@lru_cache(maxsize=256)
def _understood(mask: Mask, n_heads: int | None, places: tuple[object, ...]) -> Heads:
    from maskc.analysis.facts import analyse
    from maskc.ir.decompose import decompose
    from maskc.plan.types import Heads

    masks, of_head = _distinct([decompose(ir) for ir in _lowered(mask, n_heads)])
    return Heads(masks, tuple(map(analyse, masks)), of_head)


def lowered(mask: Mask, head: int | None = None, n_heads: int | None = None) -> MaskIR:
    """Stage 2 for one head: the mask as one simplified formula."""
    from maskc.ir.lower import lower
    from maskc.ir.simplify import simplify

    ir = lower(emptied(mask)[0], head, n_heads)
    selections = tuple(
        replace(each, allowed=tuple(map(simplify, each.allowed))) for each in ir.selections
    )
    return replace(ir, keep=simplify(ir.keep), selections=selections)


def _lowered(mask: Mask, n_heads: int | None) -> list[MaskIR]:
    from maskc.ir.heads import differs_by_head

    if not differs_by_head(mask):
        return [lowered(mask, 0)]
    if n_heads is None:
        raise HeadsUnknown(at=getattr(mask, "loc", None))
    return [lowered(mask, head, n_heads) for head in range(n_heads)]


def _distinct(irs: list[MaskIR]) -> tuple[tuple[MaskIR, ...], tuple[int, ...]]:
    """Heads with equal sets share one mask, however the sets were written."""
    from maskc.ir.compare import equals, fingerprint

    found: list[MaskIR] = []
    prints: list[str] = []
    of_head: list[int] = []
    for ir in irs:
        mark = fingerprint(ir.keep)
        same = (
            i for i, known in enumerate(found)
            if known.keep == ir.keep or (prints[i] == mark and equals(known.keep, ir.keep))
        )  # fmt: skip
        index = next(same, len(found))
        if index == len(found):
            found.append(ir)
            prints.append(mark)
        of_head.append(index)
    return tuple(found), tuple(of_head) if len(found) > 1 else ()


# ------------------------------------------------------------------ questions


def dense(
    mask: Mask, n_q: int, n_kv: int | None = None, *, n_heads: int | None = None, **data: object
) -> np.ndarray:
    """See Mask.dense."""
    from maskc.layout import check_lengths
    from maskc.reference.dense import dense as reference

    n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
    return reference(mask, n_q, n_kv, n_heads=n_heads, **data)


def layout(
    mask: Mask,
    n_q: int,
    n_kv: int | None = None,
    *,
    block: tuple[int, int] = (128, 128),
    head: int = 0,
    **data: object,
) -> BlockLayout:
    """See Mask.layout."""
    from maskc.layout import build, tile_shape
    from maskc.plan.recipe import layout_recipe

    ir = lowered(mask, head)
    recipe = layout_recipe(ir.keep, tile_shape(block))
    own = _of_head(mask, ir, with_captured(mask, data))
    n_q, n_kv, params, arrays = _bound(ir, recipe, n_q, n_kv, head, own)
    return build(recipe, n_q, n_kv, params, arrays)


def _of_head(mask: Mask, ir: MaskIR, data: dict[str, object]) -> dict[str, object]:
    """What one head reads of a question's data: other heads alone may choose at run time."""
    if ir.selections or not selects(mask):
        return data
    return {name: given for name, given in data.items() if name not in RANKING}


def with_captured(
    mask: Mask, data: Mapping[str, object], n_heads: int | None = None
) -> dict[str, object]:
    """The data of a question, with what formulas of the mask captured."""
    _, held = emptied(mask)
    if held is None:
        return dict(data)
    batch, heads = held.extents
    return {**data, HELD: held.of_call(batch, n_heads or heads)}


def _bound(
    ir: MaskIR, recipe: LayoutRecipe, n_q: int, n_kv: int | None, head: int, data: dict[str, object]
) -> tuple[int, int, dict[str, int], dict[str, np.ndarray]]:
    """Checked lengths, parameters, and the arrays of one head and the first sequence."""
    from maskc.layout import check_lengths, sequence_arrays

    n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
    params, arrays = bound_data(ir, n_q, n_kv, data)
    return n_q, n_kv, params, sequence_arrays(recipe, arrays, 0, head)


def bound_data(
    ir: MaskIR, n_q: int, n_kv: int, data: Mapping[str, object]
) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Parameters and all arrays of a mask; run-time selections by `scores`, as in `Mask.dense`."""
    from maskc.layout import bind_ranked

    unread = sorted(ir.declared - {"scores"})
    return bind_ranked(ir.data, tuple(ir.params.items()), ir.selections, unread, data, n_q, n_kv)


def count(
    mask: Mask, n_q: int, n_kv: int | None = None, *, n_heads: int | None = None, **data: object
) -> int:
    """See Mask.count."""
    data = with_captured(mask, data, n_heads)
    return sum(
        _count(ir, head, n_q, n_kv, _of_head(mask, ir, data))
        for head, ir in enumerate(_lowered(mask, n_heads))
    )


def _count(ir: MaskIR, head: int, n_q: int, n_kv: int | None, data: dict[str, object]) -> int:
    from maskc.analysis.counts import count_pairs
    from maskc.core.bundle import LayoutRecipe
    from maskc.layout import count as count_by_tiles

    recipe = LayoutRecipe(TileShape(128, 128), ir.keep, None)
    n_q, n_kv, params, arrays = _bound(ir, recipe, n_q, n_kv, head, data)
    found = count_pairs(ir.keep, n_q, n_kv, params)
    return count_by_tiles(recipe, n_q, n_kv, params, arrays) if found is None else found


def selects(mask: Mask) -> int:
    """Fewest keys that a run-time selection of it chooses together; 0 where it has none."""
    from maskc.dsl.nodes import TopK

    own = [mask.block] if isinstance(mask, TopK) else []
    inner = filter(None, map(selects, getattr(mask, "children", ())))
    return min([*own, *inner], default=0)


def in_modules(mask: Mask, problem: Problem, target: Target) -> bool:
    """Whether generated modules can hold what a target that can run the problem has for what the
    mask chooses at run time; for a mask that chooses nothing, too."""
    if not selects(mask):
        return True
    try:
        return planned(mask, problem, target).chooser is None
    except SelectionNotCompiled:
        return False


def equals(left: Mask, right: Mask) -> bool | None:
    """See Mask.equals."""
    from maskc.ir.compare import equals as same

    return _for_all_heads(left, right, same)


def subset_of(left: Mask, right: Mask) -> bool | None:
    """See Mask.subset_of."""
    from maskc.ir.compare import subset

    return _for_all_heads(left, right, subset)


def _for_all_heads(left: Mask, right: Mask, test: object) -> bool | None:
    from maskc.ir.heads import head_count, reads_head

    (left, right), _ = emptied_together(left, right)
    n_heads = max(head_count(left), head_count(right))
    answers = {
        test(lowered(left, head).keep, lowered(right, head).keep)  # type: ignore[operator]
        for head in range(n_heads)
    }
    if reads_head(left) or reads_head(right):
        answers.add(True if left == right else None)
    return False if False in answers else None if None in answers else True
