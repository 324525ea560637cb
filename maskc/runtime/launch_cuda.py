"""Cubins on a device: loading, and launches on the caller's stream that nothing waits for."""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache
from typing import Any

from maskc.build import Binary
from maskc.build.toolchain import gpus
from maskc.core.bundle import SourceUnit
from maskc.core.errors import ExtraMissing, NoDevice
from maskc.core.problem import Direction

_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
_FREE_SHARED = 48 * 1024
"""Dynamic shared memory a kernel may use without asking."""
_ARGUMENTS = ctypes.c_void_p * 1


def device_arch(target: str, device: int) -> str:
    """What to compile for: the target's own architecture where it is tied to one, else the
    device's.

    Raises:
        NoDevice: there is none, or it cannot run the target.
    """
    found = gpus()
    if device >= len(found):
        raise NoDevice(target, f"there is none with index {device}", at="target")
    needed, specific = re.fullmatch(r"(?:sm_|simt)(\d*)(a?)", target).groups()
    have = found[device].capability
    if specific and have != int(needed):
        raise NoDevice(target, f"device {device} is an sm_{have}, not an sm_{needed}", at="target")
    if have < int(needed or 0):
        raise NoDevice(target, f"device {device} is only an sm_{have}", at="target")
    return target if specific else f"sm_{have}"


def current_device() -> int:
    """The device that new CUDA work of this thread goes to; 0 where none was chosen.

    Raises:
        NoDevice: there is no GPU.
    """
    if not gpus():
        raise NoDevice("of this kernel", "there is none", at="target")
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        return torch.cuda.current_device()
    import cupy

    return cupy.cuda.runtime.getDevice()


class CudaKernel:
    """The entry points of a cubin in one device's primary context."""

    def __init__(self, unit: SourceUnit, binary: Binary, device: int) -> None:
        """Load it: the only place that may wait for the device."""
        self._driver = _driver(device)
        self._threads, self._shared = unit.threads, unit.shared_bytes
        self._functions = {
            Direction(entry.removeprefix("attention_")): function
            for entry, function in self._driver.load(binary, unit.shared_bytes).items()
        }

    def capturing(self, stream: int) -> bool:
        """Whether launches on a stream become nodes of a CUDA graph."""
        return self._driver.capturing(stream)

    def workspace(self, block: ctypes.Structure) -> int:
        """fp32 entries that `delta` must have."""
        return block.batch * block.heads_q * block.n_q

    def launch(
        self, direction: Direction, block: ctypes.Structure, stream: int, grid: int, *_: object
    ) -> None:
        """Enqueue; the argument block is copied by the driver."""
        function = self._functions[direction]
        self._driver.launch(function, grid, self._threads, self._shared, stream, block)


class _Bindings:
    """Launches through cuda.bindings, the cheaper way."""

    def __init__(self, driver: Any, device: int) -> None:
        self._driver = driver
        self._check(driver.cuInit(0))
        handle = self._check(driver.cuDeviceGet(device))
        self._context = self._check(driver.cuDevicePrimaryCtxRetain(handle))
        self._context_id = int(self._context)

    def _check(self, result: tuple) -> Any:
        if result[0]:
            raise RuntimeError(f"CUDA driver: {result[0]!r}")
        return result[1] if len(result) > 1 else None

    def load(self, binary: Binary, shared: int) -> dict[str, Any]:
        """Functions by entry point, allowed the dynamic shared memory they need."""
        driver, check = self._driver, self._check
        check(driver.cuCtxPushCurrent(self._context))
        try:
            module = check(driver.cuModuleLoadData(binary.code))
            found = {}
            for entry in binary.entries:
                function = check(driver.cuModuleGetFunction(module, entry.encode()))
                if shared > _FREE_SHARED:
                    attribute = driver.CUfunction_attribute(_SHARED)
                    check(driver.cuFuncSetAttribute(function, attribute, shared))
                found[entry] = function
            return found
        finally:
            check(driver.cuCtxPopCurrent())

    def capturing(self, stream: int) -> bool:
        status, mode = self._driver.cuStreamIsCapturing(stream)
        return not status and bool(int(mode))

    def launch(
        self, function: Any, grid: int, threads: int, shared: int, stream: int,
        block: ctypes.Structure,
    ) -> None:  # fmt: skip
        driver = self._driver
        foreign = int(driver.cuCtxGetCurrent()[1]) != self._context_id
        if foreign:  # another device is current, or this thread never touched CUDA
            self._check(driver.cuCtxPushCurrent(self._context))
        try:
            arguments = _ARGUMENTS(ctypes.addressof(block))
            status = driver.cuLaunchKernel(
                function, grid, 1, 1, threads, 1, 1, shared, stream, ctypes.addressof(arguments), 0
            )
        finally:
            if foreign:
                driver.cuCtxPopCurrent()
        self._check(status)


class _CuPy:
    """Launches through CuPy, where cuda.bindings is not installed."""

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy, self._device = cupy, device

    def load(self, binary: Binary, shared: int) -> dict[str, Any]:
        cuda = self._cupy.cuda
        with cuda.Device(self._device):
            module = cuda.function.Module()
            module.load(binary.code)
            found = {entry: module.get_function(entry) for entry in binary.entries}
            if shared > _FREE_SHARED:
                for function in found.values():
                    cuda.driver.funcSetAttribute(function.ptr, _SHARED, shared)
        return found

    def capturing(self, stream: int) -> bool:
        return bool(self._cupy.cuda.runtime.streamIsCapturing(stream))

    def launch(
        self, function: Any, grid: int, threads: int, shared: int, stream: int,
        block: ctypes.Structure,
    ) -> None:  # fmt: skip
        import numpy as np

        runtime = self._cupy.cuda.runtime
        before = runtime.getDevice()
        runtime.setDevice(self._device)
        try:
            size = ctypes.sizeof(block)
            value = np.zeros((), np.dtype({"names": ["b"], "formats": [f"V{size}"]}))
            value["b"] = bytes(block)
            function((grid,), (threads,), (value,), shared, self._stream(stream))
        finally:
            runtime.setDevice(before)

    def _stream(self, pointer: int) -> Any:
        """CuPy's view of the caller's stream."""
        streams = self._cupy.cuda
        if hasattr(streams.Stream, "from_external"):
            return streams.Stream.from_external(_Borrowed(pointer))
        return streams.ExternalStream(pointer)


class _Borrowed:
    """A stream somebody else owns, as the CUDA stream protocol spells it."""

    def __init__(self, pointer: int) -> None:
        self.pointer = pointer

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.pointer


@cache
def _driver(device: int) -> _Bindings | _CuPy:
    try:
        from cuda.bindings import driver
    except ImportError:
        try:
            import cupy
        except ImportError:
            raise ExtraMissing("a CUDA target", "CuPy", "cuda13") from None
        return _CuPy(cupy, device)
    return _Bindings(driver, device)
