"""Kernels for single keys that several heads share: schedules and launches.

The rows of a tile are the heads of one query that share its keys, 64 or, on Hopper, 128 of them.
Missing heads are padding, computed and discarded. On Hopper one warpgroup gathers keys and values
row by row (cp.async, 16 bytes a thread), one or two others compute; below it all threads do both.

Lists are built just before, on the device. Tensor cores compute scores, tile by tile, for as many
queries at a time as fit the workspace. The k-th best score of a row is found exactly, among the few
candidates above a bound from a sample. Then the keys that the mask keeps are listed in ascending
order. Selected keys and keys that the mask keeps anyway are merged key by key, so none is counted
twice.

Scores of DSA (64 heads of 128, 32k x 32k causal, one H200) take 16.2 ms in bf16, 542 TFLOP/s, and
11.4 in E4M3, 775. In E4M3, products alone take 5.8 ms and everything else takes 6.1 ms: the two
hardly overlap. Three changes did not help. Warpgroups took turns at products, in pairs or one after
another, and handed over once theirs were issued, or done. Weights were loaded a step ahead. Each of
the four threads that share two keys summed up one query and key.
"""

from __future__ import annotations

from dataclasses import dataclass

from maskc.core.bundle import Grid, Launch, Mode
from maskc.core.problem import Problem, TileShape
from maskc.core.selection import Score
from maskc.layout.topk import indexer as G
from maskc.plan.families import sm80
from maskc.plan.families.family import Product, Scoring
from maskc.plan.families.score_tables import reads_tables
from maskc.plan.families.sm80 import Sm80Schedule
from maskc.plan.families.sm90a import ForwardSchedule

THREADS = 512
"""The threads of a block that lists the keys of a query."""
LIST_BYTES = 64 * 1024
"""The bytes of shared memory that one uses: candidates, and bins or bits."""
SCORE_COLUMNS = 128
"""Index heads of queries whose products with keys a step computes."""


SM80_SCORING = Scoring(
    256, 128, tuple((way, 2 if way.slabs > 2 else 3) for way in G.INDEXINGS if not way.in_e4m3)
)
SM90A_SCORING = Scoring(640, 256, tuple((way, 5 if way.slabs > 2 else 8) for way in G.INDEXINGS))

_CONTROL_BYTES = 1024
_SLAB_ROW = 128
"""Bytes of 64 columns."""


@dataclass(frozen=True, slots=True)
class _Form:
    """Parameters that determine a schedule."""

    stages: int
    registers: tuple[int, int]
    """Per thread of a warpgroup that computes, and of the one that copies."""
    blocks: int = 1
    """The blocks that a multiprocessor runs at once."""


_OTHER_SMEM_80 = 1024
"""Bytes of shared memory other than the tiles."""
_WARPS_80 = 4
_BLOCKS_80 = {32: 3, 64: 3, 96: 2, 128: 2, 192: 2, 256: 2}
"""Below Hopper, for each head dimension: blocks that a multiprocessor runs at once. With two warps
of 32 rows, as other masks have, some would spill."""


def sm80_schedule(problem: Problem) -> Sm80Schedule:
    """The schedule of a forward pass over gathered keys below Hopper."""
    dim = problem.head_dim
    tile, blocks, park = TileShape(G.ROWS, G.KEYS), _BLOCKS_80[dim], dim == 256
    shared = sm80.shared_bytes(tile, dim, park) - sm80.BLOCK_BYTES + _OTHER_SMEM_80
    launch = Launch("attention_forward", Grid.stream, 32 * _WARPS_80, shared, resident=blocks)
    return Sm80Schedule(
        tile,
        f"tiles of {tile.q} heads of one query x {tile.k} of its keys, {_WARPS_80} warps, "
        f"{shared / 1024:g} KiB of shared memory",
        warps=_WARPS_80,
        min_blocks=blocks,
        shared_bytes=shared,
        park_rows=park,
        modes=(("default", Mode((launch,))),),
    )


_BACKWARD_80 = {
    32: (64, 64, 2),
    64: (64, 64, 2),
    96: (64, 64, 1),
    128: (64, 64, 1),
    192: (64, 32, 1),
    256: (32, 32, 1),
}
"""For a backward pass below Hopper: heads and keys of a tile, and blocks that a multiprocessor
runs at once."""


def sm80_backward_schedule(problem: Problem) -> Sm80Schedule:
    """The schedule of a backward pass over gathered keys below Hopper: each warp has 16 heads."""
    dim = problem.head_dim
    heads, keys, blocks = _BACKWARD_80[dim]
    tile, warps = TileShape(heads, keys), heads // 16
    shared = 4 * dim * (heads + keys) + 4 * heads * keys + _OTHER_SMEM_80
    return Sm80Schedule(
        tile,
        f"backward: tiles of {heads} heads of one query x {keys} of its keys, {warps} warps, "
        f"{shared / 1024:g} KiB of shared memory; dk and dv are added up in fp32 memory",
        warps=warps,
        min_blocks=blocks,
        shared_bytes=shared,
        modes=_backward_modes(
            problem, Launch("attention_backward", Grid.stream, 32 * warps, shared, resident=blocks)
        ),
    )


