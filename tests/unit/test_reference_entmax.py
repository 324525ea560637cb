"""The entmax of the oracle: against sorting algorithms, softmax and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from maskc.reference.attention import attention, gradients
from maskc.reference.entmax import entmax
from tests.support.entmax_oracle import entmax15, sparsemax
from tests.support.thorough import alternating

ALPHAS = (1.001, 1.25, 1.5, 1.75, 2.0)


def scores(n: int, spread: float, seed: int = 0) -> np.ndarray:
    return spread * np.random.default_rng(seed).standard_normal(n)


@pytest.mark.parametrize("spread", [0.0, 0.01, 1.0, 30.0])
@pytest.mark.parametrize("n", [1, 2, 7, 300])
@pytest.mark.parametrize("alpha", ALPHAS)
def test_weights_sum_to_one_and_follow_from_lse(alpha: float, n: int, spread: float) -> None:
    s = scores(n, spread)
    weights, slopes, lse = entmax(s, alpha)
    assert abs(weights.sum() - 1) < 1e-10
    assert (weights >= 0).all()
    np.testing.assert_allclose(slopes, np.where(weights > 0, weights ** (2 - alpha), 0), atol=1e-9)
    tau = (alpha - 1) * lse - 1
    power = np.maximum(0, (alpha - 1) * s - tau) ** (1 / (alpha - 1))
    np.testing.assert_allclose(weights, power, atol=1e-9)


@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("n", [1, 2, 30, 400])
def test_closed_forms(n: int, spread: float) -> None:
    s = scores(n, spread)
    np.testing.assert_allclose(entmax(s, 2.0)[0], sparsemax(s), atol=1e-12)
    np.testing.assert_allclose(entmax(s, 1.5)[0], entmax15(s), atol=1e-12)


def test_sparsemax_is_the_nearest_point_of_the_simplex() -> None:
    s, rng = scores(6, 1.0), np.random.default_rng(1)
    nearest = entmax(s, 2.0)[0]
    others = rng.dirichlet(np.ones(6), 1000)
    assert (((others - s) ** 2).sum(1) >= ((nearest - s) ** 2).sum()).all()


def test_softmax_is_the_limit() -> None:
    s = scores(50, 2.0)
    weights, _, lse = entmax(s, 1 + 1e-7)
    powers = np.exp(s)
    np.testing.assert_allclose(weights, powers / powers.sum(), rtol=1e-5)
    assert abs(lse - np.log(powers.sum())) < 1e-5


@pytest.mark.parametrize("alpha", ALPHAS)
def test_nothing_and_not_a_number(alpha: float) -> None:
    for nothing in (np.zeros(0), np.full(3, -np.inf)):
        weights, slopes, lse = entmax(nothing, alpha)
        assert not weights.any()
        assert not slopes.any()
        assert lse == -np.inf
    assert entmax(np.array([-np.inf, 0.0, -np.inf]), alpha)[0].tolist() == [0, 1, 0]
    assert np.isnan(entmax(np.array([0.0, np.nan]), alpha)[0]).all()


# ------------------------------------------------------------------ attention

OPTIONS = {"softcap": 1.5, "alibi_slopes": np.array([0.5, 0.25, 0.1, 0.0])}


def tensors(seed: int = 0) -> tuple[np.ndarray, ...]:
    """q [1, 4, 5, 3], k and v [1, 2, 6, 3], mask [4, 5, 6] with an empty row, dout."""
    rng = np.random.default_rng(seed)
    q, dout = rng.standard_normal((2, 1, 4, 5, 3))
    k, v = rng.standard_normal((2, 1, 2, 6, 3))
    mask = rng.random((4, 5, 6)) < 0.7
    mask[0, 1] = False
    return q, k, v, mask, dout


@pytest.mark.parametrize(
    ("name", "alpha"), alternating(["plain", "options"], [1.0, 1.2, 1.5, 1.8, 2.0])
)
def test_gradients_are_finite_differences(name: str, alpha: float) -> None:
    *given, mask, dout = tensors()
    options = {"scale": 1.0, "alpha": alpha, **(OPTIONS if name == "options" else {})}
    results = gradients(*given, mask, dout, **options)
    slopes = options.get("alibi_slopes")
    for key, x in [*zip(("dq", "dk", "dv"), given, strict=True), ("dalibi", slopes)]:
        if x is None:
            continue
        wanted, step = np.zeros(x.shape), 1e-6
        for at in np.ndindex(x.shape):
            ends, kept = [], x[at]
            for sign in (1, -1):
                x[at] = kept + sign * step
                ends.append((attention(*given, mask, **options)[0] * dout).sum())
            x[at] = kept
            wanted[at] = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(results[key], wanted, atol=2e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_what_has_no_weight_does_not_matter(alpha: float) -> None:
    """Unseen keys, values below the threshold, and rows without a key."""
    q, k, v, mask, dout = tensors()
    out, lse = attention(q, k, v, mask, scale=6.0, alpha=alpha)
    assert not out[0, 0, 1].any()
    assert lse[0, 0, 1] == -np.inf
    assert np.isfinite(lse).sum() == 19
    mask[:, :, 5] = False
    before = attention(q, k, v, mask, scale=6.0, alpha=alpha)[0]
    grads = gradients(q, k, v, mask, dout, scale=6.0, alpha=alpha)
    assert not grads["dk"][:, :, 5].any()
    assert not grads["dv"][:, :, 5].any()
    k[:, :, 5] = v[:, :, 5] = np.nan
    np.testing.assert_array_equal(attention(q, k, v, mask, scale=6.0, alpha=alpha)[0], before)
    np.testing.assert_array_equal(
        gradients(q, k, v, mask, dout, scale=6.0, alpha=alpha)["dq"], grads["dq"]
    )
