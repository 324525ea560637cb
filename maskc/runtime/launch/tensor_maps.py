"""Tensor maps, by which TMA finds boxes of 128 bytes x some tokens in a tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any

from maskc.core.abi import POINTERS, Pointers
from maskc.core.dtypes import E4M3
from maskc.core.errors import NotAddressable
from maskc.core.tensors import Shape
from maskc.dispatch.tensor_maps import GRANULE, Tensor

BYTES = 128
"""The bytes of one map."""
_KEPT = 512
"""Sets of addresses remembered per plan."""

_KINDS = {"bfloat16": "BFLOAT16", "float16": "FLOAT16", E4M3: "UINT8"}
"""Element types of copies."""

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
    """Call cuTensorMapEncodeTiled of cuda.bindings; return (status, map).

    L2 reads only the bytes of a box. With promotion to 256 bytes, decoding read keys and values at
    4.15 instead of 4.45 TB/s (one H200); other kernels took the same time.
    """
    kind = driver.CUtensorMapDataType
    status_and_map: tuple[Any, Any] = driver.cuTensorMapEncodeTiled(
        getattr(kind, f"CU_TENSOR_MAP_DATA_TYPE_{_KINDS[dtype]}"),
        len(dims),
        address,
        [driver.cuuint64_t(size) for size in dims],
        [driver.cuuint64_t(step) for step in strides],
        [driver.cuuint32_t(size) for size in box],
        [driver.cuuint32_t(1)] * len(dims),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return status_and_map
