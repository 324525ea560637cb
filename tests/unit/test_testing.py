"""What users import to test their own masks."""

from __future__ import annotations

from typing import Any

import pytest

import maskc as mc
from maskc import testing
from maskc.core.errors import CheckFailed
from maskc.runtime import CompiledMask

CPU = {"head_dim": 16, "target": "cpu"}


@mc.pattern
def near(*, width: int = 9) -> mc.Mask:
    return mc.causal() & mc.window(width)


@pytest.mark.parametrize(
    "mask", [near, mc.window(mc.param("w", 3)), mc.per_head([mc.causal(), mc.documents("doc")])]
)
def test_right_masks_pass(mask: Any):
    assert testing.check(mask, cases=4, **CPU) == 4


def test_half_precision_passes():
    assert testing.check(mc.causal(), dtype="bfloat16", cases=3, **CPU) == 3


def test_a_wrong_kernel_is_told_with_a_program(monkeypatch: pytest.MonkeyPatch):
    right = CompiledMask.__call__

    def wrong(self: Any, *given: Any, **more: Any) -> Any:
        out, lse = right(self, *given, **more)
        return out * 1.001, lse

    monkeypatch.setattr(CompiledMask, "__call__", wrong)
    with pytest.raises(CheckFailed) as raised:
        testing.check(mc.window(20), cases=5, **CPU)
    assert "MC602  out of window(20) is off by 0.001" in str(raised.value)
    assert "mask = mc.parse('window(20)')" in str(raised.value)
