"""Arrays of any library as pointer, shape and strides, without importing the library.

`LIBRARIES` maps a type to the few functions a call needs. Types of torch, CuPy and NumPy are
recognised by name when they are first met; maskc/runtime/arrays/foreign.py reads everything else.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from maskc.core.errors import NestedTensor, NotAnArray, NotContiguous, WrongRank
from maskc.core.forks import new_lock
from maskc.core.tensors import HOST, Array, Device, Output, Shape, not_an_array, torch_of

Seen = tuple[int, object, object]
"""(address of an array, a counter of writes to it, its layout with dtype and device). If writes are
not counted, the counter is an object that equals nothing else."""


class Library(Protocol):
    """The operations of an array library that maskc needs."""

    ordered: bool
    """Whether `empty` can lay tokens out before heads."""
    graphs_own: bool
    """Whether memory that is made while a CUDA graph is captured belongs to that graph."""

    def read_all(self, arrays: list[Any]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """Return (everything that a plan depends on, as one hashable tuple; pointers); fast.

        Arrays that are not `plain` are replaced by plain ones.
        """

    def plain(self, x: Any) -> Any:
        """x itself if its memory holds its values, otherwise a copy."""

    def view(self, x: Any, name: str) -> Array:
        """The array in plain terms; `name` is for errors."""

    def watch(self, x: Any) -> Seen | None:
        """Return where x lies, and its state; None if x is not in memory of a device."""

    def empty(self, x: Any, wanted: Output) -> tuple[Any, int]:
        """(a new array on the device of x, its pointer)."""

    def clear(self, made: Any) -> None:
        """Fill an array from `empty` with zeros."""

    def stream(self, device: int) -> int:
        """The caller's current CUDA stream."""

    def lends(self, stream: int) -> bool:
        """Whether new memory belongs to a CUDA graph that torch captures, or that torch.compile
        prepares, on this stream: nobody may keep it when the call ends."""

    def send(self, x: Any, host: np.ndarray) -> tuple[Any, int]:
        """Copy int32 values to the CUDA device of x, on its current stream."""


def zeros(library: Library, x: Any, wanted: Output) -> tuple[Any, int]:
    """`Library.empty`, cleared."""
    made = library.empty(x, wanted)
    library.clear(made[0])
    return made


