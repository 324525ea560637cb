"""Arrays of any library as pointer, shape and strides, without importing the library.

`LIBRARIES` maps a type to the few functions a call needs. Types of torch, CuPy and NumPy are
recognised by name when they are first met; everything else goes through DLPack or
`__cuda_array_interface__` and becomes a `Foreign`.
"""

from __future__ import annotations

import sys
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np

from maskc.core.errors import NotAnArray, NotContiguous

Shape = tuple[int, ...]
Device = tuple[str, int]
"""("cpu", 0), or ("cuda", index)."""

HOST: Device = ("cpu", 0)


class Array(NamedTuple):
    """What a kernel needs to know of an array."""

    pointer: int
    shape: Shape
    strides: Shape
    """In elements."""
    dtype: str
    """`float32`, `bfloat16`, ...; another byte order has another name."""
    device: Device


class Library(Protocol):
    """What maskc asks of an array library."""

    ordered: bool
    """Whether `empty` can lay tokens out before heads."""

    def read(self, x: Any) -> tuple[object, int]:
        """(everything that a plan depends on, hashable; pointer); fast."""

    def view(self, x: Any, name: str) -> Array:
        """The same in plain terms; `name` is for errors."""

    def empty(self, x: Any, shape: Shape, single: bool, tokens_first: bool) -> tuple[Any, int]:
        """(a new array on the device of x, its pointer): fp32 or the dtype of x.

        With `tokens_first` a [B, H, N, D] array is stored as [B, N, H, D].
        """

    def clear(self, made: Any) -> None:
        """Zero what `empty` gave."""

    def stream(self, device: int) -> int:
        """The caller's current CUDA stream."""

    def send(self, x: Any, host: np.ndarray) -> tuple[Any, int]:
        """A copy of int32 values on the CUDA device of x, ordered on its current stream."""


def library(x: object, name: str) -> Any:
    """x itself where its type is known, else the `Foreign` that stands for it.

    Raises:
        NotAnArray: x has no array interface.
    """
    kind = type(x)
    if kind in LIBRARIES:
        return x
    for base in kind.__mro__:
        known = _BY_NAME.get((base.__module__.partition(".")[0], base.__name__))
        if known is not None:
            LIBRARIES[kind] = known
            return x
    return foreign(x, name)


