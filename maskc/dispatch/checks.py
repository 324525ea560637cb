"""Every refusal of a call, before anything is launched, with the numbers in the message."""

from __future__ import annotations

from collections.abc import Mapping

from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.dtypes import DType
from maskc.core.errors import (
    BadLength,
    BadOption,
    BadShape,
    DTypesDiffer,
    HeadsDoNotDivide,
    Misaligned,
    NotContiguous,
    WrongDevice,
    WrongDType,
    WrongRank,
)
from maskc.core.layout import MAX_LENGTH
from maskc.core.problem import Problem, TileShape
from maskc.core.sizes import Sizes
from maskc.core.target import Target
from maskc.core.tensors import Array, Device, contiguous

ALIGNMENT = 16
"""Bytes: the kernels that score with an indexer move rows in vectors of this size."""
_STORED = f": kernels store {', '.join(sorted(DType.__members__))}, and compute in fp32"
_MAX_BLOCKS = (1 << 31) - 1
"""Blocks in the first dimension of a CUDA grid."""


def of_every_sequence(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """q, k and v, where keys or values of one sequence serve the queries of all."""

    def spread(x: Array) -> Array:
        if len(x.shape) != 4 or len(q.shape) != 4 or x.shape[0] != 1 or q.shape[0] < 2:
            return x
        return x._replace(shape=(q.shape[0], *x.shape[1:]), strides=(0, *x.strides[1:]))

    return q, spread(k), spread(v)


def check_inputs(q: Array, k: Array, v: Array, problem: Problem, target: Target) -> Sizes:
    """The sizes of a call, when q, k and v fit each other, the kernel and the target.

    Raises:
        BadShape, HeadsDoNotDivide, BadLength, DTypesDiffer, WrongDType, WrongDevice, NotContiguous,
            Misaligned.
    """
    for name, array in (("q", q), ("k", k), ("v", v)):
        if len(array.shape) != 4:
            raise WrongRank(name, array.shape, at=name)
    batch, heads_q, n_q, _ = q.shape
    heads_kv, n_kv = k.shape[1], k.shape[2]
    _shape("q", q, (batch, heads_q, n_q, problem.head_dim),
           f"as compiled with head_dim={problem.head_dim}")  # fmt: skip
    _shape("k", k, (batch, heads_kv, n_kv, problem.head_dim), "batch of q or 1, head_dim of q")
    _shape("v", v, (batch, heads_kv, n_kv, problem.head_dim_v), "batch, heads and tokens of k")
    if heads_q and (not heads_kv or heads_q % heads_kv):
        raise HeadsDoNotDivide(heads_q, heads_kv, at="k")
    for name, length in (("n_q", n_q), ("n_kv", n_kv)):
        if length > MAX_LENGTH:
            raise BadLength(name, MAX_LENGTH, length, at=name)
    for name, array in (("q", q), ("k", k), ("v", v)):
        kind = problem.dtype if name == "q" else problem.of_keys
        if array.dtype != q.dtype == problem.dtype.value and not problem.converts:
            raise DTypesDiffer(q.dtype, name, array.dtype, at=name)
        check_storage(name, array, kind.value, target, q.device)
    return Sizes(batch, heads_q, heads_kv, n_q, n_kv)


def check_heads(q: Array, heads: int) -> None:
    """Check the number of heads, which is compiled in where heads have different masks."""
    if q.shape[1] != heads:
        raise BadShape("q", tuple(q.shape), f"{heads} heads: each has its own mask", at="q")


def check_like(name: str, array: Array, shape: tuple[int, ...], dtype: str, target: Target,
               device: Device) -> None:  # fmt: skip
    """A further tensor of a call: exact shape, then as `check_storage`."""
    _shape(name, array, shape, "as in the forward call")
    check_storage(name, array, dtype, target, device)


def check_storage(name: str, array: Array, dtype: str, target: Target, device: Device) -> None:
    """Device, dtype, contiguous rows and, on CUDA, alignment.

    `device` is where q lives; everything must be there.
    """
    wanted = "cpu" if target.language == "c" else "cuda"
    if array.device != device:
        raise WrongDevice(name, place_of(array.device), "this call", place_of(device), at=name)
    if array.device[0] != wanted:
        raise WrongDevice(name, place_of(array.device), target.name, wanted, at=name)
    if array.dtype != dtype:
        hint, role = f"convert it to {dtype}", f"reads {dtype} here"
        if name in ("q", "k", "v"):
            known, role = array.dtype in DType.__members__, f"was compiled for {dtype}"
            hint += f", or compile(dtype={array.dtype!r})" if known else _STORED
        raise WrongDType(name, array.dtype, role, hint, at=name)
    if 0 in array.shape:
        return  # nothing is read; libraries disagree about the strides of nothing
    if array.shape[-1] > 1 and array.strides[-1] != 1:
        raise NotContiguous(name, array.strides[-1], at=name)
    if wanted == "cuda" and len(array.shape) == 4:
        kind = DType(dtype)
        aligned, size = target.alignment(kind), kind.itemsize
        steps = [s for s, n in zip(array.strides[:3], array.shape, strict=False) if n > 1]
        if any(value % aligned for value in (array.pointer, *(size * step for step in steps))):
            raise Misaligned(name, aligned, at=name)


def place_of(device: Device) -> str:
    """A device as messages name it: cpu, or cuda:0."""
    return device[0] if device[0] == "cpu" else f"{device[0]}:{device[1]}"


def _shape(name: str, array: Array, expected: tuple[int, ...], why: str) -> None:
    if tuple(array.shape) != expected:
        raise BadShape(name, tuple(array.shape), f"{expected} ({why})", at=name)


def check_vector(name: str, array: Array, heads: int, target: Target, device: Device) -> None:
    """Slopes and sink logits: fp32 [heads of q], contiguous, where q is."""
    if array.shape != (heads,):
        hint = "pass a vector with one number for each query head"
        raise BadShape(name, tuple(array.shape), f"({heads},), one per head of q", hint, at=name)
    check_storage(name, array, "float32", target, device)


def check_lse(array: Array, sizes: Sizes, target: Target, device: Device) -> None:
    """The forward's lse: fp32 [batch, heads, queries], C-contiguous."""
    shape = (sizes.batch, sizes.heads_q, sizes.n_q)
    check_like("lse", array, shape, "float32", target, device)
    steps = zip(array.strides, contiguous(shape), shape, strict=True)
    if 0 not in shape and any(stride != wanted for stride, wanted, n in steps if n > 1):
        raise BadOption("lse", "contiguous, as the forward call returned it", array.strides)


def check_grid(sizes: Sizes, tile: TileShape, q: Array) -> None:
    """One block per tile row, head and sequence must fit a grid."""
    rows = -(-sizes.n_q // tile.q)
    if rows * sizes.heads_q * sizes.batch > _MAX_BLOCKS:
        limit = f"at most 2^31 - 1 blocks of {tile.q} queries; split the batch"
        raise BadShape("q", tuple(q.shape), limit, at="q")


def check_call(views: Mapping[str, Array], bundle: Bundle, unit: SourceUnit) -> Sizes:
    """Check the tensors of a call, and return its sizes.

    Args:
        views: q, k, v; in a backward also out, dout and lse; alibi_slopes and sink_logits where
            given.

    Raises:
        MC4xx, BadLength.
    """
    target, problem = Target.named(unit.target), bundle.problem
    q = views["q"]
    sizes = check_inputs(q, views["k"], views["v"], problem, target)
    heads = len(bundle.head_variant) or bundle.problem.n_heads or sizes.heads_q
    check_heads(q, heads)
    if "lse" in views:
        shape = (sizes.batch, sizes.heads_q, sizes.n_q, problem.head_dim_v)
        for name in ("out", "dout"):
            check_like(name, views[name], shape, problem.dtype.value, target, q.device)
        check_lse(views["lse"], sizes, target, q.device)
    for name in ("alibi_slopes", "sink_logits"):
        if name in views:
            check_vector(name, views[name], sizes.heads_q, target, q.device)
    if target.language == "cuda":
        check_grid(sizes, unit.tile, q)
    return sizes