def _in_elements(strides: Shape, size: int, name: str) -> Shape:
    """Byte strides in elements; a fraction would silently read the wrong numbers."""
    for stride in strides:
        if stride % size:
            raise NotContiguous(name, f"of {stride} bytes somewhere", at=name)
    return tuple(stride // size for stride in strides)


@cache
def dtype_name(dtype: np.dtype) -> str:
    """`float32`, ...; see Array."""
    dtype = np.dtype(dtype)
    return dtype.name if dtype.isnative else dtype.str


@cache
def _dtype_named(name: str) -> np.dtype:
    """Return the dtype of a result, from NumPy or ml_dtypes."""
    return np.dtype(name if name == "float32" else getattr(import_module("ml_dtypes"), name))


# ------------------------------------------------------------------ torch


@cache
def _torch_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


@cache
def _torch_place(device: Any) -> Device:
    return device.type, device.index or 0


_replayed: list[Any] = []
"""Host memory that replays of CUDA graphs copy from, kept for good."""


class _Torch:
    """torch.Tensor. autograd does not see accesses through data_ptr()."""

    ordered = graphs_own = True

    def read_all(self, arrays: list[Any]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        # Shape and contiguity imply all strides that count.
        if len(arrays) == 3:
            a, b, c = arrays
            if a.is_neg() or b.is_neg() or c.is_neg():
                a, b, c = arrays[:] = [self.plain(x) for x in arrays]
            pointers = a.data_ptr(), b.data_ptr(), c.data_ptr()
            if 0 in pointers:
                self._check_memory(arrays)
            return (
                a.shape, a.is_contiguous() or a.stride(), a.dtype, a.device,
                b.shape, b.is_contiguous() or b.stride(), b.dtype, b.device,
                c.shape, c.is_contiguous() or c.stride(), c.dtype, c.device,
            ), pointers  # fmt: skip
        kinds: list[Any] = []
        places = []
        for number, x in enumerate(arrays):
            if x.is_neg():
                x = arrays[number] = self.plain(x)
            kinds += (x.shape, x.is_contiguous() or x.stride(), x.dtype, x.device)
            places.append(x.data_ptr())
        if 0 in places:
            self._check_memory(arrays)
        return tuple(kinds), tuple(places)

    def _check_memory(self, arrays: list[Any]) -> None:
        """Raise the RuntimeError that torch raises for most tensors without memory. Tensors of the
        meta device stay: they are refused for their device."""
        # A FunctionalTensor, for example
        if any(x.data_ptr() == 0 and x.numel() and not x.is_meta for x in arrays):
            raise RuntimeError("its address is 0")

    def plain(self, x: Any) -> Any:
        # The imaginary part of a conjugate has the other sign in memory, and a bit that says so.
        return x.resolve_neg() if x.is_neg() else x

    def view(self, x: Any, name: str) -> Array:
        try:
            pointer, strides = x.data_ptr(), x.stride()
            if pointer == 0:
                self._check_memory([x])
        except RuntimeError as error:  # sparse, fake, or without storage
            if x.is_nested:
                raise NestedTensor(name, at=name) from None
            if str(x.layout) != "torch.strided":
                raise not_an_array(name, x) from None
            raise NotAnArray(name, f"torch tensor without memory ({error})", at=name) from None
        return Array(pointer, tuple(x.shape), strides, _torch_name(x.dtype), _torch_place(x.device))

    def watch(self, x: Any) -> Seen | None:
        try:
            place = x.data_ptr()
        except RuntimeError:  # without memory
            return None
        layout = x.shape, x.stride(), x.dtype, x.device, x.is_neg()
        try:
            return place, x._version, layout
        except RuntimeError:  # a tensor of inference mode
            return place, object(), layout

    def empty(self, x: Any, wanted: Output) -> tuple[Any, int]:
        if wanted.like_q:
            made = self._empty_like(x)  # takes less time
        elif wanted.dtype:
            shape, strides, torch = wanted.shape, wanted.strides, self._torch
            dtype = getattr(torch, wanted.dtype)
            made = torch.empty_strided(shape, strides, dtype=dtype, device=x.device)
        else:
            made = x.new_empty_strided(wanted.shape, wanted.strides)
        return made, made.data_ptr()

    def clear(self, made: Any) -> None:
        made.zero_()

    @cached_property
    def stream(self) -> Callable[[int], int]:
        torch = self._torch
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # twenty times as fast
        return raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)

    def lends(self, stream: int) -> bool:
        # Before it records a graph, torch.compile runs the code once with the memory of the graph,
        # and refuses to go on if anything except results is still in use afterwards.
        if not stream:  # the default stream has no graphs
            return False
        if self._torch.cuda.is_current_stream_capturing():
            return True
        trees = sys.modules.get("torch._inductor.cudagraph_trees")
        if trees is None or not hasattr(trees, "get_obj"):
            return False
        try:
            containers = trees.get_obj(trees.local, "tree_manager_containers")
        except (AttributeError, RuntimeError):  # this thread has none
            return False
        managers = [container.tree_manager for container in containers.values()]
        return any(made is not None and made.stream.cuda_stream == stream for made in managers)

    def send(self, x: Any, host: np.ndarray) -> tuple[Any, int]:
        pinned = self._torch.from_numpy(host).pin_memory()
        made = pinned.to(x.device, non_blocking=True)  # torch keeps `pinned` until it is done
        if self._torch.cuda.is_current_stream_capturing():
            _replayed.append(pinned)
        return made, made.data_ptr()

    @cached_property
    def _torch(self) -> ModuleType:
        return sys.modules["torch"]

    @cached_property
    def _empty_like(self) -> Callable[[Any], Any]:
        made: Callable[[Any], Any] = self._torch.empty_like
        return made


# ------------------------------------------------------------------ NumPy, CuPy


class _NumPy:
    """numpy.ndarray, ml_dtypes.bfloat16 included."""

    ordered, graphs_own = True, False

    def read_all(self, arrays: list[Any]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        kinds: list[Any] = []
        places = []
        for x in arrays:
            kinds += (x.shape, x.strides, x.dtype)
            places.append(x.__array_interface__["data"][0])
        return tuple(kinds), tuple(places)

    def plain(self, x: Any) -> Any:
        return x

    def view(self, x: Any, name: str) -> Array:
        strides = _in_elements(x.strides, x.itemsize, name)
        return Array(x.ctypes.data, x.shape, strides, dtype_name(x.dtype), HOST)

    def watch(self, x: Any) -> Seen | None:
        return None

    def empty(self, x: Any, wanted: Output) -> tuple[Any, int]:
        dtype = _dtype_named(wanted.dtype) if wanted.dtype else x.dtype
        shape, axes = wanted.in_memory
        made = np.empty(shape, dtype)
        if axes:
            made = made.transpose(axes)
        return made, made.__array_interface__["data"][0]

    def clear(self, made: Any) -> None:
        made.fill(0)

    def stream(self, device: int) -> int:
        return 0

    def lends(self, stream: int) -> bool:
        return False

    def send(self, x: Any, host: np.ndarray) -> tuple[Any, int]:
        return host, host.ctypes.data


class _CuPy:
    """cupy.ndarray."""

    ordered, graphs_own = True, False

    def read_all(self, arrays: list[Any]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        if len(arrays) == 3:
            a, b, c = arrays
            of_a, of_b, of_c = a.data, b.data, c.data
            return (
                a.shape, a.strides, a.dtype, of_a.device_id,
                b.shape, b.strides, b.dtype, of_b.device_id,
                c.shape, c.strides, c.dtype, of_c.device_id,
            ), (of_a.ptr, of_b.ptr, of_c.ptr)  # fmt: skip
        kinds: list[Any] = []
        places = []
        for x in arrays:
            memory = x.data
            kinds += (x.shape, x.strides, x.dtype, memory.device_id)
            places.append(memory.ptr)
        return tuple(kinds), tuple(places)

    def plain(self, x: Any) -> Any:
        return x

    def view(self, x: Any, name: str) -> Array:
        strides = _in_elements(x.strides, x.itemsize, name)
        device = ("cuda", x.data.device_id)
        return Array(x.data.ptr, x.shape, strides, dtype_name(x.dtype), device)

    def watch(self, x: Any) -> Seen | None:
        memory = x.data
        return memory.ptr, object(), (x.shape, x.strides, x.dtype, memory.device_id)

    def empty(self, x: Any, wanted: Output) -> tuple[Any, int]:
        dtype = _dtype_named(wanted.dtype) if wanted.dtype else x.dtype
        return cupy_empty(x.data.device_id, wanted, dtype)

    def clear(self, made: Any) -> None:
        made.fill(0)

    def stream(self, device: int) -> int:
        return cupy_stream(device)

    def lends(self, stream: int) -> bool:
        return False

    def send(self, x: Any, host: np.ndarray) -> tuple[Any, int]:
        return cupy_send(x.data.device_id, host)


@cache
def import_cupy() -> ModuleType:
    """CuPy, once an array needs it."""
    return import_module("cupy")


@cache
def _cupy_calls() -> tuple[Callable[..., Any], Callable[[], int], type]:
    """(current stream of a device, current device, array type): looked up once."""
    cupy = import_cupy()
    return cupy.cuda.get_current_stream, cupy.cuda.runtime.getDevice, cupy.ndarray


def cupy_stream(device: int) -> int:
    """CuPy's current stream of a device."""
    return int(_cupy_calls()[0](device).ptr)


def cupy_empty(device: int, wanted: Output, dtype: Any) -> tuple[Any, int]:
    """A new CuPy array on a device, and its pointer."""
    _, current, array = _cupy_calls()
    shape, axes = wanted.in_memory
    if current() == device:
        made = array(shape, dtype)
    else:
        with import_cupy().cuda.Device(device):
            made = array(shape, dtype)
    if axes:
        made = made.transpose(axes)
    return made, made.data.ptr


def cupy_send(device: int, host: np.ndarray) -> tuple[Any, int]:
    """A copy on a device through pinned memory, ordered on CuPy's current stream."""
    cupy = import_cupy()
    with cupy.cuda.Device(device):
        memory = cupy.cuda.alloc_pinned_memory(host.nbytes)
        pinned = np.frombuffer(memory, host.dtype, host.size)
        pinned[...] = host
        made, stream = cupy.empty(host.shape, host.dtype), cupy.cuda.get_current_stream()
        made.set(pinned, stream=stream)
        _keep_until_copied(cupy, memory, stream)
    return (made, memory), made.data.ptr


_copying: deque[tuple[Any, Any]] = deque()
"""Pinned memory that copies may still read, each with an event, because CuPy's pool ignores
streams."""
_copying_lock = new_lock()


def _keep_until_copied(cupy: ModuleType, memory: Any, stream: Any) -> None:
    """Keep memory alive until all enqueued work has finished; the owner of a CUDA graph keeps its
    inputs."""
    if cupy.cuda.runtime.streamIsCapturing(stream.ptr):
        return
    event = cupy.cuda.Event(disable_timing=True)
    event.record(stream)
    with _copying_lock:
        _copying.append((event, memory))
        while _copying and _copying[0][0].done:
            _copying.popleft()


TORCH, NUMPY, CUPY = _Torch(), _NumPy(), _CuPy()

_BY_NAME: dict[tuple[str, str], Library] = {
    ("torch", "Tensor"): TORCH,
    ("numpy", "ndarray"): NUMPY,
    ("cupy", "ndarray"): CUPY,
}

LIBRARIES: dict[type, Library] = {np.ndarray: NUMPY}
"""Known types; `library_of` adds to it."""


def library(x: object, name: str) -> Any:
    """Return the library of x, and x itself if its type is known and it is plain; otherwise a copy
    or a `Foreign`.

    Raises:
        NotAnArray: x has no array interface.
    """
    lib = library_of(type(x))
    return _foreign()(x, name) if lib is None else lib.plain(x)


def library_of(kind: type) -> Library | None:
    """Return the library of an array type; a subclass has the library of its base. None:
    unknown, as masked arrays are, whose entries must be looked at."""
    known = LIBRARIES.get(kind)
    if known is None and issubclass(kind, np.ma.MaskedArray):
        return None
    for base in kind.__mro__ if known is None else ():
        known = _BY_NAME.get((base.__module__.partition(".")[0], base.__name__))
        if known is not None:
            LIBRARIES[kind] = known
            break
    return known


def plain(x: Any) -> Any:
    """Return x, or an array with its values if the memory of x does not hold them."""
    if type(x) is tuple:
        return tuple(map(plain, x))
    lib = LIBRARIES.get(type(x))
    return x if lib is None else lib.plain(x)


def array_of(x: object, name: str) -> Array:
    """An array of any library in plain terms.

    Raises:
        NotAnArray: as `library`.
    """
    known = library(x, name)
    return LIBRARIES[type(known)].view(known, name)


def check_ranks(q: Any, k: Any) -> None:
    """Raise an error if q or k does not have four dimensions."""
    for name, x in (("q", q), ("k", k)):
        shape = tuple(getattr(x, "shape", ()))
        if len(shape) != 4:
            raise WrongRank(name, shape, at=name)


def dtype_of_call(q: Any) -> object:
    """Return the dtype of the kernels for a call: the dtype of q, or the one that autocast casts q
    to."""
    dtype = getattr(q, "dtype", None)
    if dtype is None:
        return array_of(q, "q").dtype
    torch = torch_of(q)
    if torch is not None and torch._C._is_any_autocast_enabled() and isinstance(q, torch.Tensor):
        kind = q.device.type
        if torch.is_autocast_enabled(kind) and q.is_floating_point() and dtype != torch.float64:
            return torch.get_autocast_dtype(kind)
    return dtype


def module_of(x: Any) -> Any:
    """Return the module of an array: torch, CuPy or NumPy; NumPy for all other libraries."""
    torch = torch_of(x)
    if torch is not None:
        return torch
    return import_cupy() if type(x).__module__.partition(".")[0] == "cupy" else np


def to_fp32(x: Any) -> Any:
    """An array of torch, CuPy or NumPy in fp32; itself where it is."""
    return x.float() if torch_of(x) is not None else x.astype(np.float32, copy=False)


def widened(x: Any) -> Any:
    """An array of torch, CuPy or NumPy in fp32; itself where it is of fp64."""
    return x if str(x.dtype).endswith("float64") else to_fp32(x)


def cast_like(x: Any, like: Any) -> Any:
    """An array of torch, CuPy or NumPy in the dtype of another one."""
    return x.to(like.dtype) if torch_of(x) is not None else x.astype(like.dtype, copy=False)


def expanded(x: Any, sequences: int) -> Any:
    """Broadcast an array [1, ..] to `batch` sequences, without a copy; return any other
    unchanged."""
    one, *rest = x.shape
    if one != 1 or sequences == 1:
        return x
    if hasattr(x, "array"):  # a Foreign
        steps = 0, *x.array.strides[1:]
        return x._replace(array=x.array._replace(shape=(sequences, *rest), strides=steps))
    return module_of(x).broadcast_to(x, (sequences, *rest))


def summed(gradient: Any, like: Any, axis: int = 0) -> Any:
    """Sum the gradient of an array that is broadcast along an axis; return any other unchanged."""
    if like.shape[axis] == gradient.shape[axis]:
        return gradient
    return cast_like(widened(gradient).sum(axis, keepdims=True), gradient)


@cache
def _foreign() -> Callable[[Any, str], Any]:
    from maskc.runtime.arrays.foreign import foreign

    return foreign
