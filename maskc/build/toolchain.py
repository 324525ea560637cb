"""Components of this machine for `maskc doctor`: data only, and no probe may raise."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from maskc.build.cache import cache_folder, open_cache
from maskc.build.hostcc import host_compiler
from maskc.core.errors import MaskcError


@dataclass(frozen=True, slots=True)
class ToolchainCheck:
    """One line of the report."""

    name: str
    """The name of the component."""
    ok: bool
    finding: str
    """Version or place; where not ok, why."""


def probes() -> tuple[ToolchainCheck, ...]:
    """Everything a build or a launch could miss; takes a moment, changes nothing.

    Asks the driver for its devices, so it makes CUDA calls where there is a driver.
    """
    looked: tuple[tuple[str, Callable[[], str]], ...] = (
        ("C compiler", _compiler),
        ("cache", _cache),
        ("CUDA driver", _driver),
        ("GPUs", _devices),
        ("NVRTC", _nvrtc),
        ("CUDA headers", _headers),
        ("CuPy", lambda: _package("cupy-cuda13x", "cupy-cuda12x", "cupy")),
        ("cuda.core", lambda: _package("cuda-core")),
        ("cuda.bindings", lambda: _package("cuda-bindings")),
        ("torch", lambda: _package("torch")),
        ("ml_dtypes", lambda: _package("ml_dtypes")),
        ("numpy", lambda: _package("numpy")),
    )
    return tuple(_guarded(name, look) for name, look in looked)


class _Missing(Exception):
    """Not there; the text says why."""


def _guarded(name: str, look: Callable[[], str]) -> ToolchainCheck:
    try:
        return ToolchainCheck(name, True, look())
    except (_Missing, OSError) as error:
        return ToolchainCheck(name, False, str(error))
    except MaskcError as error:
        return ToolchainCheck(name, False, error.finding)
    except Exception as error:
        return ToolchainCheck(name, False, f"{type(error).__name__}: {error}".split("\n")[0])


def _compiler() -> str:
    compiler = host_compiler()
    threads = "OpenMP" if compiler.openmp else "no OpenMP: one thread"
    machine = compiler.machine[0].removeprefix("-march=") if compiler.machine else "generic code"
    return f"{' '.join(compiler.command)}, {compiler.version}, {threads}, {machine}"


def _cache() -> str:
    folder = cache_folder()
    if not open_cache().usable:
        raise _Missing(f"{folder} cannot be used: kernels are kept in memory")
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # another process drops entries
                size += os.lstat(os.path.join(place, name)).st_size
    return f"{folder}, {size / 2**20:.1f} MiB"


def _cuda() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise _Missing("libcuda.so.1 is not installed") from None
    status = library.cuInit(0)
    if status:
        raise _Missing(f"cuInit failed with error {status}")
    return library


def _driver() -> str:
    version = ctypes.c_int()
    _cuda().cuDriverGetVersion(ctypes.byref(version))
    return f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"


@dataclass(frozen=True, slots=True)
class InstalledGpu:
    """A device the driver shows."""

    name: str
    capability: int
    """Compute capability as 10 * major + minor."""
    bytes_per_cycle: float = 0.0
    """Memory bandwidth per multiprocessor in bytes per cycle, at maximum clocks; 0 if unknown."""


def gpus() -> tuple[InstalledGpu, ...]:
    """Visible NVIDIA devices in the driver's order; empty without driver or device."""
    try:
        library = _cuda()
    except _Missing:
        return ()
    count = ctypes.c_int()
    library.cuDeviceGetCount(ctypes.byref(count))
    return tuple(_gpu(library, index) for index in range(count.value))


def _gpu(library: ctypes.CDLL, index: int) -> InstalledGpu:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    major, minor, processors, khz, memory_khz, bits = (
        _attribute(library, device, number) for number in (75, 76, 16, 13, 36, 37)
    )
    cycles = processors * khz
    per_cycle = 2 * memory_khz * bits / 8 / cycles if cycles else 0.0  # two transfers a cycle
    return InstalledGpu(name.value.decode(errors="replace"), 10 * major + minor, per_cycle)


def _attribute(library: ctypes.CDLL, device: ctypes.c_int, number: int) -> int:
    """A CUdevice_attribute; 0 where the driver does not know it."""
    value = ctypes.c_int()
    library.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value


def _devices() -> str:
    cards = gpus()
    if not cards:
        raise _Missing("none")
    return ", ".join(f"{gpu.name} (sm_{gpu.capability})" for gpu in cards)


def _nvrtc() -> str:
    from maskc.build.nvrtc import library

    nvrtc = library("sm_80")
    known = nvrtc.architectures()
    version = "{}.{}".format(*nvrtc.version())
    return f"{version}, sm_{min(known)} to sm_{max(known)}"


def _headers() -> str:
    from cuda.pathfinder import find_nvidia_header_directory

    folder: str | None = find_nvidia_header_directory("cudart")
    if folder is None:
        raise _Missing("the nvidia-cuda-runtime wheel is not installed")
    return folder


def _package(*names: str) -> str:
    """Version by the installer's records: nothing is imported."""
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise _Missing("not installed")
