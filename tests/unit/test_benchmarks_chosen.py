"""The bench's numbers of masks that choose at run time, against the reference."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

import maskc as mc
from benchmarks import unfused
from benchmarks.chosen import ChosenPairs
from benchmarks.contest import Ask, Contest, Measured
from benchmarks.selection import one_selection, spans
from maskc.core.dtypes import DType
from maskc.core.target import Target
from maskc.lab.rivals import Unavailable
from maskc.reference.attention import attention
from maskc.verify.case import Case
from maskc.verify.case_tensors import host, make_tensors
from maskc.verify.samples import sample_data, true_mask
from tests.support.bench import bench_pattern

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="the rivals are PyTorch's")

MASKS = {
    "keys": mc.topk(7, mc.causal()) | mc.window(2),
    "keys alone": mc.topk(7, mc.causal()),
    "blocks": mc.topk(2, mc.causal(), score="block_mean", block=8) | mc.chunked(16),
    "blocks of groups": mc.topk(
        2, mc.causal(), score="block_mean", block=8, q_block=5, share="group"
    ),
    "blocks of all": mc.topk(3, mc.window(20), score="block_mean", block=6, share="all"),
    "joined blocks of groups": mc.window(3)
    | mc.topk(2, mc.causal(), score="block_mean", block=8, q_block=4, share="group"),
    "earlier blocks": mc.topk(3, mc.window(30, 2), score="block_mean", block=6, q_block=7)
    | mc.chunked(5),
    "keys of all": mc.topk(9, mc.causal() & mc.window(25), share="all"),
    "together": mc.topk(3, mc.causal(), block=4, q_block=8, share="group"),
    "indexer": mc.topk(5, mc.causal(), score="indexer", share="all"),
    "given": mc.topk(2, mc.causal(), score="given", block=16, q_block=2),
    "heads": mc.per_head([mc.topk(4, mc.full()), mc.causal()] * 2),
}


def case_of(name: str, batch: int = 2) -> Case:
    mask = MASKS[name]
    return Case(name, mask, batch, 4, 2, 48, 64, 16, DType.float32, sample_data(mask, 48, 64))


@pytest.mark.parametrize("name", MASKS)
def test_rows_and_counts_are_those_of_the_whole_mask(name):
    case = case_of(name)
    tensors = make_tensors(case, "cpu")
    truth = true_mask(case, tensors)
    if truth.ndim == 3 and len(truth) == case.batch:
        truth = truth[:, None]
    truth = np.broadcast_to(truth, (case.batch, case.heads, case.n_q, case.n_kv))
    found = ChosenPairs(case, tensors)
    rows = np.array([0, 1, 17, 30, 47])
    for batch, head in np.ndindex(case.batch, case.heads):
        seen = np.asarray(found.rows(batch, head, rows))
        np.testing.assert_array_equal(seen, truth[batch, head, rows])
    assert found.live() == truth.sum()


def test_inputs_rank_exactly():
    case = case_of("keys")
    tensors = make_tensors(case, "cpu")
    q, k = (host(x).astype(np.float64) for x in (tensors.q, tensors.k))
    exact = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, 2, axis=1))
    assert (exact == exact.astype(np.float32)).all()


RANKED = [name for name in MASKS if name not in ("together", "given", "heads")]


@pytest.mark.parametrize("scores", [1 << 24, 1 << 12], ids=["whole", "in chunks"])
@pytest.mark.parametrize("name", RANKED)
@needs_torch
def test_the_rival_chooses_the_same(name, scores, monkeypatch):
    monkeypatch.setitem(unfused._SCORES, "cpu", scores)
    case = case_of(name)
    tensors = make_tensors(case, "cpu")
    with unfused.exact_products():
        out = host(unfused.chosen_by_torch(case, tensors)(*tensors.qkv))
    keep = true_mask(case, tensors)
    keep = keep[:, None] if keep.ndim == 3 and len(keep) == case.batch else keep
    assert np.abs(out - attention(*map(host, tensors.qkv), keep)[0]).max() < 1e-5


@pytest.mark.parametrize("scores", [1 << 24, 1 << 12], ids=["whole", "in chunks"])
@pytest.mark.parametrize("score", ["indexer", "qk"])
@needs_torch
def test_the_rival_gathers_keys_that_all_heads_share(score, scores, monkeypatch):
    monkeypatch.setitem(unfused._SCORES, "cpu", scores)
    mask = mc.topk(7, mc.causal(), score=score, share="all")
    data = sample_data(mask, 48, 64)
    case = Case("shared", mask, 2, 4, 1, 48, 64, 16, DType.float32, data)
    tensors = make_tensors(case, "cpu")
    monkeypatch.setattr(unfused, "_masking", None)
    out = host(unfused.chosen_by_torch(case, tensors)(*tensors.qkv))
    keep = true_mask(case, tensors)
    keep = keep[:, None] if keep.ndim == 3 else keep
    assert np.abs(out - attention(*map(host, tensors.qkv), keep)[0]).max() < 1e-5


@needs_torch
def test_the_rival_of_half_precision_ranks_exactly():
    """The largest products of rows of bfloat16 differ by less than bfloat16 can tell."""
    case = replace(case_of("keys alone"), dtype=DType.bfloat16)
    tensors = make_tensors(case, "cpu")
    one = one_selection(case)
    chosen = np.asarray(unfused.Chooser(one, tensors).table(tensors.q, tensors.k))
    truth = true_mask(case, tensors)
    np.testing.assert_array_equal(chosen, truth)
    exact = tensors.q.double() @ tensors.k.repeat_interleave(2, 1).double().transpose(2, 3)
    rounded = exact.bfloat16().float().masked_fill(~one_causal(case), -np.inf)
    kept = np.zeros_like(truth)
    np.put_along_axis(kept, np.asarray(rounded.topk(7, 3).indices), True, axis=3)
    assert (kept & np.asarray(one_causal(case)) != truth).any()


def one_causal(case: Case):
    import torch

    return torch.tensor(mc.causal().dense(case.n_q, case.n_kv))


@needs_torch
def test_equal_scores_go_to_the_lower_index():
    case = case_of("keys of all", batch=1)
    tensors = make_tensors(case, "cpu")
    tensors.q[:] = 0
    chosen = np.asarray(unfused.Chooser(one_selection(case), tensors).table(*tensors.qkv[:2]))
    np.testing.assert_array_equal(chosen[0], true_mask(case, tensors)[:1])


@pytest.mark.parametrize("name", ["together", "given", "heads"])
def test_other_masks_have_no_such_rival(name):
    case = case_of(name)
    assert unfused.chosen_by_torch(case, make_tensors(case, "cpu")) is None


def test_too_many_scores_of_an_indexer_are_not_ranked(monkeypatch):
    monkeypatch.setattr(unfused, "_MAX", 4 * 48 * 64 - 1)
    case = case_of("indexer")
    with pytest.raises(Unavailable, match=r"would make 1.23e\+04 scores in memory"):
        unfused.chosen_by_torch(case, make_tensors(case, "cpu"))


@pytest.mark.parametrize(
    "mask",
    [mc.full(), mc.causal(), mc.causal(align="start"), mc.window(5), mc.window(None, 3),
     mc.window(4, 2) & mc.causal()],
    ids=str,
)  # fmt: skip
def test_spans_are_the_keys_of_a_row(mask):
    case = Case("c", mask, 1, 1, 1, 20, 13, 8, DType.float32)
    low, high = spans(mask, case, np.arange(20))
    columns = np.arange(13)
    found = (columns >= low[:, None]) & (columns < high[:, None])
    np.testing.assert_array_equal(found, mask.dense(20, 13))


def test_other_masks_have_no_spans():
    case = case_of("keys")
    for mask in (mc.causal() | mc.window(3), mc.chunked(8), mc.window(mc.param("w", 3))):
        assert spans(mask, case, np.arange(4)) is None


@pytest.mark.parametrize("name", ["keys", "indexer"])
@needs_torch
def test_a_pattern_is_timed_and_right(name):
    report = bench_pattern(
        name, MASKS[name], n=96, heads=4, head_dim=16, target="cpu", repeats=1,
        data=sample_data(MASKS[name], 96),
    )  # fmt: skip
    rows = {(row["impl"], row["direction"]): row["ok"] for row in report["rows"]}
    assert rows["maskc", "fwd"]
    assert rows["maskc", "bwd"]
    assert rows["topk", "fwd"]
    assert rows["topk", "bwd"]


def test_whole_heads_are_judged_of_static_masks_only():
    """The reference would sort for minutes."""
    case = case_of("keys")
    tensors = replace(make_tensors(case, "cpu"), device="cuda")
    ask = Ask(Target.named("sm_90a"), ("fwd",), ("maskc",), 1, 1.0, print)
    pairs = ChosenPairs(case, tensors)
    assert Contest(case, ask, tensors, pairs, np.arange(4), Measured()).heads() is None
