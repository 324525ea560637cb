"""The mma.sync kernels' schedule: tile, warps, registers and shared memory per head dimension.

One block holds a tile of queries and walks over tiles of keys: K of the next tile is copied while
this tile's P V runs, V while Q K^T runs, so that one buffer for each suffices. The narrow limit is
the register file: a warp's 32 rows need 64 registers per thread for the scores of 64 keys and
HEAD_DIM for out, and shared memory is read at the rate of the tensor cores only when each fragment
of K and V serves 32 rows. Up to HEAD_DIM 128 a warp holds 32 rows, above 16.

Measured on an NVIDIA H200 (132 multiprocessors), NVRTC 13.0, bf16, PyTorch 2.11's FlashAttention-2
in the same rounds, TFLOP/s of live pairs; full: B 2, H 16, N 8192; causal: B 1, H 16, N 16384;
window: 0 <= q - k < 1024, B 1, H 16, N 32768. "keep" holds the fragments of q in registers.

    D    tile (queries x keys), warps, blocks   full   causal   window   registers
    32   128 x 64, 4, 2, keep        (chosen)    258      244                 163
         128 x 64, 4, 3                          240      231                 151
          64 x 64, 2, 6, keep                    254      238                 157
          FlashAttention-2                       216      193
    64   128 x 64, 4, 2, keep        (chosen)    340      334                 217
         128 x 64, 4, 3                          338      327                 168
          64 x 64, 2, 4, keep         (short)    337      333                 217
          FlashAttention-2                       300      275
    96   128 x 64, 4, 2, keep        (chosen)    367      370                 255
         128 x 64, 4, 2                          356      364                 238
          64 x 64, 2, 4               (short)    361      362                 234
          FlashAttention-2                       328      300
    128  128 x 64, 4, 2              (chosen)    380      385      311        255
         128 x 48, 4, 2                          378      380      292        247
         128 x 32, 4, 2                          352      350      285        230
          64 x 64, 2, 4               (short)    366      385      338        255
          64 x 64, 4, 3                          308      312      289        163
          FlashAttention-2                       332      300
    192   64 x 64, 4, 2, keep        (chosen)    351      355                 241
          64 x 64, 4, 2                          327      331                 201
         128 x 32, 4, 2                          337      342         255, spills
          FlashAttention-2                       317      300
    256   64 x 64, 4, 2              (chosen)    324      328                 236
          64 x 64, 4, 2, keep                    327      333      255, spills where nan_safe
         128 x 32, 8, 1, keep                    324      326                 252
          FlashAttention-2                       318      300

What decided, at D 128, full: rows of shared memory without padding but with swapped 16-byte pieces
(357 to 380: copies into padded rows took twice the cycles), tops that are raised only when a logit
passes them by 2^8 (323 to 351), no spill (363 to 380: what a block's threads share lies in shared
memory). No gain: exponentials before the products, softmax before the wait for V, head groups of
another size, 8 warps of 16 rows (281 to 290).
"""

from __future__ import annotations

from dataclasses import dataclass

from maskc.core.errors import SharedMemoryExceeded
from maskc.core.problem import Problem, TileShape
from maskc.core.target import TARGETS, Target
from maskc.plan.types import Schedule

BLOCK_BYTES = 1024
"""Shared memory for what the threads of a block share: its place, its mask, its tile list."""

_L2_BYTES = 32 * 1024 * 1024
"""Keys and values that blocks running at the same time should have in common."""


@dataclass(frozen=True, slots=True)
class Sm80Schedule(Schedule):
    """Numbers of the mma.sync template."""

    keep_q: bool = False
    """Whether a warp's fragments of q stay in registers."""
    park_rows: bool = False
    """Whether the rows' tops and sums wait in shared memory between uses."""
    group_keys: int = 1
    """Tokens whose keys and values take _L2_BYTES: heads run in groups of that size."""
    block_bytes: int = BLOCK_BYTES
    """Part of `shared_bytes` beside the tiles."""


def schedule(problem: Problem, short_rows: bool = False) -> Sm80Schedule:
    """The schedule of one problem.

    `short_rows` asks for tiles of 64 queries also where 128 are the default: better where a row
    sees about a thousand keys or fewer, or where the mask comes in blocks of 64.

    Raises:
        SharedMemoryExceeded: the tiles do not fit (no head dimension of the target does that).
    """
    dim, target = problem.head_dim, TARGETS["sm_80"]
    if dim > 128:
        tile, warps, blocks, why = TileShape(64, 64), 4, 2, "out takes too many registers for 32"
    elif short_rows:
        tile, warps, blocks, why = TileShape(64, 64), 2, 4, "narrow tiles waste less at edges"
    else:
        tile, warps, blocks, why = TileShape(128, 64), 4, 2, "each fragment of K and V serves 32"
    rows, park = tile.q // warps, dim == 128
    shared = shared_bytes(tile, dim, park, target)
    return Sm80Schedule(
        tile,
        f"tiles of {tile.q} x {tile.k}, {warps} warps of {rows} rows ({why}), "
        f"{shared / 1024:g} KiB of shared memory",
        warps=warps,
        min_blocks=blocks,
        shared_bytes=shared,
        keep_q=dim in (32, 64, 192),
        park_rows=park,
        group_keys=_L2_BYTES // (2 * (dim + problem.head_dim_v)),
    )  # fmt: skip


def shared_bytes(tile: TileShape, head_dim: int, park_rows: bool, target: Target) -> int:
    """Bytes of struct Shared: a tile each of q, k and v, parked tops and sums, the block's part.

    Raises:
        SharedMemoryExceeded: more than the target's blocks may use.
    """
    tiles = 2 * head_dim * (tile.q + 2 * tile.k)
    parked = 2 * 4 * 4 * tile.q if park_rows else 0  # two floats for each row and lane of its quad
    total = tiles + parked + BLOCK_BYTES
    if total > target.shared_memory:
        raise SharedMemoryExceeded(total, target.name, target.shared_memory)
    return total
