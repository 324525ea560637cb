"""A Hopper that is not there: the driver's part of maskc, over NumPy's and torch's CPU memory."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

import numpy as np

from maskc.build.binary import BuildReport
from maskc.build.toolchain import InstalledGpu
from maskc.core.dtypes import E4M3
from maskc.core.errors import EmulatorMissing
from maskc.core.problem import Feature
from maskc.core.tensors import Array
from maskc.runtime.arrays import known as arrays
from maskc.testing.emulator.shared_object import Refused, built, code
from maskc.testing.emulator.translate import translated

HERE = Path(__file__).parent
PROCESSORS = 3
FLAGS = ("-std=c++17", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-w",
         "-U_FORTIFY_SOURCE", "-fno-gnu-unique")  # fmt: skip
OF_KERNELS = (*FLAGS, "-Og", "-finline-small-functions", "-finline-functions-called-once",
              "-fno-guess-branch-probability", "-march=native", "-fsanitize=bounds")  # fmt: skip
"""Compiles in two thirds of the time of -O1, and what was compiled runs as fast. Functions that are
inlined need not be compiled by themselves. An index behind the end of an array is a fault of the
kernel: on a GPU it reads another register, or none."""


class Fault(Exception):
    """A fault that the emulator detected while a kernel ran."""


@cache
def _machine_text() -> str:
    return "".join((HERE / name).read_text() for name in ("device.h", "runtime.cpp"))


@cache
def _translator_text() -> str:
    return (HERE / "translate.py").read_text()


@cache
def _runtime() -> ctypes.CDLL:
    """The machine itself: one for all sources, which find its functions once it is loaded. It keeps
    the stacks of its threads, some 14 MB: of a machine in every library, a run would keep GB."""
    command = ["g++", *FLAGS, "-O3", "-march=native", "-shared", str(HERE / "runtime.cpp")]
    return ctypes.CDLL(str(built(_machine_text(), ".so", command)), mode=ctypes.RTLD_GLOBAL)


@cache
def _header() -> Path:
    """The folder with device.h as g++ keeps it parsed: a third of the time to compile."""
    command = ["g++", *OF_KERNELS, "-x", "c++-header", str(HERE / "device.h")]
    return built(_machine_text(), "/device.h.gch", command).parent


@cache
def loaded(source: str, macros: tuple[str, ...], only: tuple[str, ...] = ()) -> ctypes.CDLL:
    """A source with some macros, ready to run; `only`: the entry points that will run, else all."""
    _runtime()
    defined = [f"-D{name}=1" for name in macros]
    command = [
        "g++", *OF_KERNELS, "-x", "c++", f"-I{_header()}", f"-I{HERE}", *defined,
        "-shared", "-nostdlib", "-Wl,-Bsymbolic",
    ]  # fmt: skip
    key = "\0".join((_machine_text(), _translator_text(), code(source), *only))
    made = built(key, ".so", command, lambda: translated(preprocessed(source, defined), only))
    return ctypes.CDLL(str(made))


def preprocessed(source: str, defined: list[str]) -> str:
    """Return a source as the preprocessor leaves it; names of CUDA stay, as nothing defines them.

    Args:
        defined: arguments that define macros.
    """
    strict = "-Werror=undef"  # in `#if`, a macro that was renamed elsewhere would be 0
    command = ["g++", FLAGS[0], "-E", "-P", strict, "-D__CUDA_ARCH__=0", *defined, "-x", "c++", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    if done.returncode:
        raise Refused(done.stderr[:4000])
    return done.stdout


def run(library: ctypes.CDLL, entry: str, arguments: int, blocks: int, threads: int, shared: int,
        seed: int = 0) -> None:  # fmt: skip
    """One launch; `arguments` is the address of an array of addresses.

    Raises:
        Fault: threads that wait for ever, memory that is nobody's, ...
    """
    call = library.emulated
    call.restype = ctypes.c_char_p
    call.argtypes = [ctypes.c_char_p, ctypes.c_void_p, *[ctypes.c_int] * 3, ctypes.c_ulong]
    fault = call(entry.encode(), arguments, blocks, threads, shared, seed)
    if fault:
        raise Fault(f"{entry}: {fault.decode()}")


class Map(ctypes.Structure):
    """A tensor map as runtime.cpp reads it."""

    _fields_ = [
        ("base", ctypes.c_uint64), ("rank", ctypes.c_uint32), ("half", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("dims", ctypes.c_uint64 * 5), ("strides", ctypes.c_uint64 * 5),
        ("box", ctypes.c_uint32 * 5), ("magic", ctypes.c_uint32),
    ]  # fmt: skip


def encode(
    address: int, dims: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], dtype: str
) -> bytes:
    """Encode a tensor map as cuTensorMapEncodeTiled does: boxes of 128 bytes a row, swizzled."""
    if not len(dims) == len(strides) + 1 == len(box) <= 5:
        raise Fault(f"a map of {dims}, {strides}, {box}")
    size = 1 if dtype == E4M3 else 2
    made = Map(address, len(dims), dtype == "float16", size, magic=0x7E5A)
    made.dims[:] = (*dims, *[1] * (5 - len(dims)))
    made.strides[:] = (0, *strides, *[0] * (5 - len(dims)))
    made.box[:] = (*box, *[1] * (5 - len(box)))
    return bytes(made) + bytes(128 - ctypes.sizeof(made))


class Driver:
    """The part of a CUDA device that maskc.runtime.launch.cuda uses."""

    def __init__(self) -> None:
        """Nothing was launched yet."""
        self.seed = 0
        self.launches: list[tuple[str, int]] = []
        """(entry point, blocks) of every launch."""
        self._words: list[Any] = []

    def multiprocessors(self) -> int:
        return PROCESSORS

    def encoder(self, target: str) -> Any:
        return encode

    def host_words(self, count: int) -> int:
        self._words.append((ctypes.c_int32 * count)())
        return ctypes.addressof(self._words[-1])

    def load(self, code: Any, shared: dict[str, int]) -> dict[str, Any]:
        source, macros = code
        library = loaded(source, macros, tuple(sorted(shared)))
        return {entry: (library, entry) for entry in shared}

    def usable(self, stream: int) -> int:
        return PROCESSORS

    def capturing(self, stream: int) -> bool:
        return False

    def read(self, stream: int, address: int, count: int) -> np.ndarray:
        return np.frombuffer(ctypes.string_at(address, 4 * count), np.int32)

    def launch(self, steps: tuple[Any, ...], stream: int, memory: Any) -> None:
        for (library, entry), blocks, threads, shared, _ in steps:
            self.seed += 1
            self.launches.append((entry, blocks))
            run(library, entry, memory.address, blocks, threads, shared, self.seed)


def build(unit: Any, features: Any = frozenset(), directions: tuple[Any, ...] = (), arch: str = "",
          mode: str = "default") -> Any:  # fmt: skip
    """Stands in for maskc.build.build: nothing is compiled before it is loaded."""
    macro = unit.mode(mode).macro if unit.modes else ""
    names = tuple(feature.macro for feature in Feature if feature in features)
    macros = (*names, *((macro,) if macro else ()))
    code = unit.in_mode(mode).source, macros
    return SimpleNamespace(code=code, report=BuildReport("emulator", macros, ""))


class _Torch(type(arrays.TORCH)):  # type: ignore[misc]
    """CPU tensors that say they are on a GPU."""

    def view(self, x: Any, name: str) -> Array:
        if x.device.type != "cpu":
            raise Fault(f"{name} lies on {x.device}: the emulator takes tensors of the CPU")
        array: Array = super().view(x, name)
        return array._replace(device=("cuda", 0))

    def stream(self, device: int) -> int:
        return 0

    def send(self, x: Any, host: Any) -> tuple[Any, int]:
        made = sys.modules["torch"].from_numpy(host.copy())
        return made, made.data_ptr()


class Patch(Protocol):
    """Interface that installs and removes the emulator; pytest's MonkeyPatch implements it."""

    @property
    def setattr(self) -> Callable[..., None]:
        """(the dotted name of an attribute, its value)"""

    def setitem(self, dic: Any, name: Any, value: object) -> None: ...


