"""The binaries of a compiled mask: which source runs a call, built on first use, once."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from maskc.build import BuildReport, build
from maskc.core.bundle import Bundle, SourceUnit
from maskc.core.errors import NoCompiler, TargetNotBuilt
from maskc.core.problem import Direction, Feature, Features
from maskc.core.target import Target
from maskc.runtime.fallback import FallbackWarning, NumPyKernel
from maskc.runtime.launch_cpu import CpuKernel
from maskc.runtime.launch_cuda import CudaKernel, device_arch
from maskc.runtime.plans import Kernel

_EXACT = {"sm_90a": "sm_80"}
"""Targets whose kernels have no nan_safe variant: the one that runs such forward passes."""
_INEXACT = "matrix units multiply the masked values of a tile by zero"
_EXACT_SOFTMAX_ONLY = "kernels that multiply no masked value know softmax only"
_KEYS_SOFTMAX_ONLY = "its kernels for keys chosen one by one know softmax only"
_ENTMAX_REMEDY = "use target='cpu' with tensors on the CPU, or leave normalizer out"
_REMEDY = "leave nan_safe out, or use target='{}'"

Key = tuple[str, str, Features, int]
"""Source, mode, features, device."""


class Kernels:
    """Everything built for one bundle on one target; safe to use from several threads."""

    def __init__(self, bundle: Bundle, target: Target) -> None:
        self._bundle, self._target = bundle, target
        self._made: dict[Key, Kernel] = {}
        self._building: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()
        self._reports: dict[Key, BuildReport] = {}

    def unit(self, direction: Direction, features: Features = frozenset()) -> SourceUnit:
        """The source of a pass, the first where there is a choice.

        Raises:
            TargetNotBuilt: there is none.
        """
        return self.units(direction, features)[0]

    def units(
        self, direction: Direction, features: Features = frozenset()
    ) -> tuple[SourceUnit, ...]:
        """The source of a pass, or several to choose from, the one with the largest tiles first.

        Raises:
            TargetNotBuilt: there is none.
        """
        name = self._target.name
        units = self._bundle.choice(name, direction)
        gathers = any(unit.gathers for unit in units)
        if Feature.entmax in features and (gathers or self._bundle.chooser is not None):
            raise TargetNotBuilt(name, f"entmax {direction.value}", _KEYS_SOFTMAX_ONLY,
                                 _ENTMAX_REMEDY, at="normalizer")  # fmt: skip
        if {Feature.entmax, Feature.nan_safe} <= features and self._target.language == "cuda":
            raise TargetNotBuilt(name, f"nan_safe {direction.value}", _EXACT_SOFTMAX_ONLY,
                                 _REMEDY.format("cpu"), at="nan_safe")  # fmt: skip
        if Feature.nan_safe in features and name in _EXACT and not gathers:
            return (self._exact_unit(direction),)
        if not units:
            missing = "the bundle has no source of it"
            remedy = "compile the mask for another target"
            raise TargetNotBuilt(name, direction.value, missing, remedy, at="target")
        return units[:1] if Feature.entmax in features else units

    def _exact_unit(self, direction: Direction) -> SourceUnit:
        name = self._target.name
        unit = self.spare_unit()
        if direction is Direction.backward or unit is None:
            nobody = direction is Direction.backward or self._bundle.chooser is not None
            remedy = _REMEDY.format("cpu" if nobody else _EXACT[name])
            raise TargetNotBuilt(name, f"nan_safe {direction.value}", _INEXACT, remedy,
                                 at="nan_safe")  # fmt: skip
        return unit

    def spare_unit(self) -> SourceUnit | None:
        """What runs a forward pass that the target's own kernel cannot, if the bundle has it."""
        spare = _EXACT.get(self._target.name)
        return self._bundle.unit(spare) if spare else None

    def get(self, unit: SourceUnit, mode: str, features: Features, device: int) -> Kernel:
        """Built and loaded for a device; once, whoever asks first."""
        if self._target.language == "c":
            features = features - {Feature.nan_safe}  # C is exact as it is
        key = (unit.key, mode, features, device)
        kernel = self._made.get(key)
        if kernel is None:
            with self._lock:
                building = self._building.setdefault(key, threading.Lock())
            with building:
                kernel = self._made.get(key)
                if kernel is None:
                    kernel = self._made[key] = self._make(unit, key)
        return kernel

    def _make(self, unit: SourceUnit, key: Key) -> Kernel:
        _, mode, features, device = key
        passes = unit.directions
        if self._target.language == "cuda":
            arch = device_arch(unit.target, device)
            binary = build(unit, features, passes, arch, mode)
            self._reports[key] = binary.report
            return CudaKernel(unit, unit.mode(mode), binary, device, features)
        try:
            binary = build(unit, features, passes)
        except NoCompiler as error:
            warnings.warn(
                f"{error.finding}: this mask runs in NumPy, slower",
                FallbackWarning,
                stacklevel=outside(),
            )
            return NumPyKernel(self._bundle, unit.tile, features)
        self._reports[key] = binary.report
        return CpuKernel(binary)

    def build_all(self, features: Features, device: int) -> None:
        """Every mode of every pass, side by side.

        Raises:
            TargetNotBuilt: no forward pass has these features; NoDevice, BuildFailed.
        """
        units = self.units(Direction.forward, features)
        lists = self._bundle.list_source(units[0].target)
        units += () if lists is None else (lists,)
        with suppress(TargetNotBuilt):  # a call of it says so
            units += self.units(Direction.backward, features)
        jobs = {
            (unit.key, mode): (unit, mode, features if unit.directions else frozenset())
            for unit in units
            if unit.offers(features)
            for mode in modes_of(unit, features)
        }
        if len(jobs) == 1:
            (job,) = jobs.values()
            self.get(*job, device)
            return
        with ThreadPoolExecutor(len(jobs)) as pool:
            for _ in pool.map(lambda job: self.get(*job, device), jobs.values()):
                pass

    @property
    def reports(self) -> Mapping[Features, BuildReport]:
        """By features: of the forward pass in its usual mode, or whichever else was built."""

        def unusual(item: tuple[Key, BuildReport]) -> tuple[bool, bool]:
            source, mode, _, _ = item[0]
            return source != self._target.name, mode != "usual"

        found: dict[Features, BuildReport] = {}
        for key, report in sorted(self._reports.items(), key=unusual):
            found.setdefault(key[2], report)
        return found

    @property
    def all_reports(self) -> Mapping[tuple[str, str, Features], BuildReport]:
        """By source (`sm_90a`, `sm_90a_small`, `sm_90a_backward`), mode and features."""
        return {key[:3]: report for key, report in self._reports.items()}


def modes_of(unit: SourceUnit, features: Features) -> tuple[str, ...]:
    """The modes that calls with these features may run in."""
    whole = Feature.entmax in features and Direction.forward in unit.directions
    return tuple(dict(unit.modes)) if unit.modes and not whole else ("usual",)


def outside() -> int:
    """The stack level of the user's own code, counted from the function that asks."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("maskc."):
        frame, level = frame.f_back, level + 1
    return level
