"""Equal masks of different places: each keeps its own."""

from __future__ import annotations

import maskc as mc
from maskc import driver


def test_equal_masks_keep_their_own_lines():
    first = mc.causal() & mc.window(77)
    second = (
        mc.causal()
        & mc.window(77)
    )  # fmt: skip
    assert first == second
    lines = [
        [origin.loc.line for _, origin in driver.analyse_heads(mask).masks[0].origins if origin.loc]
        for mask in (first, second)
    ]
    assert lines[0]
    assert lines[1]
    assert set(lines[0]).isdisjoint(lines[1])
    assert driver.analyse_heads(first) is driver.analyse_heads(first)
