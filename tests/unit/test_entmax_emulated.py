"""Entmax on Hopper, both passes, and on sm_80, forward, in the emulator: against fp64, in memory
full of NaN."""

from __future__ import annotations

from itertools import product

import pytest
import torch

import maskc as mc
from maskc.core.errors import TargetNotBuilt
from maskc.testing.emulator import machine
from tests.support.exact_attention import GRADIENTS, called, live_pairs, tensors
from tests.support.exact_entmax import check, check_mask, weights
from tests.support.hopper import nan_memory
from tests.support.thorough import alternating, chiefly, each, more, pairwise

CAUSAL = mc.causal()
MASKS = {
    "full": mc.full(),
    "window": CAUSAL & mc.window(100),
    "sinks and window": CAUSAL & (mc.sinks(5) | mc.window(60)),
    "empty rows": CAUSAL - mc.prefix(140),
    "empty tiles": mc.block_diagonal(64) - mc.prefix(64),
    "long rows": (CAUSAL & mc.window(9)) | mc.global_tokens([200]),
    "dilated": mc.dilated(40, stride=5),
    "per head": mc.per_head([CAUSAL, mc.window(9), mc.full(), CAUSAL]),
}
HALF = torch.float16
SMALL = {"heads": (2, 1), "batch": 1}
TARGETS = ["sm_80", "sm_90a"]


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    with nan_memory():
        yield machine.install(monkeypatch)


@pytest.mark.parametrize(
    ("name", "target"),
    alternating(
        chiefly(list(MASKS), "sinks and window", "empty rows", "long rows", "per head"), TARGETS
    ),
)
def test_masks(name, target):
    check_mask(MASKS[name], 270, 270, batch=1, target=target)


@pytest.mark.parametrize(
    ("lengths", "target"),
    alternating([(1, 1), (1, 200), more((64, 64)), (193, 129), more((130, 260))], TARGETS),
    ids=str,
)
def test_lengths(lengths, target):
    check_mask(mc.full(), *lengths, target=target, **SMALL)
    check_mask(CAUSAL, *lengths, target=target, **SMALL)


@pytest.mark.parametrize(
    ("alpha", "spread", "target"),
    [*each([1.0001, 1.25, 1.5, 1.75, 2.0], [0.0, 1.0, 4.0], TARGETS),
     *(more(*x) for x in product([1.001, 1.05], [0.0, 1.0, 4.0], TARGETS))],
)  # fmt: skip
def test_alphas(alpha, spread, target):
    """Scores that are alike, so that all keys have a weight, and scores far apart."""
    made = {"dtype": HALF, "target": target, **SMALL}
    check_mask(CAUSAL, 150, 150, alpha=alpha, spread=spread, **made)


@pytest.mark.parametrize(
    ("dim", "deterministic"), alternating([96, more(128), more(192), 256], [False, True])
)
def test_head_dimensions(dim, deterministic):
    check_mask(CAUSAL, 150, 200, dim, dtype=HALF, deterministic=deterministic, **SMALL)


@pytest.mark.parametrize("dim", [32, more(96), more(128), more(192), 256])
def test_head_dimensions_of_sm_80(dim):
    check_mask(CAUSAL, 150, 200, dim, dtype=HALF, target="sm_80", **SMALL)


@pytest.mark.parametrize(
    ("dim", "target"), pairwise([64, 128, 256], TARGETS, tried=[(64, "sm_80"), (64, "sm_90a")])
)
def test_options(dim, target):
    slopes, made = torch.rand(2), {"target": target, **SMALL}
    check_mask(CAUSAL, 140, 140, dim, scale=-0.2, **made)
    check_mask(CAUSAL, 140, 140, dim, softcap=3.0, **made)
    check_mask(CAUSAL, 140, 140, dim, alibi_slopes=slopes, **made)
    check_mask(CAUSAL, 140, 140, dim, softcap=3.0, alibi_slopes=slopes, alpha=1.25, **made)


@pytest.mark.parametrize(
    ("alpha", "spread"), [(1.5, 1), (2.0, 1), (1.5, 0.4), more(1.25, 2), more(1.75, 6)]
)
def test_lists_of_long_rows(driver, alpha, spread):
    """Some are shortened on the way, some given up; tau is a * lse - 1."""
    mask, n, a = CAUSAL & mc.window(800), 1000, alpha - 1
    q, k, v, _ = tensors(n, n, 64, torch.bfloat16, batch=1, heads=1, kv_heads=1)
    q = q * spread
    attn = mask.compile(head_dim=64, target="sm_90a")
    out, lse = attn(q, k, v, return_lse=True, normalizer="entmax", alpha=alpha)
    scores = (q.double() @ k.double().mT / 8).masked_fill(~live_pairs(mask, n, n), -torch.inf)
    p, _, wanted = weights(scores, alpha)
    error = a * (lse.double() - wanted).abs() / (a * wanted - 1).abs().clamp(min=1)
    assert error.max() <= 1e-6
    assert (out.double() - p @ v.double()).abs().max() <= 2**-8 * out.abs().max()


