"""Dropout: which weights stay, by an independent definition, and the CPU's kernels."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.errors import DropoutRate, DropoutSeed
from maskc.core.problem import Direction
from maskc.reference.attention import gradients
from maskc.reference.dropout import PARTS, dropped, factors, numbers, philox
from tests.support.ledger import build
from tests.support.scores import FORMULAS, close, judged_passes
from tests.support.thorough import alternating

CAUSAL = mc.causal()
DROPS = {"dropout_p": 0.3, "dropout_seed": 7}


def tensors(n_q, n_kv, heads=4, kv_heads=2, batch=2, dim=16, seed=0):
    rng = np.random.default_rng(seed)
    q, dout = (rng.normal(size=(batch, heads, n_q, dim)).astype(np.float32) for _ in range(2))
    k, v = (rng.normal(size=(batch, kv_heads, n_kv, dim)).astype(np.float32) for _ in range(2))
    return q, k, v, dout


def both_passes(mask=CAUSAL, n_q=150, n_kv=150, p=0.3, seed=7, score=None, data=None, **options):
    """Both passes in fp32 on the CPU against the reference in fp64 with the same factors."""
    attn = mask.compile(16, dtype="float32", target="cpu", score=score)
    out, _ = judged_passes(
        attn, tensors(n_q, n_kv), mask.dense(n_q, n_kv, n_heads=4), score=score, data=data,
        call={"dropout_p": p, "dropout_seed": seed}, dropout=factors(p, seed, 2, 4, n_q, n_kv),
        **options,
    )  # fmt: skip
    return out


# ------------------------------------------------------------------ the definition


def test_philox_has_the_published_answers():
    """Known answers of Random123 (kat_vectors)."""
    for counter, key, right in (
        ([0] * 4, 0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, (1 << 64) - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        ([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], 0x299F31D0A4093822,
         [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]),
    ):  # fmt: skip
        assert philox(np.array(counter, np.uint32), key).tolist() == right


def test_pairs_have_bits_of_their_own():
    """No two pairs of a batch share counter and half word."""
    b, h, q, k = np.ogrid[:2, :3, :48, :40]
    counter = (q // 16 * 8 + q % 8) * 4096 + k // 16 * 4 + k % 8 // 2
    part = (2 * (k % 2) + q // 8 % 2) * 2 + k // 8 % 2
    place = ((b * 3 + h) * (1 << 24) + counter) * 8 + part
    assert len(np.unique(place)) == 2 * 3 * 48 * 40


def test_lengths_do_not_matter():
    """A pair's number depends on its place alone, whatever the lengths and the other heads."""
    large, small = numbers(5, 2, 4, 90, 70), numbers(5, 1, 2, 33, 17)
    assert (large[:1, :2, :33, :17] == small).all()


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_share_that_is_dropped(p):
    """Within five standard deviations of a binomial, of all pairs, of every head and every row."""
    found = numbers(11, 2, 4, 256, 512) < dropped(p)
    for axes in ((0, 1, 2, 3), (2, 3), (3,), (2,)):
        share = found.mean(axis=axes)
        size = np.prod([found.shape[axis] for axis in axes])
        assert np.abs(share - p).max() < 6 * np.sqrt(p * (1 - p) / size)


