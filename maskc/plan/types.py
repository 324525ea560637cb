"""A plan of how one mask runs on one target, with reasons."""

from __future__ import annotations

from dataclasses import dataclass

from maskc.analysis.facts import MaskFacts
from maskc.core import expr as E
from maskc.core.boxes import Boxes
from maskc.core.bundle import LayoutRecipe, Mode, TensorMap, WorkList
from maskc.core.cost import Cost
from maskc.core.expr import Expr
from maskc.core.forms import TINY
from maskc.core.gathering import Gather
from maskc.core.problem import Direction, Feature, Problem, TileShape
from maskc.core.selection import Selection
from maskc.core.target import Target
from maskc.ir.grid import grid_mask
from maskc.ir.lift import Lifted
from maskc.ir.types import MaskIR, MaskPart
from maskc.plan.data_intervals import DataIntervals
from maskc.plan.intervals import Interval
from maskc.plan.ranges import RowRange

_MAIN = ("attention_forward", "attention_backward")
"""The launches of a pass that compute scores and products."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Tile, threads and memory of a kernel family for one problem."""

    tile: TileShape
    reason: str
    """Why these numbers, for explain()."""
    warps: int = 0
    stages: int = 1
    min_blocks: int = 1
    shared_bytes: int = 0
    modes: tuple[tuple[str, Mode], ...] = ()
    """CUDA: ways to launch, by name; none: one launch by tile rows."""
    document_modes: tuple[tuple[str, Mode], ...] = ()
    """CUDA: further modes of masks whose tiles may begin at documents; others gain nothing from
    them."""
    maps: tuple[TensorMap, ...] = ()
    """CUDA: tensor maps in the order of the kernel's parameter."""
    work: WorkList | None = None
    """Rules for splitting and ordering the work; None if blocks derive their work from their
    index."""
    row_floats: int = 0
    """fp32 workspace per query."""
    key_floats: int = 0
    """fp32 workspace per key of a column that items share."""
    pair_slots: int = 0
    """Tiles of a table with an entry for each pair, in storage precision, for which shared memory
    has room (sm_90a)."""
    data_rows: bool = True
    """Whether columns bounded by data are found as intervals instead of by testing pairs."""

    @property
    def score_rows(self) -> int:
        """Queries of a tile of scores that is masked at once."""
        return self.tile.q

    @property
    def row_registers(self) -> int:
        """Registers of a thread that computes."""
        return 255

    @property
    def shift_bytes(self) -> int:
        """Shared memory for terms of scores that depend on distance: a number for every diagonal of
        a warpgroup's tile (sm_90a)."""
        return 0

    @property
    def pair_bytes(self) -> int:
        """Shared memory of a tile of a table with an entry for each pair, in storage precision; 0
        if warps that compute do not copy any (sm_90a)."""
        return 0

    def has_room(self, size: int, target: Target) -> bool:
        """Whether the main launches (except those of alpha-entmax) could have `size` bytes more
        shared memory with as many blocks per multiprocessor."""
        launches = (launch for _, mode in self.modes for launch in mode.launches)
        used = [
            launch.shared_bytes
            for launch in launches
            if launch.entry in _MAIN and launch.feature is not Feature.entmax
        ]
        most = target.shared_bytes_of(self.min_blocks)
        return max(used, default=self.shared_bytes) + size <= most


@dataclass(frozen=True, slots=True)
class PlannedMask:
    """One of the distinct masks, ready to be emitted."""

    ir: MaskIR
    lifted: Lifted
    recipe: LayoutRecipe
    ranges: tuple[RowRange, RowRange] | None
    """Per tile row and per tile column, over the lifted constants."""
    intervals: tuple[Interval, ...] | None = None
    """Intervals whose union is the mask row by row and column by column, except for its documents
    if tiles begin with them; None: there are not so few."""
    always_kept: Expr | None = None
    """The pairs that the mask keeps regardless of thresholds, lifted like the mask."""
    always_kept_intervals: tuple[Interval, ...] | None = None
    """The intervals of these pairs, like `intervals`."""
    axes: tuple[Expr, ...] = ()
    """The mask as relations between coordinates of a grid, see maskc/ir/grid.py; empty unless tiles
    are boxes."""


