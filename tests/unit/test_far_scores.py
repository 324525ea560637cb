"""Scores that are far from 0, or no numbers: biases such as finfo.min are finite, and a NaN reaches
the queries that see its pair, and the gradients of what these see.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import maskc as mc
from maskc.reference.attention import attention, gradients
from maskc.reference.scores import ScoreOf

N = 24
LEAST, MOST = np.finfo(np.float32).min, np.finfo(np.float32).max
ROWS = {
    "the least everywhere": np.full(N, LEAST),
    "-2.4e38 everywhere": np.full(N, -2.4e38),
    "-1e9 everywhere": np.full(N, -1e9),
    "-2.4e38 above the least": np.where(np.arange(N) < 20, LEAST, -2.4e38),
    "3e38 above 0": np.where(np.arange(N) == 5, 3e38, 0.0),
    "the most beside the least": np.where(np.arange(N) < 2, MOST, LEAST),
    "the least beside 0": np.where(np.arange(N) % 2, LEAST, 0.0),
    "the least beside -inf": np.where(np.arange(N) % 3, LEAST, -np.inf),
    "-inf everywhere": np.full(N, -np.inf),
}


def in_fp32(score: ScoreOf):
    """The formula with logits rounded to fp32, in which a bias of 1e9 leaves s no digit."""

    def rounded(*pairs):
        logits = score(*pairs)
        return replace(logits, value=logits.value.astype(np.float32).astype(np.float64))

    rounded.shape = score.shape
    return rounded


@pytest.mark.parametrize("sinks", [None, [0.5, LEAST]], ids=["", "sinks"])
@pytest.mark.parametrize("name", ROWS)
def test_finite_biases_are_finite(name, sinks):
    rng = np.random.default_rng(3)
    q, k, v, dout = (rng.normal(size=(1, 2, N, 8)).astype(np.float32) for _ in range(4))
    bias = rng.normal(size=(N, N)).astype(np.float32)
    bias[3] = bias[20] = ROWS[name]
    options = {} if sinks is None else {"sink_logits": np.array(sinks, np.float32)}
    score = mc.scores.bias()
    attn = mc.full().compile(8, dtype="float32", target="cpu", score=score)
    out, lse = attn(q, k, v, return_lse=True, bias=bias, **options)
    results = attn.backward(q, k, v, out, lse, dout, bias=bias, **options)

    made = in_fp32(ScoreOf(score.inputs, {"bias": bias}, N, N))
    right, right_lse = attention(q, k, v, np.ones((N, N), bool), score=made, **options)
    wanted = gradients(q, k, v, np.ones((N, N), bool), dout, score=made, **options)
    assert np.isfinite(right).all()
    np.testing.assert_allclose(out, right, atol=2e-6)
    np.testing.assert_allclose(lse, right_lse, rtol=2e-6)
    names = ("dq", "dk", "dv", *(["dsink"] if sinks else []), "d bias")
    for each, gradient in zip(names, results, strict=True):
        np.testing.assert_allclose(gradient, wanted[each], atol=2e-5, err_msg=each)


def test_a_row_of_the_least_is_the_even_mean():
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, 1, N, 8)).astype(np.float32) for _ in range(3))
    bias = np.full((N, N), LEAST, np.float32)
    attn = mc.causal().compile(8, dtype="float32", target="cpu", score=mc.scores.bias())
    mean = np.cumsum(v, axis=2) / np.arange(1, N + 1)[:, None]
    np.testing.assert_allclose(attn(q, k, v, bias=bias), mean, atol=1e-6)
    made = ScoreOf(mc.scores.bias().inputs, {"bias": bias}, N, N)
    right, _ = attention(q, k, v, mc.causal().dense(N), score=made)
    np.testing.assert_allclose(right, mean, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_such_a_row_add_up_to_1_in_the_backward_pass(dtype):
    """There lse has lost the digits of their sum."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, N, 16).to(kind).requires_grad_() for _ in range(3))
    bias = torch.full((N, N), -1e9)
    out = mc.attention(q, k, v, mc.full(), score=mc.scores.bias(), bias=bias)
    dv = torch.autograd.grad(out.sum(), v)[0]
    torch.testing.assert_close(dv.float(), torch.ones(1, 1, N, 16), rtol=1e-2, atol=1e-2)


def test_parts_of_such_rows_add_up():
    """Each part gets the out and lse of all, and its weights do not sum to 1."""
    rng = np.random.default_rng(4)
    q, k, v, dout = (rng.normal(size=(1, 1, N, 8)).astype(np.float32) for _ in range(4))
    score, bias = mc.scores.bias(), np.full((N, N), -5000, np.float32)
    masks = mc.causal(), mc.causal() & mc.window(3), mc.causal() - mc.window(3)
    whole, *parts = (x.compile(8, dtype="float32", target="cpu", score=score) for x in masks)
    out, lse = whole(q, k, v, return_lse=True, bias=bias)
    results = [x.backward(q, k, v, out, lse, dout, bias=bias)[:3] for x in parts]
    made = ScoreOf(score.inputs, {"bias": bias}, N, N)
    wanted = gradients(q, k, v, masks[0].dense(N), dout, score=made)
    for name, *pieces in zip(("dq", "dk", "dv"), *results, strict=True):
        np.testing.assert_allclose(sum(pieces), wanted[name], atol=5e-3, err_msg=name)


