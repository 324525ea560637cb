"""Ranks of single keys that heads choose together, on a Hopper or in its emulator: given
scores and indexers, of all types, and rows of any length. Results against fp64 over what the
reference chooses.
"""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.core.sizes import Sizes
from maskc.layout.topk import indexer as G
from maskc.runtime.arrays.known import TORCH
from maskc.runtime.device_lists.gathered import room_for
from maskc.runtime.device_lists.indexer_inputs import Ranking
from tests.support.exact_attention import DEVICE
from tests.support.gathered import check, few, grid, indexer, with_factors

CAUSAL = mc.causal()
SHARED = {"score": "given", "share": "all"}
both = pytest.mark.parametrize("target", ["sm_80", "sm_90a"])


# ------------------------------------------------------------------ what ranks


@pytest.mark.parametrize("wanted", [0, 1, 64, 65, 150, 1000])
@both
def test_few_all_and_more_than_all(wanted, target):
    mask = mc.topk(wanted, mc.full(), **SHARED)
    check(mask, few(5, 150), {"scores": grid((5, 150))}, target=target)


ODD = {
    "constant": lambda x: torch.zeros_like(x),
    "zeros": lambda x: torch.where(x > 0, 0.0, -0.0),
    "nan": lambda x: torch.where(x > 0, torch.nan, x),
    "all nan": lambda x: torch.full_like(x, torch.nan),
    "-inf": lambda x: torch.where(x < 2, -torch.inf, x),
    "inf": lambda x: torch.where(x > 1, torch.inf, -torch.inf),
    "inf and nan": lambda x: torch.where(x > 2, torch.nan, torch.where(x > 0, -torch.inf, x)),
    "tiny": lambda x: x * 1e-44,
    "close": lambda x: 1 + x * 2.0**-23,
}


@pytest.mark.parametrize("name", ODD)
def test_odd_scores(name):
    scores = ODD[name](grid((20, 300)))
    check(mc.topk(11, CAUSAL, **SHARED), few(20, 300), {"scores": scores})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@both
def test_scores_of_other_types_and_strides(dtype, target):
    scores = grid((2, 1, 30, 90), dtype=getattr(torch, dtype))[..., 5:75]
    check(mc.topk(11, CAUSAL, **SHARED), few(30, 70, batch=2), {"scores": scores}, target=target)


@pytest.mark.parametrize("share", ["group", "all"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (2, 1), (2, 6)])
@both
def test_heads_that_choose_together(share, shape, target):
    mask = mc.topk(9, CAUSAL, score="given", share=share) | mc.window(2)
    made = few(20, 90, heads=6, kv_heads=2, batch=2)
    check(mask, made, {"scores": grid((*shape, 20, 90))}, target=target)


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 64, 100, 130, 256])
@both
def test_heads_of_an_indexer(heads, target):
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    check(mask, few(70, 140), indexer(1, heads, 70, 140, 64), target=target)


@pytest.mark.parametrize("dim", [8, 32, 72, 128, 200, 256])
@both
def test_dimensions_of_an_indexer(dim, target):
    mask = mc.topk(30, CAUSAL, score="indexer", share="group")
    data = indexer(1, 4, 20, 140, dim, weights=torch.bfloat16)
    check(mask, few(20, 140, heads=4, kv_heads=2), data, target=target)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@both
def test_an_indexer_of_each_type(dtype, target):
    """Tokens before heads, and one set for all sequences."""
    kind = getattr(torch, dtype)
    data = indexer(1, 4, 40, 140, 64, dtype=kind, weights=kind)
    data["index_q"] = data["index_q"].transpose(1, 2).contiguous().transpose(1, 2)
    data["index_w"] = data["index_w"].transpose(1, 2).contiguous().transpose(1, 2)
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    check(mask, few(40, 140, batch=2, dtype=kind), data, target=target)


E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize("heads", [1, 8, 12, 64, 130])
@pytest.mark.parametrize("dim", [16, 128, 144, 256])
def test_an_indexer_in_e4m3(heads, dim):
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    check(mask, few(70, 140), indexer(1, heads, 70, 140, dim, dtype=E4M3), backward=heads == 12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, E4M3])
@pytest.mark.parametrize("batch", [1, 2])
def test_keys_of_an_indexer_with_factors(dtype, batch):
    """For all sequences or for each, in any floating-point dtype."""
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    kind = torch.bfloat16 if dtype == E4M3 else dtype
    data = with_factors(indexer(batch, 6, 40, 140, 128, dtype=dtype), dtype=kind)
    check(mask, few(40, 140, batch=2, dtype=kind), data)


