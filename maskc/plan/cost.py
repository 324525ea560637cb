"""Costs of two plans of one mask by the cost model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from maskc.core import coefficients
from maskc.core.boxes import Boxes, axis_relations
from maskc.core.bundle import EXCLUSIVE_DQ, Mode
from maskc.core.coefficients import source_name, step_size
from maskc.core.cost import Cost, Tally
from maskc.core.forms import SMALL
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction, TileShape
from maskc.core.sizes import Sizes
from maskc.core.tensors import HOST
from maskc.dispatch.call import Pass
from maskc.dispatch.programs import Facts, Program, least, programs_of
from maskc.dispatch.stand_ins import LONGEST, SAMPLE, of_documents
from maskc.layout.inputs.max_seqlen import promises
from maskc.layout.tiles.document_tiles import beside_documents
from maskc.layout.work.tile_counts import Adders, adders_of, tally_of
from maskc.plan.families.table import family_of
from maskc.plan.types import KernelPlan, PlannedMask


def when(plan: KernelPlan) -> str:
    """Say when a call takes this plan instead of the first of its pass."""
    reads = any(mask.ir.data or mask.ir.selections for mask in plan.masks)
    by = "at a call's lengths, with typical data" if reads else "at a call's lengths"
    return f"used if predicted to be faster {by}"


def launch_share(plan: KernelPlan) -> float:
    """Return the launch overhead of a plan's source, relative to that of most sources."""
    forms = coefficients.measured(plan.target.name)
    launch_us = forms.get(source_name(plan.direction, plan.form), {}).get("launch_us")
    return 1.0 if launch_us is None else launch_us / forms["card"]["launch_us"]


def costs_of(plan: KernelPlan) -> tuple[Cost, ...]:
    """Return the costs of a plan's modes; empty if unknown."""
    size = 1.0
    other = plan.boxes is not None or plan.problem.names_tile
    if other and plan.direction is Direction.forward:
        usual = family_of(plan.target).schedule(plan.padded.planned, (), plan.direction, "")
        size = step_size(plan.tile.k, usual.tile.k)
    modes = dict(plan.schedule.modes)
    head_dim, tables = plan.padded.head_dim, coefficients.measured(plan.target.name)
    return coefficients.costs(tables, plan.direction, plan.form, head_dim, modes, size)


def layout_at(
    plan: KernelPlan, mask: PlannedMask, n_q: int, n_kv: int, params: Mapping[str, int] = {},
    arrays: Mapping[str, np.ndarray] = {},
) -> BlockLayout:  # fmt: skip
    """The tiles of one of a plan's masks, which reads no other data; parameters that are not given
    are at their defaults."""
    from maskc.layout import build
    from maskc.layout.tiles.grid_tiles import box_layout

    if plan.boxes is None:
        return build(mask.recipe, n_q, n_kv, params, arrays)
    return box_layout(plan.boxes, axis_relations(mask.axes, plan.boxes.grid(n_q), {}))


def title(plan: KernelPlan) -> str:
    """The tiles of a plan in a few words."""
    size = f"{plan.tile.q} x {plan.tile.k}"
    return f"{'boxes' if plan.boxes else 'tiles'} of {size}"


def smaller(plan: KernelPlan) -> Iterator[KernelPlan]:
    """The plans of the same pass in smaller tiles."""
    return (e for e in plan.alternatives if e.form == SMALL and e.direction is plan.direction)


@dataclass(frozen=True)
class Candidate:
    """A plan as a source that programs are made of."""

    plan: KernelPlan

    @property
    def tile(self) -> TileShape:
        return self.plan.tile

    @property
    def modes(self) -> tuple[tuple[str, Mode], ...]:
        return self.plan.schedule.modes

    @property
    def costs(self) -> tuple[Cost, ...]:
        return self.plan.costs or costs_of(self.plan)

    @property
    def boxes(self) -> Boxes | None:
        return self.plan.boxes

    @property
    def only_once(self) -> bool:
        return [name for name, _ in self.modes] == [EXCLUSIVE_DQ]


def candidates(
    plan: KernelPlan, direction: Direction, n_q: int, n_kv: int
) -> tuple[Candidate, ...]:
    """The sources that may run a pass at these lengths, the one with the largest tiles first."""
    plans = [
        candidate for candidate in (plan, *plan.alternatives)
        if candidate.target == plan.target and candidate.direction is direction
    ]  # fmt: skip
    others = (
        candidate for candidate in plans[1:]
        if candidate.form and (candidate.boxes is None or candidate.boxes.hold(n_q, n_kv))
    )  # fmt: skip
    return tuple(map(Candidate, (*plans[:1], *others)))


def programs_at(
    candidate: Candidate, tally: Tally, adders: Adders | None, n_q: int, n_kv: int
) -> list[Program[Candidate]]:
    """The programs of a planned source for one head with these tiles."""
    wanted = Pass(candidate.plan.direction, frozenset(), False, HOST)
    sizes = Sizes(_MANY, 1, 1, n_q, n_kv)
    return list(programs_of(candidate, wanted, Facts(tally, adders), sizes))


_MANY = 1 << 20
"""Sequences of a call that keeps a card busy."""


def most_in_small_tiles(plan: KernelPlan) -> int | None:
    """The greatest `max_seqlen` with which documents run in the smaller tiles, parameters at their
    defaults; 0 where none does, None where there is no such choice."""
    small = tuple(smaller(plan))
    ir = plan.masks[0].ir
    alongside = beside_documents(ir.keep, tuple(ir.data)) if plan.documents and small else None
    if alongside is None:
        return None

    def cycles(candidate: Candidate, longest: int) -> float:
        tally = of_documents(candidate.tile, alongside, ir.params, longest, plan.direction)
        return least(programs_at(candidate, tally, None, SAMPLE, SAMPLE)).cycles

    large, others = Candidate(plan), tuple(map(Candidate, small))
    fitting = (
        promise for promise in reversed(promises(LONGEST))
        if min(cycles(other, promise) for other in others) < cycles(large, promise)
    )  # fmt: skip
    return next(fitting, 0)


def choice(
    plan: KernelPlan, n_q: int, n_kv: int, direction: Direction | None = None
) -> tuple[Program[Candidate], list[Program[Candidate]]] | None:
    """(the program that a call takes, all programs with predicted cycles); None where there is no
    choice, or it depends on data.

    Cycles count every distinct mask once.

    Args:
        plan: of the forward pass, or of the pass itself.
        n_q, n_kv: lengths.
        direction: the pass; that of the plan when None.
    """
    direction = direction or plan.direction
    sources = candidates(plan, direction, n_q, n_kv)
    if len(sources) < 2 or any(mask.ir.data for mask in plan.masks):
        return None
    programs = []
    for source in sources:
        layouts = [layout_at(source.plan, mask, n_q, n_kv) for mask in source.plan.masks]
        tally = tally_of(layouts, direction)
        programs += programs_at(source, tally, adders_of(layouts), n_q, n_kv)
    return least(programs), programs
