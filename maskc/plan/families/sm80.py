"""The mma.sync kernels' schedule: tile, warps, registers and shared memory per head dimension.

A block holds a tile of queries and loops over tiles of keys. K of the next tile is copied while P V
of this tile runs, and V while Q K^T runs, so one buffer for each is enough.

Registers are the limit. A warp's 32 rows need 64 registers per thread for the scores of 64 keys,
and HEAD_DIM registers for out. Shared memory keeps up with the tensor cores only if each fragment
of K and V serves 32 rows. A warp has 32 rows up to HEAD_DIM 128, and 16 above.

Measured on an NVIDIA H200 (132 multiprocessors) with NVRTC 13.0 in bf16, in the same rounds as
FlashAttention-2 of PyTorch 2.11. Numbers are TFLOP/s of live pairs.

- full: B 2, H 16, N 8192
- causal: B 1, H 16, N 16384
- window: 0 <= q - k < 1024, B 1, H 16, N 32768

"keep" keeps fragments of q in registers. "park" keeps the rows' maxima and sums in shared memory
between uses.

    D    tile, warps, blocks                 full   causal   window   registers
    32   128 x 64, 4, 3           (chosen)    233      223      171         155
         128 x 64, 4, 2, keep                 218      205      151         169
          64 x 64, 2, 6, keep                 242      231      197   168, spills with some masks
         FlashAttention-2                     214      193
    64   128 x 64, 4, 2, keep     (chosen)    338      335      240         218
         128 x 64, 4, 3                       337      317      257         168
          64 x 64, 2, 4, keep      (short)    334      330      273         218
         FlashAttention-2                     302      277
    96   128 x 64, 4, 2           (chosen)    358      372      282         238
          64 x 64, 2, 4            (short)    356      360      311         238
         FlashAttention-2                     340      306
    128  128 x 64, 4, 2, park     (chosen)    383      378      304         255
          64 x 64, 2, 4, park      (short)    385      384      330         255
         128 x 64, 4, 2                       374      378      304   255, spills with some masks
         128 x 48, 4, 2, park                 380      384      290         244
         128 x 32, 4, 2                       348      352      277         230
          64 x 64, 4, 3                       312      318      289         163
         FlashAttention-2                     340      304
    192   64 x 64, 4, 2, keep     (chosen)    336      350      303         246
          64 x 64, 4, 2                       319      331      291         202
         FlashAttention-2                     308      300
    256   64 x 64, 4, 2           (chosen)    333      328      274         237
         FlashAttention-2                     317      299

128 x 64 stays the default at D 64 to 128, although 64 x 64 is as fast on this card. It needs half
the L2 bandwidth, and cards with 100 KiB of shared memory then run four warps, not two. If rows are
short, or blocks of 64 x 64 are whole, tiles of 64 queries contain fewer dead pairs. `for_masks`
decides by the masks.

Decisive at D 128, full mask, in TFLOP/s:

- Rows in shared memory have swizzled 16-byte pieces and no padding: 357 to 380. Copies into padded
  rows took twice the cycles.
- The rescale threshold: row maxima rise only when a logit exceeds them by 2^8: 323 to 351.
- No spills, because values that a block's threads share are in shared memory: 363 to 380.

No gain: exponentials before the products, softmax before the wait for V, other sizes of head
groups. Slower: eight warps of 16 rows, 281 to 290.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from maskc.analysis.rows import comes_in, longest_row
from maskc.core.bundle import PACK_GQA, Grid, Launch, Mode
from maskc.core.problem import Problem, TileShape
from maskc.core.target import NARROW
from maskc.ir.types import MaskIR
from maskc.plan.families.family import BIN_BYTES, L2_BYTES
from maskc.plan.families.limits import Limits
from maskc.plan.types import Schedule

BLOCK_BYTES = 1024
"""Shared memory for values that the threads of a block share: position, mask, tile list."""

WIDE_KEYS = 32
"""Keys of a tile beyond head dimension NARROW."""
_SHORT_ROW = 1024
"""The distance from the first to the last key of a row up to which rows count as short."""


@dataclass(frozen=True, slots=True)
class Sm80Schedule(Schedule):
    """Numbers of the mma.sync template."""

    keep_q: bool = False
    """Whether a warp's fragments of q stay in registers."""
    park_rows: bool = False
    """Whether the rows' tops and sums wait in shared memory between uses."""
    group_keys: int = 1
    """Tokens for which keys and values take L2_BYTES: heads run in groups of that size."""
    block_bytes: int = BLOCK_BYTES
    """Part of `shared_bytes` other than the tiles."""


_LONG = {
    32: (128, 4, 3, False),
    64: (128, 4, 2, True),
    96: (128, 4, 2, False),
    128: (128, 4, 2, False),
    192: (64, 4, 2, True),
    256: (64, 4, 2, False),
    512: (64, 8, 1, True),
    576: (64, 8, 1, True),
}
"""Queries of a tile, warps, blocks per multiprocessor and keep_q of each head dimension."""

_SHORT = _LONG | {
    32: (64, 2, 6, False),
    64: (64, 2, 4, True),
    96: (64, 2, 4, False),
    128: (64, 2, 4, False),
}
"""Likewise for masks with short rows."""


def for_masks(problem: Problem, masks: tuple[MaskIR, ...]) -> Sm80Schedule:
    """The schedule of one problem for the masks of all heads, which share a kernel.

    The choice depends on facts about the sets, with parameters at their defaults. Equal masks get
    equal tiles.
    """
    if problem.tile is not None:
        return _with_tile(problem, problem.tile)
    high, low = schedule(problem), schedule(problem, short_rows=True)
    whys = (_why_low(ir, high.tile, low.tile) for ir in masks)
    if high.tile == low.tile or not masks or not all(whys):
        return high
    why = _why_low(masks[0], high.tile, low.tile)
    return replace(low, reason=f"{low.reason}; {low.tile.q} queries a tile because {why}")


