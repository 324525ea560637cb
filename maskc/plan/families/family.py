"""Kernel families: a template folder, its limits, and a schedule for each form and pass.

A new family is a file in this folder, a row in `table.py`, and a folder of templates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from maskc.core.errors import SharedMemoryExceeded
from maskc.core.problem import Direction, Problem
from maskc.core.target import TARGETS
from maskc.ir.types import MaskIR
from maskc.layout.topk.indexer import Indexing
from maskc.plan.families.limits import Limits
from maskc.plan.types import Schedule

_Entry = TypeVar("_Entry")

L2_BYTES = 32 * 1024 * 1024
"""Bytes of keys and values (forward) or queries (backward) that running blocks should share."""
BIN_BYTES = 1024
"""Bytes of shared memory that a row takes where thresholds are searched, see
templates/common/lib/choose_rows.cuh."""


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product of one warpgroup: 64 rows, and 32 bytes of operands deep a step."""

    name: str
    columns: int
    from_registers: bool = False
    """Whether the left operand is in registers instead of shared memory."""
    a_along_tokens: int = 0
    """1 where the reduction of the left operand runs along the tokens of its tile."""
    b_along_tokens: int = 0
    """1 where the reduction of the right operand runs along the tokens of its tile."""
    elements: str = ""
    """The element type of operands in PTX, if it differs from the tensors. One-byte operands are
    contiguous along the reduction."""

    @property
    def in_bytes(self) -> bool:
        """Whether elements have one byte, not two."""
        return self.elements == "e4m3"

    @property
    def depth(self) -> int:
        """Elements that a step multiplies for each result."""
        return 32 if self.in_bytes else 16

    @property
    def registers(self) -> int:
        """Accumulators per thread."""
        return self.columns // 2


@dataclass(frozen=True, slots=True)
class Scoring:
    """Blocks of a family that compute the scores of an indexer."""

    threads: int
    keys: int
    """Keys that a block scores."""
    slots: tuple[tuple[Indexing, int], ...]
    """The number of variants, and slabs of queries in flight."""


def of_width(table: Mapping[int, _Entry], width: int) -> _Entry:
    """Return the entry of the narrowest width that holds rows of `width` elements."""
    return table[min(dim for dim in table if dim >= width)]


class Along(NamedTuple):
    """A further source of a family, in addition to its main one."""

    target: str
    direction: Direction
    form: str


@dataclass(frozen=True, eq=False)
class Family:
    """A template folder and its limits."""

    name: str
    """The folder below templates/."""
    schedules: Mapping[tuple[Direction, str], Callable[[Problem], Schedule]]
    """The schedules by pass and form."""
    limits: Callable[[Problem], Limits]
    """Tiles and stages that a user may request."""
    by_masks: Callable[[Problem, tuple[MaskIR, ...]], Schedule] | None = None
    """The forward schedule of the default form, if it depends on the masks."""
    one_source: bool = False
    """Whether one text has both passes."""
    along: tuple[Along, ...] = ()
    """Further sources: other tiles, the other pass, and other families for calls that this one
    cannot run."""
    head_dims: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The widths of rows that have a form; a form that is not named has all."""
    tables: bool = False
    """Whether partial tiles may use bits from tables over k - q and of chosen blocks. All families
    support bits of intervals."""
    grid: Callable[[Problem], tuple[Schedule, ...]] | None = None
    """Forward schedules whose tiles may be boxes of a grid; None: no such kernels."""
    gathered: tuple[tuple[Direction, str], ...] = ()
    """The sources over gathered keys, the forward pass with the smallest tiles first."""
    scoring: Scoring | None = None
    """Scoring of lists of gathered keys."""
    device_documents: bool = False
    """Whether tile lists of documents may be made on the device."""
    device_data: bool = False
    """Whether tile lists of other data may be made on the device."""
    topk_shared_bytes: int = 0
    """Shared memory of a block that chooses blocks of keys on the device; 0: the host chooses."""

    def schedule(
        self, problem: Problem, masks: tuple[MaskIR, ...], direction: Direction, form: str
    ) -> Schedule:
        """Tile, threads and memory of a source.

        Raises:
            SharedMemoryExceeded: the tiles do not fit; no head dimension of a target does that.
            TileUnsupported: the requested tile or number of stages does not exist.
        """
        if problem.names_tile and (direction, form) == (Direction.forward, ""):
            self.limits(problem).check(problem)
        if self.by_masks is not None and (direction, form) == (Direction.forward, ""):
            made = self.by_masks(problem, masks)
        else:
            made = self.schedules[direction, form](problem)
        (target,) = (target for target in TARGETS.values() if target.family == self.name)
        launches = [launch for _, mode in made.modes for launch in mode.launches]
        room = max((launch.shared_bytes for launch in launches), default=made.shared_bytes)
        if room > target.shared_memory:
            raise SharedMemoryExceeded(room, target.name, target.shared_memory)
        return made

    def has(self, form: str, problem: Problem) -> bool:
        """Whether there are kernels of a form for a head dimension."""
        dims = self.head_dims.get(form)
        return dims is None or problem.head_dim in dims

    def template(self, stem: str, direction: Direction) -> str:
        """The path of a template.

        Args:
            stem: of the form: "" for tiles of consecutive tokens or boxes of a grid.
            direction: the pass.
        """
        if self.one_source:
            return f"{self.name}/attention.c.j2"
        if not stem:
            return f"{self.name}/{direction.value}.cu.j2"
        backward = "_backward" if direction is Direction.backward else ""
        return f"{self.name}/{stem}{backward}.cu.j2"
