"""Schedules of the wgmma backward (templates/sm90a/backward.cu.j2): tiles, registers, memory.

A block takes tile columns. Keys and values stay while queries and their gradients of the output
stream through two stages; scores are computed transposed, keys by queries. Two warpgroups compute.
Up to a head dimension of 128 each owns 64 keys of the column, and the gradients of these stay in
its registers (`keys`). Beyond that each owns half of the head dimension, and half of the queries
of a tile while scores become gradients (`columns`).

Where columns are so short that a tile is mostly outside of the mask, a second source has tiles of
64 x 64: one warpgroup computes, two blocks share a multiprocessor, and dq leaves straight from
registers. A call takes the source that maskc/core/cost.toml predicts to be faster.

Tile columns add to dq in fp32. A launch before writes the zeros that the first heads need, a warp
of the main launch those of later heads, and a launch behind it brings dq to storage precision.
Where no tile row has several tiles (blocks, lattices in parts), the main launch stores dq, in the
mode `once`. Where rows are short, small tiles have a mode in which nothing is added up either
(`apart`): a launch of its own makes dq by tile rows, from queries, their gradients and out, of
which it finds delta on the way; the main launch then makes dk and dv alone. That is seven products
for five, but neither zeros nor sums of dq in memory. It has the same bits on every run.

Against FlashAttention-4 see benchmarks/results/anchors-h200.json. What decided on one H200 (CUDA
13.0, bf16; cycles of the main kernel, or milliseconds in rounds that took turns):

- A step's products one after another (scores, dp, dv, dq, dk), with dq leaving under dk. Beginning
  the next step's scores under dq, or dk one step late, gained nothing.
- Operands in uniform registers: NVRTC 13.0 moves each into them where the address of shared memory
  is kept over the loop (98 moves for 32 products a step). Full 8k: 1.98 to 1.87 million cycles.
- lse and delta read before the products begin: behind their operands a load waits some hundred
  cycles. Causal 16k 4.85 to 4.71 ms, D 64 full 5.82 to 5.41.
- dq kept in L2 by the reductions' hint: 2 to 6 %.
- Deterministic mode: ranks found by the thread that loads, and columns in groups of eight,
  descending, for sixteen heads at a time. Causal +10 %, where one order of all columns cost +57 %.
- Zeros of later heads by a warp that copies: 1 to 3 % of windows, dilated, strided, random blocks.
- dq by tile rows: windows at 16k, D 128, of 64 keys .296 to .227 ms, 128 .348 to .253, 256 .38 to
  .32, 512 .49 to .46 (D 64 .158 to .133, .189 to .158, .23 to .20, .30 to .30); 16 sinks and a
  window of 64 at 4k .118 to .088. Full and causal masks take a third longer that way, windows of
  1024 7 %. A block for each tile row, with nothing loaded ahead, took twice as long.
- dq stored once: strided 128 at 16k .72 to .61 ms, kernels of blocks of 16 at 4k .043 to .028.
- Where at most three columns add to a tile of dq, these take turns, as in deterministic mode, and
  need no zeros: windows at 16k, of 64 .333 to .286 ms, 128 .350 to .319, 256 .389 to .377.
- lse and delta as one more step of the products that make scores and dp, three bf16 pieces each
  beside ones: they need no registers, and of shared memory 128 wavefronts a step instead of 256.
  D 128: window 1024 1.51 to 1.42 ms, prefix-LM 4.95 to 4.72, random blocks 5 %; D 256 3 %, D 64 1
  to 2 %.
- Deterministic mode: several tiles of dq for rows that far more columns add to than to others, and
  in small tiles a thread that waits for turns a step ahead and another that passes them on. Over
  the usual mode: BigBird at 16k 102 to 31 %, Longformer 71 to 29 %, full 8k in small tiles 22 to 6.
- Turns passed on by a thread of its own. The one that adds dq up was at it nearly all the time
  (cycles of 4000 to 5000 a step: 1600 until copies have read, 1300 to tell, 800 to ask), and all
  that it waited came on top. Full 8k, over the usual mode: 6 to 3 %.
- Columns that wait for each other both ways, in an order tried out for a head that follows another:
  random blocks, 50, 25, 10 % live, over the usual mode: 27, 35, 42 to 9, 8, 7 %. In the order of a
  head whose columns all begin at once: 27, 30, 18. Several tiles of dq for all of their rows, or
  more heads side by side (8 to 16: 32 to 60 %), keep less in the L2 cache and cost more than they
  save.

Without gain: tiles of 80 queries at D 128, with dq transposed (6 % faster before lse and delta were
part of the products; since then full 8k 4.64 ms where 64 take 4.56, causal 16k 4.57 and 4.50,
window 4096 at 128k 9.85 and 9.49); dq brought to storage precision by a warp that copies, as soon
as a tile has all of its sums (telling so at every step costs 8 %, and the tile itself twice what a
launch of its own takes), or a whole head (windows 1 % faster, dilated 12 % slower); dv before ds,
dq handed over by named barriers, copying threads that sleep, more or fewer heads at a time, a
launch that starts while the one before ends (blocks of 16 7 % faster, full and causal 7 % slower,
forward passes +-3 %), heads by the half of the L2 cache that a multiprocessor is near to (as every
head lies in both).
Of tiles that take turns the last column knows that it is the last. A warp that copies parts of such
a tile to shared memory, and stores it in storage precision, has to read through the operands of
products: 16000 cycles a tile of 64 x 128, so that the column which comes last in all rows of a
head holds all up (window 1024 at 32k 1.50 to 1.62 ms, full 8k 4.7 to 5.7). delta and lse of later
heads by the two warps that have time, instead of a launch before: exponential dilation -2 %,
windows, documents and random blocks -1, full -0.3, causal +0.7: nothing beside products is free.
Nor did it help to let the two warpgroups drift apart, each waiting for the other's ds a step later
(causal 16k, million cycles, 7.08 as it is): dq's product under the next step's scores 7.25, in
halves so that dp can begin as early as now 7.81, with the next scores begun before a step ends
7.24; dq copied to shared memory under the next scores 7.67, or announced with the next ds 7.50. k
in registers 9.46; k and v in registers at D 64 spare 11 % of what is read from shared memory, and
no time. Exponentials under dp, dv before ds, or dq announced under the next scores shorten nothing
(causal 16k, tiles of 80: 7.93, 7.97, 8.00 million cycles; with 64, exponentials under dp take 3 %
more). What a step keeps busy is shared memory, for 3236 of 3540 cycles with 64 queries and 3845 of
4220 with 80 (wavefronts as the profiler counts them; matrix products take 2560 and 3200): operands
of products 2048 and 2368, lse and delta, where all warps read them, 256 and 320, dq 256 and 320, as
much again for its copies out, ds 128 and 160, copies in 256 and 320, the rest control. At D 64
products take 2816 of 4750 cycles a step: shared memory is not what it waits for, and exponentials
under dp, which registers now allow, make it 4 % slower there too.
In grids, to keep what keys are seen by on the outer axes while only the place on the innermost one
moves, as forward passes do: windows of 18 x 24 x 24 115.3 to 112.6 ms (107.9 if nothing were
tested), of 80 x 80 and with strides no change. Partial tiles cost little; dead pairs do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from maskc.core.bundle import EXCLUSIVE_DQ, SEPARATE_DQ, Grid, Launch, Mode, TensorMap, WorkList
from maskc.core.problem import Feature, Problem, TileShape
from maskc.plan.families.family import L2_BYTES, Product
from maskc.plan.families.score_tables import with_tables
from maskc.plan.families.sm90a import SLAB
from maskc.plan.types import Schedule

THREADS = 256
"""The threads of the passes before and after, which have a block per tile."""
SLOPE_SUMS = 128
"""Sums for the gradient of a head's slope, where it has one, behind each warpgroup's share of dq:
one per thread."""
MOST_TILES = 256
"""Query tiles of an item; longer columns are cut, and their gradients added up in memory."""
LONG_COLUMN = 16
"""The value for a column far longer than the others: sinks among windows, global keys. Reckoned
with 132 blocks, sinks and a window of 64 at 4k (16 heads, D 128): 27 steps for each; the last one
ends after 75 where columns are whole, after 44 with 32, after 30 with 16."""

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
    """Whether dq leaves through shared memory and bulk copies that add, or from registers."""
    parts: tuple[int, ...] = ()
    """Columns of dk, dv and dq that a warpgroup owns where `columns` are divided: whole slabs, and
    then half of the slab in the middle where their number is odd."""
    score_queries: int = 64
    """Queries of the transposed scores that a warpgroup computes."""
    products: tuple[Product, ...] = ()
    key_blocks: int = 1
    """Blocks of the launch that adds up a column that items share."""
    row_bytes: int = 0
    """Shared memory of the launch that makes dq by tile rows; 0: there is none."""
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
    64: TileShape(128, 128),
    96: TileShape(64, 128),
    128: TileShape(64, 128),
    192: TileShape(64, 64),
    256: TileShape(64, 64),
}


_SMALL_TILE = TileShape(64, 64)
_SMALL_BLOCKS = 2
"""Per multiprocessor."""


def backward_schedule(problem: Problem, thresholds: bool = False) -> BackwardSchedule:
    """The schedule of a backward pass, or of one that compares with thresholds of chosen keys."""
    tile = _TILES[problem.head_dim]
    split = "keys" if tile.k == 128 else "columns"
    how = f"2 warpgroups that divide the {split} and one that copies"
    return _schedule(problem, tile, 2, split, 1, (240, 24), how, thresholds)


def small_backward_schedule(problem: Problem, apart: bool = True) -> BackwardSchedule:
    """The schedule of a backward pass with small tiles, for one of SMALL_HEAD_DIMS; with the mode
    `apart` or not.
    """
    how = f"one warpgroup and one that copies, {_SMALL_BLOCKS} blocks per multiprocessor"
    made = _schedule(problem, _SMALL_TILE, 1, "keys", _SMALL_BLOCKS, (232, 24), how)
    if made.work is not None:
        uneven = LONG_COLUMN // _SMALL_BLOCKS
        work = replace(made.work, uneven_tiles=uneven, resident=_SMALL_BLOCKS)
        made = replace(made, work=work)
    if not apart:
        return made
    tile, keep = made.tile, made.slabs > 1
    rows = 3 * tile.q * (1 if keep else 2)
    room = 2 * SLAB * made.slabs * (rows + 2 * made.stages * tile.k) + 2 * _CONTROL_BYTES
    return replace(
        made,
        reason=f"{made.reason}, dq in a launch of its own where that takes less",
        modes=(*made.modes, (SEPARATE_DQ, with_tables(_apart(made, room), problem, tile, THREADS))),
        products=(*made.products, Product("multiply_kept_scores", tile.k, from_registers=True)),
        maps=(*made.maps, TensorMap("out", tile.q)),
        row_bytes=room,
        keep_rows=keep,
    )


def _apart(schedule: BackwardSchedule, room: int) -> Mode:
    """dq by tile rows, in so much shared memory; then dk and dv as in the mode `once`."""
    launches = {launch.entry: launch for launch in dict(schedule.modes)[EXCLUSIVE_DQ].launches}
    main, keys = (launches[f"attention_backward{x}"] for x in ("", "_finish_keys"))
    rows = replace(main, entry="attention_backward_rows", shared_bytes=room)
    return Mode((rows, main, keys), "SEPARATE_DQ")


def _schedule(
    problem: Problem, tile: TileShape, warpgroups: int, split: str, blocks: int,
    registers: tuple[int, int], how: str, thresholds: bool = False,
) -> BackwardSchedule:  # fmt: skip
    dim = problem.head_dim
    slabs = -(-dim // SLAB)
    staged = split == "keys" and warpgroups > 1
    shares = warpgroups if dim < 128 else 2  # more than 32 numbers per thread: too few registers
    parts = () if split == "keys" else (SLAB * (slabs // 2), *([SLAB // 2] * (slabs % 2)))
    rest = _shared(tile, slabs, warpgroups, split)
    modes = _modes(tile, rest, dim if staged else 0, warpgroups, blocks, thresholds,
                   _key_blocks(dim, tile))  # fmt: skip
    modes = tuple((name, with_tables(mode, problem, tile, THREADS)) for name, mode in modes)
    room = max(launch.shared_bytes for _, mode in modes for launch in mode.launches)
    queries = tile.q if split == "keys" else tile.q // 2
    return BackwardSchedule(
        tile,
        f"tiles of {tile.q} x {tile.k}, {how}, {room / 1024:g} KiB of shared memory",
        warps=4 * (warpgroups + 1),
        stages=2,
        min_blocks=blocks,
        shared_bytes=room,
        registers=registers,
        slabs=slabs,
        key_blocks=_key_blocks(dim, tile),
        warpgroups=warpgroups,
        split=split,
        shares=shares,
        staged=staged,
        parts=parts,
        score_queries=queries,
        products=_products(dim, queries, parts, SLAB if shares > 1 else dim),
        modes=modes,
        maps=(
            TensorMap("q", tile.q),
            TensorMap("dout", tile.q),
            TensorMap("k", tile.k),
            TensorMap("v", tile.k),
            TensorMap("dk", 64),
            TensorMap("dv", 64),
        ),
        work=WorkList(L2_BYTES // (8 * dim), most_tiles=MOST_TILES, uneven_tiles=LONG_COLUMN),
        # dq and the slopes' sums; lse and delta; the tile's own numbers.
        row_floats=dim + -(-shares * SLOPE_SUMS // tile.q) + ROW_BYTES // 4 + 1,
        key_floats=2 * dim,
    )


def _key_blocks(dim: int, tile: TileShape) -> int:
    """So many that a thread adds up eight columns of two keys, of dk or dv."""
    return -(-2 * (dim // 8) * (tile.k // 2) // THREADS)


def _products(dim: int, queries: int, parts: tuple[int, ...], of_dq: int) -> tuple[Product, ...]:
    """Matrix products of a warpgroup: transposed scores, what is folded into them, gradients of
    keys and values, dq (whose columns are `of_dq`)."""
    scores = Product("multiply_scores", queries)
    pieces = Product("multiply_pieces", queries, from_registers=True, elements="bf16")
    if not parts:
        return (
            scores,
            pieces,
            Product("multiply_gradient", dim, from_registers=True, b_along_tokens=1),
            Product("multiply_dq", of_dq, b_along_tokens=1),
        )
    products = []
    for n in parts:
        products.append(Product(f"multiply_gradient_{n}", n, a_along_tokens=1, b_along_tokens=1))
        products.append(Product(f"multiply_dq_{n}", n, b_along_tokens=1))
    return (scores, pieces, *products)


_MACROS = {"usual": "", "deterministic": "DETERMINISTIC", EXCLUSIVE_DQ: "EXCLUSIVE_DQ"}
_QUARTERS = {"usual": 5, "deterministic": 4, EXCLUSIVE_DQ: 0}
"""Quarters of a tile of dq, with the slopes' sums, in shared memory if dq is staged: all four, and
one of zeros in the default mode."""


def _modes(
    tile: TileShape, rest: int, staged: int, warpgroups: int, blocks: int, thresholds: bool,
    key_blocks: int,
) -> tuple[tuple[str, Mode], ...]:  # fmt: skip
    """Return all modes. `rest` is shared memory without dq and rows in bytes; `staged` is the
    number of columns of dq that each mode stages."""
    threads, rows = 128 * (warpgroups + 1), 2 * ROW_BYTES * tile.q
    modes = []
    for name, quarters in _QUARTERS.items():
        slopes = quarters * warpgroups * SLOPE_SUMS if staged else 0
        vectors = rows + slopes if thresholds else max(rows, rows // 2 + slopes)
        room = rest + vectors + quarters * tile.q * staged
        modes.append((name, _mode(tile, room, threads, blocks, key_blocks, _MACROS[name])))
    return tuple(modes)


def _mode(
    tile: TileShape, room: int, threads: int, blocks: int, key_blocks: int, macro: str
) -> Mode:
    prepare = Launch("attention_backward_prepare", Grid.queries, THREADS, per_block=tile.q)
    mean = Launch(
        "attention_backward_mean", Grid.queries, threads, room, tile.q, feature=Feature.entmax
    )
    few = Launch("attention_backward_few", Grid.few, THREADS)
    backward = Launch("attention_backward", Grid.stream, threads, room, resident=blocks)
    finish = Launch("attention_backward_finish", Grid.queries, THREADS, per_block=tile.q)
    per_block = -(-tile.k // key_blocks)
    keys = Launch("attention_backward_finish_keys", Grid.keys, THREADS, per_block=per_block)
    more = () if macro == "EXCLUSIVE_DQ" else (finish,)
    return Mode((prepare, mean, few, backward, *more, keys), macro)


def _shared(tile: TileShape, slabs: int, warpgroups: int, split: str) -> int:
    """Return the bytes of struct Shared without dq and rows.

    It has k, v; two stages of q and dout; ds, and p if it is exchanged, both twice between two
    warpgroups; and the control part.
    """
    tiles = 2 * SLAB * slabs * (2 * tile.k + 2 * 2 * tile.q)
    exchanged = warpgroups * 2 * tile.q * tile.k * (1 if split == "keys" else 2)
    return tiles + exchanged + _CONTROL_BYTES
