"""Tensor maps, by which TMA finds boxes of 128 bytes x some tokens in a tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

from maskc.core.abi import POINTERS, Pointers
from maskc.core.dtypes import E4M3
from maskc.core.errors import NotAddressable
from maskc.core.tensors import Shape
from maskc.dispatch.tensor_maps import GRANULE, Tensor

BYTES = 128
"""The bytes of one map."""
_KEPT = 512
"""Sets of addresses remembered per plan."""

KINDS = {"bfloat16": 9, "float16": 6, E4M3: 0}
"""Element types of copies: numbers of CUtensorMapDataType, where 0 is a byte."""


class BoxMode(NamedTuple):
    """Settings with which the copy engine reads a box, in the order of cuTensorMapEncodeTiled.

    They are numbers of CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion and
    CUtensorMapFloatOOBfill.
    """

    interleave: int
    swizzle: int
    promotion: int
    fill: int


MODE = BoxMode(interleave=0, swizzle=3, promotion=0, fill=0)
"""No interleaving, a swizzle of 128 bytes, no L2 promotion, and zeros outside the tensor. With
promotion to 256 bytes, decoding read keys and values at 4.15 instead of 4.45 TB/s (one H200); other
kernels took the same time."""

Encode = Callable[[int, Shape, Shape, Shape, str], bytes]
"""(address, dims in elements, strides in bytes of all but the first, box, dtype) -> 128 bytes."""


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps of a plan, by the addresses of its tensors."""

    tensors: tuple[Tensor, ...]
    target: str
    encode: Encode
    known: dict[object, bytes] = field(default_factory=dict)
    """Maps by addresses; the allocators of array libraries give the same ones again and again."""
    addresses: Callable[[Pointers], object] = field(init=False)

    def __post_init__(self) -> None:
        places = dict.fromkeys(tensor.pointer for tensor in self.tensors)
        object.__setattr__(self, "addresses", itemgetter(*places))

    def at(self, pointers: Pointers) -> bytes:
        """All maps, one after another.

        Raises:
            NotAddressable: a tensor is not where a map can start.
        """
        key = self.addresses(pointers)
        encoded = self.known.get(key)
        if encoded is None:
            if len(self.known) >= _KEPT:
                self.known.clear()
            encoded = self.known[key] = b"".join(
                self._encoded(tensor, pointers[tensor.pointer]) for tensor in self.tensors
            )
        return encoded

    def _encoded(self, tensor: Tensor, address: int) -> bytes:
        if address % GRANULE:
            name = POINTERS[tensor.pointer]
            why = "it does not start at a multiple of 16 bytes"
            raise NotAddressable(name, self.target, why, at=name)
        return encoded(self.encode, address, tensor.dims, tensor.strides, tensor.box, tensor.dtype)


@lru_cache(maxsize=1 << 12)
def encoded(
    encode: Encode, address: int, dims: Shape, strides: Shape, box: Shape, dtype: str
) -> bytes:
    """One map; plans that read the same tensor share it."""
    return encode(address, dims, strides, box, dtype)


def encode_with(driver: Any, address: int, dims: Shape, strides: Shape, box: Shape,
                dtype: str) -> tuple[Any, Any]:  # fmt: skip
    """Call cuTensorMapEncodeTiled of cuda.bindings; return (status, map)."""
    status_and_map: tuple[Any, Any] = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType(KINDS[dtype]),
        len(dims),
        address,
        [driver.cuuint64_t(size) for size in dims],
        [driver.cuuint64_t(step) for step in strides],
        [driver.cuuint32_t(size) for size in box],
        [driver.cuuint32_t(1)] * len(dims),
        driver.CUtensorMapInterleave(MODE.interleave),
        driver.CUtensorMapSwizzle(MODE.swizzle),
        driver.CUtensorMapL2promotion(MODE.promotion),
        driver.CUtensorMapFloatOOBfill(MODE.fill),
    )
    return status_and_map