_NARROW = {
    32: _Form(3, (176, 80), 2),
    64: _Form(3, (176, 80), 2),
    96: _Form(2, (176, 80), 2),
    128: _Form(3, (176, 80), 2),
    192: _Form(3, (240, 80)),
    256: _Form(2, (240, 80)),
}
"""The schedules of each head dimension, with 64 heads a tile."""
_WIDE = {
    32: _Form(4, (216, 72)),
    64: _Form(4, (216, 72)),
    96: _Form(4, (216, 72)),
    128: _Form(4, (216, 72)),
    192: _Form(3, (216, 72)),
    256: _Form(2, (216, 72)),
}
"""The schedules with 128 heads a tile."""


def gather_schedule(problem: Problem, wide: bool) -> ForwardSchedule:
    """The schedule of a forward pass over gathered keys.

    Args:
        wide: whether a tile has the rows of 128 heads instead of 64.
    """
    dim, form = problem.head_dim, (_WIDE if wide else _NARROW)[problem.head_dim]
    tile = TileShape(G.WIDE_ROWS if wide else G.ROWS, G.KEYS)
    slabs, groups = -(-dim // 64), tile.q // 64
    shared = _SLAB_ROW * slabs * (tile.q + 2 * form.stages * tile.k) + _CONTROL_BYTES
    threads = 128 * (groups + 1)
    launch = Launch("attention_forward", Grid.stream, threads, shared, resident=form.blocks)
    return ForwardSchedule(
        tile,
        f"tiles of {tile.q} heads of one query x {tile.k} of its keys, {form.stages} stages, "
        f"{shared / 1024:g} KiB of shared memory",
        warps=4 * (groups + 1),
        stages=form.stages,
        min_blocks=form.blocks,
        shared_bytes=shared,
        warpgroups=groups,
        registers=form.registers,
        slabs=slabs,
        products=(
            Product("multiply_qk", tile.k),
            Product("multiply_pv", dim, from_registers=True, b_along_tokens=1),
        ),
        modes=(("default", Mode((launch,))),),
    )


_BACKWARD = {
    32: _Form(4, (240, 80)),
    64: _Form(4, (240, 80)),
    96: _Form(3, (240, 80)),
    128: _Form(3, (240, 80)),
    192: _Form(3, (256, 80)),
    256: _Form(2, (256, 80)),
}
"""The backward pass of each head dimension, with 64 heads a tile."""


def backward_schedule(problem: Problem) -> ForwardSchedule:
    """The schedule of a backward pass over gathered keys."""
    dim, form = problem.head_dim, _BACKWARD[problem.head_dim]
    tile, slabs = TileShape(G.ROWS, G.KEYS), -(-dim // 64)
    weights, control = 2 * _SLAB_ROW * tile.k, 2 * _CONTROL_BYTES
    shared = _SLAB_ROW * slabs * 2 * (tile.q + form.stages * tile.k) + weights + control
    return ForwardSchedule(
        tile,
        f"backward: tiles of {tile.q} heads of one query x {tile.k} of its keys, {form.stages} "
        f"stages, {shared / 1024:g} KiB of shared memory; dk and dv are added up in fp32 memory",
        warps=8,
        stages=form.stages,
        min_blocks=form.blocks,
        shared_bytes=shared,
        warpgroups=1,
        registers=form.registers,
        slabs=slabs,
        products=(
            Product("multiply_scores", tile.k),
            Product("multiply_dq", dim, from_registers=True, b_along_tokens=1),
            Product("multiply_keys", 64, a_along_tokens=1, b_along_tokens=1),
        ),
        modes=_backward_modes(
            problem, Launch("attention_backward", Grid.stream, 256, shared, resident=form.blocks)
        ),
    )


def _backward_modes(problem: Problem, main: Launch) -> tuple[tuple[str, Mode], ...]:
    """Sums of dk and dv in fp32, added up in any order; or as integers, in which no order shows.
    Tables of a score formula follow."""
    clear, seen, largest, keys = (
        Launch(f"attention_{name}", Grid.results, 256, resident=6)
        for name in ("clear", "seen", "largest", "keys")
    )
    tables = (
        [Launch("attention_backward_tables", Grid.results, 256, resident=6)]
        if reads_tables(problem) else []
    )  # fmt: skip
    return (
        ("default", Mode((clear, main, keys, *tables))),
        ("deterministic", Mode((clear, seen, largest, main, keys, *tables), "DETERMINISTIC")),
    )


def list_modes(score: Score, scoring: Scoring) -> tuple[tuple[str, Mode], ...]:
    """Return how lists are built: from given scores, or from an indexer's, which are computed
    first."""
    choose = Launch("gather_lists", Grid.rows, THREADS, LIST_BYTES, resident=list_blocks(score))
    if score is Score.given:
        return (("default", Mode((choose,))),)
    modes = []
    for way, slots in scoring.slots:
        rows = way.slabs * scoring.keys + slots * SCORE_COLUMNS
        room = _SLAB_ROW * rows + 4 * slots * SCORE_COLUMNS + _CONTROL_BYTES
        first = Launch("gather_scores", Grid.tiles, scoring.threads, room, per_block=scoring.keys)
        modes.append((way.mode, Mode((first, choose), way.macro)))
    return tuple(modes)


def list_blocks(score: Score) -> int:
    """Blocks of `gather_lists` that a multiprocessor runs at once."""
    return 2 if score is Score.given else 3
