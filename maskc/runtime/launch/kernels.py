"""The binaries of a compiled mask: which source runs a call, built on first use, once."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from maskc.build import Binary, BuildReport, build
from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.errors import DropoutNotRun, NoCompiler, ScoreNotRun
from maskc.core.forks import new_lock
from maskc.core.problem import Feature, Features
from maskc.core.source import outside
from maskc.core.target import Target
from maskc.core.tensors import PAPER
from maskc.layout import Rank, best
from maskc.runtime.launch.ahead import Job
from maskc.runtime.launch.cpu import CpuKernel
from maskc.runtime.launch.cuda import CudaKernel, device_arch
from maskc.runtime.launch.numpy_kernel import FallbackWarning, NumPyKernel
from maskc.runtime.launch.prepared import Kernel
from maskc.runtime.launch.recording import PaperKernel

Key = tuple[str, str, Features, int]
"""Source, mode, features, device."""


class _Thread(threading.local):
    """Kernels that a plan of this thread needs, while the thread surveys it; otherwise None."""

    missing: dict[tuple[Kernels, Key], Job] | None = None


_thread = _Thread()


@contextmanager
def survey() -> Iterator[dict[tuple[Kernels, Key], Job]]:
    """Find out which CUDA kernels a plan needs that are not built yet.

    Inside, `Kernels.get` returns kernels without code for them. Plans with such kernels cannot
    run; whoever made them builds what is missing and plans again.

    Yields:
        The jobs that build them, in the order of the plan.
    """
    before, missing = _thread.missing, dict[tuple[Kernels, Key], Job]()
    _thread.missing = missing
    try:
        yield missing
    finally:
        _thread.missing = before


class Kernels:
    """Everything built for one bundle on one target; safe to use from several threads."""

    def __init__(self, bundle: Bundle, target: Target) -> None:
        self._bundle, self._target = bundle, target
        self._made: dict[Key, Kernel] = {}
        self._binaries: dict[Key, Binary] = {}
        """Compiled ahead, and not yet loaded."""
        self._building: dict[Key, threading.Lock] = {}
        self._lock = new_lock()
        self._reports: dict[Key, BuildReport] = {}

    def get(self, unit: SourceUnit, mode: str, features: Features, device: int) -> Kernel:
        """Return the kernel for a device; the first caller builds and loads it."""
        if self._target.language == "c":
            features = features - {Feature.nan_safe}  # C is exact as it is
        key = (unit.key, mode, features, device)
        kernel = self._made.get(key)
        if kernel is None:
            missing, is_cuda = _thread.missing, self._target.language == "cuda"
            if missing is not None and is_cuda and key not in self._binaries:
                missing[self, key] = partial(self.build, unit, mode, features, device)
                return CudaKernel(unit, unit.mode(mode), None, device, features)
            with self._alone(key):
                kernel = self._made.get(key)
                if kernel is None:
                    kernel = self._made[key] = self._make(unit, key)
        return kernel

    def on_device(self, unit: SourceUnit, mode: str, features: Features, device: int) -> CudaKernel:
        """`get` of a CUDA source."""
        kernel = self.get(unit, mode, features, device)
        if not isinstance(kernel, CudaKernel):
            raise TypeError(f"{unit.key} is not a CUDA source")
        return kernel

    def ranking(self, unit: SourceUnit, features: Features) -> Rank:
        """Return the function that ranks keys on the host: the C kernel of this source, or
        NumPy."""
        if unit.target == "cpu":
            kernel = self.get(unit, "default", features, 0)
            if isinstance(kernel, CpuKernel):
                return kernel.best
        return best

    def build(self, unit: SourceUnit, mode: str, features: Features, device: int) -> None:
        """Compile without loading, for a later `get`; nothing where that is done."""
        key = (unit.key, mode, features, device)
        with self._alone(key):
            if not self.has(unit, mode, features, device):
                self._binaries[key] = self._built(unit, key)

    def has(self, unit: SourceUnit, mode: str, features: Features, device: int) -> bool:
        """Whether it is compiled."""
        key = (unit.key, mode, features, device)
        return key in self._made or key in self._binaries

    def _alone(self, key: Key) -> threading.Lock:
        """A lock for building one kernel."""
        with self._lock:
            return self._building.setdefault(key, new_lock())

    def _built(self, unit: SourceUnit, key: Key) -> Binary:
        _, mode, features, device = key
        arch = device_arch(unit.target, device)
        return build(unit, features, unit.directions, arch, mode)

    def _make(self, unit: SourceUnit, key: Key) -> Kernel:
        _, mode, features, device = key
        if self._target.language == "cuda":
            binary = self._binaries.pop(key, None) or self._built(unit, key)
            self._reports[key] = binary.report
            return CudaKernel(unit, unit.mode(mode), binary, device, features)
        try:
            binary = build(unit, features, unit.directions)
        except NoCompiler as error:
            hint = "install gcc or clang, or set CC"
            if self._bundle.problem.dropout:
                raise DropoutNotRun(error.finding, hint, at="dropout_p") from error
            if self._bundle.problem.score is not None:
                raise ScoreNotRun(error.finding, hint, at="score") from error
            warnings.warn(
                f"{error.finding}: this mask runs in NumPy, slower",
                FallbackWarning,
                stacklevel=outside(),
            )
            return NumPyKernel(self._bundle, unit.tile, features)
        self._reports[key] = binary.report
        kernel = CpuKernel(binary)
        return PaperKernel(kernel) if device >= PAPER else kernel

    @property
    def reports(self) -> Mapping[Features, BuildReport]:
        """Reports by features, of the forward pass in its usual mode or whichever was built."""

        def unusual(item: tuple[Key, BuildReport]) -> tuple[bool, bool]:
            source, mode, _, _ = item[0]
            return source != self._target.name, mode != "default"

        reports: dict[Features, BuildReport] = {}
        for key, report in sorted(self._reports.items(), key=unusual):
            reports.setdefault(key[2], report)
        return reports

    @property
    def all_reports(self) -> Mapping[tuple[str, str, Features], BuildReport]:
        """Reports by source (`sm_90a`, `sm_90a_small`, `sm_90a_backward`), mode and features."""
        return {key[:3]: report for key, report in self._reports.items()}