def test_heads_rows_keys_and_seeds_are_independent():
    """Correlations of neighbours at every distance that a counter or a word could repeat."""
    kept = np.stack([numbers(seed, 2, 3, 128, 256) < PARTS // 2 for seed in (1, 2, 1 << 32)])
    signs = 2.0 * kept - 1
    for axis in range(5):
        for step in (1, 2, 7, 8, 9, 15, 16, 17, 32, 64):
            if step >= signs.shape[axis]:
                continue
            one = np.take(signs, range(step, signs.shape[axis]), axis)
            two = np.take(signs, range(signs.shape[axis] - step), axis)
            assert abs((one * two).mean()) < 5 / np.sqrt(one.size), (axis, step)


def test_numbers_are_uniform():
    """Chi squared of the upper and the lower bytes, 255 degrees of freedom."""
    found = numbers(3, 1, 1, 512, 512).ravel()
    for byte in (found >> 8, found & 255):
        counts = np.bincount(byte, minlength=256)
        mean = found.size / 256
        assert abs(((counts - mean) ** 2 / mean).sum() - 255) < 5 * np.sqrt(2 * 255)


# ------------------------------------------------------------------ kernels


@pytest.mark.parametrize(("mask", "lengths"), alternating(
    [mc.full(), CAUSAL, mc.window(40) | mc.sinks(3), mc.dilated(40, stride=3)],
    [(150, 150), (33, 200), (1, 70), (70, 33)],
))  # fmt: skip
def test_both_passes(mask, lengths):
    both_passes(mask, *lengths)


def test_with_everything_else():
    slopes, sinks = (np.linspace(0.1, 1, 4).astype(np.float32) for _ in range(2))
    both_passes(alibi_slopes=slopes, sink_logits=sinks, softcap=5.0)
    both_passes(normalizer="entmax")
    both_passes(mc.per_head([mc.window(9), CAUSAL, mc.full(), mc.window(50)]))
    for name in ("relative table", "gate"):
        score, data = FORMULAS[name](150, 150, 4, 2)
        both_passes(score=score, data=data)


def test_parts_of_a_mask_run_whole():
    """Kernels of a part see other coordinates; bits belong to the user's."""
    both_passes(mc.window(20) | mc.dilated(20, stride=2) | mc.dilated(20, stride=4), 160, 160)


def test_values_show_the_bits_of_the_definition():
    """With uniform weights and one-hot values a row of out is its factors."""
    n = 96
    zeros, eye = np.zeros((1, 2, n, n), np.float32), np.eye(n, dtype=np.float32)
    attn = mc.full().compile(n, dtype="float32", target="cpu")
    for seed in (0, -1, 12345678901234567890, np.int64(3)):
        values = np.ascontiguousarray(np.broadcast_to(eye, (1, 2, n, n)))
        out = attn(zeros, zeros, values, dropout_p=0.25, dropout_seed=seed)
        np.testing.assert_allclose(n * out, factors(0.25, int(seed), 1, 2, n, n), rtol=1e-5)


def test_the_mean_over_seeds_is_attention():
    q, k, v, _ = tensors(24, 24, batch=1)
    attn = CAUSAL.compile(16, dtype="float32", target="cpu")
    right, spread = attn(q, k, v), []
    for seed in range(400):
        spread.append(attn(q, k, v, dropout_p=0.5, dropout_seed=seed))
    mean, deviation = np.mean(spread, axis=0), np.std(spread, axis=0)
    assert (np.abs(mean - right) < 6 * deviation / 20 + 1e-6).all()


def test_rates_at_the_ends():
    q, k, v, dout = tensors(70, 70)
    attn = CAUSAL.compile(16, dtype="float32", target="cpu")
    plain, lse = attn(q, k, v, return_lse=True)
    assert (attn(q, k, v, dropout_p=0) == plain).all()
    assert (attn(q, k, v, dropout_p=1e-9, dropout_seed=1) == plain).all()
    out, same = attn(q, k, v, dropout_p=1, dropout_seed=1, return_lse=True)
    assert not out.any()
    np.testing.assert_allclose(same, lse, rtol=1e-6)
    for gradient in attn.backward(q, k, v, out, lse, dout, dropout_p=1.0, dropout_seed=1):
        assert not gradient.any()


def test_half_precision():
    """bf16 sums over pairs to find delta, which sees dropout, too."""
    torch = pytest.importorskip("torch")
    q, k, v, dout = (torch.from_numpy(x).bfloat16() for x in tensors(70, 70))
    attn = CAUSAL.compile(16, dtype="bfloat16", target="cpu")
    out, lse = attn(q, k, v, return_lse=True, **DROPS)
    results = attn.backward(q, k, v, out, lse, dout, **DROPS)
    exact = gradients(
        *(x.float().numpy() for x in (q, k, v)), CAUSAL.dense(70), dout.float().numpy(),
        dropout=factors(0.3, 7, 2, 4, 70, 70),
    )  # fmt: skip
    for name, gradient in zip(("dq", "dk", "dv"), results, strict=True):
        close(gradient.float().numpy(), exact[name], name, 0.01)


def test_one_kernel_for_all_rates_and_seeds(monkeypatch):
    q, k, v, _ = tensors(40, 40)
    attn = CAUSAL.compile(16, dtype="float32", target="cpu")
    attn(q, k, v, **DROPS)
    built = attn.dropping
    for p, seed in ((0.1, 1), (0.9, 2), (0.5, -3)):
        attn(q, k, v, dropout_p=p, dropout_seed=seed)
    assert attn.dropping is built
    assert len(built.reports) == 1
    attn.warmup(["dropout", "sinks"])
    assert len(built.reports) == 2


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize("p", [-0.1, 1.5, float("nan"), "half", True])
def test_rates(p):
    q, k, v, _ = tensors(8, 8)
    attn = CAUSAL.compile(16, dtype="float32", target="cpu")
    with pytest.raises(DropoutRate, match="MC430"):
        attn(q, k, v, dropout_p=p, dropout_seed=1)


@pytest.mark.parametrize(
    "seed", [None, 1.5, "x", True, 1 << 64, np.zeros(2, np.int64), np.zeros(1, np.int32)], ids=repr
)
def test_seeds(seed):
    q, k, v, _ = tensors(8, 8)
    attn = CAUSAL.compile(16, dtype="float32", target="cpu")
    with pytest.raises(DropoutSeed, match="MC431"):
        attn(q, k, v, dropout_p=0.5, dropout_seed=seed)


def test_a_backward_pass_names_the_seed():
    q, k, v, dout = tensors(8, 8)
    attn = CAUSAL.compile(16, dtype="float32", target="cpu")
    out, lse = attn(q, k, v, return_lse=True, **DROPS)
    with pytest.raises(DropoutSeed, match="MC431"):
        attn.backward(q, k, v, out, lse, dout, dropout_p=0.3)


# ------------------------------------------------------------------ sources


def units_of(target, dropout, dim):
    dtype = "float32" if target == "cpu" else "bfloat16"
    made = driver.compile(mc.causal(), head_dim=dim, dtype=dtype, target=target, dropout=dropout)
    return {unit.key: unit for unit in made.bundle.units}


@pytest.mark.parametrize("key", ["sm_90a", "sm_90a_small", "sm_90a_backward"])
def test_hopper_spills_nothing(key):
    unit = units_of("sm_90a", True, 128)[key]
    binary = build(unit, frozenset(), unit.directions)
    assert not binary.report.log, "products side by side"
    assert all(kernel.spill_stores == 0 for kernel in binary.report.kernels)
    backward = Direction.backward in unit.directions
    assert binary.count("HGMMA", f"attention_{'backward' if backward else 'forward'}")


@pytest.mark.parametrize("target", ["cpu", "simt", "sm_80", "sm_90a"])
def test_others_have_no_trace(target):
    with_it, without = (
        [unit.source for unit in units_of(target, dropout, 64).values()]
        for dropout in (True, False)
    )
    assert all("dropout_scale" in text for text in with_it)
    parts = ("philox", "dropout_scale", "dropout_seed", "dropout_least")
    assert not any(part in text.lower() for text in without for part in parts)
    assert any("philox" in text.lower() for text in with_it)
