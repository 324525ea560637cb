"""Cases with entmax: how results are judged."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest

import maskc as mc
from benchmarks import suite
from benchmarks.anchors import ENTMAX
from benchmarks.contest import Ask
from benchmarks.run import bench_case
from benchmarks.suite import Limits, Suite, run_suite
from maskc.core.dtypes import DType
from maskc.core.target import Target
from maskc.reference.attention import attention
from maskc.reference.entmax import entmax
from maskc.verify import sparse
from maskc.verify.case import Case
from maskc.verify.case_tensors import host, make_tensors
from maskc.verify.judge import make_judge

needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="the rivals are PyTorch's")
MASK = mc.window(9) - mc.strided(7)


def case_of(alpha: float, dtype: str = "float32", mask: mc.Mask = MASK, kv_heads: int = 2) -> Case:
    return Case("c", mask, 2, 4, kv_heads, 60, 64, 16, DType.parse(dtype), alpha=alpha)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_weights_are_the_references(alpha: float, library: str):
    rng = np.random.default_rng(1)
    scores = 3 * rng.standard_normal((40, 30))
    scores[rng.random(scores.shape) < 0.4] = -np.inf
    scores[3] = scores[:, 5] = -np.inf
    scores[7] = np.where(np.arange(30) < 4, 2.0, -np.inf)
    given = scores
    if library == "torch":
        given = pytest.importorskip("torch").tensor(scores)
    p, lse = (np.asarray(x) for x in sparse.weights(given, alpha))
    found = np.asarray(sparse.slopes(sparse.weights(given, alpha)[0], alpha))
    for row, (weights, slopes, end) in enumerate(entmax(scores[row], alpha) for row in range(40)):
        np.testing.assert_allclose(p[row], weights, atol=1e-13)
        np.testing.assert_allclose(found[row], slopes, atol=1e-6 if alpha < 2 else 0)
        assert lse[row] == end or abs(lse[row] - end) < 1e-13 * max(1, abs(end))
    assert not p[3].any()
    assert np.isneginf(lse[3])


def test_the_judge_tells_entmax_from_softmax():
    case = case_of(1.5)
    tensors = make_tensors(case, "cpu")
    dense, rows = MASK.dense(60, 64), np.arange(60)
    judge = make_judge(case, tensors, rows, lambda b, h: dense, False)
    arrays = [host(x) for x in tensors.qkv]
    for alpha, ok in ((1.5, True), (1.49, False), (1.0, False)):
        out, lse = attention(*arrays, dense, alpha=alpha)
        assert judge.verdict(out=out).ok == ok
        assert judge.verdict(lse=lse).ok == ok


# ------------------------------------------------------------------ cases


@needs_torch
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_maskc_beside_softmax(alpha: float):
    case = replace(case_of(alpha), n_q=64)
    found = bench_case(case, Ask(Target.named("cpu"), ("fwd",), ("maskc", "topk", "dense"), 1))
    rows = {(row["impl"], row.get("variant", "")): row for row in found.rows}
    assert set(rows) == {("maskc", ""), ("maskc", "softmax")}
    assert all(row["ok"] for row in rows.values()), found.notes
    assert found.about["alpha"] == alpha


@needs_torch
def test_the_cases_at_small_lengths(monkeypatch: pytest.MonkeyPatch):
    small = tuple(
        replace(anchor, mask=lambda: mc.window.hf(24), formula=None, n=96, heads=2, head_dim=16)
        for anchor in ENTMAX[:2]
    )
    monkeypatch.setitem(
        suite.SUITES, "selections", Suite(small, "cpu", DType.bfloat16, ("maskc",), False, ("fwd",))
    )
    report = run_suite("selections", Limits(repeats=1))
    found = [(row["case"], row.get("variant"), row["ok"]) for row in report["rows"]]
    names = [anchor.name for anchor in small]
    assert found == [(name, v, True) for name in names for v in (None, "softmax")]


def test_cases_are_what_their_names_say():
    sizes = {a.name: (a.alpha, a.heads, a.n, a.head_dim) for a in ENTMAX}
    assert sizes == {
        "entmax1.5_window1024_32k": (1.5, 16, 32768, 64),
        "entmax2_window1024_32k": (2.0, 16, 32768, 64),
        "entmax1.5_causal_8k": (1.5, 16, 8192, 64),
    }
    q, k = np.arange(2000)[:, None], np.arange(2000)
    window = ENTMAX[0].mask().dense(2000)
    np.testing.assert_array_equal(window, (k <= q) & (q - k <= 1023))
    assert ENTMAX[0].case(DType.bfloat16).alpha == 1.5
