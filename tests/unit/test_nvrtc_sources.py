"""Every CUDA source the patterns give compiles under NVRTC, without a GPU and without a spill."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

import maskc as mc
from maskc import driver
from maskc.build import build as compile_source
from maskc.build.nvrtc import library
from maskc.core.bundle import SourceUnit
from maskc.core.errors import HeadDimUnsupported
from maskc.core.problem import Feature
from maskc.core.target import NARROW, TARGETS
from maskc.ir.heads import fixed_heads
from tests.support.ledger import build
from tests.support.patterns import patterns_with_kernels
from tests.support.thorough import more

pytest.importorskip("cupy", reason="NVRTC comes with the cuda13 extra")

FOLDER = Path(__file__).parents[2] / "patterns"
PATTERNS = patterns_with_kernels("sm_80")
SM_80 = TARGETS["sm_80"]
LIMIT = 99 * 1024
NONE, ALL = frozenset(), frozenset(Feature) - {Feature.entmax, Feature.wide}
SINGLE = [frozenset({feature}) for feature in Feature if feature in ALL]


@cache
def unit(path: Path, head_dim: int, dtype: str = "bfloat16") -> SourceUnit:
    mask = mc.load(path)[path.stem]()
    heads = fixed_heads(mask) or 4
    plan = driver.plan_kernel(mask, driver.problem(head_dim, None, heads, dtype), SM_80)
    return driver.emit_bundle(plan).units[0]


@cache
def distinct(head_dim: int, dtype: str = "bfloat16") -> tuple[SourceUnit, ...]:
    """Sources of all patterns that have kernels of this width; some differ in constants only."""
    units = {}
    for path in PATTERNS:
        with suppress(*(HeadDimUnsupported,) * (head_dim > NARROW)):
            source = unit(path, head_dim, dtype)
            units[source.digest] = source
    return tuple(units.values())


def check(source: SourceUnit, arch: str, features: frozenset[Feature] = NONE) -> None:
    report, (launch,) = build(source, features, arch=arch).report, source.mode().launches
    assert report.kernels, report.log
    assert not report.spills(), (arch, sorted(f.value for f in features), source.source[:400])
    for kernel in report.kernels:
        assert kernel.shared + launch.shared_bytes <= LIMIT


def test_masks_that_differ_in_constants_share_a_source():
    """Unless one has short rows and lower tiles for them: 512 keys, 4096 keys."""
    short, long = FOLDER / "nsa_sliding.py", FOLDER / "sliding_window.py"
    assert unit(short, 256).digest == unit(long, 256).digest
    assert unit(short, 128).digest != unit(long, 128).digest


@pytest.mark.parametrize(("head_dim", "arch"), [more(64, "sm_80"), (128, "sm_80")])
def test_patterns_compile_without_spills(head_dim, arch):
    for source in distinct(head_dim):
        check(source, arch)


@pytest.mark.matrix
def test_patterns_compile_in_64_bits():
    """Whose formulas take more registers; only LongNet's, the longest of all, spills."""
    for source in distinct(128):
        report = build(source, frozenset({Feature.wide}), arch="sm_80").report
        spilled = sum(kernel.spill_stores for kernel in report.kernels)
        assert not spilled or source.digest == unit(FOLDER / "longnet.py", 128).digest


@pytest.mark.parametrize("name", ["causal", "bigbird_etc", "exponential_dilation"])
def test_features_where_registers_are_shortest(name):
    """Closed-form ranges, low tiles and lists; ptxas fills all 255 registers of an sm_90."""
    for features in (frozenset({Feature.alibi}), ALL):
        check(unit(FOLDER / f"{name}.py", 128), "sm_90", features)


def test_what_nvrtc_remembers_is_reported_too(tmp_path, monkeypatch):
    """NVRTC's own cache gives an empty log, so it is not asked."""
    asked, nvrtc = [], library("sm_80")
    real = nvrtc.compile
    monkeypatch.setattr(
        nvrtc,
        "compile",
        lambda source, options, ptx: asked.append(options) or real(source, options, ptx),
    )
    source = unit(FOLDER / "full.py", 32)
    for folder in ("one", "two"):
        monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / folder))
        report = compile_source(source).report
        assert report.kernels
        assert "--no-cache" not in report.flags
    assert ["--no-cache" in options for options in asked] == [nvrtc.version() >= (12, 9)] * 2


# What each card and dtype is compiled with: cards alike give alike code, and so do dtypes.
SETS = {
    ("sm_80", "bfloat16"): [NONE, ALL, *SINGLE],
    ("sm_90", "bfloat16"): [NONE, ALL, *SINGLE],
    ("sm_80", "float16"): [NONE, ALL],
    ("sm_90", "float16"): [NONE, ALL],
    ("sm_86", "bfloat16"): [NONE, ALL],
    ("sm_89", "bfloat16"): [NONE, ALL],
}


@pytest.mark.matrix
@pytest.mark.parametrize("head_dim", SM_80.head_dims)
@pytest.mark.parametrize(("arch", "dtype"), SETS, ids=["-".join(key) for key in SETS])
def test_matrix(arch, dtype, head_dim):
    for features in SETS[arch, dtype]:
        for source in distinct(head_dim, dtype):
            check(source, arch, features)
