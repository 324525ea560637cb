"""Arrays of any library as NumPy arrays, without importing the library."""

from __future__ import annotations

import numpy as np

from maskc.core.errors import DataRange, DataType, ReadInGraph, TensorTransformed, WrongDevice
from maskc.core.tensors import not_an_array, refuse_masked, torch_of
from maskc.core.widths import INT32

_KNOWN = {kind.__name__.rstrip("_") for kind in np.sctypeDict.values()}
"""Element types that NumPy has."""
_OF_DTYPES = {TypeError, ValueError, BufferError, NotImplementedError}
"""Errors of libraries if NumPy cannot represent an array; other errors concern devices."""


def to_host(given: object, name: str = "array") -> np.ndarray:
    """View or copy an array on the host: NumPy's, torch's, CuPy's, DLPack's, a list or a number.

    The result has the same shape and dtype.

    Args:
        given: the caller's array; device memory is copied to the host.
        name: its name in errors.

    Raises:
        NotAnArray: it is none of these, or a ragged list.
        MaskedValues: it is a masked array of NumPy with masked entries (MC444).
        DataType: NumPy has no such element type.
        WrongDevice: it is a tensor of the meta device, which has no content.
        TensorTransformed: torch.func transforms it (MC652).
        ReadInGraph: it is on a GPU, and a CUDA graph is being captured (MC445).
        RuntimeError: the array's own library cannot copy it to the host.
    """
    refuse_masked(given, name)
    if isinstance(given, np.ndarray):
        return given
    if getattr(given, "is_cuda", False) and _captures(given):
        raise ReadInGraph(name, at=name)
    try:
        # Views of torch may keep their signs in a bit; numpy(force=True) resolves it.
        if hasattr(given, "resolve_neg") and hasattr(given, "numpy"):
            return np.asarray(given.numpy(force=True))
        if hasattr(given, "detach") and hasattr(given, "cpu"):
            return np.asarray(given.detach().cpu().numpy())
        if hasattr(given, "__cuda_array_interface__") and hasattr(given, "get"):
            return np.asarray(given.get())
        if hasattr(given, "__dlpack__") and not hasattr(given, "__array__"):
            return np.from_dlpack(given)
        host = np.asarray(given)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        if hasattr(given, "dtype"):
            torch = torch_of(given)
            if torch is not None and torch._C._functorch.is_functorch_wrapped_tensor(given):
                raise TensorTransformed(name, "torch.func (vmap, grad, jvp)", at=name) from None
            if getattr(given, "is_sparse", False):
                raise not_an_array(name, given) from None
            if getattr(given, "is_meta", False):
                raise WrongDevice(name, "meta", "this call", "cpu", at=name) from None
            if type(error) not in _OF_DTYPES and str(given.dtype).rpartition(".")[2] in _KNOWN:
                raise  # what the device says is no matter of the array
            raise DataType(name, given.dtype, "integers or booleans", at=name) from None
        raise not_an_array(name, given) from None
    if host.dtype == object:
        raise not_an_array(name, given)
    return host


def _captures(given: object) -> bool:
    """Whether torch is capturing a CUDA graph."""
    torch = torch_of(given)
    return torch is not None and bool(torch.cuda.is_current_stream_capturing())


def check_int32(name: str, array: np.ndarray) -> None:
    """Check that kernels, which read int32, can have an array of integers or booleans.

    Raises:
        DataRange: a value does not fit.
    """
    if not np.can_cast(array.dtype, np.int32) and array.size:
        check_extremes(name, int(array.min()), int(array.max()))


def check_extremes(name: str, least: int, most: int) -> None:
    """Check the smallest and the largest integer as check_int32 does."""
    if not -INT32 - 1 <= least <= most <= INT32:
        finding = f"its values reach from {least} to {most}, beyond 32 bits"
        hint = "subtract the smallest one, count in a larger unit, or renumber them"
        raise DataRange(name, finding, hint, at=name)
