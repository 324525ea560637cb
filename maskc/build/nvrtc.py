"""CUDA sources to cubins, through NVRTC; no GPU is needed.

cuda.bindings calls NVRTC, or CuPy where cuda.bindings is not installed: to import CuPy takes a
quarter of a second. Both release Python's lock, and NVRTC compiles in several threads at once. If
a source includes headers, they come from installed wheels. A CUDA toolkit on the machine is never
used.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

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
    nvrtc = library(unit.target)
    version = "NVRTC {}.{}".format(*nvrtc.version())
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
        options += ("--no-cache",) if nvrtc.version() >= _HAS_CACHE else ()
        log, code = _compile(nvrtc, version, unit, options)
        cache.put(key, _pack(log, code))
    return Binary(unit.target, code, entries, key, BuildReport(version, flags, log))


class SourceRefused(Exception):
    """NVRTC does not accept a source; the text is its log."""


class Nvrtc(Protocol):
    """NVRTC, as one of two packages calls it."""

    def version(self) -> tuple[int, int]: ...

    def architectures(self) -> list[int]:
        """Return the numbers of the architectures that it compiles for."""

    def compile(self, source: str, options: tuple[str, ...], ptx: bool) -> tuple[str, bytes]:
        """Return (log, cubin or PTX).

        Raises:
            SourceRefused: with the log.
        """


class _Bindings:
    """NVRTC through cuda.bindings."""

    def __init__(self, nvrtc: Any) -> None:
        self._nvrtc = nvrtc
        self._version = self._value(nvrtc.nvrtcVersion())

    def _value(self, result: tuple[Any, ...]) -> Any:
        """Return the values of a call behind its status."""
        status, *values = result
        if status:
            raise SourceRefused(f"{status!r}")
        return tuple(values) if len(values) > 1 else values[0] if values else None

    def version(self) -> tuple[int, int]:
        major, minor = self._version
        return major, minor

    def architectures(self) -> list[int]:
        return list(self._value(self._nvrtc.nvrtcGetSupportedArchs()))

    def compile(self, source: str, options: tuple[str, ...], ptx: bool) -> tuple[str, bytes]:
        nvrtc = self._nvrtc
        program = self._value(nvrtc.nvrtcCreateProgram(source.encode(), _NAME.encode(), 0, [], []))
        try:
            given = [option.encode() for option in options]
            (status,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
            log = self._text(program, "ProgramLog").decode(errors="replace")
            if status:
                raise SourceRefused(log.rstrip("\0") or f"{status!r}")
            if ptx:
                return log, self._text(program, "PTX").rstrip(b"\0")
            return log, self._text(program, "CUBIN")
        finally:
            nvrtc.nvrtcDestroyProgram(program)

    def _text(self, program: Any, kind: str) -> bytes:
        """One of the results of a program."""
        size = self._value(getattr(self._nvrtc, f"nvrtcGet{kind}Size")(program))
        text = bytearray(size)
        self._value(getattr(self._nvrtc, f"nvrtcGet{kind}")(program, text))
        return bytes(text)


class _CuPy:
    """NVRTC through CuPy."""

    def __init__(self, nvrtc: Any) -> None:
        self._nvrtc = nvrtc

    def version(self) -> tuple[int, int]:
        major, minor = self._nvrtc.getVersion()
        return major, minor

    def architectures(self) -> list[int]:
        return list(self._nvrtc.getSupportedArchs())

    def compile(self, source: str, options: tuple[str, ...], ptx: bool) -> tuple[str, bytes]:
        nvrtc = self._nvrtc
        program = nvrtc.createProgram(source, _NAME, [], [])
        try:
            try:
                nvrtc.compileProgram(program, options)
            except nvrtc.NVRTCError as error:
                raise SourceRefused(
                    nvrtc.getProgramLog(program).rstrip("\0") or str(error)
                ) from None
            # CuPy drops the last byte of a cubin.
            code = nvrtc.getPTX(program) if ptx else nvrtc.getCUBIN(program) + b"\0"
            return nvrtc.getProgramLog(program), code
        finally:
            nvrtc.destroyProgram(program)


@cache
def library(target: str) -> Nvrtc:
    """Return NVRTC, through the package that is installed.

    Args:
        target: that needs it, for the message.

    Raises:
        ExtraMissing: neither package is installed.
    """
    with suppress(ImportError, RuntimeError, OSError):  # or it does not find NVRTC's library
        from cuda.bindings import nvrtc as bindings

        return _Bindings(bindings)
    try:
        from cupy.cuda import nvrtc as of_cupy
    except ImportError as error:
        raise not_imported(error, f"target {target}", "CuPy", "cuda13") from error
    return _CuPy(of_cupy)


def warm_up(target: str) -> None:
    """Load NVRTC and compile an empty kernel, as the first source otherwise waits for both.

    Raises:
        ExtraMissing: see `library`.
    """
    with suppress(SourceRefused):  # the first source says so
        options = f"--gpu-architecture={target}", *FLAGS
        library(target).compile('extern "C" __global__ void empty() {}', options, ptx=False)


def _supported(nvrtc: Nvrtc, arch: str) -> str:
    """`arch`, or PTX of the newest architecture below it that this NVRTC knows."""
    known = sorted(nvrtc.architectures())
    number = int(re.sub(r"\D", "", arch))
    return arch if number in known or number < known[0] else f"compute_{known[-1]}"


def _compile(
    nvrtc: Nvrtc, version: str, unit: SourceUnit, options: tuple[str, ...]
) -> tuple[str, bytes]:
    """Return (log, machine code)."""
    try:
        log, code = nvrtc.compile(unit.source, options, ptx="compute_" in options[0])
    except SourceRefused as refused:
        raise build_failed(version, unit, _constant(str(refused))) from None
    return _constant(log), code


def _constant(log: str) -> str:
    """Return a log without the compile time, which differs between runs."""
    return re.sub(r"^ptxas info\s*: Compile time.*\n?", "", log.rstrip("\0"), flags=re.MULTILINE)


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