def contiguous(shape: Shape) -> Shape:
    """Strides, in elements, of a C-contiguous array."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@lru_cache(maxsize=1 << 12)
def out_strides(shape: Shape, tokens_first: bool) -> Shape:
    """Strides of what `empty` gives for a shape [B, H, N, D]."""
    if not tokens_first:
        return contiguous(shape)
    b, n, h, d = contiguous((shape[0], shape[2], shape[1], shape[3]))
    return b, h, n, d


def _in_elements(strides: Shape, size: int, name: str) -> Shape:
    """Byte strides in elements; a fraction would silently read the wrong numbers."""
    for stride in strides:
        if stride % size:
            raise NotContiguous(name, f"of {stride} bytes somewhere", at=name)
    return tuple(stride // size for stride in strides)


@cache
def _dtype_name(dtype: np.dtype) -> str:
    dtype = np.dtype(dtype)
    return dtype.name if dtype.isnative else dtype.str


# ------------------------------------------------------------------ torch


class _Torch:
    """torch.Tensor; autograd neither sees nor blocks what is done through data_ptr()."""

    ordered = True

    def read(self, x: Any) -> tuple[object, int]:
        return (x.shape, x.stride(), x.dtype, x.device), x.data_ptr()

    def view(self, x: Any, name: str) -> Array:
        try:
            pointer, strides = x.data_ptr(), x.stride()
        except RuntimeError as error:  # sparse, fake, or without storage
            raise NotAnArray(name, f"torch tensor without memory ({error})", at=name) from None
        device = (x.device.type, x.device.index or 0)
        return Array(pointer, tuple(x.shape), strides, str(x.dtype).removeprefix("torch."), device)

    def empty(self, x: Any, shape: Shape, single: bool, tokens_first: bool) -> tuple[Any, int]:
        torch = sys.modules["torch"]
        dtype = torch.float32 if single else x.dtype
        strides = out_strides(shape, tokens_first)
        made = torch.empty_strided(shape, strides, dtype=dtype, device=x.device)
        return made, made.data_ptr()

    def clear(self, made: Any) -> None:
        made.zero_()

    def stream(self, device: int) -> int:
        torch = sys.modules["torch"]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # twenty times as fast
        return raw(device) if raw else torch.cuda.current_stream(device).cuda_stream

    def send(self, x: Any, host: np.ndarray) -> tuple[Any, int]:
        pinned = sys.modules["torch"].from_numpy(host).pin_memory()
        made = pinned.to(x.device, non_blocking=True)  # torch keeps `pinned` until it is done
        return made, made.data_ptr()


# ------------------------------------------------------------------ NumPy, CuPy


class _NumPy:
    """numpy.ndarray, ml_dtypes.bfloat16 included."""

    ordered = True

    def read(self, x: Any) -> tuple[object, int]:
        return (x.shape, x.strides, x.dtype), x.__array_interface__["data"][0]

    def view(self, x: Any, name: str) -> Array:
        strides = _in_elements(x.strides, x.itemsize, name)
        return Array(x.ctypes.data, x.shape, strides, _dtype_name(x.dtype), HOST)

    def empty(self, x: Any, shape: Shape, single: bool, tokens_first: bool) -> tuple[Any, int]:
        dtype = np.float32 if single else x.dtype
        if tokens_first:
            b, h, n, d = shape
            made = np.empty((b, n, h, d), dtype).transpose(0, 2, 1, 3)
        else:
            made = np.empty(shape, dtype)
        return made, made.__array_interface__["data"][0]

    def clear(self, made: Any) -> None:
        made.fill(0)

    def stream(self, device: int) -> int:
        return 0

    def send(self, x: Any, host: np.ndarray) -> tuple[Any, int]:
        return host, host.ctypes.data


class _CuPy:
    """cupy.ndarray."""

    ordered = True

    def read(self, x: Any) -> tuple[object, int]:
        memory = x.data
        return (x.shape, x.strides, x.dtype, memory.device_id), memory.ptr

    def view(self, x: Any, name: str) -> Array:
        strides = _in_elements(x.strides, x.itemsize, name)
        device = ("cuda", x.data.device_id)
        return Array(x.data.ptr, x.shape, strides, _dtype_name(x.dtype), device)

    def empty(self, x: Any, shape: Shape, single: bool, tokens_first: bool) -> tuple[Any, int]:
        return cupy_empty(x.data.device_id, shape, np.float32 if single else x.dtype, tokens_first)

    def clear(self, made: Any) -> None:
        made.fill(0)

    def stream(self, device: int) -> int:
        return sys.modules["cupy"].cuda.get_current_stream(device).ptr

    def send(self, x: Any, host: np.ndarray) -> tuple[Any, int]:
        return cupy_send(x.data.device_id, host)


def _cupy() -> ModuleType:
    import cupy

    return cupy


def cupy_empty(device: int, shape: Shape, dtype: Any, tokens_first: bool) -> tuple[Any, int]:
    """A new CuPy array on a device, and its pointer."""
    cupy = _cupy()
    order = (shape[0], shape[2], shape[1], shape[3]) if tokens_first else shape
    if cupy.cuda.runtime.getDevice() == device:
        made = cupy.empty(order, dtype)
    else:
        with cupy.cuda.Device(device):
            made = cupy.empty(order, dtype)
    if tokens_first:
        made = made.transpose(0, 2, 1, 3)
    return made, made.data.ptr


def cupy_send(device: int, host: np.ndarray) -> tuple[Any, int]:
    """A copy on a device through pinned memory, ordered on CuPy's current stream."""
    cupy = _cupy()
    with cupy.cuda.Device(device):
        memory = cupy.cuda.alloc_pinned_memory(host.nbytes)
        pinned = np.frombuffer(memory, host.dtype, host.size)
        pinned[...] = host
        made = cupy.empty(host.shape, host.dtype)
        made.set(pinned, stream=cupy.cuda.get_current_stream())
    return (made, memory), made.data.ptr


# ------------------------------------------------------------------ everything else


class Foreign(NamedTuple):
    """An array of another library, imported for the time of a call."""

    array: Array
    source: Any
    """What the caller gave."""
    held: Any
    """Keeps the exported memory alive."""


