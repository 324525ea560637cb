"""Says where numbers were measured: processors, compilers, versions. No names, paths or dates."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import platform
from pathlib import Path

from maskc.build.hostcc import host_compiler
from maskc.build.toolchain import gpus
from maskc.core.errors import MaskcError

_PACKAGES = {
    "torch": ("torch",),
    "triton": ("triton",),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "numpy": ("numpy",),
    "flash_attn_4": ("flash-attn-4",),
    "flashinfer": ("flashinfer-python",),
    "cudnn_frontend": ("nvidia-cudnn-frontend",),
}


def environment(device: str) -> dict[str, object]:
    """Describe the machine for a report.

    Args:
        device: `cpu` or `cuda`; the GPU is described only where it was used.
    """
    from maskc import __version__

    about: dict[str, object] = {"maskc": __version__, "python": platform.python_version()}
    about |= {name: _version(names) for name, names in _PACKAGES.items()}
    about |= {"cpu": _processor(), "cores": cores(), "compiler": _compiler()}
    if device == "cpu" and hasattr(os, "getloadavg"):
        about["load_before"] = round(os.getloadavg()[0], 1)  # a busy machine shows in the times
    if device == "cuda":
        about |= {"gpu": _gpu(), "driver": _driver(), "cuda": _cuda()}
    return about


def _version(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    wide = any(" avx512f" in line for line in lines if line.startswith("flags"))
    model = named[0] if named else platform.processor() or platform.machine()
    return f"{model}, AVX-512" if wide else model


def cores() -> int:
    """Processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _compiler() -> str:
    """Version and architecture, not where the program lies."""
    try:
        compiler = host_compiler()
    except MaskcError:
        return "none: the CPU runs in NumPy"
    machine = compiler.machine[0] if compiler.machine else "generic code"
    return f"{compiler.version}, {machine}, {'OpenMP' if compiler.openmp else 'one thread'}"


def _gpu() -> str | None:
    cards = gpus()
    return cards[0].name if cards else None


def _driver() -> str | None:
    """The driver's version, by NVML."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        text = ctypes.create_string_buffer(96)
        library.nvmlInit_v2()
        if library.nvmlSystemGetDriverVersion(text, len(text)) == 0:
            return text.value.decode(errors="replace")
    except (OSError, AttributeError):
        pass
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return None


def _cuda() -> str | None:
    """The CUDA version the driver is for."""
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"
