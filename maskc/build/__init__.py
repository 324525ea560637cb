"""Sources to machine code: host compiler or NVRTC, a cache by content, logs in the user's terms.

Imports only core. It decides nothing about masks, and launches nothing.
"""

from __future__ import annotations

from maskc.build.binary import Binary, BuildReport, KernelUse
from maskc.build.cache import CacheWarning
from maskc.build.hostcc import build_c
from maskc.build.nvrtc import build_cuda
from maskc.core.bundle import SourceUnit
from maskc.core.problem import Direction, Feature, Features
from maskc.core.target import Target

__all__ = ["Binary", "BuildReport", "CacheWarning", "KernelUse", "build"]


def build(
    unit: SourceUnit,
    features: Features = frozenset(),
    directions: tuple[Direction, ...] = (Direction.forward,),
    arch: str = "",
    mode: str = "default",
) -> Binary:
    """Machine code of one source, from the cache where it was built before.

    Args:
        unit: the source; its target says which compiler.
        features: parts of attention compiled in; the others cost nothing.
        directions: passes that the caller will run; `entries` of the result names them.
        arch: CUDA architecture of the device (`sm_90`); '' means the target's own.
        mode: of the unit's `modes`: its macro, and the entry points of its launches.

    Raises:
        NoCompiler: no C compiler works here.
        ExtraMissing: CuPy or its headers are not installed.
        BuildFailed: the compiler refuses the source.
    """
    entries = tuple(f"attention_{direction.value}" for direction in directions)
    if Target.named(unit.target).language == "c":
        # C never multiplies a masked key by zero, so it is exact without the variant.
        return build_c(unit, features - {Feature.nan_safe}, entries)
    if not unit.modes:
        return build_cuda(unit, features, entries, arch)
    chosen, unit = unit.mode(mode), unit.in_mode(mode)
    entries = tuple(dict.fromkeys(launch.entry for launch in chosen.launched(features)))
    return build_cuda(unit, features, entries, arch, (chosen.macro,) if chosen.macro else ())