class _Foreign:
    """Results are of the source's own library where it follows the array API standard.

    Where it does not, they are NumPy or CuPy arrays.
    """

    ordered = False

    def read(self, x: Foreign) -> tuple[object, int]:
        array = x.array
        return (array.shape, array.strides, array.dtype, array.device), array.pointer

    def view(self, x: Foreign, name: str) -> Array:
        return x.array

    def empty(self, x: Foreign, shape: Shape, single: bool, tokens_first: bool) -> tuple[Any, int]:
        kind, index = x.array.device
        namespace = getattr(x.source, "__array_namespace__", None)
        if namespace is not None:
            space = namespace()
            dtype = space.float32 if single else x.source.dtype
            made = space.zeros(shape, dtype=dtype, device=x.source.device)
            return made, foreign(made, "the result").array.pointer
        dtype = numpy_dtype("float32" if single else x.array.dtype)
        if kind == "cuda":
            return cupy_empty(index, shape, dtype, False)
        made = np.empty(shape, dtype)
        return made, made.ctypes.data

    def clear(self, made: Any) -> None:
        if hasattr(made, "fill"):  # others were made by `zeros`
            made.fill(0)

    def stream(self, device: int) -> int:
        return _cupy().cuda.get_current_stream(device).ptr

    def send(self, x: Foreign, host: np.ndarray) -> tuple[Any, int]:
        return cupy_send(x.array.device[1], host)


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a name; bfloat16 comes from ml_dtypes."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


_ON_HOST: dict[type, bool] = {}
"""Where the last array of a type was: asking costs a microsecond and is usually the same."""


def foreign(x: Any, name: str) -> Foreign:
    """Import an array through DLPack or `__cuda_array_interface__`.

    Raises:
        NotAnArray: x has neither, or refuses to export itself.
    """
    try:
        if _ON_HOST.get(type(x)):
            guessed = _imported(x, HOST)
            if getattr(guessed.held, "device_id", -1) < 0:  # not on a GPU after all
                return guessed
        place = _place(x, name)
        _ON_HOST[type(x)] = place == HOST
        return _imported(x, place)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, NotAnArray):
            raise
        found = f"{type(x).__name__} that cannot be read ({error})"
        raise NotAnArray(name, found, at=name) from None


def _place(x: Any, name: str) -> Device:
    if hasattr(x, "__cuda_array_interface__"):
        return "cuda", -1
    if not hasattr(x, "__dlpack_device__"):
        raise NotAnArray(name, type(x).__name__, at=name)
    kind, index = map(int, x.__dlpack_device__())
    if kind not in (1, 2, 3, 13):  # host, CUDA, pinned, managed
        raise NotAnArray(name, f"{type(x).__name__} on DLPack device type {kind}", at=name)
    return HOST if kind in (1, 3) else ("cuda", index)


def _imported(x: Any, place: Device) -> Foreign:
    # 1 is how both protocols call the default stream; -1 means that nothing needs waiting for.
    stream = -1 if place == HOST else _cupy().cuda.get_current_stream(place[1]).ptr or 1
    view = _strided_view()
    if view is None:
        held = np.from_dlpack(x) if place == HOST else _cupy().asarray(x)
        return Foreign((_NUMPY if place == HOST else _CUPY).view(held, "array"), x, held)
    held = view.from_any_interface(x, stream_ptr=stream)
    strides = held.strides if held.strides is not None else contiguous(held.shape)
    device = HOST if place == HOST else ("cuda", held.device_id)
    return Foreign(Array(held.ptr, held.shape, strides, _dtype_name(held.dtype), device), x, held)


@cache
def _strided_view() -> Any:
    """cuda.core's reader of both protocols; without it NumPy reads DLPack on the host."""
    try:
        from cuda.core.utils import StridedMemoryView
    except (ImportError, RuntimeError):
        return None
    return StridedMemoryView


_TORCH, _NUMPY, _CUPY = _Torch(), _NumPy(), _CuPy()

_BY_NAME: dict[tuple[str, str], Library] = {
    ("torch", "Tensor"): _TORCH,
    ("numpy", "ndarray"): _NUMPY,
    ("cupy", "ndarray"): _CUPY,
}

LIBRARIES: dict[type, Library] = {np.ndarray: _NUMPY, Foreign: _Foreign()}
"""Known types; `library` adds to it."""
