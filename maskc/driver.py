"""The pipeline, one stage a line: mask -> IR -> pieces -> facts -> plan -> bundle -> callable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from maskc.core.bundle import Bundle
from maskc.core.captured import Held
from maskc.core.dtypes import DType
from maskc.core.errors import DataRange, SelectionNotCompiled
from maskc.core.expr import NEVER
from maskc.core.problem import Problem
from maskc.core.target import Target
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import structure
from maskc.dsl.slots import emptied

if TYPE_CHECKING:
    import numpy as np

    from maskc.analysis.heads import Heads
    from maskc.core.layout import BlockLayout
    from maskc.ir.types import MaskIR
    from maskc.plan.types import KernelPlan
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
    from maskc.ir.heads import heads_of
    from maskc.runtime.compiled import CompiledMask
    from maskc.runtime.device import default_target

    mask, held = emptied(mask)
    wanted = problem(head_dim, head_dim_v, heads_of(mask, n_heads), dtype)
    chosen = Target.named(target or default_target(wanted))
    recipe = Recipe(mask, wanted, chosen, name)
    inputs = (structure(mask), tuple(_places(mask)), wanted, chosen.name, name)
    bundle = remembered(inputs, lambda: bundled(recipe.plan, name))
    return CompiledMask(bundle, chosen.name, recipe, held=held)


class Recipe:
    """What a compiled mask was made of: explains it, and makes it again where a pickle is stale."""

    def __init__(self, mask: Mask, problem: Problem, target: Target, name: str) -> None:
        self._made_of = mask, problem, target, name

    def __reduce__(self) -> tuple[object, ...]:
        return Recipe, self._made_of

    @property
    def mask(self) -> Mask:
        """The mask that was compiled, without what its formulas captured."""
        return self._made_of[0]

    @cached_property
    def plan(self) -> KernelPlan:
        """Made once."""
        return planned(*self._made_of[:3])

    def __call__(self) -> str:
        """The text of CompiledMask.explain."""
        from maskc.plan.explain import explain

        return explain(self.plan)

    def compile(self) -> CompiledMask:
        """The same mask compiled by the package as it is now."""
        mask, wanted, target, name = self._made_of
        return compile(
            mask, head_dim=wanted.head_dim, head_dim_v=wanted.head_dim_v, n_heads=wanted.n_heads,
            dtype=wanted.dtype, target=target.name, name=name,
        )  # fmt: skip


def problem(head_dim: int, head_dim_v: int | None, n_heads: int | None, dtype: object) -> Problem:
    """The problem a call of compile describes."""
    return Problem(head_dim, head_dim_v or head_dim, DType.parse(dtype), n_heads)


def planned(mask: Mask, problem: Problem, target: Target) -> KernelPlan:
    """Stages 2 to 5: lower, decompose, analyse, plan."""
    from maskc.plan.choose import plan

    return plan(understood(mask, problem.n_heads), problem, target)


def bundled(plan: KernelPlan, name: str = "mask") -> Bundle:
    """Stage 6: emit."""
    from maskc.emit.emitter import emit

    return emit(plan, name)


def plan_module(mask: Mask, problem: Problem, target: Target) -> KernelPlan:
    """The plan of one target of a generated module.

    Raises:
        DTypeUnsupported, HeadDimUnsupported, TargetNotBuilt: the target has no such kernel.
        SelectionNotCompiled: keys are chosen one by one on a GPU.
    """
    target.check(problem)
    plan = planned(mask, problem, target)
    if plan.chooser is not None:  # whose bundle is not the mask that a module speaks of
        what, least = "single keys in a generated module", target.least_block
        raise SelectionNotCompiled(target.name, what, least, at=getattr(mask, "loc", None))
    return plan


def generate(mask: Mask, name: str, plans: Sequence[KernelPlan], title: str) -> dict[str, str]:
    """The generated module of a mask, its plan and its sources: file name -> text.

    Args:
        name: the module's name.
        plans: one per target, as `plan_module` gives them.
        title: the first line of the module's docstring.
    """
    from maskc.emit.emitter import merged
    from maskc.emit.held import filled
    from maskc.emit.module import module_files
    from maskc.plan.explain import explain

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
    from maskc.analysis.heads import analyse_heads
    from maskc.ir.decompose import decompose
    from maskc.ir.lowered import on_all_heads

    return analyse_heads(tuple(map(decompose, on_all_heads(mask, n_heads))))


def lowered(mask: Mask, head: int | None = None, n_heads: int | None = None) -> MaskIR:
    """Stage 2 for one head: the mask as one simplified formula."""
    from maskc.ir.lowered import lowered as stage

    return stage(mask, head, n_heads)


# ------------------------------------------------------------------ questions


def dense(
    mask: Mask, n_q: int, n_kv: int | None = None, *, n_heads: int | None = None, **options: object
) -> np.ndarray:
    """See Mask.dense."""
    from maskc.layout import check_lengths
    from maskc.reference.dense import dense as reference

    n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
    return reference(mask, n_q, n_kv, n_heads=n_heads, **options)


def explained(
    mask: Mask, *, head_dim: int, head_dim_v: int | None, n_heads: int | None, dtype: object,
    target: str | None,
) -> str:  # fmt: skip
    """See Mask.explain."""
    from maskc.ir.heads import heads_of
    from maskc.runtime.device import default_target

    mask, _ = emptied(mask)
    wanted = problem(head_dim, head_dim_v, heads_of(mask, n_heads), dtype)
    return Recipe(mask, wanted, Target.named(target or default_target(wanted)), "mask")()


def layout(mask: Mask, n_q: int, n_kv: int | None = None, **options: object) -> BlockLayout:
    """See Mask.layout."""
    from maskc.questions import layout as tiles

    return tiles(mask, n_q, n_kv, **options)


def count(mask: Mask, n_q: int, n_kv: int | None = None, **options: object) -> int:
    """See Mask.count."""
    from maskc.questions import count as pairs

    return pairs(mask, n_q, n_kv, **options)


def selects(mask: Mask) -> int:
    """Fewest keys that a run-time selection of it chooses together; 0 where it has none."""
    from maskc.dsl.nodes import TopK

    own = [mask.block] if isinstance(mask, TopK) else []
    inner = filter(None, map(selects, getattr(mask, "children", ())))
    return min([*own, *inner], default=0)


def equals(left: Mask, right: Mask) -> bool | None:
    """See Mask.equals."""
    from maskc.questions import equals as same

    return same(left, right)


def subset_of(left: Mask, right: Mask) -> bool | None:
    """See Mask.subset_of."""
    from maskc.questions import subset_of as inside

    return inside(left, right)
