"""Tensor maps: how Hopper's copy engine finds boxes of 64 elements x some tokens in a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any

from maskc.core.abi import POINTERS, Pointers
from maskc.core.boxes import Boxes
from maskc.core.bundle import OF_KEYS, TensorMap
from maskc.core.errors import NotAddressable
from maskc.core.problem import Problem
from maskc.core.sizes import Sizes
from maskc.core.tensors import Shape

BYTES = 128
"""Of one map."""
BOX = 64
"""Elements of a row that a box holds: 128 bytes, the width of the swizzle."""
_GRID = 16
"""Bytes: addresses and strides are multiples."""
_FAR = 1 << 40
"""Bytes: strides are less."""
_OF_VALUES = ("v", "out", "dout", "dv")
_MOST_AXES = 3
"""Of a grid: a map has no more than five dimensions."""
_KEPT = 512
"""Sets of addresses remembered per plan."""

Encode = Callable[[int, Shape, Shape, Shape, str], bytes]
"""(address, dims in elements, strides in bytes of all but the first, box, dtype) -> 128 bytes."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One map but for the address."""

    pointer: int
    """Index among the pointers of a call."""
    dims: Shape
    """Elements of a row, tokens (along each axis of a grid, the innermost first), heads,
    sequences; the last one is left out where a grid has three axes."""
    strides: Shape
    """Bytes between neighbours, for all but the first."""
    box: Shape
    """What a copy moves of each."""


def tensor(
    wanted: TensorMap, strides: Shape, sizes: Sizes, problem: Problem, target: str,
    boxes: Boxes | None = None,
) -> Tensor:  # fmt: skip
    """The map of a tensor [batch, heads, tokens, dim].

    A dimension of which nothing is far apart (size 1, or stride 0 because it was expanded) has
    size 1 in the map: kernels multiply its coordinate by 0 where the stride in the argument block
    is 0.

    Args:
        wanted: which tensor, and its box.
        strides: in elements, of batch, heads, tokens.
        boxes: where tokens lie in a grid; of three axes only if there is one sequence.

    Raises:
        NotAddressable: a stride that no map can have.
    """
    name = wanted.tensor
    width = problem.head_dim_v if name in _OF_VALUES else problem.head_dim
    heads, tokens = (sizes.heads_kv, sizes.n_kv) if name in OF_KEYS else (sizes.heads_q, sizes.n_q)
    dims, steps = [width], []
    nothing = 0 in (sizes.batch, heads, tokens)
    for what, count, stride in (
        *_along(tokens, strides[2], boxes),
        ("heads", heads, strides[1]),
        *([("sequences", sizes.batch, strides[0])] if len(wanted.box) < _MOST_AXES else []),
    ):
        step = stride * problem.dtype.itemsize
        far = count > 1 and not nothing
        if far and (step < 0 or step % _GRID or step >= _FAR or (not step and what == "tokens")):
            why = f"its {what} are {step} bytes apart, not a positive multiple of 16 below 2^40"
            raise NotAddressable(name, target, why, at=name)
        dims.append(count if far and step else 1)
        steps.append(step if far and step else -(-width * problem.dtype.itemsize // _GRID) * _GRID)
    place = 0 if nothing else POINTERS.index(name)  # of an empty tensor any address does
    box = (BOX, *(wanted.box[::-1] or (wanted.rows,)))
    return Tensor(place, tuple(dims), tuple(steps), (*box, *(1,) * (len(dims) - len(box))))


def _along(tokens: int, stride: int, boxes: Boxes | None) -> list[tuple[str, int, int]]:
    """Tokens along each axis, the innermost first, and elements between neighbours."""
    found = []
    for extent in reversed(boxes.grid(tokens) if boxes else (tokens,)):
        found.append(("tokens", extent, stride))
        stride *= extent
    return found


def tensors(
    maps: tuple[TensorMap, ...], strides: Mapping[str, Shape], sizes: Sizes, problem: Problem,
    target: str, boxes: Boxes | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """All maps of a source; `strides` in elements by tensor; errors as above."""
    rest = (sizes, problem, target, boxes)
    return tuple(tensor(each, strides[each.tensor], *rest) for each in maps)


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps of a plan, by the addresses of its tensors."""

    tensors: tuple[Tensor, ...]
    dtype: str
    target: str
    encode: Encode
    known: dict[object, bytes] = field(default_factory=dict)
    """Maps by addresses; the allocators of array libraries give the same ones again and again."""
    addresses: Callable[[Pointers], object] = field(init=False)

    def __post_init__(self) -> None:
        places = dict.fromkeys(each.pointer for each in self.tensors)
        object.__setattr__(self, "addresses", itemgetter(*places))

    def at(self, pointers: Pointers) -> bytes:
        """All maps, one after another.

        Raises:
            NotAddressable: a tensor is not where a map can start.
        """
        key = self.addresses(pointers)
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= _KEPT:
                self.known.clear()
            found = self.known[key] = b"".join(
                self._encoded(each, pointers[each.pointer]) for each in self.tensors
            )
        return found

    def _encoded(self, each: Tensor, address: int) -> bytes:
        if address % _GRID:
            name = POINTERS[each.pointer]
            why = "it does not start at a multiple of 16 bytes"
            raise NotAddressable(name, self.target, why, at=name)
        return encoded(self.encode, address, each.dims, each.strides, each.box, self.dtype)


@lru_cache(maxsize=1 << 12)
def encoded(
    encode: Encode, address: int, dims: Shape, strides: Shape, box: Shape, dtype: str
) -> bytes:
    """One map; plans that read the same tensor share it."""
    return encode(address, dims, strides, box, dtype)


def encode_with(driver: Any, address: int, dims: Shape, strides: Shape, box: Shape,
                dtype: str) -> tuple[Any, Any]:  # fmt: skip
    """cuTensorMapEncodeTiled of cuda.bindings: (status, map)."""
    kind = driver.CUtensorMapDataType
    return driver.cuTensorMapEncodeTiled(
        kind.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 if dtype == "bfloat16"
        else kind.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        len(dims),
        address,
        [driver.cuuint64_t(size) for size in dims],
        [driver.cuuint64_t(step) for step in strides],
        [driver.cuuint32_t(size) for size in box],
        [driver.cuuint32_t(1)] * len(dims),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )  # fmt: skip