@pytest.mark.parametrize(
    ("kind", "dtype", "tolerance"),
    [("simt", "float32", 1e-5), ("sm_80", "float16", 2e-3), ("sm_90a", "bfloat16", 2e-2)],
)
def test_far_scores_on_gpus(kind, dtype, tolerance, monkeypatch):
    """Both passes in the emulator. The backward pass has the digits of an lse of 2^20."""
    torch = pytest.importorskip("torch")
    from maskc.testing.emulator import machine

    machine.install(monkeypatch)
    rng = np.random.default_rng(3)
    n = 72
    q, k, v, dout = (
        torch.from_numpy(rng.normal(size=(1, 2, n, 64))).to(getattr(torch, dtype)) for _ in range(4)
    )
    bias = rng.normal(size=(n, n)).astype(np.float32)
    far = 7 * np.arange(len(ROWS))
    bias[far] = [np.resize(row, n) for row in ROWS.values()]
    score = mc.scores.bias()
    attn = mc.full().compile(64, dtype=dtype, target=kind, score=score)
    assert attn.target.name == kind
    table = torch.from_numpy(bias)
    out, lse = attn(q, k, v, return_lse=True, bias=table)
    results = attn.backward(q, k, v, out, lse, dout, bias=table)

    arrays = [x.float().numpy() for x in (q, k, v)]
    made, full = in_fp32(ScoreOf(score.inputs, {"bias": bias}, n, n)), np.ones((n, n), bool)
    right, right_lse = attention(*arrays, full, score=made)
    np.testing.assert_allclose(out.float(), right, atol=tolerance, rtol=tolerance)
    lse, right_lse = lse.numpy(), right_lse.astype(np.float64)
    close = np.abs(right_lse) < 2**20
    np.testing.assert_allclose(lse[close], right_lse[close], atol=1e-3)
    size = np.abs(lse[~close & np.isfinite(right_lse)])
    assert ((size >= 2**20) & (size < 2**21)).all()
    wanted = gradients(*arrays, full, dout.float().numpy(), score=made)
    for name, gradient in zip(("dq", "dk", "dv", "d bias"), results, strict=True):
        error = np.abs(gradient.float().numpy() - wanted[name]).max()
        assert error < 0.16 * np.abs(wanted[name]).max(), name
        rows = np.delete(np.arange(n), far)
        if name == "dq":  # other rows have all their digits
            error = np.abs(gradient.float().numpy() - wanted[name])[:, :, rows].max()
            assert error < 2 * tolerance * np.abs(wanted[name]).max()


def test_formulas_that_may_be_far():
    """Others keep their machine code."""
    from maskc.core.score import may_be_far

    table = mc.table("t")
    far = [
        lambda s, q, k: s + table[q, k], lambda s, q, k: s + table[k] * 2,
        lambda s, q, k, h: s - table[h], lambda s, q, k: mc.scores.where(k > q, -1e9, s),
        lambda s, q, k: 30 * mc.scores.tanh(s) + mc.param("x", 0.0),
    ]  # fmt: skip
    near = [
        lambda s, q, k: s, lambda s, q, k, h: s - table[h] * abs(q - k), lambda s, q, k: s * 1e4,
        lambda s, q, k, h: s * mc.scores.exp(table[h]), lambda s, q, k: 50 * mc.scores.tanh(s / 50),
    ]  # fmt: skip
    assert all(may_be_far(mc.score(each).inputs.formula.logit) for each in far)
    assert not any(may_be_far(mc.score(each).inputs.formula.logit) for each in near)


# ------------------------------------------------------------------ NaN


DOCUMENTS = np.arange(N) // 12


def table_with_nan():
    """A bias whose NaN query 5 meets at key 3."""
    bias = np.zeros((N, N), np.float32)
    bias[5, 3] = np.nan
    return {"score": mc.scores.bias()}, {"bias": bias}


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("cause", ["a table", "an overflow", "infinities that cancel"])
@pytest.mark.parametrize("normalizer", ["softmax", "entmax"])
@pytest.mark.parametrize("compiler", [True, False], ids=["C", "NumPy"])
@pytest.mark.filterwarnings("ignore::maskc.runtime.FallbackWarning")
def test_nan_stays_in_its_document(cause, normalizer, softcap, compiler, monkeypatch):
    """A query whose scores are NaN gives no gradient to keys that it does not see."""
    if cause == "a table" and (softcap or not compiler):
        pytest.skip("formulas take no softcap=, and NumPy's kernel runs no formulas")
    if not compiler:
        monkeypatch.setenv("CC", "/nowhere/cc")
    rng = np.random.default_rng(1)
    q, k, v, dout = (rng.normal(size=(1, 1, N, 16)).astype(np.float32) for _ in range(4))
    own, data = table_with_nan() if cause == "a table" else ({}, {})
    if cause == "an overflow":
        q[0, 0, 5] = k[0, 0, 3] = 1e20
    elif cause == "infinities that cancel":  # with keys of the other document, which it hides
        q[0, 0, 5] = 1e30
        k[0, 0, 14, ::2], k[0, 0, 14, 1::2] = 1e30, -1e30
    attn = (mc.documents("doc") & mc.causal()).compile(16, dtype="float32", target="cpu", **own)
    options = {"normalizer": normalizer} if normalizer == "entmax" else {}
    options |= {} if softcap is None else {"softcap": softcap}
    out, lse = attn(q, k, v, return_lse=True, doc=DOCUMENTS, **data, **options)
    assert set(np.flatnonzero(np.isnan(out).any((0, 1, 3)))) <= {5}
    results = attn.backward(q, k, v, out, lse, dout, doc=DOCUMENTS, **data, **options)
    for name, gradient in zip(("dq", "dk", "dv"), results, strict=False):
        assert np.isfinite(gradient[0, 0, 12:]).all(), name
