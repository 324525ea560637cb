"""The binaries of a compiled mask: which source runs a call, built on first use, once."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress

from maskc.build import Binary, BuildReport, build
from maskc.core.bundle import NOT_ONCE, ONCE, Bundle, SourceUnit
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
Form = tuple[SourceUnit, str, Features]
"""A source, the mode it runs in, and the features it is built with."""


class Kernels:
    """Everything built for one bundle on one target; safe to use from several threads."""

    def __init__(self, bundle: Bundle, target: Target) -> None:
        self._bundle, self._target = bundle, target
        self._made: dict[Key, Kernel] = {}
        self._binaries: dict[Key, Binary] = {}
        """Compiled ahead, and not yet loaded."""
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
            with self._alone(key):
                kernel = self._made.get(key)
                if kernel is None:
                    kernel = self._made[key] = self._make(unit, key)
        return kernel

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
        """Held while one kernel is built."""
        with self._lock:
            return self._building.setdefault(key, threading.Lock())

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
            warnings.warn(
                f"{error.finding}: this mask runs in NumPy, slower",
                FallbackWarning,
                stacklevel=outside(),
            )
            return NumPyKernel(self._bundle, unit.tile, features)
        self._reports[key] = binary.report
        return CpuKernel(binary)

    def forms(self, features: Features, directions: Sequence[Direction]) -> tuple[Form, ...]:
        """Every source that calls with these features may run, in every mode of theirs: which it is
        depends on lengths and data.

        Raises:
            TargetNotBuilt: no forward pass has these features.
        """
        units: tuple[SourceUnit, ...] = ()
        if Direction.forward in directions:
            units += self.units(Direction.forward, features)
        if Direction.backward in directions:
            with suppress(TargetNotBuilt):  # a call of it says so
                units += self.units(Direction.backward, features)
        lists = self._bundle.list_source(units[0].target) if units else None
        units += () if lists is None else (lists,)
        found = {
            (unit.key, mode): (unit, mode, features if unit.directions else frozenset())
            for unit in units
            if unit.offers(features)
            for mode in modes_of(unit, features)
        }
        return tuple(found.values())

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
    if not unit.modes or whole:
        return ("usual",)
    return tuple(name for name, _ in unit.modes if name != ONCE or not features & NOT_ONCE)


def outside() -> int:
    """The stack level of the user's own code, counted from the function that asks."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("maskc."):
        frame, level = frame.f_back, level + 1
    return level
