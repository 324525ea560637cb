"""Single keys that heads choose together, in emulation: few and small cases of what
tests/gpu/test_gather.py asks of a card.
"""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.core import errors
from maskc.layout.topk.indexer import MAX_HEADS
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.gathered import check, few, grid, indexer, with_factors
from tests.support.hopper import same_bits
from tests.support.memory_end import run_apart
from tests.support.thorough import alternating, more

CAUSAL = mc.causal()
UNION = mc.topk(70, CAUSAL - mc.sinks(3), score="given", share="group") | mc.window(5)


TARGETS = ["sm_80", "sm_90a"]


@pytest.mark.parametrize(("heads", "target"), alternating([(6, 2), (70, 1)], TARGETS))
def test_given_scores_with_a_window(heads, target):
    """Heads with scores of their own, ties, NaN, and queries without a key."""
    n_q = 40 if heads[0] < 64 else 12  # the definition ranks pair by pair
    scores = grid((1, heads[0], n_q, 150))
    scores[..., 7:150:11] = torch.nan
    made = few(n_q, 150, heads=heads[0], kv_heads=heads[1])
    features = {"softcap": 3.0, "sink_logits": torch.rand(heads[0])}
    ordered = heads[1] > 1
    check(UNION, made, {"scores": scores}, deterministic=ordered, target=target, **features)
    check(UNION, few(40, 20), {"scores": grid((40, 20))}, target=target)


@pytest.mark.parametrize(
    ("dims", "target"), alternating([more((80, 80)), (40, 24), (104, 136)], TARGETS)
)
def test_rows_that_are_filled_up(dims, target):
    """In memory that is full of NaN behind every tensor."""
    q, k, v, dout = few(24, 150, dims[0], heads=6, kv_heads=2)
    v, dout = (few(24, 150, dims[1], heads=6, kv_heads=2, seed=1)[place] for place in (2, 3))
    ordered = dims[0] == 40
    scores = grid((1, 6, 24, 150))
    check(UNION, (q, k, v, dout), {"scores": scores}, deterministic=ordered, target=target)


@pytest.mark.parametrize(
    ("shape", "target"), alternating([more((12, 72)), (130, 64), (64, 64), (128, 64)], TARGETS)
)
def test_an_indexer(shape, target):
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    data = indexer(2, shape[0], 70, 140, shape[1])
    check(mask, few(70, 140, 128, batch=2), data, target=target)


def test_the_rest_below_hopper():
    """ALiBi, long rows of an indexer, keys with factors, and what is not there."""
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    data = with_factors(indexer(1, 3, 20, 150, 256))
    made = few(20, 150, 32, heads=70)
    check(mask, made, data, target="sm_80", alibi_slopes=torch.rand(70), nan_safe=True)
    attn = mask.compile(32, target="sm_80")
    with pytest.raises(errors.TargetNotBuilt, match="softmax only"):
        attn(*made[:3], normalizer="entmax", **data)
    narrow = indexer(1, 3, 20, 150, 256, dtype=torch.float8_e4m3fn)
    with pytest.raises(errors.DataType, match=r"expected bfloat16\n"):
        attn(*made[:3], **narrow)
    for heads in (0, MAX_HEADS + 1):
        with pytest.raises(errors.DataRange, match=f"{heads} heads of 256 elements"):
            attn(*made[:3], **indexer(1, heads, 20, 150, 256))


@pytest.mark.parametrize("shape", [more((12, 80)), (3, 160)])
def test_an_indexer_in_e4m3(shape):
    """One slab of a row and two; keys with factors."""
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    data = indexer(2, shape[0], 70, 140, shape[1], dtype=torch.float8_e4m3fn)
    check(mask, few(70, 140, 64, batch=2), data, backward=False)
    check(mask, few(70, 140, 64, batch=2), with_factors(data), backward=False)


def test_more_queries_than_blocks_and_no_two_orders(hopper):
    """Lists of several tiles and of none, as drawn: the forward's bits are the same."""
    mask = mc.topk(200, CAUSAL, score="given", share="all")
    made, scores = few(40, 35, 64, heads=3), grid((40, 35))
    attn = mask.compile(64, target="sm_90a")
    same_bits(attn, made[:3], 2, hopper, data={"scores": scores})
    lists, own = attn.last_sources
    assert (lists, own.split()[0]) == ("sm_90a_gather_lists default", "sm_90a_gather")
    check(mask, few(7, 450, 64, heads=3), {"scores": grid((7, 450))}, alibi_slopes=torch.rand(3))


LONG = {
    "told by a sample": lambda n: torch.randn(2, n, generator=torch.Generator().manual_seed(0)),
    "alike": lambda n: torch.ones(2, n),
    "few values": lambda n: grid((2, n)),
    "no numbers": lambda n: torch.where(torch.arange(n) % 50 == 0, grid((2, n)), torch.nan),
}


@pytest.mark.parametrize("name", LONG)
def test_long_rows(name):
    """Rows have more keys than a list of candidates holds."""
    mask = mc.topk(100, CAUSAL, score="given", share="all") | mc.window(3)
    check(mask, few(2, 7000, heads=1), {"scores": LONG[name](7000)}, backward=False)


def test_more_keys_than_have_bits_at_a_time():
    mask = mc.topk(70, mc.full(), score="given", share="all") ^ mc.window(30)
    made = few(2, 131_200, heads=1)
    check(mask, made, {"scores": LONG["told by a sample"](131_200)}, backward=False)


_AT_THE_END = """
mask = mc.topk(30, mc.causal(), score="given", share="all")
for n_kv in (149, 150, 151):
    q, k = torch.randn(1, 2, 5, 64).bfloat16(), torch.randn(1, 2, n_kv, 64).bfloat16()
    scores = at_the_end(torch.randn(5, n_kv))
    assert torch.isfinite(mask.compile(64, target="sm_90a")(q, k, k, scores=scores)).all()
"""


def test_nothing_is_read_past_the_scores():
    """Scores are read four at a time."""
    run_apart(_AT_THE_END)
