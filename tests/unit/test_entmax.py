"""Entmax in the CPU kernels: against the reference, and what must not change a bit."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from maskc.core.dtypes import DType
from maskc.core.library import standing_alone
from maskc.emit import environment
from tests.support import cpu_harness
from tests.support.cpu_harness import TEMPLATE, Call
from tests.support.cpu_oracle import BF16, F16, F32, kernels, many
from tests.support.entmax_oracle import Problem
from tests.support.thorough import each

ALPHAS = (1.00001, 1.25, 1.5, 1.75, 2.0)
SLOPES = np.array([0.0, 0.02, 0.1, 0.5], dtype=np.float32)


def passes(call: Call, seed: int = 3) -> dict[str, np.ndarray]:
    """out, lse and all gradients."""
    out, lse = call.forward()
    dout = np.random.default_rng(seed).standard_normal(out.shape).astype(out.dtype)
    return {"out": out, "lse": lse, "dout": dout, **call.backward(out, lse, dout)}


def check(call: Call, seen: np.ndarray) -> None:
    results = passes(call)
    out, lse, dout = (results.pop(name) for name in ("out", "lse", "dout"))
    options = {"scale": call.scale, "softcap": call.softcap, "alibi_slopes": call.alibi}
    problem = Problem(call.q, call.k, call.v, seen, dout, call.alpha, options)
    problem.check_forward(out, lse)
    problem.check_backward(results)


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return all(left[name].tobytes() == right[name].tobytes() for name in left)


# ------------------------------------------------------------------ right numbers


@pytest.mark.parametrize(("alpha", "dtype"), each(ALPHAS, [F32, BF16, F16]))
def test_alphas_and_types(dtype: DType, alpha: float) -> None:
    check(*many(kernels(dtype), (130, 150), batch=1, alpha=alpha))


LENGTHS = [(64, 64), (65, 63), (1, 130), (130, 1), (1, 1), (0, 64), (64, 0), (70, 200)]


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("alpha", [1.5, 2.0])
def test_lengths(alpha: float, lengths: tuple[int, int]) -> None:
    check(*many(kernels(), lengths, batch=1, alpha=alpha))


@pytest.mark.parametrize("dims", [(17, 72), (80, 16)], ids=str)
@pytest.mark.parametrize("heads", [(4, 1), (4, 4)], ids=str)
def test_head_dimensions_groups_and_strides(heads: tuple[int, int], dims: tuple[int, int]) -> None:
    source = kernels(F32, *dims)
    check(*many(source, (70, 100), heads=heads, layout="bshd", alpha=1.5))


@pytest.mark.parametrize("alpha", [1.25, 1.5])
def test_softcap_alibi_and_scale(alpha: float) -> None:
    options = {"softcap": 5.0, "alibi": SLOPES, "scale": 0.3, "alpha": alpha}
    check(*many(kernels(), (130, 70), **options))


FLAGS = {
    "sse2": (),
    "avx2": ("-mavx2", "-mfma"),
    "no-openmp": ("-fno-openmp", "-Wno-unknown-pragmas"),
}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS)
def test_other_machines(flags: tuple[str, ...]) -> None:
    check(*many(kernels(), (65, 130), flags=flags, alpha=1.4))


def test_equal_scores_share_evenly() -> None:
    """Rows of one value: every seen key weighs the same, whatever alpha."""
    for alpha in ALPHAS:
        call, seen = many(kernels(), (130, 130), batch=1, alpha=alpha)
        call.q[...] = 0
        out, lse = call.forward()
        counts = seen.sum(-1)
        rows = counts[0] > 0
        means = (seen @ call.v.repeat(2, 1).astype(np.float64))[0][rows] / counts[0][rows, None]
        np.testing.assert_allclose(out[0][rows], means, atol=1e-5)
        a = alpha - 1
        want = (1 - counts[0][rows] ** -a) / a
        np.testing.assert_allclose(lse[0][rows], want, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------ same bits


@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_threads_batch_and_neighbours_do_not_change_bits(alpha: float) -> None:
    call, _ = many(kernels(), (300, 300), batch=2, alpha=alpha, threads=1, alibi=SLOPES)
    alone = passes(call)
    for threads in (2, 3, 8):
        call.threads = threads
        assert same(alone, passes(call))
    one, _ = many(kernels(), (300, 300), batch=2, alpha=alpha, alibi=SLOPES)
    one.q, one.k, one.v = (x[1:].copy() for x in (one.q, one.k, one.v))
    one.block = one._block()
    out, lse = one.forward()
    assert out.tobytes() == alone["out"][1:].tobytes()
    assert lse.tobytes() == alone["lse"][1:].tobytes()
    shifted = one.q.copy()
    one.q[:, :, ::2] = 9.0  # every other query becomes another one
    out_2, lse_2 = one.forward()
    assert (shifted[:, :, 1::2] == one.q[:, :, 1::2]).all()
    assert out_2[:, :, 1::2].tobytes() == out[:, :, 1::2].tobytes()
    assert lse_2[:, :, 1::2].tobytes() == lse[:, :, 1::2].tobytes()


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_rows_longer_than_what_is_kept_give_the_same_bits(monkeypatch, kept: int) -> None:
    """Scores beyond the kept tiles are computed again, also where there is no memory at all."""
    usual, _ = many(kernels(F16), (70, 500), batch=1, alpha=1.5)
    results = passes(usual)

    def fewer(template: str, spec: object) -> str:
        text = standing_alone(environment.render(template, spec))
        assert text.count("KEPT_TILES = 2048") == 1
        return text.replace("KEPT_TILES = 2048", f"KEPT_TILES = {kept}")

    monkeypatch.setattr(cpu_harness, "render", fewer)
    monkeypatch.setattr(cpu_harness, "build", cpu_harness.build.__wrapped__)
    again, _ = many(kernels(F16), (70, 500), batch=1, alpha=1.5)
    assert same(results, passes(again))


# ------------------------------------------------------------------ what does not matter


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_poison_reaches_only_who_sees_it(name: str, value: float) -> None:
    clean, seen = many(kernels(), (130, 130), batch=1, alpha=1.5)
    before, _ = clean.forward()
    poisoned, _ = many(kernels(), (130, 130), batch=1, alpha=1.5)
    getattr(poisoned, name)[0, 1, 70, 5] = value
    after, lse = poisoned.forward()
    may = np.zeros(before.shape[:3], dtype=bool)
    if name == "q":
        may[0, 1, 70] = True
    else:
        may[0, 2:] = seen[0, 2:, :, 70]
    same_rows = (before == after).all(-1)
    assert same_rows[~may].all()
    if np.isnan(value) and name != "v":
        assert np.isnan(after[may]).all()
        assert np.isnan(lse[may]).all()
    if name == "v":  # those who give it a weight, no others
        hit = ~np.isfinite(after[..., 5])
        assert hit.any()
        assert (may & ~hit).any()
        np.testing.assert_array_equal(before[~hit], after[~hit])


def test_poison_in_the_backward_pass() -> None:
    """A value of weight 0 touches no gradient; a NaN in dout only what its query sees."""
    call, _ = many(kernels(), (130, 130), batch=1, heads=(4, 4), alpha=2.0)
    results = passes(call)
    out, lse, dout = (results.pop(name) for name in ("out", "lse", "dout"))
    idle = ~results["dv"].any(-1)
    assert idle.any()
    call.v[idle] = np.nan
    again = call.backward(out, lse, dout)
    assert same(results, again)
    dout[0, 1, 70] = np.nan
    again = call.backward(out, lse, dout)
    rows = np.isnan(again["dq"]).any(-1)
    assert rows[0, 1, 70]
    assert rows.sum() == 1


def test_rows_without_keys() -> None:
    call, seen = many(kernels(), (130, 100), batch=1, head_variant=(4, 4, 4, 4), alpha=1.5)
    results = passes(call)
    empty = ~seen[0].any(-1)
    assert empty.any()
    assert not results["out"][0][empty].any()
    assert np.isneginf(results["lse"][0][empty]).all()
    assert not results["dq"][0][empty].any()


def test_the_source_is_tidy() -> None:
    lines = standing_alone(environment.render(TEMPLATE, kernels())).splitlines()
    assert max(map(len, lines)) <= 100
    assert not any(a == b == "" for a, b in pairwise(lines))