installed: list[Driver] = []
"""The machines that `install` gave."""


def install(patch: Patch) -> Driver:
    """One Hopper, whose memory is torch's CPU memory, until the patch is undone.

    Raises:
        EmulatorMissing: g++ or PyTorch is missing (MC610).
    """
    needed = {"g++": shutil.which("g++"), "PyTorch": find_spec("torch")}
    missing = [name for name, here in needed.items() if not here]
    if missing:
        raise EmulatorMissing(" and ".join(missing))
    import torch

    driver = Driver()
    gpu = InstalledGpu("emulated Hopper", 90)
    for place in ("build.toolchain", "runtime.launch.cuda", "runtime.device"):
        patch.setattr(f"maskc.{place}.gpus", lambda: (gpu,))
    patch.setattr("maskc.runtime.launch.cuda._driver", lambda device: driver)
    patch.setattr("maskc.runtime.launch.kernels.build", build)
    patch.setattr("maskc.runtime.planner.current_device", lambda: 0)
    patch.setitem(arrays.LIBRARIES, torch.Tensor, _Torch())
    installed.append(driver)
    return driver


class _Undoable:
    """A patch that a stack undoes."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def setattr(self, target: str, value: object) -> None:
        self._stack.enter_context(mock.patch(target, value))

    def setitem(self, dic: Any, name: Any, value: object) -> None:
        self._stack.enter_context(mock.patch.dict(dic, {name: value}))


@contextmanager
def emulated() -> Iterator[Driver]:
    """Emulate a Hopper card during the `with` block: kernels for sm_80 and sm_90a run on the CPU.

    CPU tensors of PyTorch replace tensors of a GPU. g++ compiles each kernel once, in some seconds,
    and the result is kept in MASKC_EMULATOR_DIR, or in the folder for temporary files.

    Raises:
        EmulatorMissing: g++ or PyTorch is missing (MC610).
    """
    with ExitStack() as stack:
        try:
            yield install(_Undoable(stack))
        finally:
            installed.clear()


def start() -> Driver:
    """Install the emulator until the process ends, for a program of one's own.

    Raises:
        EmulatorMissing: g++ or PyTorch is missing (MC610).
    """
    return install(_Undoable(_forever))


_forever = ExitStack()
"""Never closed."""
