"""Arrays of libraries that maskc does not know by name, through DLPack or
`__cuda_array_interface__`.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from maskc.core.errors import NotAnArray
from maskc.core.tensors import HOST, Array, Device, Output, Shape, contiguous, refuse_masked
from maskc.runtime.arrays.known import (
    CUPY,
    LIBRARIES,
    NUMPY,
    Seen,
    cupy_empty,
    cupy_send,
    cupy_stream,
    dtype_name,
    import_cupy,
)


class Foreign(NamedTuple):
    """An array of another library, imported for the time of a call."""

    array: Array
    source: Any
    """The caller's array."""
    held: Any
    """Keeps the exported memory alive."""

    @property
    def shape(self) -> Shape:
        """The shape of the array."""
        return self.array.shape


class _Foreign:
    """Results are arrays of the source's library if it follows the array API standard.

    Otherwise they are NumPy or CuPy arrays.
    """

    ordered = graphs_own = False

    def read_all(self, arrays: list[Foreign]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        return tuple([x.array[1:] for x in arrays]), tuple([x.array.pointer for x in arrays])

    def plain(self, x: Foreign) -> Foreign:
        return x

    def view(self, x: Foreign, name: str) -> Array:
        return x.array

    def empty(self, x: Foreign, wanted: Output) -> tuple[Any, int]:
        kind, index = x.array.device
        namespace = getattr(x.source, "__array_namespace__", None)
        if namespace is not None:
            space = namespace()
            dtype = getattr(space, wanted.dtype) if wanted.dtype else x.source.dtype
            made = space.zeros(wanted.shape, dtype=dtype, device=x.source.device)
            return made, foreign(made, "the result").array.pointer
        dtype = numpy_dtype(wanted.dtype or x.array.dtype)
        if kind == "cuda":
            return cupy_empty(index, Output(wanted.shape), dtype)
        made = np.empty(wanted.shape, dtype)
        return made, made.ctypes.data

    def clear(self, made: Any) -> None:
        if hasattr(made, "fill"):  # others were made by `zeros`
            made.fill(0)

    def stream(self, device: int) -> int:
        return cupy_stream(device)

    def lends(self, stream: int) -> bool:
        return False

    def watch(self, x: Foreign) -> Seen | None:
        return None

    def send(self, x: Foreign, host: np.ndarray) -> tuple[Any, int]:
        return cupy_send(x.array.device[1], host)


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        dtype: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return dtype
    return np.dtype(name)


_PLACES: dict[type, Device] = {}
"""The device of the last array of each type. A query takes a microsecond, and the answer rarely
changes."""

_REFUSALS = (BufferError, RuntimeError, TypeError, ValueError)


def foreign(x: Any, name: str) -> Foreign:
    """Import an array through DLPack or `__cuda_array_interface__`.

    Raises:
        NotAnArray: x has neither, or refuses to export itself.
        MaskedValues: it is a masked array of NumPy with masked entries (MC444).
    """
    refuse_masked(x, name)
    try:
        array = _guessed(x)
        if array is None:
            place = _place(x, name)
            array = _imported(x, place)
            _PLACES[type(x)] = place
        return array
    except _REFUSALS as error:
        if isinstance(error, NotAnArray):
            raise
        why = f"{type(x).__name__} that cannot be read ({error})"
        raise NotAnArray(name, why, at=name) from None


def _guessed(x: Any) -> Foreign | None:
    """Import x, assuming the device of the last array of its type; None if it is on another
    device."""
    place = _PLACES.get(type(x))
    if place is None:
        return None
    try:
        array = _imported(x, place)
    except _REFUSALS:
        return None  # whether it is x that refuses, or the place, is asked in order
    index = getattr(array.held, "device_id", -1)
    if place[1] < 0:  # whatever device is current
        return array
    return array if (index < 0 if place == HOST else index == place[1]) else None


_IN_JAX = (
    "under jax.jit, jax.grad and jax.vmap, call maskc.integrations.jax.attention, which takes "
    "tokens before heads"
)


def _place(x: Any, name: str) -> Device:
    if hasattr(x, "__cuda_array_interface__"):
        return "cuda", -1
    if not hasattr(x, "__dlpack_device__"):
        known = type(x)
        traced = known.__module__.startswith("jax.") and known.__name__.endswith("Tracer")
        raise NotAnArray(name, known.__name__, *([_IN_JAX] if traced else []), at=name)
    kind, index = map(int, x.__dlpack_device__())
    if kind not in (1, 2, 3, 13):  # host, CUDA, pinned, managed
        raise NotAnArray(name, f"{type(x).__name__} on DLPack device type {kind}", at=name)
    return HOST if kind in (1, 3) else ("cuda", index)


def _imported(x: Any, place: Device) -> Foreign:
    # 1 is how both protocols call the default stream; -1 means that nothing needs waiting for.
    stream = -1 if place == HOST else cupy_stream(place[1]) or 1
    view = _strided_view()
    if view is None:
        held = np.from_dlpack(x) if place == HOST else import_cupy().asarray(x)
        return Foreign((NUMPY if place == HOST else CUPY).view(held, "array"), x, held)
    held = view.from_any_interface(x, stream_ptr=stream)
    shape, strides = held.shape, held.strides
    if strides is None:
        strides = contiguous(shape)
    device = HOST if place == HOST else ("cuda", held.device_id)
    return Foreign(Array(held.ptr, shape, strides, dtype_name(held.dtype), device), x, held)


@cache
def _strided_view() -> Any:
    """cuda.core's reader of both protocols; without it NumPy reads DLPack on the host."""
    try:
        from cuda.core.utils import StridedMemoryView
    except (ImportError, RuntimeError):
        return None
    return StridedMemoryView


LIBRARIES[Foreign] = _Foreign()
