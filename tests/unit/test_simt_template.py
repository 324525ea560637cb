"""The kernels on CUDA cores without a GPU: which problems they serve, what NVRTC makes of them, and
that the page which explains them shows their code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import maskc as mc
from maskc import driver
from maskc.core.bundle import SourceUnit
from maskc.core.errors import HeadDimUnsupported
from maskc.core.problem import Direction, Feature
from maskc.core.target import TARGETS, Target
from maskc.plan.families import simt
from maskc.runtime import device
from tests.support.ledger import build

SIMT = TARGETS["simt"]
MASK = mc.causal() & (mc.sinks(4) | mc.window(255))
ROOT = Path(__file__).parents[2]
LIMIT = 48 * 1024
"""Bytes of shared memory that a block has on every card without asking."""
ALL = frozenset(Feature) - {Feature.entmax, Feature.nan_safe}


@cache
def units(dim: int, dim_v: int, dtype: str, mask: mc.Mask = MASK) -> tuple[SourceUnit, ...]:
    plan = driver.plan_kernel(mask, driver.problem(dim, dim_v, None, dtype), SIMT)
    return driver.emit_bundle(plan).units


# ------------------------------------------------------------------ what it serves


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_90", "sm_120"])
def test_it_stands_in_where_matrix_units_have_no_kernels(target):
    for wanted in ({"dtype": "float32"}, {"head_dim": 84}, {"head_dim": 128, "head_dim_v": 321}):
        attn = MASK.compile(**{"head_dim": 64, **wanted}, target=target)
        assert attn.target is SIMT
        assert "simt, " in repr(attn)
        assert "sm_90a have no such kernel" in " ".join(attn.explain().split())
    assert MASK.compile(64, target=target).target.name == Target.named(target).name
    with pytest.raises(HeadDimUnsupported, match="head_dim=513"):
        MASK.compile(513, target=target)


def test_cards_before_ampere_have_it_for_everything(monkeypatch):
    class Card:
        capability = 75

    monkeypatch.setattr(device, "gpus", lambda: (Card,))
    monkeypatch.setattr(device, "find_spec", lambda name: name)
    halves, floats = (driver.problem(64, None, None, x) for x in ("bfloat16", "float32"))
    assert device.default_target(halves) == device.default_target(floats) == "simt"
    Card.capability = 90
    assert (device.default_target(halves), device.default_target(floats)) == ("sm_90a", "simt")
    Card.capability = 61
    assert device.default_target(halves) == "cpu"
    assert Target.named("sm_75") is SIMT


def test_blocks_of_a_column_share_what_registers_do_not_hold():
    for dim, dim_v, parts, owned in ((1, 1, 1, 2), (256, 256, 1, 8), (320, 256, 2, 5),
                                     (512, 512, 2, 8), (512, 1, 2, 5)):  # fmt: skip
        plan = simt.backward_schedule(driver.problem(dim, dim_v, None, "float32"))
        (launch,) = (x for x in plan.modes[0][1].launches if x.entry.endswith("columns"))
        assert (64 // launch.per_block, plan.owned) == (parts, owned)


# ------------------------------------------------------------------ the compiler

CASES = [
    ("sm_75", 64, 64, "float32", [frozenset(), ALL]),
    ("sm_75", 512, 512, "float16", [frozenset()]),
    ("sm_80", 128, 128, "bfloat16", [frozenset()]),
    ("sm_90", 128, 128, "float32", [frozenset({Feature.entmax}), frozenset({Feature.nan_safe})]),
    ("sm_100", 256, 256, "float32", [frozenset()]),
    ("sm_120", 7, 33, "float32", [frozenset()]),
]


def check(arch: str, dim: int, dim_v: int, dtype: str, features: frozenset[Feature]) -> None:
    for source in units(dim, dim_v, dtype):
        report = build(source, features, source.directions, arch).report
        assert report.kernels, report.log
        assert not report.spills(), (arch, dim, dim_v, dtype, sorted(map(str, features)))
        assert all(kernel.shared <= LIMIT for kernel in report.kernels)


@pytest.mark.parametrize(("arch", "dim", "dim_v", "dtype", "sets"), CASES)
def test_no_card_spills(arch, dim, dim_v, dtype, sets):
    for features in sets:
        check(arch, dim, dim_v, dtype, features)


@pytest.mark.matrix
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("dim", [1, 16, 33, 64, 80, 96, 128, 192, 256, 320, 512])
def test_matrix(arch, dim):
    for dtype in ("float32", "bfloat16", "float16"):
        check(arch, dim, dim, dtype, frozenset())


def test_no_precision_is_given_away():
    """No instruction of matrix units, which round fp32 to TF32, and none that is approximate."""
    for unit in units(64, 64, "float32"):
        assert not re.search(r"mma|tf32|\.approx|__expf|fast_math", unit.source)
        assert "atomic" not in unit.source


# ------------------------------------------------------------------ the page


def test_the_page_shows_the_code_as_it_is():
    text = (ROOT / "docs" / "simt.md").read_text()
    code = "\n".join(
        file.read_text()
        for file in sorted((ROOT / "templates" / "simt").rglob("*"))
        if file.suffix in (".j2", ".cuh", ".h")
    )
    shown = re.findall(r"```cuda\n(.*?)```", text, re.DOTALL)
    assert len(shown) >= 8
    for block in shown:
        assert block in code, block
    for name in re.findall(r"`(\w+)`", text):
        known = name in code or name in TARGETS or name in ("out", "base", "deterministic")
        assert known, name


def test_both_passes_are_of_one_mask():
    forward, backward = units(64, 64, "float32")
    assert forward.directions == (Direction.forward,)
    assert backward.directions == (Direction.backward,)
    assert (forward.key, backward.key) == ("simt", "simt_backward")
