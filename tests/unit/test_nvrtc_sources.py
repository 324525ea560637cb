"""Every CUDA source the patterns give compiles under NVRTC, without a GPU and without a spill."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import maskc as mc
from maskc import driver
from maskc.build import build
from maskc.core.bundle import SourceUnit
from maskc.core.problem import Feature
from maskc.core.target import TARGETS
from maskc.ir.heads import fixed_heads

pytest.importorskip("cupy", reason="NVRTC comes with the cuda13 extra")

PATTERNS = sorted((Path(__file__).parents[2] / "patterns").glob("*.py"))
SM_80 = TARGETS["sm_80"]
LIMIT = 99 * 1024


@cache
def unit(path: Path, head_dim: int, dtype: str = "bfloat16") -> SourceUnit:
    mask = mc.load(path)[path.stem]()
    heads = fixed_heads(mask) or 4
    plan = driver.planned(mask, driver.problem(head_dim, None, heads, dtype), SM_80)
    return driver.bundled(plan).units[0]


def check(source: SourceUnit, arch: str, features: frozenset[Feature] = frozenset()) -> None:
    report = build(source, features, arch=arch).report
    assert report.kernels, report.log
    for kernel in report.kernels:
        assert kernel.spill_stores == kernel.spill_loads == 0, kernel
        (launch,) = source.mode().launches
        assert kernel.shared + launch.shared_bytes <= LIMIT


@pytest.mark.parametrize("head_dim", [64, 128])
def test_patterns_compile_without_spills(head_dim):
    by_digest = {u.digest: u for u in (unit(path, head_dim) for path in PATTERNS)}
    assert len(by_digest) < len(PATTERNS), "masks that differ in constants share sources"
    for source in by_digest.values():
        check(source, "sm_80")


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("head_dim", SM_80.head_dims)
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90"])
def test_matrix(arch, head_dim, dtype):
    by_digest = {u.digest: u for u in (unit(path, head_dim, dtype) for path in PATTERNS)}
    for source in by_digest.values():
        check(source, arch)
    features = [frozenset({feature}) for feature in Feature] + [frozenset(Feature)]
    for chosen in features:
        check(unit(PATTERNS[0], head_dim, dtype), arch, chosen)
