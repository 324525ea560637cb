"""What the bench says of masks that choose at run time, against the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import maskc as mc
from maskc.bench.case import Case
from maskc.bench.chosen import ChosenPairs, chosen_by_torch
from maskc.bench.contest import Ask, Contest, Measured
from maskc.bench.run import bench_pattern
from maskc.bench.sample import sample_data, true_mask
from maskc.bench.tensors import host, make_tensors
from maskc.core.dtypes import DType
from maskc.core.target import Target
from maskc.reference.attention import attention

MASKS = {
    "keys": mc.topk(7, mc.causal()) | mc.window(2),
    "keys alone": mc.topk(7, mc.causal()),
    "blocks": mc.topk(2, mc.causal(), score="block_mean", block=8) | mc.chunked(16),
    "blocks of groups": mc.topk(
        2, mc.causal(), score="block_mean", block=8, q_block=5, share="group"
    ),
    "blocks of all": mc.topk(3, mc.window(20), score="block_mean", block=6, share="all"),
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
        assert (found.rows(batch, head, rows) == truth[batch, head, rows]).all()
    assert found.live() == truth.sum()


def test_inputs_rank_exactly():
    case = case_of("keys")
    tensors = make_tensors(case, "cpu")
    q, k = (host(x).astype(np.float64) for x in (tensors.q, tensors.k))
    exact = np.einsum("bhqd,bhkd->bhqk", q, np.repeat(k, 2, axis=1))
    assert (exact == exact.astype(np.float32)).all()


@pytest.mark.parametrize("name", ["keys", "blocks"])
def test_the_rival_chooses_the_same(name):
    case = case_of(name, batch=1)
    tensors = make_tensors(case, "cpu")
    out = host(chosen_by_torch(case, tensors)(*tensors.qkv))
    keep = true_mask(case, tensors)[0]
    assert np.abs(out - attention(*map(host, tensors.qkv), keep)[0]).max() < 1e-5


@pytest.mark.parametrize("name", ["together", "indexer", "given", "heads"])
def test_other_masks_have_no_such_rival(name):
    case = case_of(name)
    assert chosen_by_torch(case, make_tensors(case, "cpu")) is None


@pytest.mark.parametrize("name", ["keys", "indexer"])
def test_a_pattern_is_timed_and_right(name):
    report = bench_pattern(
        name, MASKS[name], n=96, heads=4, head_dim=16, target="cpu", repeats=1,
        data=sample_data(MASKS[name], 96),
    )  # fmt: skip
    rows = {(row["impl"], row["direction"]): row["ok"] for row in report["rows"]}
    assert rows["maskc", "fwd"]
    assert rows["maskc", "bwd"]
    assert (("topk", "fwd") in rows) == (name == "keys")


def test_whole_heads_are_judged_of_static_masks_only():
    """The reference would sort for minutes."""
    case = case_of("keys")
    tensors = replace(make_tensors(case, "cpu"), device="cuda")
    ask = Ask(Target.named("sm_90a"), ("fwd",), ("maskc",), 1, 1.0, print)
    pairs = ChosenPairs(case, tensors)
    assert Contest(case, ask, tensors, pairs, np.arange(4), Measured()).heads() is None