def selections(masks: tuple[PlannedMask, ...]) -> tuple[Selection, ...]:
    """All run-time selections, each after those that it reads."""
    return tuple(
        {selection.name: selection for mask in masks for selection in mask.ir.selections}.values()
    )


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """Everything emit needs."""

    problem: Problem
    target: Target
    schedule: Schedule
    """The family's schedule: tile, threads, shared memory."""
    tile: TileShape
    use_ranges: bool
    """Tile lists as closed forms inside the kernel instead of CSR in memory."""
    masks: tuple[PlannedMask, ...]
    facts: tuple[MaskFacts, ...]
    of_head: tuple[int, ...]
    reasons: tuple[str, ...]
    """One sentence per decision."""
    distances: bool = False
    """Partial tiles by bits over k - q, made when lengths are known (sm_90a)."""
    runs: tuple[int, int] = (1, 1)
    """Lengths of aligned runs of keys and of queries that all masks treat alike."""
    direction: Direction = Direction.forward
    """The pass; a family with one source for both counts as forward."""
    form: str = ""
    """The form; it distinguishes the plans of one target and pass between which a call chooses."""
    costs: tuple[Cost, ...] = ()
    """The costs by mode, if a call has a choice."""
    parts: tuple[MaskPart[KernelPlan], ...] = ()
    """The parts of the mask, possibly over residue classes; none if that does not help or the
    family cannot."""
    documents: bool = False
    """Whether tile lists may be made on the device, from documents that are given there."""
    by_query: DataIntervals | None = None
    """The keys of a query as intervals, for masks that read data; None if kernels test pairs."""
    by_key: DataIntervals | None = None
    """The queries of a key, for backward passes."""
    data_lists: bool = False
    """Whether tile lists may be made on the device, from any data that are given there."""
    selecting: bool = False
    """Whether run-time selections, and the tile lists that follow, may be made there."""
    boxes: Boxes | None = None
    """The boxes, where tiles are boxes of a grid instead of consecutive tokens."""
    gathering: Gathering | None = None
    """Recipe of the lists of gathered keys, if single keys are gathered."""
    thresholds: bool = False
    """Whether kernels keep pairs by thresholds, see maskc/plan/forms/thresholds.py."""
    chosen: int | None = None
    """In a plan that finds thresholds: which of the lifted constants is the number of keys that a
    query chooses."""
    chooser: KernelPlan | None = None
    """Plan of the source that finds thresholds."""
    alternatives: tuple[KernelPlan, ...] = ()
    """Plans of further sources of the same mask: other tiles, other passes, and other targets for
    calls that this one cannot run."""

    @property
    def padded(self) -> Problem:
        """The problem with head dimensions as the kernel computes them."""
        return self.target.padded(self.problem, self.direction, self.form)

    @property
    def of_data(self) -> tuple[DataIntervals | None, DataIntervals | None]:
        """`by_query` and `by_key`, if partial tiles depend on nothing else."""
        others = self.thresholds or self.documents or self.distances or self.chosen is not None
        if others or self.boxes is not None or self.gathering is not None:
            return None, None
        return self.by_query, self.by_key

    @property
    def tests(self) -> int:
        """Operations of the condition on the axes of a grid that partial tiles test for every pair,
        or for every run of keys; 0 where bits of whole rows tell.

        Conditions of other masks count as free. On an H200, those of NATTEN and Swin double the
        time of a partial tile; that of `sparse_transformer_fixed` takes next to nothing.
        """
        told = self.distances or self.boxes is not None or self.gathering is not None
        told = told or self.documents or self.thresholds or self.selecting or self.form == TINY
        if told or self.of_data[self.direction is Direction.backward] is not None:
            return 0
        if None in (grid_mask(mask.ir.keep) for mask in self.masks):
            return 0
        tested = (mask.lifted.shape for mask in self.masks if mask.intervals is None)
        return max(map(E.operations, tested), default=0) // self.runs[0]


@dataclass(frozen=True, slots=True)
class Formula:
    """A part of the mask, ready to be emitted."""

    name: str
    lifted: Lifted
    """The formulas with constants numbered over all parts."""
    spans: tuple[Interval, ...] | None
    """The formula's keys, query by query; None if they are not a few intervals."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """Recipe of the lists of a mask."""

    selection: Selection
    allowed: Formula
    """The candidates of the selection."""
    chosen: Formula
    """The pairs that the mask keeps among selected ones."""
    alongside: Formula
    """The pairs that the mask keeps among the others."""

    @property
    def formulas(self) -> tuple[Formula, ...]:
        return self.allowed, self.chosen, self.alongside

    @property
    def constants(self) -> tuple[Expr, ...]:
        return tuple(arg for formula in self.formulas for arg in formula.lifted.args)

    @property
    def recipe(self) -> Gather:
        """Return the part that the runtime needs."""
        values: dict[Expr, Expr] = {E.Sym(f"c{i}"): value for i, value in enumerate(self.constants)}
        spans = (span.keys for span in self.alongside.spans or ())
        return Gather(self.constants, tuple(
            span.substituted(values) for span in spans
        ), tuple(rest for formula in self.formulas for rest in formula.lifted.rests))  # fmt: skip
