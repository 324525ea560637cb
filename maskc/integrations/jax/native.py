"""Programs that run inside of XLA's, without Python: they are made here, and runner.c runs them."""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np

from maskc.build.hostcc import build_with_headers
from maskc.core.bundle import SourceUnit
from maskc.core.errors import NoRunner, NotRecorded
from maskc.core.forks import new_lock
from maskc.core.problem import TileShape
from maskc.runtime.launch.cpu import load_library
from maskc.runtime.launch.recording import (
    MADE,
    Clear,
    CudaStep,
    HostStep,
    RecordedFunction,
    RecordedMap,
    Recording,
    Relocation,
)
from maskc.runtime.launch.tensor_maps import MODE

TARGETS = {"cpu": "maskc_on_host", "cuda": "maskc_on_gpu"}
"""The name of the custom call, by JAX's platform; also that of the function in runner.c."""
_PLATFORMS = {"cpu": "cpu", "cuda": "CUDA"}
_MAX_BLOCK, _MAX_MAPS = 4096, 16


class _CPlace(ctypes.Structure):
    _fields_ = [("at", ctypes.c_int64), ("buffer", ctypes.c_int64), ("shift", ctypes.c_int64)]


class _CMap(ctypes.Structure):
    _fields_ = [
        ("place", _CPlace), ("rank", ctypes.c_uint32), ("kind", ctypes.c_uint32),
        ("dims", ctypes.c_uint64 * 5), ("strides", ctypes.c_uint64 * 4),
        ("box", ctypes.c_uint32 * 5), ("step", ctypes.c_uint32 * 5), ("mode", ctypes.c_int32 * 4),
    ]  # fmt: skip


class _CKernel(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_char_p), ("entry", ctypes.c_char_p), ("shared", ctypes.c_int64),
        ("function", ctypes.c_void_p), ("devices", ctypes.c_uint64),
    ]  # fmt: skip


class _CStep(ctypes.Structure):
    _fields_ = [
        ("clear", ctypes.c_int64), ("clear_bytes", ctypes.c_int64),
        ("kernel", ctypes.POINTER(_CKernel)), ("host", ctypes.c_void_p),
        ("blocks", ctypes.c_uint32), ("threads", ctypes.c_uint32), ("shared", ctypes.c_uint32),
        ("unused", ctypes.c_uint32), ("block", ctypes.c_char_p), ("block_bytes", ctypes.c_int64),
        ("places_count", ctypes.c_int64), ("maps_count", ctypes.c_int64),
        ("places", ctypes.POINTER(_CPlace)), ("maps", ctypes.POINTER(_CMap)),
    ]  # fmt: skip


class _CTable(ctypes.Structure):
    _fields_ = [("host", ctypes.c_void_p), ("bytes", ctypes.c_int64)]


class _CProgram(ctypes.Structure):
    _fields_ = [
        ("key", ctypes.c_uint64), ("given", ctypes.c_int64), ("made", ctypes.c_int64),
        ("steps_count", ctypes.c_int64), ("tables_count", ctypes.c_int64),
        ("steps", ctypes.POINTER(_CStep)), ("tables", ctypes.POINTER(_CTable)),
        ("copies", ctypes.c_void_p), ("next", ctypes.c_void_p),
    ]  # fmt: skip


@cache
def runner() -> ctypes.CDLL:
    """The library that runs programs, built by the first call of a process at most once.

    Raises:
        NoRunner: this JAX has no headers (MC483).
        NoCompiler, BuildFailed: the host's compiler.
    """
    headers = Path(jax.ffi.include_dir())
    if not (headers / "xla/ffi/api/c_api.h").exists():
        raise NoRunner(f"jaxlib has no headers in {headers}")
    text = Path(__file__).with_name("runner.c").read_text(encoding="utf-8")
    unit = SourceUnit("cpu", text, TileShape(1, 1), False)
    library = load_library(build_with_headers(unit, headers, tuple(TARGETS.values())))
    library.maskc_add.argtypes = (ctypes.POINTER(_CProgram),)
    library.maskc_add.restype = None
    library.maskc_driver.argtypes, library.maskc_driver.restype = (
        (ctypes.c_char_p,),
        ctypes.c_char_p,
    )
    for platform, name in TARGETS.items():
        handler = jax.ffi.pycapsule(getattr(library, name))
        jax.ffi.register_ffi_target(name, handler, platform=_PLATFORMS[platform])
    return library


@cache
def opened(driver: str = "libcuda.so.1") -> None:
    """Open the CUDA driver.

    Raises:
        NoRunner: it lacks something (MC483).
    """
    missing = runner().maskc_driver(driver.encode())
    if missing:
        raise NoRunner(f"the CUDA driver lacks {missing.decode()}")


