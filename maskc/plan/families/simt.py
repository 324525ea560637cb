"""The simt family: CUDA cores in fp32, for every card from compute capability 7.0 on.

One block of 16 x 16 threads has a tile of 64 x 64 pairs. A thread has 4 x 4 of them, and 4 x 4
numbers of each strip of 64 columns of a result. Rows of any length pass through 35 KiB of shared
memory in pieces of DEPTH elements, so no card needs an opt-in for more. Registers grow with the
head dimension: 16 per strip. Forward passes and dq hold all strips of a row: eight at 512 elements.
dk and dv together may have sixteen. Beyond eight, several blocks share a tile column, and each
recomputes the scores for its strips.
"""

from __future__ import annotations

from dataclasses import dataclass

from maskc.core.bundle import Grid, Launch, Mode
from maskc.core.problem import Direction, Feature, Problem, TileShape
from maskc.core.target import TARGETS
from maskc.plan.families.family import Along, Family
from maskc.plan.families.limits import Limits
from maskc.plan.types import Schedule

TILE = TileShape(64, 64)
THREADS = 256
STRIP = 64
"""Columns of a strip; each thread holds 4 x 4 numbers of its result."""
MAX_STRIPS = 8
"""The most strips whose sums a block holds: 128 registers of a thread."""
ROW_FLOATS = 2
"""fp32 workspace per query: delta, and room for a number per tile row."""


@dataclass(frozen=True, slots=True)
class SimtSchedule(Schedule):
    """Numbers of the simt templates."""

    depth: int = 32
    """Elements of rows that are multiplied at a time."""
    owned: int = 1
    """Backward: strips of dv and dk that a block has."""


def strips(width: int) -> int:
    """Strips of a row."""
    return -(-width // STRIP)


def forward_schedule(problem: Problem) -> SimtSchedule:
    """The forward schedule, whatever the head dimensions and dtype."""
    return SimtSchedule(
        TILE,
        f"{_reason(problem)}; a thread has 4 x 4 pairs and {16 * strips(problem.head_dim_v)} "
        "numbers of out",
        warps=THREADS // 32,
        min_blocks=2 if strips(problem.head_dim_v) <= 3 else 1,
        depth=_depth(problem),
    )


def backward_schedule(problem: Problem) -> SimtSchedule:
    """The backward schedule: dq by tile rows, then dk and dv by tile columns."""
    total = strips(problem.head_dim) + strips(problem.head_dim_v)
    parts = -(-total // MAX_STRIPS)
    owned = -(-total // parts)

    def launch(name: str, grid: Grid, feature: Feature | None = None, per_block: int = 1) -> Launch:
        entry = f"attention_backward{name}"
        return Launch(entry, grid, THREADS, per_block=per_block, feature=feature)

    launches: tuple[Launch, ...] = (
        launch("_delta", Grid.rows),
        launch("_few", Grid.few),
        launch("_rows", Grid.rows),
        launch("_columns", Grid.tile_columns, per_block=TILE.k // parts),
        launch("_sinks", Grid.heads, Feature.sinks),
        launch("_slopes", Grid.heads, Feature.alibi),
    )
    if problem.score is not None:
        launches = (*launches, launch("_tables", Grid.rows))
    shared = f"; {parts} blocks share a tile column" if parts > 1 else ""
    return SimtSchedule(
        TILE,
        f"{_reason(problem)}; dq by tile rows, dk and dv by tile columns{shared}",
        warps=THREADS // 32,
        min_blocks=2 if owned <= 2 else 1,
        modes=(("default", Mode(launches)),),
        row_floats=ROW_FLOATS,
        depth=min(16, _depth(problem)),
        owned=owned,
    )


def _reason(problem: Problem) -> str:
    cuda = (target for target in TARGETS.values() if target.language == "cuda")
    others = [target.name for target in cuda if target.lacks(problem)]
    why = f" ({' and '.join(others)} have no such kernel)" if others else ""
    return (
        f"tiles of {TILE.q} x {TILE.k} on CUDA cores in fp32{why}, {_depth(problem)} elements of "
        "rows at a time"
    )


def _depth(problem: Problem) -> int:
    """Whole eights, as a warp loads eight columns of four rows; 32 at most."""
    return min(32, -(-max(problem.head_dim, problem.head_dim_v) // 8) * 8)


def limits(problem: Problem) -> Limits:
    """The one tile that 16 x 16 threads have."""
    return Limits("simt", (TILE.q,), (TILE.k,))


SIMT = Family(
    "simt",
    {
        (Direction.forward, ""): forward_schedule,
        (Direction.backward, ""): backward_schedule,
    },
    limits=limits,
    along=(Along("simt", Direction.backward, ""),),
    device_data=True,
)
