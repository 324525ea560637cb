"""Attention in E4M3 on an emulated Hopper: against fp64, with the bound of support/fp8.py."""

from __future__ import annotations

import pickle

import pytest
import torch

import maskc as mc
from maskc.core import errors
from maskc.core.problem import Direction
from maskc.dispatch.selector import tuning_key
from tests.support import cases
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.fp8 import check, exact, tensors
from tests.support.thorough import alternating, chiefly

E4M3 = "float8_e4m3fn"
CAUSAL = mc.causal()
MASKS = cases.masks(cases.FP8, cases.EMULATOR)
BLIND = MASKS["blind"]


def live_of(mask, n_q, n_kv, **data):
    return torch.tensor(mask.dense(n_q, n_kv, **data))


@pytest.mark.parametrize(
    "name", chiefly(list(MASKS), "blind", "pairs", "dilated", "heads", "documents")
)
def test_masks(name):
    mask, n = MASKS[name], (170 if name == "documents" else 130, 170)
    data = {"doc": (torch.arange(170) // 60).int()} if name == "documents" else {}
    live = live_of(mask, *n, **{k: x.numpy() for k, x in data.items()})
    check(mask.compile(64, dtype=E4M3, target="sm_90a"), *n, 64, live, data=data)


@pytest.mark.parametrize(("mode", "dim"), alternating(["default", "persistent"], [64, 128, 256]))
def test_dims_and_modes(hopper, dim, mode):
    """Rows of several tiles of keys, and a tail; q's heads share keys."""
    mask = CAUSAL & mc.window(250)
    attn = mask.compile(dim, dtype=E4M3, target="sm_90a")
    made = tensors(150, 420, dim, batch=1)
    if mode not in dict(attn.unit.modes):
        pytest.skip("no room in shared memory for two tiles of q")
    attn.tuned[tuning_key(Direction.forward, False, 150, 420)] = f"sm_90a {mode}"
    check(attn, 150, 420, dim, live_of(mask, 150, 420), made=made)
    assert attn.last_sources == (f"sm_90a {mode}",)
    assert hopper.launches[0] == ("attention_transpose_v", 2 * -(-420 // attn.unit.tile.k))


@pytest.mark.parametrize("features", [
    {"softcap": 3.0}, {"alibi_slopes": torch.rand(4)}, {"sink_logits": torch.randn(4)},
    {"scale": -0.2}, {"scale": 0.0}, {"scale": -0.2, "alibi_slopes": torch.rand(4)},
    {"scale": 0.0, "alibi_slopes": torch.rand(4)},
    {"scale": -0.3, "softcap": 2.0, "alibi_slopes": torch.rand(4), "sink_logits": torch.randn(4)},
], ids=lambda x: " ".join(x))  # fmt: skip
def test_features(features):
    attn = BLIND.compile(64, dtype=E4M3, target="sm_90a")
    check(attn, 130, 170, 64, live_of(BLIND, 130, 170), **features)


def test_rows_that_are_cut(hopper):
    """Parts of a row are merged; their workspace is not that of v."""
    mask = mc.window(20) | mc.global_tokens(3)
    attn = mask.compile(64, dtype=E4M3, target="sm_90a")
    made = tensors(2600, 2600, 64, batch=1, heads=1, kv_heads=1)
    check(attn, 2600, 2600, 64, live_of(mask, 2600, 2600), made=made)
    assert "attention_merge" in [entry for entry, _ in hopper.launches]


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_rows_of_more_keys_than_are_summed_at_once(hopper, dim):
    """By sums in shared memory, across rescaled rows, or where these have no room in parts."""
    (q, k, v), factors = tensors(70, 2600, dim, batch=1, heads=2, kv_heads=1)
    k = (k.float() * torch.linspace(0.2, 1, 2600)[:, None]).to(k.dtype)  # maxima rise
    attn = CAUSAL.compile(dim, dtype=E4M3, target="sm_90a")
    check(attn, 70, 2600, dim, live_of(CAUSAL, 70, 2600), made=([q, k, v], factors))
    merged = "attention_merge" in [entry for entry, _ in hopper.launches]
    assert merged == ("SUM_TILES = 0" in attn.unit.source) == (dim == 256)


def test_equal_weights_are_exact():
    """All scores are 0: out is a mean of small integers, which E4M3 and bfloat16 hold."""
    q, k = torch.zeros(1, 1, 64, 64), torch.randn(1, 1, 256, 64)
    v = torch.randint(-8, 9, (1, 1, 256, 64)).float()
    attn = mc.full().compile(64, dtype=E4M3, target="sm_90a")
    out = attn(*(x.to(torch.float8_e4m3fn) for x in (q, k, v)))
    assert torch.equal(out, v.mean(2, keepdim=True).expand_as(q).to(torch.bfloat16))


def test_one_key():
    """A query that sees one key gets its value."""
    (q, k, v), factors = tensors(200, 200, 128)
    mask = mc.causal() & mc.window(0)
    factors["v_descale"] = torch.full((2, 2), 0.25)
    out = mask.compile(128, dtype=E4M3, target="sm_90a")(q, k, v, **factors)
    assert torch.equal(out.float(), v.float().repeat_interleave(2, 1) * 0.25)


@pytest.mark.parametrize("n", [(0, 40), (40, 0), (1, 1), (129, 127)])
def test_odd_lengths(n):
    attn = CAUSAL.compile(64, dtype=E4M3, target="sm_90a")
    check(attn, *n, 64, live_of(CAUSAL, *n))


def test_what_nobody_sees_is_not_read():
    """NaN in keys that are dead for all of a tile, and in k where a mask hides them."""
    (q, k, v), factors = tensors(128, 400, 64)
    mask = mc.causal(align="start")
    spoiled, hidden = v.clone(), k.clone()
    spoiled[:, :, 128:] = torch.nan
    hidden[:, :, 128:] = torch.nan
    attn = mask.compile(64, dtype=E4M3, target="sm_90a")
    assert torch.equal(attn(q, hidden, spoiled, **factors), attn(q, k, v, **factors))


def test_nan_reaches_those_who_see_it():
    (q, k, v), factors = tensors(130, 130, 64)
    v[:, :, 40, 3] = torch.nan
    out = CAUSAL.compile(64, dtype=E4M3, target="sm_90a")(q, k, v, **factors)
    assert out[:, :, 40:, 3].isnan().all()
    assert not out[..., [0, 1, 2, *range(4, 64)]].isnan().any()


def test_strides_and_factors():
    """Tensors [B, N, H, D], factors that spread, numbers, and none."""
    (q, k, v), _ = tensors(130, 170, 64)
    attn, live = CAUSAL.compile(64, dtype=E4M3, target="sm_90a"), live_of(CAUSAL, 130, 170)
    moved = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    given = {"q_descale": torch.tensor([[0.5], [2.0]]), "v_descale": 0.125}
    out = attn(*moved, **given)
    assert out.stride() == moved[0].stride()
    full = {"q_descale": given["q_descale"].expand(2, 2), "v_descale": torch.full((2, 2), 0.125)}
    assert torch.equal(out, attn(q, k, v, **full))
    right, _, bound, _ = exact(q, k, v, live, full)
    assert ((out - right).abs() <= bound).all()
    assert torch.equal(mc.attention(q, k, v, CAUSAL, **given), out)


REFUSED = {
    "gradient": (lambda q, k, v: {"v": v.requires_grad_()}, errors.TargetNotBuilt, "requires grad"),
    "entmax": (lambda *_: {"normalizer": "entmax"}, errors.TargetNotBuilt, "normalizer"),
    "nan_safe": (lambda *_: {"nan_safe": True}, errors.TargetNotBuilt, "nan_safe"),
    "dropout": (lambda *_: {"dropout_p": 0.1}, errors.TargetNotBuilt, "dropout_p"),
    "a number": (lambda *_: {"q_descale": -1.0}, errors.BadOption, "positive"),
    "a shape": (lambda *_: {"k_descale": torch.ones(3)}, errors.BadShape, "Hkv"),
    "a dtype": (lambda *_: {"v_descale": torch.ones(2, 2).half()}, errors.WrongDType, "fp32"),
    "half": (lambda q, k, v: {"v": v.to(torch.bfloat16)}, errors.WrongDType, "v is bfloat16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    change, error, text = REFUSED[name]
    (q, k, v), _ = tensors(30, 30, 64)
    call = {"q": q, "k": k, "v": v, **change(q, k, v)}
    with pytest.raises(error, match=text):
        CAUSAL.compile(64, dtype=E4M3, target="sm_90a")(**call)


def test_the_rest_of_a_compiled_mask():
    """No backward pass, no entmax; pickles are of the same kind."""
    (q, k, v), _ = tensors(30, 30, 64)
    attn = CAUSAL.compile(64, dtype=E4M3, target="sm_90a")
    out, lse = attn(q, k, v, return_lse=True)
    with pytest.raises(errors.TargetNotBuilt, match="backward"):
        attn.backward(q, k, v, out, lse, out)
    for features in ("entmax", ["nan_safe"], ["dropout"]):
        with pytest.raises(errors.TargetNotBuilt):
            attn.warmup(features)
    attn.warmup(["softcap"])
    again = pickle.loads(pickle.dumps(attn))
    assert type(again) is type(attn)
    assert torch.equal(again(q, k, v), out)


@pytest.mark.parametrize(("target", "dim", "mask", "error"), [
    ("cpu", 64, CAUSAL, errors.DTypeUnsupported), ("sm_80", 64, CAUSAL, errors.DTypeUnsupported),
    ("simt", 64, CAUSAL, errors.DTypeUnsupported),
    ("sm_90a", 96, CAUSAL, errors.HeadDimUnsupported),
    ("sm_90a", 64, mc.topk(16, CAUSAL), errors.TargetNotBuilt),
])  # fmt: skip
def test_not_compiled(target, dim, mask, error):
    with pytest.raises(error):
        mask.compile(dim, dtype=E4M3, target=target)