_lock = new_lock()
_kept: dict[int, tuple[bytes, object]] = {}
"""Objects that programs point to, by key. None is freed: XLA may run a program at any time."""
_kernels: dict[RecordedFunction, _CKernel] = {}


def register(recording: Recording, given: int) -> np.int64:
    """Hand a recorded call to the runner.

    Args:
        recording: the call.
        given: arrays that it is given.

    Returns:
        The key by which a custom call names it.

    Raises:
        NotRecorded: it has more of something than runner.c has room for.
    """
    made = len(recording.made)
    if max(given, made) > MADE:
        raise NotRecorded(f"it has {given} arrays and {made} results")
    steps = (_CStep * len(recording.steps))(*(_step(recording, step) for step in recording.steps))
    tables = (_CTable * len(recording.tables))(
        *(_CTable(table.values.ctypes.data, table.values.nbytes) for table in recording.tables)
    )
    content = _content(recording, given)
    key = int.from_bytes(hashlib.sha256(content).digest()[:8], "little")
    with _lock:
        if key in _kept:
            return np.uint64(key).astype(np.int64)
        program = _CProgram(key, given, made, len(steps), len(tables), steps, tables, None, None)
        runner().maskc_add(ctypes.byref(program))
        _kept[key] = content, (program, steps, tables, recording)
    return np.uint64(key).astype(np.int64)


def _content(recording: Recording, given: int) -> bytes:
    """All that a program computes: equal ones are one program."""
    parts: list[Any] = [given, len(recording.made)]
    for step in recording.steps:
        match step:
            case Clear(number):
                parts += ["clear", number, recording.bytes_of(number)]
            case HostStep(entry, threads, block, places):
                parts += ["host", ctypes.cast(entry, ctypes.c_void_p).value, threads, block, places]
            case CudaStep(function):
                code = hashlib.sha256(_bytes(function.code)).hexdigest()
                parts += ["cuda", code, function.entry, function.shared]
                parts += [
                    step.blocks,
                    step.threads,
                    step.shared,
                    step.block,
                    step.places,
                    step.maps,
                ]
    text = hashlib.sha256(repr(parts).encode())
    for table in recording.tables:
        text.update(table.values.tobytes())
    return text.digest()


def _bytes(code: Any) -> bytes:
    return code if isinstance(code, bytes) else repr(code).encode()


def _step(recording: Recording, recorded: Clear | CudaStep | HostStep) -> _CStep:
    step = _CStep()
    if isinstance(recorded, Clear):
        step.clear, step.clear_bytes = recorded.number, recording.bytes_of(recorded.number)
        return step
    if len(recorded.block) > _MAX_BLOCK:
        raise NotRecorded(f"an argument block has {len(recorded.block)} bytes")
    step.block = ctypes.c_char_p(recorded.block)
    step.block_bytes = len(recorded.block)
    step.places_count = len(recorded.places)
    step.places = (_CPlace * len(recorded.places))(*map(_place, recorded.places))
    step.threads = recorded.threads
    if isinstance(recorded, HostStep):
        step.host = ctypes.cast(recorded.entry, ctypes.c_void_p).value
        return step
    if len(recorded.maps) > _MAX_MAPS:
        raise NotRecorded(f"a launch has {len(recorded.maps)} tensor maps")
    step.maps_count = len(recorded.maps)
    step.maps = (_CMap * len(recorded.maps))(*map(_map, recorded.maps))
    step.kernel = ctypes.pointer(_kernel(recorded.function))
    step.blocks, step.shared = recorded.blocks, recorded.shared
    return step


def _kernel(function: RecordedFunction) -> _CKernel:
    """The kernel as the runner knows it: one for all programs, as it is loaded once."""
    with _lock:
        kernel = _kernels.get(function)
        if kernel is None:
            code, entry = _bytes(function.code), function.entry.encode()
            kernel = _kernels[function] = _CKernel(code, entry, function.shared, None, 0)
        return kernel


def _place(place: Relocation) -> _CPlace:
    return _CPlace(*place)


def _map(recorded: RecordedMap) -> _CMap:
    made = _CMap(_place(recorded.place), len(recorded.dims), recorded.kind)
    made.dims[: len(recorded.dims)] = recorded.dims
    made.strides[: len(recorded.strides)] = recorded.strides
    made.box[: len(recorded.box)] = recorded.box
    made.step[:] = [1] * 5
    made.mode[:] = MODE
    return made
