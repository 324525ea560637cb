"""Schedules of the wgmma backward (templates/sm90a/backward.cu.j2): tiles, registers, memory.

A block processes tile columns. Its keys and values stay, while queries and dout stream through two
stages. Scores are computed transposed, keys by queries. Two warpgroups compute. Up to a head
dimension of 128, and at 160 and 192 / 128, each owns 64 keys of the column and keeps their
gradients in registers (`keys`). Otherwise each owns half of the head dimension, and half of a
tile's queries while scores become gradients (`columns`).

If columns are so short that most of a tile is outside the mask, a second source with tiles of
64 x 64 is faster. One warpgroup computes, two blocks share a multiprocessor, and dq is added to
memory straight from registers. A call takes the source with the lower time predicted from
maskc/core/cost.toml.

Tile columns add to dq in fp32. A launch before the main one writes the zeros that the first heads
need. A warp of the main launch writes the zeros of later heads. A launch after it converts dq to
storage precision. Two modes avoid these sums:

- EXCLUSIVE_DQ, if every tile row has at most one tile (blocks, lattices in parts): the main launch
  stores dq.
- SEPARATE_DQ, for short rows in small tiles: a separate launch over tile rows computes dq from
  queries, dout and out, and delta on the way. The main launch then computes dk and dv. That is
  seven products instead of five, but dq is neither cleared nor summed in memory. The result is
  bitwise deterministic.

What was tried, and what each trial gave: benchmarks/trials.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from maskc.core.bundle import EXCLUSIVE_DQ, SEPARATE_DQ, Grid, Launch, Mode, TensorMap, WorkList
from maskc.core.problem import Feature, Problem, TileShape
from maskc.core.target import TARGETS
from maskc.plan.families.family import L2_BYTES, Product, of_width
from maskc.plan.families.score_tables import with_tables
from maskc.plan.families.sm90a import SLAB, has_pairs, pair_slots
from maskc.plan.types import Schedule

THREADS = 256
"""The threads of the passes before and after, which have a block per tile."""
SLOPE_SUMS = 128
"""Sums for the gradient of a head's slope, after each warpgroup's share of dq: one per thread."""
MAX_COLUMN_TILES = 256
"""Query tiles of an item; longer columns are cut, and their gradients added up in memory."""
LONG_COLUMN = 16
"""Query tiles of an item of a column far longer than the others: sinks among windows, global keys.
With 132 blocks, sinks and a window of 64 at 4k (16 heads, D 128) have 27 steps per block. The last
block ends after 75 steps if columns are whole, after 44 with 32, and after 30 with 16."""

ROW_BYTES = 16
"""Bytes of a query's lse and delta, as pieces of products; or as numbers, with thresholds of its
keys."""
_CONTROL_BYTES = 512
"""Barriers and words behind the tiles."""


@dataclass(frozen=True, slots=True)
class BackwardSchedule(Schedule):
    """Numbers of the backward template."""

    registers: tuple[int, int] = (240, 24)
    """Per thread of a warpgroup that computes, and of the one that copies."""
    slabs: int = 1
    """The slabs of a tile."""
    warpgroups: int = 2
    """The warpgroups that compute."""
    split: str = "keys"
    """Split of the work between warpgroups: `keys` or `columns`."""
    shares: int = 2
    """The shares of a tile of dq, see templates/sm90a/lib/backward_constants.cuh."""
    staged: bool = True
    """Whether dq is added to memory by bulk reductions from shared memory, instead of from
    registers."""
    zeroes: bool = True
    """Whether an idle warp zeroes tiles of dq, if they are staged."""
    ds_stages: int = 2
    """Tiles of ds in shared memory."""
    dout_stages: int = 2
    """Tiles of dout in flight; also of k and v in the launch that computes delta for entmax."""
    mean_bytes: int = 0
    """Shared memory of the launch that computes delta for entmax."""
    half_share: bool = False
    """Whether a warpgroup computes its share of dq in two products: a whole slab, then half of the
    columns of another."""
    score_queries: int = 64
    """Queries of the transposed scores that a warpgroup computes."""
    products: tuple[Product, ...] = ()
    key_blocks: int = 1
    """Blocks of the launch that adds up a column that items share."""
    row_bytes: int = 0
    """Shared memory of the launch that computes dq by tile rows; 0 if there is none."""
    keep_rows: bool = False
    """Whether that launch keeps q and dout in registers, or two tiles of each in shared memory."""

    @property
    def score_rows(self) -> int:
        return self.score_queries

    @property
    def row_registers(self) -> int:
        return self.registers[0]

    @property
    def shift_bytes(self) -> int:
        return 4 * self.warpgroups * (self.score_queries + 64 - 1)


_TILES = {
    32: TileShape(128, 128),
    64: TileShape(128, 128),
    96: TileShape(64, 128),
    128: TileShape(64, 128),
    192: TileShape(64, 64),
    256: TileShape(64, 64),
}
"""The tiles of each head dimension. Widths in between have the tile of the next one."""
_TILE_BY_KEYS = TileShape(64, 128)
_MAX_SLABS = 5
"""Slabs of k and v, if warpgroups divide 128 keys: for more, shared memory has room for one tile of
dout only."""
_MAX_SUMS = 320
"""Columns of dk and dv of 64 keys that a warpgroup keeps in registers: tiles of 64 x 128 up to this
number, also above a head dimension of 128."""

_SMALL_TILE = TileShape(64, 64)
_SMALL_BLOCKS = 2
"""Per multiprocessor."""
_MORE_SMALL_BLOCKS = 3
"""Likewise at head dimension 32 with a table of pairs."""


def backward_schedule(problem: Problem, thresholds: bool = False) -> BackwardSchedule:
    """The schedule of a backward pass, or of one that compares with thresholds of chosen keys."""
    if has_pairs(problem) and problem.head_dim <= 64 and not thresholds:
        return small_backward_schedule(problem)
    tile = of_width(_TILES, problem.head_dim)
    if problem.head_dim > 128 and problem.head_dim + problem.head_dim_v <= _MAX_SUMS:
        tile = _TILE_BY_KEYS
    split = "keys" if tile.k == 128 else "columns"
    how = f"2 consumer warpgroups that divide the {split} and a producer"
    return _schedule(problem, tile, 2, split, 1, (240, 24), how, thresholds)


def small_backward_schedule(problem: Problem, separate_dq: bool = True) -> BackwardSchedule:
    """Return the schedule of a backward pass with small tiles, for one of SMALL_HEAD_DIMS.

    Args:
        problem: dtypes and head dimensions.
        separate_dq: whether it has the mode SEPARATE_DQ.
    """
    blocks, registers = _SMALL_BLOCKS, (232, 24)
    if has_pairs(problem) and problem.head_dim == 32:
        blocks, registers = _MORE_SMALL_BLOCKS, (136, 24)
    how = f"a consumer warpgroup and a producer, {blocks} blocks per multiprocessor"
    made = _schedule(problem, _SMALL_TILE, 1, "keys", blocks, registers, how)
    if made.work is not None:
        uneven = LONG_COLUMN // blocks
        work = replace(made.work, uneven_tiles=uneven, resident=blocks)
        made = replace(made, work=work)
    if not separate_dq or (has_pairs(problem) and problem.head_dim <= 64):
        return made
    tile, keep = made.tile, made.slabs > 1
    rows = 3 * tile.q * (1 if keep else 2)
    room = 2 * SLAB * made.slabs * (rows + 2 * made.stages * tile.k) + 2 * _CONTROL_BYTES
    mode = _separate_dq(made, room)
    return replace(
        made,
        reason=f"{made.reason}, dq in a separate launch if that is faster",
        modes=(*made.modes, (SEPARATE_DQ, with_tables(mode, problem, tile, THREADS))),
        products=(*made.products, Product("multiply_kept_scores", tile.k, from_registers=True)),
        maps=(*made.maps, TensorMap("out", tile.q)),
        row_bytes=room,
        keep_rows=keep,
    )


def _separate_dq(schedule: BackwardSchedule, room: int) -> Mode:
    """Return the mode that computes dq by tile rows, then dk and dv as EXCLUSIVE_DQ does.

    Args:
        schedule: one with the mode EXCLUSIVE_DQ.
        room: bytes of shared memory of the launch for dq.
    """
    launches = {launch.entry: launch for launch in dict(schedule.modes)[EXCLUSIVE_DQ].launches}
    main, keys = (launches[f"attention_backward{x}"] for x in ("", "_finish_keys"))
    rows = replace(main, entry="attention_backward_rows", grid=Grid.stream_rows, shared_bytes=room)
    return Mode((rows, main, keys), "SEPARATE_DQ")


def _schedule(
    problem: Problem, tile: TileShape, warpgroups: int, split: str, blocks: int,
    registers: tuple[int, int], how: str, thresholds: bool = False,
) -> BackwardSchedule:  # fmt: skip
    dim, dim_v = problem.head_dim, problem.head_dim_v
    slabs, slabs_v = -(-dim // SLAB), -(-dim_v // SLAB)
    of_keys = split == "keys" and warpgroups > 1
    # Beyond 128 columns, shared memory has room for a tile of dq only with one tile of ds, without
    # zeros, and without tables of the score.
    wide, all_slabs = dim > 128, slabs + slabs_v
    staged = of_keys and not (wide and (thresholds or problem.score))
    zeroes = staged and not wide
    ds_stages = 1 if warpgroups == 1 or (staged and wide) else 2
    half_share = of_keys and slabs > 1 and slabs % 2 == 1
    shares = warpgroups if dim < 128 else 2  # more than 32 numbers per thread: too few registers
    of_dq = min(SLAB, dim) if shares > 1 else dim
    of_half = (dim - SLAB * (slabs - 1)) // 2 if half_share else 0
    parts = () if split == "keys" else _parts(slabs)
    parts_of_v = () if split == "keys" else _parts(slabs_v)
    dout_stages = 1 if of_keys and all_slabs > _MAX_SLABS else 2
    rest = _shared(tile, slabs, slabs_v, ds_stages, dout_stages, split)
    of_mean = _mean_bytes(tile, all_slabs, warpgroups, dout_stages)
    key_blocks = _key_blocks(dim + dim_v, tile)

    def modes_with(more: int) -> tuple[tuple[str, Mode], ...]:
        return _modes(
            tile, rest + more, of_mean, dim if staged else 0, zeroes, warpgroups, blocks,
            thresholds, key_blocks,
        )  # fmt: skip

    room = TARGETS["sm_90a"].shared_bytes_of(blocks) - _most_shared(modes_with(0))
    slots = 0 if thresholds else pair_slots(problem, tile, room)
    modes = tuple(
        (name, with_tables(mode, problem, tile, THREADS))
        for name, mode in modes_with(slots * 2 * tile.q * tile.k)
    )
    room = _most_shared(modes)
    queries = tile.q if split == "keys" else tile.q // 2
    return BackwardSchedule(
        tile,
        f"tiles of {tile.q} x {tile.k}, {how}, {room / 1024:g} KiB of shared memory",
        warps=4 * (warpgroups + 1),
        stages=2,
        min_blocks=blocks,
        shared_bytes=room,
        pair_slots=slots,
        mean_bytes=max(room, of_mean),
        registers=registers,
        slabs=slabs,
        key_blocks=key_blocks,
        warpgroups=warpgroups,
        split=split,
        shares=shares,
        staged=staged,
        zeroes=zeroes,
        ds_stages=ds_stages,
        dout_stages=dout_stages,
        half_share=half_share,
        score_queries=queries,
        products=_products(problem, queries, parts, parts_of_v, of_dq, of_half),
        modes=modes,
        maps=(
            TensorMap("q", tile.q),
            TensorMap("dout", tile.q),
            TensorMap("k", tile.k),
            TensorMap("v", tile.k),
            TensorMap("dk", 64),
            TensorMap("dv", 64),
        ),
        work=WorkList(
            L2_BYTES // (6 * dim + 2 * dim_v), most_tiles=MAX_COLUMN_TILES, uneven_tiles=LONG_COLUMN
        ),
        # dq and the slopes' sums; lse and delta; the tile's own numbers.
        row_floats=dim + -(-shares * SLOPE_SUMS // tile.q) + ROW_BYTES // 4 + 1,
        key_floats=dim + dim_v,
    )


def _most_shared(modes: tuple[tuple[str, Mode], ...]) -> int:
    """Return the shared memory that the main launch of any mode has."""
    return max(
        launch.shared_bytes
        for _, mode in modes for launch in mode.launches if launch.entry == "attention_backward"
    )  # fmt: skip


def _parts(slabs: int) -> tuple[int, ...]:
    """The columns of gradients that a warpgroup owns where columns are divided: whole slabs, and
    then half of the slab in the middle where their number is odd."""
    return SLAB * (slabs // 2), *([SLAB // 2] * (slabs % 2))


def _key_blocks(columns: int, tile: TileShape) -> int:
    """Return the number of blocks such that a thread adds up eight columns of two keys, of dk or
    dv."""
    return -(-(columns // 8) * (tile.k // 2) // THREADS)


def _products(
    problem: Problem, queries: int, parts: tuple[int, ...], parts_of_v: tuple[int, ...], of_dq: int,
    of_half: int,
) -> tuple[Product, ...]:  # fmt: skip
    """Matrix products of a warpgroup: transposed scores, what is folded into them, gradients of
    keys and values, dq (whose columns are `of_dq` and, if not 0, `of_half`)."""
    scores = Product("multiply_scores", queries)
    pieces = Product("multiply_pieces", queries, from_registers=True, elements="bf16")
    if not parts:
        dims = dict.fromkeys((problem.head_dim, problem.head_dim_v))
        return (
            scores,
            pieces,
            *(Product("multiply_gradient", n, from_registers=True, b_along_tokens=1) for n in dims),
            Product("multiply_dq", of_dq, b_along_tokens=1),
            *([Product("multiply_dq", of_half, b_along_tokens=1)] if of_half else ()),
        )
    return (
        scores,
        pieces,
        *(
            Product("multiply_gradient", n, a_along_tokens=1, b_along_tokens=1)
            for n in dict.fromkeys((*parts, *parts_of_v))
        ),
        *(Product("multiply_dq", n, b_along_tokens=1) for n in parts),
    )


_MACROS = {"default": "", "deterministic": "DETERMINISTIC", EXCLUSIVE_DQ: "EXCLUSIVE_DQ"}
_QUARTERS = {"default": 4, "deterministic": 4, EXCLUSIVE_DQ: 0}
"""Quarters of a tile of dq, with the slopes' sums, in shared memory if dq is staged; the default
mode has one more, of zeros, if a warp zeroes tiles."""


def _modes(
    tile: TileShape, rest: int, of_mean: int, staged: int, zeroes: bool, warpgroups: int,
    blocks: int, thresholds: bool, key_blocks: int,
) -> tuple[tuple[str, Mode], ...]:  # fmt: skip
    """Return all modes.

    Args:
        tile: The tile.
        rest: Bytes of shared memory without dq and rows.
        of_mean: Bytes of shared memory of the launch for entmax.
        staged: The number of columns of dq that each mode stages.
        zeroes: Whether a warp zeroes tiles of dq.
        warpgroups: The consumer warpgroups of a block.
        blocks: Blocks per multiprocessor.
        thresholds: Whether the pass compares with thresholds of chosen keys.
        key_blocks: Blocks of the launch that adds up a column shared by several items.
    """
    threads, rows = 128 * (warpgroups + 1), 2 * ROW_BYTES * tile.q
    modes = []
    for name, quarters in _QUARTERS.items():
        quarters += name == "default" and zeroes
        slopes = quarters * warpgroups * SLOPE_SUMS if staged else 0
        vectors = rows + slopes if thresholds else max(rows, rows // 2 + slopes)
        room = rest + vectors + quarters * tile.q * staged
        mode = _mode(tile, room, of_mean, threads, blocks, key_blocks, _MACROS[name])
        modes.append((name, mode))
    return tuple(modes)


def _mode(
    tile: TileShape, room: int, of_mean: int, threads: int, blocks: int, key_blocks: int,
    macro: str,
) -> Mode:  # fmt: skip
    prepare = Launch("attention_backward_prepare", Grid.queries, THREADS, per_block=tile.q)
    mean = Launch(
        "attention_backward_mean",
        Grid.queries,
        threads,
        max(room, of_mean),
        tile.q,
        feature=Feature.entmax,
    )
    few = Launch("attention_backward_few", Grid.few, THREADS)
    backward = Launch("attention_backward", Grid.stream, threads, room, resident=blocks)
    finish = Launch("attention_backward_finish", Grid.queries, THREADS, per_block=tile.q)
    per_block = -(-tile.k // key_blocks)
    keys = Launch("attention_backward_finish_keys", Grid.keys, THREADS, per_block=per_block)
    more = () if macro == "EXCLUSIVE_DQ" else (finish,)
    return Mode((prepare, mean, few, backward, *more, keys), macro)


def _mean_bytes(tile: TileShape, slabs: int, warpgroups: int, stages: int) -> int:
    """Return the bytes of struct MeanShared: stages of k and v, q and dout, numbers of queries, two
    sums of each warp, and barriers. `slabs` is the number of slabs of k and v together."""
    numbers = 4 * tile.q * (3 + 2 * 4 * warpgroups)
    return 2 * SLAB * slabs * (stages * tile.k + tile.q) + numbers + _CONTROL_BYTES


def _shared(
    tile: TileShape, slabs: int, slabs_v: int, ds_stages: int, dout_stages: int, split: str
) -> int:
    """Return the bytes of struct Shared without dq and rows.

    It has k, v; two stages of q, and `dout_stages` of dout; `ds_stages` tiles of ds, and of p if it
    is exchanged; and the control part.
    """
    rows = slabs * (tile.k + 2 * tile.q) + slabs_v * (tile.k + dout_stages * tile.q)
    tiles = 2 * SLAB * rows
    exchanged = ds_stages * 2 * tile.q * tile.k * (1 if split == "keys" else 2)
    return tiles + exchanged + _CONTROL_BYTES