@pytest.mark.parametrize(
    ("dim", "alpha"), pairwise([64, 96, 128, 256], [1.5, 1.6, 2.0], tried=[(96, 1.6)])
)
def test_values_without_weight_are_not_read(dim, alpha):
    """Where rows have few keys with a weight; tensors lie one token after another."""
    n, a = 500, alpha - 1
    made = tensors(n, n, dim, HALF, batch=2, heads=4, kv_heads=2)[:3]
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in made)
    q *= 5
    q[..., 0], k[..., 0] = dim**0.5, 1.0
    k[:, :, 100:300:3, 0] = -40.0
    v[:, :, 100:300:3] = torch.nan
    attn = (CAUSAL & mc.window(400)).compile(head_dim=dim, n_heads=4, dtype=HALF, target="sm_90a")
    out, lse = attn(q, k, v, return_lse=True, normalizer="entmax", alpha=alpha)
    keys, values = (x.double().repeat_interleave(2, 1) for x in (k, v.nan_to_num()))
    live = live_pairs(CAUSAL & mc.window(400), n, n, heads=4)
    scores = (q.double() @ keys.mT / dim**0.5).masked_fill(~live, -torch.inf)
    p, _, wanted = weights(scores, alpha)
    assert not p[..., 100:300:3].any()
    error = a * (lse.double() - wanted).abs() / (a * wanted - 1).abs().clamp(min=1)
    assert error.max() <= 1e-6
    assert (out.double() - p @ values).abs().max() <= 2**-11 * values.abs().max()


@pytest.mark.parametrize("dim", [64, more(128)])
def test_blocks_take_rows_of_all_kinds_in_turn(driver, dim):
    """By keys, by tiles, by values alone, with lists that are given up; fewer blocks than rows."""
    mask = (CAUSAL - mc.prefix(40)) & mc.window(500)
    q, *rest = tensors(700, 700, dim, torch.bfloat16, batch=1, heads=4, kv_heads=2)
    q *= torch.tensor([4.0, 0.05, 1.0, 0.4])[:, None, None]
    attn = mask.compile(head_dim=dim, n_heads=4, target="sm_90a")
    check(attn, (q, *rest), live_pairs(mask, 700, 700, heads=4), 1.5)
    blocks = dict(driver.launches)["attention_forward"]
    assert blocks < 4 * (700 // 192)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["k", "q"])
def test_a_score_that_is_no_number_is_not_lost_among_the_lists(name, target):
    """Wherever it is met: in the tile that gives a row its level, or in a later one."""
    attn = mc.full().compile(head_dim=64, target=target)
    for at in (3, 300):
        q, k, v, _ = tensors(400, 400, 64, torch.bfloat16, batch=1, heads=1, kv_heads=1)
        {"q": q, "k": k}[name][0, 0, at] = torch.nan
        out, lse = attn(q, k, v, return_lse=True, normalizer="entmax")
        hit = slice(None) if name == "k" else slice(at, at + 1)
        assert out[0, 0, hit].isnan().all()
        assert lse[0, 0, hit].isnan().all()
        assert lse.isnan().sum() == (400 if name == "k" else 1)


@pytest.mark.parametrize("target", TARGETS)
def test_data(target):
    ids = torch.tensor([0] * 70 + [1] * 90 + [2] * 40).numpy()
    check_mask(CAUSAL & mc.documents("doc"), 200, 200, data={"doc": ids}, target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_not_with_masked_values_that_are_no_numbers(target):
    attn = CAUSAL.compile(head_dim=64, target=target)
    q, k, v, _ = tensors(70, 70, 64, torch.bfloat16, batch=1, heads=1, kv_heads=1)
    with pytest.raises(TargetNotBuilt, match="has no nan_safe forward kernels"):
        attn(q, k, v, normalizer="entmax", nan_safe=True)


def test_the_same_bits_in_deterministic_mode(driver):
    """Threads and blocks run in another order every time."""
    attn = (CAUSAL & mc.window(150)).compile(head_dim=64, n_heads=4, target="sm_90a")
    given = tensors(300, 300, 64, torch.bfloat16)
    once, again = (
        called(attn, *given, deterministic=True, normalizer="entmax") for _ in range(2)
    )  # fmt: skip
    assert all(torch.equal(once[name], again[name]) for name in once)
    assert "attention_backward_mean" in dict(driver.launches)


@pytest.mark.parametrize("name", ["k", more("v")])
def test_a_poisoned_key_does_not_leave_its_tiles(name):
    """Rows and keys of other tiles keep their bits."""
    attn = CAUSAL.compile(head_dim=64, n_heads=4, target="sm_90a")
    given = tensors(300, 300, 64, torch.bfloat16)
    before = called(attn, *given, deterministic=True, normalizer="entmax")
    given["qkv".index(name)][0, 1, 290] = torch.nan
    after = called(attn, *given, deterministic=True, normalizer="entmax")
    blind = torch.ones(2, 4, 300, dtype=torch.bool)
    blind[0, 2:, 128:] = False
    assert torch.equal(before["out"][blind], after["out"][blind])
    assert torch.equal(before["dq"][blind], after["dq"][blind])
    assert after["dq"][0, 2:, 290:].isnan().all()
    assert all(after[gradient][1].isfinite().all() for gradient in GRADIENTS)
