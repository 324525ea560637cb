"""The compiler: a mask passes eight stages, each once, and nothing goes back up.

| stage       | call             | value that it hands on                                    |
|-------------|------------------|-----------------------------------------------------------|
| 1 capture   | `capture`        | the `Mask` a user wrote, and the arrays that it captured  |
| 2 lower     | `on_all_heads`   | `MaskIR`: one formula for each head                       |
| 3 decompose | `decompose`      | `MaskIR` in disjoint pieces, where all heads share one    |
| 4 analyse   | `analyse_masks`  | `Heads`: the distinct masks with their `MaskFacts`        |
| 5 plan      | `plan`           | `KernelPlan`                                              |
| 6 emit      | `emit`           | `Bundle`: sources and layout recipes                      |
| 7 build     | `CompiledMask`   | a binary for each source, when a call first needs it      |
| 8 bind      | `CompiledMask`   | what can be called on arrays                              |

Stages 2 to 6 are skipped where the disk remembers their bundle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from maskc.core.bundle import Bundle
from maskc.core.captured import ANY_LENGTHS, Held
from maskc.core.dtypes import DType
from maskc.core.errors import BadOption, BadTile, DataRange, DenseTooLarge
from maskc.core.expr import NEVER
from maskc.core.problem import Placed, Problem, TileShape
from maskc.core.score import Formula, Inputs
from maskc.core.target import SPARE, TARGETS, Target
from maskc.core.widths import plain_integer
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import TopK, structure, walk
from maskc.dsl.score_tracer import Score
from maskc.dsl.slots import emptied

if TYPE_CHECKING:
    import numpy as np

    from maskc.analysis.head_groups import HeadGroups
    from maskc.ir.types import MaskIR
    from maskc.plan.types import KernelPlan
    from maskc.runtime.compiled import CompiledMask

USUAL = DType.bfloat16
"""The dtype of kernels that a mask without one explains and warms up."""
_MAX_DENSE = 1 << 40
"""The most pairs of a dense mask; the indices of more alone would fill the memory of a machine."""

# ------------------------------------------------------------------ the eight stages


def compile(mask: Mask, *, score: Score | None = None, **options: Any) -> CompiledMask:
    """All stages; see Mask.compile. The options are those of `capture`."""
    from maskc.double import is_double

    if options.get("target") == "cpu" and is_double(options.get("dtype")):
        recipe, held = capture(mask, score=score, **{**options, "dtype": DType.float32})
        return recipe.double(held, None if score is None else score.inputs)
    recipe, held = capture(mask, score=score, **options)
    return recipe.bound(held, None if score is None else score.inputs)


def capture(
    mask: Mask, *, head_dim: int, head_dim_v: int | None = None, n_heads: int | None = None,
    dtype: object = None, target: str | None = None, name: str = "mask",
    score: Score | None = None, dropout: bool = False, tile: object = None, stages: object = None,
    placed: Placed | None = None,
) -> tuple[Recipe, Held | None]:  # fmt: skip
    """Stage 1: return the request of a call, and the arrays that its formulas captured.

    Args:
        head_dim, head_dim_v, n_heads, dtype, target, score, tile, stages: as in Mask.compile.
        name: of the bundle.
        dropout: make the kernels that drop weights, see `CompiledMask.dropping`.
        placed: positions of queries and places of keys, see `mc.paged`.
    """
    from maskc.ir.heads import heads_of
    from maskc.ir.lower import differs_by_head
    from maskc.runtime.device import default_target

    if score is not None and score.mask is not None:
        mask = mask & score.mask
    mask, held = emptied(mask)
    formula = None if score is None else score.formula
    heads = heads_of(mask, None if n_heads is None else _integer("n_heads", n_heads))
    if not differs_by_head(mask):  # kernels serve any number, unless the mask names one
        heads = heads_of(mask)
    kind = USUAL if dtype is None else dtype
    wanted = problem(head_dim, head_dim_v, heads, kind, formula, tile, stages, dropout)
    wanted = replace(wanted, placed=placed)
    chosen = _serving(Target.named(target or default_target(wanted)), mask, wanted)
    return Recipe(mask, _in_pages(wanted, chosen), chosen, name, dtype is None), held


@dataclass(frozen=True, eq=False)
class Recipe:
    """Ingredients of a compiled mask: explains it, and compiles it again for a stale pickle."""

    mask: Mask
    """The compiled mask, without captured arrays."""
    problem: Problem
    target: Target
    name: str
    any_dtype: bool = False
    """Whether calls may have other dtypes than the problem."""

    def __reduce__(self) -> tuple[object, ...]:
        """A copy plans anew."""
        return Recipe, (self.mask, self.problem, self.target, self.name, self.any_dtype)

    @cached_property
    def plan(self) -> KernelPlan:
        """Stages 2 to 5, once."""
        return plan_kernel(self.mask, self.problem, self.target)

    def __call__(self) -> str:
        """The text of CompiledMask.explain."""
        from maskc.plan.explain import explain

        comparison = compared_with_dense(self.mask, self.plan)
        return explain(self.plan) + "".join(f"{line}\n" for line in comparison)

    def bound(self, held: Held | None = None, inputs: Inputs | None = None) -> CompiledMask:
        """Stages 2 to 8: a callable.

        Args:
            held: the arrays that formulas of the mask captured.
            inputs: what a score formula reads; None takes the names of its slots.
        """
        from maskc.build.bundles import remembered
        from maskc.runtime.compiled import CompiledMask
        from maskc.runtime.device import on_this_card

        problem, target = self.problem, self.target.name
        key: tuple[object, ...] = (
            structure(self.mask), tuple(_places(self.mask)), problem, target, self.name
        )  # fmt: skip
        if problem.score is not None:
            key = (*key, problem.score.loc)
        bundle = on_this_card(remembered(key, self._emitted))
        made = CompiledMask(bundle, target, self, held=held, inputs=inputs)
        return made.of_any_dtype() if self.any_dtype else made

    def _emitted(self) -> Bundle:
        """Stages 2 to 6; meanwhile a thread loads the compiler of the sources."""
        from maskc.build.nvrtc import warm_up
        from maskc.build.toolchain import gpus
        from maskc.runtime.launch import ahead

        if self.target.language == "cuda" and gpus():
            ahead.start([partial(warm_up, self.target.name)])
        return emit_bundle(self.plan, self.name)

    def double(self, held: Held | None = None, inputs: Inputs | None = None) -> CompiledMask:
        """Return the reference, which runs calls in float64 on a CPU."""
        from maskc.double import in_double

        fp32 = replace(self.problem, dtype=DType.float32)
        return in_double(replace(self, problem=fp32, any_dtype=False).bound(held, inputs))

    def compile(
        self, dropout: bool = False, target: str | None = None, dtype: DType | None = None
    ) -> CompiledMask:
        """Compile the mask of a bundle again with the current package, possibly for another target
        or dtype."""
        wanted = replace(self.problem, dropout=dropout or self.problem.dropout,
                         dtype=dtype or self.problem.dtype)  # fmt: skip
        chosen = _serving(Target.named(target or self.target.name), self.mask, wanted)
        of_any = self.any_dtype and dtype is None
        return replace(
            self, problem=_in_pages(wanted, chosen), target=chosen, any_dtype=of_any
        ).bound()

    def dropping(self) -> CompiledMask:
        """The kernels of the same mask that drop weights."""
        return self.compile(dropout=True)


def _serving(target: Target, mask: Mask, problem: Problem) -> Target:
    """Return the target that runs a mask: `target`, or a substitute if it lacks the kernels.
    Tensor-core targets lack dropout with single keys selected at run time, and score formulas
    with thresholds."""
    chosen = selects(mask) if target.language == "cuda" else 0
    if 0 < chosen < target.least_block and (
        problem.dropout or (problem.score is not None and not _gathers(mask, problem))
    ):
        return Target.named(SPARE)
    return target.serving(problem, chosen)


def _in_pages(problem: Problem, target: Target) -> Problem:
    """The problem without pages for a target that does not load keys from these pools: calls copy
    the pages first, in the dtype of q."""
    if problem.placed is None or target.loads(problem):
        return problem
    return replace(problem, placed=replace(problem.placed, page_size=0, pool=None))


def _gathers(mask: Mask, problem: Problem) -> bool:
    """Whether single keys that a mask chooses are gathered."""
    from maskc.plan.forms.gathered_keys import gathering

    return not isinstance(gathering(analyse_heads(mask, problem.n_heads).masks), str)


def emit_bundle(plan: KernelPlan, name: str = "mask") -> Bundle:
    """Stage 6: the sources of a plan."""
    from maskc.emit.emitter import emit

    return emit(plan, name)


def plan_kernel(mask: Mask, problem: Problem, target: Target) -> KernelPlan:
    """Stages 2 to 5: the plan of a mask."""
    from maskc.plan.choose import plan

    return plan(analyse_heads(mask, problem.n_heads), problem, target)


def analyse_heads(mask: Mask, n_heads: int | None = None) -> HeadGroups:
    """Stages 2 to 4: the distinct masks of all heads, in pieces, with their facts."""
    from maskc.ir.lowered import with_atoms

    mask = with_atoms(emptied(mask)[0])
    return _analyse_heads(mask, n_heads, tuple(_places(mask)))


@lru_cache(maxsize=256)
def _analyse_heads(mask: Mask, n_heads: int | None, places: tuple[object, ...]) -> HeadGroups:
    from maskc.analysis.head_groups import analyse_masks
    from maskc.ir.lowered import on_all_heads

    formulas = on_all_heads(mask, n_heads)  # 2 lower
    return analyse_masks(tuple(formulas))  # 3 decompose, 4


def _places(mask: Mask) -> Iterator[object]:
    """Return the source position of every term; only these distinguish equal masks of different
    places."""
    return (node.loc for node in walk(mask))


def problem(
    head_dim: int, head_dim_v: int | None, n_heads: int | None, dtype: object,
    score: Formula | None = None, tile: object = None, stages: object = None, dropout: bool = False,
) -> Problem:  # fmt: skip
    """The problem a call of compile describes.

    Raises:
        UnknownDType: there are no kernels for the dtype.
        BadTile: `tile` is not a pair of positive integers, or `stages` no positive integer.
        BadOption: a head dimension or number of heads is no integer.
    """
    of_qk = _integer("head_dim", head_dim)
    of_v = of_qk if head_dim_v is None else _integer("head_dim_v", head_dim_v)
    heads = None if n_heads is None else _integer("n_heads", n_heads)
    return Problem(
        of_qk, of_v, DType.parse(dtype), heads, score, dropout, _tile(tile),
        None if stages is None else _count(stages, "stages", stages),
    )  # fmt: skip


def _integer(name: str, given: object) -> int:
    number = plain_integer(given)
    if number is None:
        raise BadOption(name, "an integer", repr(given), at=name)
    return number


def _tile(tile: object) -> TileShape | None:
    if tile is None or isinstance(tile, TileShape):
        return tile
    if not isinstance(tile, Sequence) or isinstance(tile, str) or len(tile) != 2:
        raise BadTile("tile", "a pair (queries, keys)", repr(tile), at="tile")
    return TileShape(*(_count(side, "tile", tile) for side in tile))


def _count(number: object, name: str, given: object) -> int:
    count = plain_integer(number)
    if count is None or count < 1:
        what = "a positive integer" if name == "stages" else "a pair of positive integers"
        raise BadTile(name, what, repr(given), at=name)
    return count


def tile_choices(problem: Problem, target: Target) -> tuple[Problem, ...]:
    """The problem with each tile and number of stages that a user may ask `compile` for.

    Raises:
        HeadDimUnsupported, DTypeUnsupported: the target has no kernel at all.
    """
    from maskc.plan.families.table import fitting

    return tuple(fitting(problem, target))


def compared_with_dense(mask: Mask, plan: KernelPlan) -> list[str]:
    """Lines that compare the plan of a mask with dense attention: causal, where the mask is."""
    from maskc.dsl.combinators import causal, full
    from maskc.plan.dense_comparison import compared_with_dense as lines

    masks = analyse_heads(mask, plan.problem.n_heads).masks
    known = all(facts.causal.holds for facts in plan.facts)
    dense = plan_kernel(causal() if known else full(), plan.problem, plan.target)
    if known and all(mask.keep == dense.masks[0].ir.keep for mask in masks):
        known, dense = False, plan_kernel(full(), plan.problem, plan.target)
    name = "dense causal attention" if known else "dense attention"
    return list(lines(plan, masks, dense, name))


def order(mask: Mask, n_heads: int | None = None) -> tuple[str, int] | None:
    """(the order of the live pairs of a head for long sequences, as O(N*w), the power of N in it);
    of heads that differ the largest; None if one of them has no closed form."""
    from maskc.plan.dense_comparison import pairs_of

    orders = [pairs_of(ir) for ir in analyse_heads(mask, n_heads).masks]
    known = [pairs for pairs in orders if pairs is not None]
    if not known or len(known) < len(orders):
        return None
    most = max(known, key=lambda pairs: pairs.degree)
    return most.order, most.degree


# ------------------------------------------------------------------ generated modules


def plan_module(mask: Mask, problem: Problem, target: Target) -> KernelPlan:
    """The plan of one target of a generated module.

    Raises:
        DTypeUnsupported, HeadDimUnsupported, TargetNotBuilt: the target has no such kernel.
    """
    target.check(problem)
    return _plan_for_module(mask, problem, target)


def _plan_for_module(mask: Mask, problem: Problem, target: Target) -> KernelPlan:
    """Plan with captured arrays as they are: a module holds them as constants."""
    from maskc.plan.choose import plan

    mask, _ = emptied(mask)
    heads = _analyse_heads(mask, problem.n_heads, tuple(_places(mask)))
    return plan(heads, problem, target)


def generate(
    mask: Mask, name: str, plans: Sequence[KernelPlan], title: str, standalone: bool = False
) -> dict[str, str]:
    """The generated module of a mask, its plan and its sources: file name -> text.

    Args:
        name: the module's name.
        plans: one per target, as `plan_module` gives them.
        title: the first line of the module's docstring.
        standalone: sources have the text of all static files that they include.
    """
    from maskc.emit.emitter import of_all_targets
    from maskc.emit.held import filled
    from maskc.emit.module import module_files
    from maskc.plan.explain import explain

    report = "\n".join(map(explain, plans))
    bundle = of_all_targets(_for_module(mask, plans, name), report)
    _, held = emptied(mask)
    if held is not None:
        _check_below_0(held)
        bundle = filled(bundle, held)
    return module_files(bundle, str(mask), title, standalone)


def _for_module(mask: Mask, plans: Sequence[KernelPlan], name: str) -> list[Bundle]:
    """The bundles of plans, after one that says what the mask is: for all of them may be of
    targets that find chosen keys by thresholds, whose formulas speak of all candidates."""
    bundles = [emit_bundle(plan, name) for plan in plans]
    if any(bundle.chooser is None for bundle in bundles):
        return sorted(bundles, key=lambda bundle: bundle.chooser is not None)
    cpu = _plan_for_module(mask, plans[0].problem, TARGETS["cpu"])
    return [replace(emit_bundle(cpu, name), units=()), *bundles]


def _check_below_0(held: Held) -> None:
    """Refuse formulas whose indices below 0 may decide: a module does not look for such pairs."""
    from maskc.ir.simplify import simplify
    from maskc.layout import below_0

    for reading in held.readings:
        if reading.lengths != ANY_LENGTHS:
            finding = f"a matrix for {reading.lengths} queries and keys"
            hint = "a module serves all lengths; write the mask with combinators or mc.where"
            raise DataRange("a captured array", finding, hint, at=reading.at)
    for reading, pairs in below_0(held):
        if simplify(pairs) != NEVER:
            finding = "an index may be below 0 where nothing in the formula rules it out"
            hint = "guard it, as (q >= 1) & (doc[q - 1] == doc[k]) does, or clamp it with max"
            raise DataRange("a captured array", finding, hint, at=reading.at)


# ------------------------------------------------------------------ questions


def lowered(mask: Mask, head: int | None = None, n_heads: int | None = None) -> MaskIR:
    """The mask of one head as one simplified formula: what stage 2 makes of it."""
    from maskc.ir.lowered import lowered as stage

    return stage(mask, head, n_heads)


def dense(
    mask: Mask, n_q: int, n_kv: int | None = None, *, n_heads: int | None = None, **options: Any
) -> np.ndarray:
    """Compute the mask pair by pair, bool [.., n_q, n_kv]; arguments and errors are
    Mask.dense's."""
    from maskc.layout import check_lengths
    from maskc.reference.dense import dense as reference

    n_q, n_kv = check_lengths(n_q, n_q if n_kv is None else n_kv)
    if n_q * n_kv > _MAX_DENSE:
        raise DenseTooLarge(n_q, n_kv, at="n_q")
    try:
        return reference(mask, n_q, n_kv, n_heads=n_heads, **options)
    except MemoryError:
        raise DenseTooLarge(n_q, n_kv, at="n_q") from None


def explained(mask: Mask, **options: Any) -> str:
    """See Mask.explain; the options are those of `capture`."""
    recipe, _ = capture(mask, **options)
    return recipe()


def selects(mask: Mask) -> int:
    """Return the smallest block of keys of its run-time selections; 0 if it has none."""
    return min((node.block for node in walk(mask) if isinstance(node, TopK)), default=0)
