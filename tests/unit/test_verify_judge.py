"""The judge of benchmark results, judged by the row-by-row oracle."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from benchmarks.fa4 import form_of
from maskc.core.dtypes import DType
from maskc.core.errors import HeadsDoNotDivide, UsageMistake
from maskc.reference.attention import attention, gradients
from maskc.verify.case import Case
from maskc.verify.case_tensors import CaseTensors, host, numpy_dtype, only_rows
from maskc.verify.judge import (
    SINGLE,
    Judge,
    Results,
    attend,
    judged_backward,
    judged_forward,
    lse_error,
    make_judge,
    rounding,
    row_error,
    sample_rows,
)


def numpy_case(dtype: str = "float32", n_q: int = 37, n_kv: int = 50, **changes):
    """A grouped-query case with empty rows and its NumPy tensors."""
    mask = mc.window(5, align="start") - mc.strided(3)
    case = Case("c", mask, 2, 4, 2, n_q, n_kv, 8, DType.parse(dtype), **changes)
    rng = np.random.default_rng(3)
    shapes = [(2, 4, n_q, 8), (2, 2, n_kv, 8), (2, 2, n_kv, 8), (2, 4, n_q, 8)]
    made = [rng.standard_normal(s).astype(numpy_dtype(dtype)) for s in shapes]
    return case, CaseTensors(*made, "cpu"), mask.dense(n_q, n_kv)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_sampled_attention_is_the_oracles(alpha: float):
    case, tensors, dense = numpy_case(alpha=alpha)
    options = {} if alpha == 1 else {"alpha": alpha}
    rows = np.array([0, 3, 4, 20, 36])
    result = attend(case, tensors, rows, lambda b, h: dense[rows], True, None)
    out, lse = attention(*tensors.qkv, dense, **options)
    right = gradients(*tensors.qkv, dense, only_rows(tensors.dout, rows), **options)
    np.testing.assert_allclose(result.out, out[:, :, rows], rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(np.isneginf(result.lse), np.isneginf(lse[:, :, rows]))
    assert lse_error(result.lse, lse[:, :, rows]) < 1e-12
    bound = {"rtol": 1e-9, "atol": 1e-13} if alpha == 1 else {"rtol": 1e-7, "atol": 1e-9}
    np.testing.assert_allclose(result.dq, right["dq"][:, :, rows], **bound)
    np.testing.assert_allclose(result.dk, right["dk"], **bound)
    np.testing.assert_allclose(result.dv, right["dv"], **bound)


def test_rows_outside_the_sample_get_no_output_gradient():
    _, tensors, _ = numpy_case()
    kept = only_rows(tensors.dout, np.array([2, 5]))
    assert np.flatnonzero(np.abs(kept).sum(axis=(0, 1, 3))).tolist() == [2, 5]
    np.testing.assert_array_equal(kept[:, :, 5], tensors.dout[:, :, 5])


@pytest.mark.parametrize("n", [1, 64, 100, 256, 300, 4096, 131072])
def test_sampled_rows_ascend_and_include_the_ends(n: int):
    rows = sample_rows(n, n)
    assert (np.diff(rows) > 0).all()
    assert rows[0] == 0
    assert rows[-1] == n - 1
    assert len(rows) <= 256
    assert len(rows) == n or len(rows) >= 55


# ------------------------------------------------------------------ errors


def test_one_wrong_row_is_not_averaged_away():
    expected = np.ones((1, 16, 4096, 8))
    found = expected.copy()
    found[0, 7, 4000] *= 1.5
    assert row_error(found, expected) == pytest.approx(0.5)


def test_an_error_is_relative_to_the_larger_of_row_and_usual_row():
    expected = np.zeros((1, 1, 2, 4))
    expected[0, 0, 0] = 1
    found = expected + 1e-3
    assert row_error(found, expected) == pytest.approx(1e-3 * 2**0.5, rel=1e-6)


def test_nan_and_vanishing_gradients():
    zero = np.zeros((1, 1, 3, 4))
    assert row_error(zero, zero) == 0
    assert row_error(zero + 1e-6, zero) == pytest.approx(1e-6)
    assert np.isnan(row_error(np.where(np.arange(4) == 2, np.nan, zero), zero))
    assert lse_error(np.array([-np.inf, 1.0]), np.array([-np.inf, 1.0])) == 0
    assert lse_error(np.array([3.0]), np.array([-np.inf])) == np.inf or np.isnan(
        lse_error(np.array([3.0]), np.array([-np.inf]))
    )


def test_rounding_is_the_storage_types():
    values = np.array([1.0, 1.0 + 2**-9, 3.14159], dtype=np.float32)
    np.testing.assert_array_equal(rounding(DType.float32)(values), values)
    half = rounding(DType.bfloat16)(values)
    assert half.dtype == np.float32
    assert half[0] == 1
    assert abs(half[2] - values[2]) < 2**-7


# ------------------------------------------------------------------ verdicts


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_right_result_passes_and_a_wrong_one_does_not(dtype: str):
    case, tensors, dense = numpy_case(dtype)
    rows = np.arange(case.n_q)
    judge = make_judge(case, tensors, rows, lambda b, h: dense, True)
    stored = rounding(case.dtype)
    q, k, v, dout = (host(x) for x in (*tensors.qkv, tensors.dout))
    out, lse = attention(q, k, v, dense)
    grads = gradients(q, k, v, dense, dout)
    assert judged_forward(judge, rows, (stored(out), lse.astype(np.float32))).ok
    right = tuple(stored(grads[name]) for name in ("dq", "dk", "dv"))
    assert judged_backward(judge, rows, tensors, lambda _: right).ok

    out[1, 2, 30] *= 1.1
    wrong = judged_forward(judge, rows, stored(out))
    assert not wrong.ok
    assert wrong.error == pytest.approx(0.1, rel=0.3)
    swapped = (right[0], right[2], right[1])
    assert not judged_backward(judge, rows, tensors, lambda _: swapped).ok
    assert not judge.verdict(lse=lse + 1e-3).ok


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_gradients_are_judged_by_the_out_that_was_read(dtype: str):
    """A backward from an out that is off gives what follows from it, and nothing else."""
    case, tensors, dense = numpy_case(dtype)
    rows = np.arange(case.n_q)
    judge = make_judge(case, tensors, rows, lambda b, h: dense, True)
    q, k, v, dout = (host(x).astype(np.float64) for x in (*tensors.qkv, tensors.dout))
    read = attention(q, k, v, dense)[0] * 1.03
    grads = gradients(q, k, v, dense, dout)
    s = np.where(dense, np.einsum("bhqd,bhkd->bhqk", q, k.repeat(2, 1)) * case.scale, -1e9)
    p = dense * np.exp(s - np.logaddexp.reduce(s, -1, keepdims=True))
    dp = np.einsum("bhqd,bhkd->bhqk", dout, v.repeat(2, 1))
    ds = p * (dp - (dout * read).sum(-1, keepdims=True))
    dq = np.einsum("bhqk,bhkd->bhqd", ds, k.repeat(2, 1)) * case.scale
    dk = np.einsum("bhqk,bhqd->bhkd", ds, q).reshape(2, 2, 2, -1, 8).sum(2) * case.scale
    found = (dq, dk, grads["dv"])
    assert judged_backward(judge, rows, tensors, lambda _: found, read).ok
    for wrong in ((grads["dq"], dk, grads["dv"]), (dq, grads["dk"], grads["dv"])):
        assert not judged_backward(judge, rows, tensors, lambda _, x=wrong: x, read).ok
    assert not judged_backward(judge, rows, tensors, lambda _: found).ok


def test_nan_never_passes():
    case, tensors, dense = numpy_case()
    judge = make_judge(case, tensors, np.arange(37), lambda b, h: dense, False)
    out = judge.expected.out.copy()
    out[0, 0, 4, 2] = np.nan
    found = judge.verdict(out=out)
    assert not found.ok
    assert np.isnan(found.error)


def test_halves_are_allowed_twice_the_stepwise_error():
    expected = Results(np.ones((1, 1, 2, 4)))
    judge = Judge(expected, Results(np.full((1, 1, 2, 4), 1.004)))
    assert judge.allowed == {"lse": SINGLE, "out": pytest.approx(0.008)}
    assert judge.verdict(out=np.full((1, 1, 2, 4), 1.007)).ok
    assert not judge.verdict(out=np.full((1, 1, 2, 4), 1.009)).ok


# ------------------------------------------------------------------ cases


@pytest.mark.parametrize(
    ("mask", "n_kv", "form"),
    [
        (mc.full(), 9, ("full", None, None)),
        (mc.causal() | ~mc.causal(), 8, ("full", None, None)),
        (mc.window(None), 8, ("causal", None, None)),
        (mc.causal(), 9, ("other", None, None)),
        (mc.window(4, 1), 8, ("window", 4, 1)),
        (mc.window(mc.param("w", 4)), 8, ("other", None, None)),
        (mc.documents("doc"), 8, ("other", None, None)),
    ],
    ids=str,
)
def test_forms_that_libraries_know(mask: mc.Mask, n_kv: int, form: tuple):
    case = Case("c", mask, 1, 1, 1, 8, n_kv, 8, DType.float32)
    found = form_of(case)
    assert (found.name, found.left, found.right) == form


def test_flops_count_two_products_forward_and_five_backward():
    case = Case("c", mc.full(), 1, 4, 4, 8, 8, 16, DType.float32)
    assert case.flops(100, "fwd") == 6400
    assert case.flops(100, "bwd") == 16000


def test_heads_must_divide():
    with pytest.raises(HeadsDoNotDivide):
        Case("c", mc.full(), 1, 4, 3, 8, 8, 16, DType.float32)


@pytest.mark.parametrize("sizes", [(0, 1, 8, 8), (1, 0, 8, 8), (1, 1, 0, 8), (1, 1, 8, 0)])
def test_nothing_is_not_timed(sizes: tuple[int, int, int, int]):
    batch, heads, n_q, n_kv = sizes
    with pytest.raises(UsageMistake, match="= 0: there is nothing to compute"):
        Case("c", mc.full(), batch, heads, 1, n_q, n_kv, 16, DType.float32)
