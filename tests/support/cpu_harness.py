"""CPU kernels without the compiler around them: a KernelSpec, arrays and a dense mask suffice.

Nothing here comes from the runtime: what a kernel is handed is written out a second time, so a
mistake in one of the two shows.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import ml_dtypes
import numpy as np

from maskc.core.abi import structure
from maskc.core.dtypes import DType
from maskc.core.library import standing_alone
from maskc.core.problem import Feature, TileShape
from maskc.core.target import TARGETS
from maskc.emit.environment import render
from maskc.emit.spec import Iteration, KernelSpec, PredicateLine, Shape
from maskc.testing.emulator.shared_object import library
from tests.support.thorough import soon

TEMPLATE = "cpu/attention.c.j2"
FLAGS = (
    "-std=gnu11", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast",
    "-Wall", "-Wextra", "-Werror", "-Wno-unused-function",
    "-Wno-unused-parameter", "-Wno-psabi",
)  # fmt: skip
COMPILER = os.environ.get("CC", "gcc")
NATIVE = ("-march=native",)
TILE = TileShape(64, 64)
NUMPY = {
    DType.float32: np.dtype(np.float32),
    DType.bfloat16: np.dtype(ml_dtypes.bfloat16),
    DType.float16: np.dtype(np.float16),
}


def spec(
    *shapes: Shape,
    n_args: int = 0,
    ranks: tuple[int, ...] = (),
    dtype: DType = DType.float32,
    head_dim: int = 64,
    head_dim_v: int | None = None,
    tile: TileShape = TILE,
    iteration: Iteration = Iteration.csr,
) -> KernelSpec:
    """A KernelSpec for the CPU, made by hand."""
    return KernelSpec(
        target=TARGETS["cpu"], dtype=dtype, head_dim=head_dim,
        head_dim_v=head_dim if head_dim_v is None else head_dim_v, tile=tile,
        iteration=iteration, shapes=shapes, n_args=n_args,
        arg_notes=tuple(f"constant {i}" for i in range(n_args)), table_ranks=ranks,
        array_notes=tuple(f"array {i}" for i in range(len(ranks))), banner=("by hand",),
    )  # fmt: skip


def shape(
    text: str,
    rows: tuple[str, str, str, str] | None = None,
    columns: tuple[str, str, str, str] | None = None,
) -> Shape:
    """A mask formula from one line of C."""
    return Shape((PredicateLine(text),), rows, columns)


@cache
def build(
    source: KernelSpec, features: frozenset[Feature] = frozenset(), flags: tuple[str, ...] = NATIVE
) -> ctypes.CDLL:
    """Compile and load; warnings are errors."""
    macros = [f"-D{feature.macro}=1" for feature in sorted(features, key=lambda f: f.name)]
    command = [COMPILER, *soon(("-O3", *FLAGS)), *flags, *macros]
    made = library(command, standing_alone(render(TEMPLATE, source)))
    made.attention_workspace.restype = ctypes.c_int64
    made.attention_forward.restype = made.attention_backward.restype = None
    return made


@dataclass(frozen=True)
class Lists:
    """Tile lists of several masks, as the kernels read them."""

    row_ptr: np.ndarray
    row_tiles: np.ndarray
    col_ptr: np.ndarray
    col_tiles: np.ndarray


def lists(masks: Iterable[np.ndarray], tile: TileShape) -> Lists:
    """CSR and CSC of bool [n_q, n_kv] masks."""
    found = [_lists(mask, tile) for mask in masks]
    return Lists(*(_joined([pair[i] for pair in found], i % 2 == 0) for i in range(4)))


def _lists(mask: np.ndarray, tile: TileShape) -> tuple[np.ndarray, ...]:
    rows, columns = -(-mask.shape[0] // tile.q), -(-mask.shape[1] // tile.k)
    kinds = np.zeros((rows, columns), dtype=np.int32)
    for i in range(rows):
        for j in range(columns):
            part = mask[i * tile.q : (i + 1) * tile.q, j * tile.k : (j + 1) * tile.k]
            kinds[i, j] = 2 if part.all() else part.any()
    return (*_compressed(kinds), *_compressed(kinds.T))


def _compressed(kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    entries = [
        [2 * j + int(kind == 2) for j, kind in enumerate(row) if kind] for row in kinds.tolist()
    ]
    ptr = np.cumsum([0, *map(len, entries)])
    return ptr, np.array([item for row in entries for item in row], dtype=np.int64)


def _joined(parts: list[np.ndarray], offsets: bool) -> np.ndarray:
    if not offsets:
        return np.concatenate([*parts, [0]]).astype(np.int32)
    start = np.cumsum([0, *(part[-1] for part in parts[:-1])])
    return np.concatenate([p + s for p, s in zip(parts, start, strict=True)]).astype(np.int32)


@dataclass
class Call:
    """One problem: arrays [B, H, N, D] with any strides, masks, and what the kernels wrote."""

    source: KernelSpec
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    masks: np.ndarray
    """bool [variants, n_q, n_kv], or [batch, variants, n_q, n_kv] with `batched`."""
    args: tuple[tuple[int, ...], ...] = ((0,),)
    """For each variant the formula's number and its constants."""
    head_variant: tuple[int, ...] | None = None
    arrays: tuple[np.ndarray, ...] = ()
    """int32 [..] shared, or with leading batch and head dimensions given by `array_steps`."""
    array_steps: tuple[tuple[int, int], ...] = ()
    scale: float | None = None
    softcap: float | None = None
    alibi: np.ndarray | None = None
    sinks: np.ndarray | None = None
    alpha: float = 1.0
    threads: int = 2
    flags: tuple[str, ...] = NATIVE
    batched: bool = False

    def __post_init__(self) -> None:
        self.features = frozenset(
            feature
            for feature, value in (
                (Feature.softcap, self.softcap),
                (Feature.alibi, self.alibi),
                (Feature.sinks, self.sinks),
                (Feature.entmax, None if self.alpha == 1 else self.alpha),
            )
            if value is not None
        )
        self.library = build(self.source, self.features, self.flags)
        masks = [mask for part in (self.masks if self.batched else [self.masks]) for mask in part]
        self._lists = lists(masks, self.source.tile)
        self._held: list[np.ndarray] = []
        self.block = self._block()

    def _block(self) -> ctypes.Structure:
        p = structure()()
        tile, (batch, heads_q, n_q, dim) = self.source.tile, self.q.shape
        p.batch, p.heads_q, p.heads_kv = batch, heads_q, self.k.shape[1]
        p.n_q, p.n_kv = n_q, self.k.shape[2]
        p.tile_rows, p.tile_cols = -(-n_q // tile.q), -(-p.n_kv // tile.k)
        p.list_batch = len(self.args) if self.batched else 0
        p.scale = dim**-0.5 if self.scale is None else self.scale
        p.softcap, p.spacing, p.alpha_minus_1 = self.softcap or 0.0, 1.0, self.alpha - 1
        for name in ("row_ptr", "row_tiles", "col_ptr", "col_tiles"):
            setattr(p, name, self._address(getattr(self._lists, name)))
        p.mask_args = self._address(np.array(self.args, dtype=np.int32))
        if self.head_variant is not None:
            p.head_variant = self._address(np.array(self.head_variant, dtype=np.int32))
        for name, values in (("alibi_slopes", self.alibi), ("sink_logits", self.sinks)):
            if values is not None:
                setattr(p, name, self._address(np.asarray(values, dtype=np.float32)))
        for i, array in enumerate(self.arrays):
            p.array[i] = self._address(array)
            p.array_batch[i], p.array_head[i] = self.array_steps[i] if self.array_steps else (0, 0)
            p.array_row[i] = array.shape[-1]
        for name in "qkv":
            self._tensor(p, name, getattr(self, name))
        return p

    def _address(self, array: np.ndarray) -> int:
        self._held.append(array)
        return array.ctypes.data

    def _tensor(self, p: ctypes.Structure, name: str, array: np.ndarray) -> None:
        setattr(p, name, self._address(array))
        strides = getattr(p, f"{name}_stride")
        for i in range(3):
            strides[i] = array.strides[i] // array.itemsize

    def like(self, heads_of: np.ndarray, dim: int) -> np.ndarray:
        """An array with a tensor's batch, heads, tokens and layout, filled with a trap value."""
        batch, heads, tokens, _ = heads_of.shape
        swapped = heads_of.strides[1] < heads_of.strides[2]
        full = (batch, tokens, heads, dim) if swapped else (batch, heads, tokens, dim)
        out = np.full(full, 77.0, dtype=heads_of.dtype)
        return out.swapaxes(1, 2) if swapped else out

    def forward(self) -> tuple[np.ndarray, np.ndarray]:
        """out [B, Hq, n_q, Dv] and lse float32 [B, Hq, n_q]."""
        out = self.like(self.q, self.source.head_dim_v)
        lse = np.full(self.q.shape[:3], 77.0, dtype=np.float32)
        self._tensor(self.block, "out", out)
        self._tensor(self.block, "lse", lse)
        self.library.attention_forward(ctypes.byref(self.block), self.threads)
        return out, lse

    def backward(self, out: np.ndarray, lse: np.ndarray, dout: np.ndarray) -> dict[str, np.ndarray]:
        """Gradients by name: dq, dk, dv and those of the features in use."""
        p = self.block
        self._tensor(p, "out", out)
        self._tensor(p, "dout", dout)
        self._tensor(p, "lse", np.ascontiguousarray(lse))
        found = {
            "dq": self.like(self.q, self.source.head_dim),
            "dk": self.like(self.k, self.source.head_dim),
            "dv": self.like(self.v, self.source.head_dim_v),
        }
        for name, array in found.items():
            self._tensor(p, name, array)
        for name, field, values in (
            ("dsink", "dsink", self.sinks), ("dalibi", "dslopes", self.alibi)
        ):  # fmt: skip
            if values is not None:
                found[name] = np.zeros(self.q.shape[1], dtype=np.float32)  # kernels add
                setattr(p, field, self._address(found[name]))
        floats = self.library.attention_workspace(ctypes.byref(p))
        p.delta = self._address(np.full(floats, np.nan, dtype=np.float32))
        self.library.attention_backward(ctypes.byref(p), self.threads)
        return found