def test_an_indexer_with_keys_in_e4m3_that_are_no_numbers():
    data = indexer(1, 6, 40, 140, 64, dtype=E4M3)
    keys = data["index_k"].float()
    keys[0, 7:60:3, 5] = torch.nan
    data["index_k"] = keys.to(E4M3)
    check(mc.topk(30, CAUSAL, score="indexer", share="all"), few(40, 140), data)


def scores_made(monkeypatch, q, k, w):
    """fp32 [n_q, n_kv]: what an indexer's keys are ranked by, as a call leaves it in its memory."""
    made, own = [], TORCH.empty
    monkeypatch.setattr(TORCH, "empty", lambda *asked: made.append(own(*asked)) or made[-1])
    mask = mc.topk(9, mc.full(), score="indexer", share="all")
    n_q, n_kv = q.shape[2], k.shape[1]
    attn = mask.compile(64, target="sm_90a")
    attn(*few(n_q, n_kv, heads=1)[:3], index_q=q, index_k=k, index_w=w)
    recipe = attn.bundle.list_source("sm_90a").gather
    sizes = Sizes(1, 1, 1, n_q, n_kv)
    room = room_for(9, recipe, Ranking({"index_q": None}, 1, 1, q.shape[1]), sizes, {})
    rows = made[-1][0].flatten()[room.scores : room.sums].view(n_q, room.pitch)
    return rows[:, :n_kv]


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_scores_in_e4m3(monkeypatch, dim):
    """Results are as accurate as docs/selection.md says: Hopper adds up products of E4M3 with fewer
    bits than fp32 has."""
    torch.manual_seed(0)
    shapes = (1, 64, 100, dim), (1, 700, dim)
    q, k = (torch.randn(shape, device=DEVICE).to(E4M3) for shape in shapes)
    w = torch.rand(1, 64, 100, device=DEVICE)
    found = scores_made(monkeypatch, q, k, w)
    x, y, weights = q[0].double(), k[0].double(), w[0, ..., None].double()
    exact = (weights * (x @ y.T).relu()).sum(0)
    sizes = (weights * (x.abs() @ y.abs().T)).sum(0)
    errors_made = (found.double() - exact).abs() / sizes
    assert errors_made.max() < 2**-13
    assert errors_made.max() > 2**-22  # fp32 would not be worth a word


@both
def test_an_indexer_with_odd_keys(target):
    """NaN never wins; infinity does, or is last."""
    data = indexer(1, 6, 40, 140, 64)
    data["index_k"][0, 7:60:3, 5] = torch.nan
    data["index_k"][0, 70, 1] = torch.inf
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    check(mask, few(40, 140), data, target=target)


def test_scores_are_kept_for_some_queries_at_a_time(monkeypatch):
    mask = mc.topk(30, CAUSAL, score="indexer", share="all") | mc.sinks(2)
    data = indexer(2, 4, 200, 140, 64)
    made = few(200, 140, batch=2)
    whole, _ = check(mask, made, data)
    for rows in (1, 64, 150):
        monkeypatch.setattr(G, "SCORE_BYTES", rows * 4 * 140)
        parts, _ = check(mask, made, data, backward=False)
        assert all(torch.equal(parts[name], whole[name]) for name in parts)


LONG = {
    "told by a sample": lambda x: torch.randn_like(x),
    "positive": lambda x: torch.rand_like(x) + 9,
    "ascending": lambda x: torch.arange(x.numel(), device=DEVICE).view(x.shape).float(),
    "one region": lambda x: torch.rand_like(x) + (torch.arange(x.shape[1], device=DEVICE) < 900),
    "few values": lambda x: x,
    "alike": lambda x: torch.zeros_like(x),
    "no numbers": lambda x: torch.where(x == 3, x, torch.nan),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("wanted", [5, 700, 5000])
def test_long_rows(name, wanted):
    """More keys than a list of candidates holds."""
    torch.manual_seed(0)
    mask = mc.topk(wanted, CAUSAL, **SHARED) | mc.window(3)
    scores = LONG[name](grid((2, 12_000)))
    check(mask, few(2, 12_000, heads=1), {"scores": scores}, backward=False)


@both
def test_long_rows_of_an_indexer(target):
    mask = mc.topk(700, CAUSAL, score="indexer", share="all")
    data = indexer(1, 64, 2, 9000, 128)
    check(mask, few(2, 9000, heads=1), data, backward=False, target=target)
