"""A plan compared with dense attention: counting gives the printed numbers."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import sympy

import maskc as mc
from maskc import driver
from maskc.core.target import TARGETS
from maskc.plan.dense_comparison import kept_at_most, pairs_of
from tests.support.cli import maskc, maskc_json

MASKS = {
    "band": mc.window(255),
    "streaming": mc.causal() & (mc.sinks(4) | mc.window(mc.param("w", 255))),
    "both sides": mc.window(64, 64),
    "lattice": mc.dilated(63, stride=4) | mc.strided(128) & mc.causal(),
    "causal": mc.causal(),
    "full": mc.full(),
    "chunks": mc.chunked(128),
    "heads": mc.per_head([mc.causal(), mc.window(8), mc.causal()]),
    "documents": mc.documents("doc") & mc.causal(),
    "chosen": mc.topk(64, of=mc.causal()) | mc.window(15),
    "gathered": mc.topk(64, of=mc.causal(), score="indexer"),
    "blocks": mc.topk(8, of=mc.causal(), score="block_mean", block=64),
}


@cache
def planned(mask: mc.Mask, target: str = "sm_90a"):
    heads = len(mask.children) if mask is MASKS["heads"] else None
    return driver.plan_kernel(mask, driver.problem(64, None, heads, "bfloat16"), TARGETS[target])


def beside(mask: mc.Mask, target: str = "cpu") -> str:
    return "".join(f"{line}\n" for line in driver.compared_with_dense(mask, planned(mask, target)))


def test_texts(golden):
    text = "\n".join(f"{name}: {mask}\n{beside(mask, 'sm_90a')}" for name, mask in MASKS.items())
    golden("beside.txt", text)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", ["band", "streaming", "both sides", "chunks", "lattice"])
def test_lengths_at_which_it_wins(name: str):
    """The least ones, against counts of the dense definition on both sides."""
    mask, text = MASKS[name], " ".join(beside(MASKS[name]).split())
    causal = "dense causal attention" in text
    period = int(found[1]) if (found := re.search(r"multiples of (\d+)", text)) else 1

    def wins(n: int, share: int) -> bool:
        whole, pairs = (n * (n + 1) // 2 if causal else n * n), int(mask.dense(n).sum())
        return pairs < whole if share == 1 else share * pairs <= whole

    said = re.findall(r"(fewer|half|a tenth) from N = (\d+)", text)
    assert len(said) >= 2
    for word, number in said:
        share, n = {"fewer": 1, "half": 2, "a tenth": 10}[word], int(number)
        assert n % period == 0
        assert all(wins(m, share) for m in range(n, n + 3 * period, period))
        assert n == period or not wins(n - period, share)


def test_orders_and_limits():
    text = beside(MASKS["streaming"])
    assert "O(N*w): N/(2*w) x fewer" in text
    assert "O(N**2): 128 x fewer" in beside(MASKS["lattice"])
    assert "as many for long sequences" in beside(MASKS["full"])
    assert "no pairs" in beside(mc.window(3) & mc.where(lambda q, k: k > q + 5))


@pytest.mark.parametrize(
    "mask",
    [mc.topk(5, of=mc.causal()), mc.topk(5, of=mc.causal()) | mc.window(3),
     mc.topk(2, of=mc.window(40), score="given", block=8) | mc.sinks(2),
     mc.causal() - mc.topk(5, of=mc.causal())],
    ids=str,
)  # fmt: skip
def test_selections_are_priced_by_what_they_keep(mask: mc.Mask):
    n = 96
    (ir,) = driver.analyse_heads(mask).masks
    formula = pairs_of(ir)
    bound = kept_at_most(ir, n, n)
    at = {sympy.Symbol("N", integer=True, positive=True): n}
    for seed in range(3):
        scores = np.random.default_rng(seed).standard_normal((n, n)).astype(np.float32)
        kept = int(mask.dense(n, scores=scores, n_heads=1).sum())
        assert kept <= bound
        assert kept <= formula.formula.subs(at)
    hull = int(mc.causal().dense(n).sum())
    assert bound < hull or "-" in str(mask)


def test_the_command_says_it_at_a_length():
    asked = ("explain", "--expr", "topk(8, of=causal())", "--target", "cpu", "--n", 256)
    text = maskc(*asked).stdout
    assert "live     50.2 % at 256 x 256: 32,896 of 65,536 pairs, all that may be chosen" in text
    assert "kept     at most 3.1" in text
    assert "all pairs are at least 32 x as many; unfused attention stores 131 kB of scores" in text
    ((cost,),) = (report["costs"] for report in maskc_json(*asked)["patterns"])
    assert (cost["kept_at_most"], cost["naive_bytes"]) == (8 * 256, 2 * 256 * 256)
    asked = ("explain", "--expr", "topk(8, of=window(7))", "--target", "cpu", "--n", 256)
    assert "kept     at most" not in maskc(*asked).stdout  # all that may be chosen is
