"""Hopper's kernels where formulas need 64 bits, or read ids as bits: both passes, in emulation."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc

pytest.importorskip("torch")

from maskc.core.problem import Feature
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import live_pairs, tensors
from tests.support.hopper import check, compiled, half
from tests.support.thorough import alternating, chiefly

TIMES = np.array([-2_000_000_000, 5, 1_900_000_000, 2_000_000_000] * 50)
IN_RUNS = np.repeat(TIMES[:8], 30)[:200]
IDS = list(range(3, 200, 7))
WIDE = {
    "closed form": mc.where(lambda q, k: q * 100_000_000 >= k * 99_999_999),
    "pairs": mc.where(lambda q, k: (q * 655_370_001 + k * 405_030_001) // 7 % 5 < 3),
    "times": mc.causal() & mc.where(lambda q, k: TIMES[q] - TIMES[k] <= 10**9),
    "times in runs": mc.causal() & mc.where(lambda q, k: IN_RUNS[q] - IN_RUNS[k] <= 10**9),
    "intervals": mc.window(20) | mc.where(lambda q, k: k * 50_000_001 <= q * 10_000_000),
}
NARROW = {
    "far limits": mc.where(lambda q, k: (q + 2_147_483_647 >= k) & (k <= q)),
    "ids": mc.causal() & (mc.window(9) | mc.global_tokens(IDS)),
    "slashes": mc.offsets(IDS) | mc.window(3),
    "few ids": mc.causal() & (mc.window(9) | mc.global_tokens([5, 9, 60])),
}


def asked(attn):
    """The features of everything that was built."""
    return [features for _, _, features in attn.all_reports]


@pytest.mark.parametrize(
    ("name", "mode"),
    alternating(chiefly(list(WIDE), "pairs", "times", "intervals"), ["large", "small"]),
)
def test_in_64_bits(name, mode):
    attn = compiled(WIDE[name], 64, mode=mode)
    made = tensors(150, 190, 64, half("bfloat16"), 0, batch=1, heads=2, kv_heads=1)
    check(attn, made, live_pairs(WIDE[name], 150, 190))
    assert all(Feature.wide in features for features in asked(attn))


@pytest.mark.parametrize("name", chiefly(list(NARROW), "far limits", "few ids"))
def test_in_32_bits(name):
    attn = compiled(NARROW[name], 64)
    made = tensors(150, 190, 64, half("bfloat16"), 0, batch=1, heads=2, kv_heads=1)
    check(attn, made, live_pairs(NARROW[name], 150, 190))
    assert not any(Feature.wide in features for features in asked(attn))
