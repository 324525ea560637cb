"""CUDA sources to cubins, through CuPy's NVRTC; no GPU is needed.

If a source includes headers, they come from installed wheels. A CUDA toolkit on the machine is
never used.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

from maskc.build.binary import Binary, BuildReport
from maskc.build.cache import content_key, open_cache
from maskc.build.diagnostics import build_failed
from maskc.core.bundle import SourceUnit
from maskc.core.errors import ExtraMissing, not_imported
from maskc.core.problem import Feature, Features

FLAGS = ("-std=c++17", "-default-device", "--ptxas-options=-v")
_INCLUDE = re.compile(r"^\s*#\s*include\b", re.MULTILINE)
_SCHEMA = 2
_NAME = "kernel.cu"
_HAS_CACHE = (12, 9)
"""From this version on, NVRTC has its own cache, and prints no report for cached sources."""


def build_cuda(
    unit: SourceUnit,
    features: Features,
    entries: tuple[str, ...],
    arch: str = "",
    macros: tuple[str, ...] = (),
) -> Binary:
    """A cubin for `arch` (`sm_90`; '' means the unit's target) from the cache, or compiled now.

    The features and `macros` are defined as 1.

    A device newer than this NVRTC gets PTX for the newest architecture known, which the driver
    finishes.

    Raises:
        ExtraMissing: CuPy, or the headers a source includes, are not installed.
        BuildFailed: NVRTC refuses the source.
    """
    nvrtc = _nvrtc(unit.target)
    version = "NVRTC {}.{}".format(*nvrtc.getVersion())
    arch = _supported(nvrtc, arch or unit.target)
    named = (*(feature.macro for feature in Feature if feature in features), *macros)
    flags = (f"--gpu-architecture={arch}", *FLAGS, *(f"-D{name}=1" for name in named))
    headers = _headers() if _INCLUDE.search(unit.source) else None
    release = _cudart_version(headers) if headers else ""
    key = content_key("cuda", _SCHEMA, unit.digest, flags, version, release)
    cache = open_cache()
    stored = cache.get(key)
    if stored is not None:
        log, code = _unpack(stored)
    else:
        options = flags + ((f"-I{headers}",) if headers else ())
        options += ("--no-cache",) if nvrtc.getVersion() >= _HAS_CACHE else ()
        log, code = _compile(nvrtc, version, unit, options)
        cache.put(key, _pack(log, code))
    return Binary(unit.target, code, entries, key, BuildReport(version, flags, log))


def _nvrtc(target: str) -> ModuleType:
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise not_imported(error, f"target {target}", "CuPy", "cuda13") from error
    module: ModuleType = nvrtc
    return module


def _supported(nvrtc: ModuleType, arch: str) -> str:
    """`arch`, or PTX of the newest architecture below it that this NVRTC knows."""
    known = sorted(nvrtc.getSupportedArchs())
    number = int(re.sub(r"\D", "", arch))
    return arch if number in known or number < known[0] else f"compute_{known[-1]}"


def _compile(
    nvrtc: ModuleType,
    version: str,
    unit: SourceUnit,
    options: tuple[str, ...],
) -> tuple[str, bytes]:
    """(log, machine code)."""
    program = nvrtc.createProgram(unit.source, _NAME, [], [])
    try:
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            log = _log(nvrtc, program)
            raise build_failed(version, unit, log or str(error)) from None
        log = _log(nvrtc, program)
        if "compute_" in options[0]:
            return log, nvrtc.getPTX(program)
        # CuPy hands out a cubin without its last byte.
        return log, nvrtc.getCUBIN(program) + b"\0"
    finally:
        nvrtc.destroyProgram(program)


def _log(nvrtc: ModuleType, program: int) -> str:
    """Return the log without the compile time, which differs between runs."""
    text = nvrtc.getProgramLog(program).rstrip("\0")
    return re.sub(r"^ptxas info\s*: Compile time.*\n?", "", text, flags=re.MULTILINE)


def _pack(log: str, code: bytes) -> bytes:
    text = log.encode()
    return len(text).to_bytes(8, "little") + text + code


def _unpack(stored: bytes) -> tuple[str, bytes]:
    end = 8 + int.from_bytes(stored[:8], "little")
    return stored[8:end].decode(), stored[end:]


def _headers() -> str:
    """The folder of cuda_fp16.h and its like, from the nvidia-cuda-runtime wheel."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError as error:
        raise not_imported(error, "this kernel", "cuda-pathfinder", "cuda13") from error
    folder: str | None = find_nvidia_header_directory("cudart")
    if folder is None:
        raise ExtraMissing("this kernel", "nvidia-cuda-runtime", "cuda13")
    return folder


def _cudart_version(folder: str) -> str:
    """The headers' own version number, for the cache key in place of their path."""
    text = (Path(folder) / "cuda_runtime_api.h").read_text(errors="replace")
    version = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    return f"headers {version[1]}" if version else "headers"