@lru_cache(maxsize=256)
def _why_low(ir: MaskIR, high: TileShape, low: TileShape) -> str | None:
    """Return why tiles with fewer queries contain fewer dead pairs; None if that is not known."""
    longest = longest_row(ir.keep, beyond=low.k)
    if longest is not None and longest <= _SHORT_ROW:
        why = f"rows are short: {longest} consecutive keys, with the first {low.k}, hold each"
    elif comes_in(low, ir.keep, ir.data):
        why = f"every block of {low.q} x {low.k} is wholly live or wholly dead"
    else:
        return None
    return None if comes_in(high, ir.keep, ir.data) else why


def schedule(problem: Problem, short_rows: bool = False) -> Sm80Schedule:
    """Return the schedule of one problem.

    `short_rows` requests tiles of 64 queries even if 128 are the default: better where a row sees
    about a thousand keys or fewer, or where the mask comes in blocks of 64.
    """
    queries, warps, blocks, keep_q = (_SHORT if short_rows else _LONG)[problem.head_dim]
    keys = 64 if problem.head_dim <= NARROW else WIDE_KEYS
    return _schedule(problem, TileShape(queries, keys), warps, blocks, keep_q)


def limits(problem: Problem) -> Limits:
    """Tiles that a user may ask for: a warp has 32 rows up to head dimension 128, else 16."""
    if problem.head_dim > NARROW:
        return Limits("sm_80", (64,), (WIDE_KEYS,))
    wide = problem.head_dim > 128
    return Limits("sm_80", (64,) if wide else (64, 128), (32, 64))


def _with_tile(problem: Problem, tile: TileShape) -> Sm80Schedule:
    """The schedule with the warps, blocks and registers that go with so many rows."""
    forms = {form[0]: form for form in (_LONG[problem.head_dim], _SHORT[problem.head_dim])}
    _, warps, blocks, keep_q = forms[tile.q]
    return _schedule(problem, tile, warps, blocks, keep_q)


def _schedule(
    problem: Problem, tile: TileShape, warps: int, blocks: int, keep_q: bool
) -> Sm80Schedule:
    dim = problem.head_dim
    rows, park = tile.q // warps, dim == 128
    why = "each fragment of K and V serves them all" if rows == 32 else "out fills the registers"
    if dim > NARROW:
        rows, shared = 2 * rows, wide_shared_bytes(tile, dim, 32 * warps)
        why = "two share rows, each has half of the columns of out"
    else:
        shared = shared_bytes(tile, dim, park)
    return Sm80Schedule(
        tile,
        f"tiles of {tile.q} x {tile.k}, {warps} warps of {rows} rows ({why}), "
        f"{shared / 1024:g} KiB of shared memory",
        warps=warps,
        min_blocks=blocks,
        shared_bytes=shared,
        modes=_wide_modes(shared, 32 * warps) if dim > NARROW else (),
        row_floats=problem.head_dim_v + 2 if dim > NARROW else 0,
        keep_q=keep_q,
        park_rows=park,
        group_keys=L2_BYTES // (2 * (dim + problem.head_dim_v)),
    )


def _wide_modes(shared: int, threads: int) -> tuple[tuple[str, Mode], ...]:
    """Return two modes: by tile rows, and with the query heads of a key/value head packed as rows,
    with keys split over blocks."""
    whole = Launch("attention_forward", Grid.rows, threads, shared)
    merge = Launch("attention_merge", Grid.packed_rows, threads, per_block=threads // 32)
    packed = (replace(whole, grid=Grid.parts), merge)
    return (("default", Mode((whole,))), (PACK_GQA, Mode(packed, "PACK_GQA")))


_CHOOSE = {
    32: (64, 64, 4),
    64: (64, 64, 4),
    96: (32, 64, 2),
    128: (32, 64, 2),
    192: (32, 64, 2),
    256: (32, 32, 2),
}
"""Queries and keys of a tile, and warps, where thresholds are searched, of each head dimension."""


def choose_schedule(problem: Problem) -> Sm80Schedule:
    """The schedule of templates/sm80/choose.cu.j2, which finds thresholds of keys that are chosen
    one by one: 16 rows a warp, and two tiles of keys in turn.
    """
    dim = problem.head_dim
    queries, keys, warps = _CHOOSE[dim]
    room = 2 * dim * (queries + 2 * keys) + BIN_BYTES * queries + BLOCK_BYTES
    return Sm80Schedule(
        TileShape(queries, keys),
        f"thresholds by {warps} warps of 16 rows and {keys} keys, {room / 1024:g} KiB of shared "
        "memory",
        warps=warps,
        min_blocks=1,
        shared_bytes=room,
        group_keys=L2_BYTES // (2 * dim),
    )


def shared_bytes(tile: TileShape, head_dim: int, park_rows: bool) -> int:
    """Bytes of struct Shared: a tile each of q, k and v, parked tops and sums, the block's part."""
    tiles = 2 * head_dim * (tile.q + 2 * tile.k)
    parked = 2 * 4 * 4 * tile.q if park_rows else 0  # two floats for each row and lane of its quad
    return tiles + parked + BLOCK_BYTES


def wide_shared_bytes(tile: TileShape, head_dim: int, threads: int) -> int:
    """Bytes of shared memory if two warps share rows. q uses the memory of k and v; there is room
    for the half scores that the warps exchange.
    """
    tiles = 2 * head_dim * max(tile.q, 2 * tile.k)
    return tiles + 2 * tile.k * threads + BLOCK_BYTES
