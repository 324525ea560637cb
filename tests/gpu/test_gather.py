"""Single keys that heads choose together, on a Hopper or in its emulator: lists are made on the
device, and keys gathered. Results against fp64 over what the reference chooses.
"""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.core import errors
from tests.support.exact_attention import DEVICE
from tests.support.gathered import check, few, grid, indexer, live_of

CAUSAL = mc.causal()
SHARED = {"score": "given", "share": "all"}
E4M3 = torch.float8_e4m3fn
both = pytest.mark.parametrize("target", ["sm_80", "sm_90a"])


# ------------------------------------------------------------------ masks

MASKS = {
    "alone": mc.topk(9, CAUSAL, **SHARED),
    "window": mc.topk(9, CAUSAL, **SHARED) | mc.window(12),
    "sinks": mc.topk(70, CAUSAL - mc.sinks(3), **SHARED) | (mc.sinks(3) & CAUSAL) | mc.window(5),
    "without": mc.window(30) - mc.topk(9, CAUSAL, **SHARED),
    "xor": mc.window(30) ^ mc.topk(9, mc.full(), **SHARED),
    "among": mc.topk(9, mc.window(8) | mc.sinks(8), **SHARED),
    "strided": mc.topk(9, CAUSAL & mc.strided(3), **SHARED),
}
SIZES = [(1, 1), (2, 130), (70, 70), (40, 33), (33, 0)]


@pytest.mark.parametrize("name", MASKS)
@both
def test_masks(name, target):
    for number, (n_q, n_kv) in enumerate(SIZES):
        made = few(n_q, n_kv, seed=number)
        check(MASKS[name], made, {"scores": grid((n_q, n_kv), number)}, target=target)


@both
def test_an_indexer_with_a_window(target):
    mask = mc.topk(20, CAUSAL, score="indexer", share="all") | mc.window(9)
    for n_q, n_kv in [(1, 1), (3, 200), (130, 70), (70, 0)]:
        check(mask, few(n_q, n_kv, batch=2), indexer(2, 4, n_q, n_kv, 64), target=target)


# ------------------------------------------------------------------ what attends


@pytest.mark.parametrize("heads", [(1, 1), (5, 5), (63, 1), (64, 1), (65, 1), (128, 1), (260, 2)])
@both
def test_heads_of_a_tile(heads, target):
    mask = mc.topk(70, CAUSAL, **SHARED)
    made = few(4, 150, heads=heads[0], kv_heads=heads[1], batch=2)
    check(mask, made, {"scores": grid((4, 150))}, target=target)


@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("heads", [3, 70])
@both
def test_head_dims(dim, heads, target):
    mask = mc.topk(200, CAUSAL, **SHARED)
    check(mask, few(3, 280, dim, heads=heads), {"scores": grid((3, 280))}, target=target)


@pytest.mark.parametrize("heads", [3, 70])
@pytest.mark.parametrize(
    "names", [(), ("alibi_slopes",), ("sink_logits",), ("alibi_slopes", "sink_logits")]
)
@pytest.mark.parametrize("softcap", [None, 2.0])
@both
def test_features(heads, names, softcap, target):
    mask = mc.topk(70, CAUSAL, **SHARED)
    features = {name: torch.rand(heads, device=DEVICE) for name in names}
    made = few(20, 16, heads=heads, dtype=torch.float16)  # the first queries see nothing
    check(mask, made, {"scores": grid((20, 16))}, softcap=softcap, target=target, **features)


@both
def test_a_negative_scale(target):
    mask = mc.topk(70, CAUSAL, **SHARED)
    check(mask, few(4, 150), {"scores": grid((4, 150))}, scale=-0.3, target=target)


@both
def test_keys_that_nobody_chose_may_be_anything(target):
    mask = mc.topk(9, mc.full(), **SHARED)
    scores = grid((20, 200))
    scores[:, 50:180] = -9.0
    q, k, v, dout = few(20, 200)
    for x in (k, v):
        x[:, :, 50:180] = torch.nan
    check(mask, (q, k, v, dout), {"scores": scores}, target=target)


def test_a_nan_reaches_those_that_chose_it():
    mask = mc.topk(9, mc.full(), **SHARED)
    q, k, v, _ = few(20, 200)
    scores = grid((20, 200))
    v[:, :, 3] = torch.nan
    attn = mask.compile(64, target="sm_90a")
    out = attn(q, k, v, scores=scores, nan_safe=True)
    chose = live_of(mask, q, k, {"scores": scores})[0, 0, :, 3]
    assert torch.equal(out.isnan().all(-1)[0, 0], chose)
    assert torch.equal(out.isnan().any(-1)[0, 0], chose)


def test_tokens_before_heads():
    mask = mc.topk(40, CAUSAL, **SHARED)
    made = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in few(9, 100, heads=6)]
    check(mask, made, {"scores": grid((9, 100))})


def test_a_sequence_does_not_see_the_rest_of_its_batch():
    mask = mc.topk(40, CAUSAL, score="indexer", share="all")
    data = indexer(2, 4, 30, 150, 64)
    q, k, v, _ = few(30, 150, heads=4, kv_heads=2, batch=2)
    attn = mask.compile(64, target="sm_90a")
    both = attn(q, k, v, **data)
    for i in range(2):
        own = {name: x[i : i + 1] for name, x in data.items()}
        alone = attn(q[i : i + 1], k[i : i + 1], v[i : i + 1], **own)
        assert torch.equal(alone[0], both[i])


def test_the_pattern():
    mask = mc.load("patterns/dsa.py")["dsa"](top=50)
    check(mask, few(100, 100, 128, heads=128), indexer(1, 64, 100, 100, 128))


# ------------------------------------------------------------------ gradients in any order


@pytest.mark.parametrize("heads", [(3, 1), (70, 2)])
@pytest.mark.parametrize("dim", [64, 96, 256])
def test_deterministic_gradients(dim, heads):
    mask = mc.topk(70, CAUSAL, **SHARED)
    made = few(40, 120, dim, heads=heads[0], kv_heads=heads[1], batch=2)
    check(mask, made, {"scores": grid((40, 120))}, deterministic=True)


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_deterministic_gradients_of_heads(softcap):
    mask = mc.topk(70, CAUSAL, **SHARED)
    features = {name: torch.rand(6, device=DEVICE) for name in ("alibi_slopes", "sink_logits")}
    made = few(90, 80, heads=6, kv_heads=2, dtype=torch.float16)
    check(mask, made, {"scores": grid((90, 80))}, deterministic=True, softcap=softcap, **features)


@pytest.mark.parametrize("scale", [1e-6, 1e4])
def test_deterministic_gradients_of_other_sizes(scale):
    mask = mc.topk(30, CAUSAL, **SHARED)
    q, k, v, dout = few(40, 120)
    check(mask, (q, k, v * scale, dout / scale), {"scores": grid((40, 120))}, deterministic=True)


def test_deterministic_gradients_beside_anything():
    """Keys that nobody chose do not count, however large; NaN stays with the keys it reaches."""
    mask = mc.topk(30, mc.full(), **SHARED)
    scores = grid((40, 120))
    scores[:, 100:] = -9.0
    scores[:20, 50:] = -9.0
    q, k, v, dout = few(40, 120)
    k[:, :, 100:], v[:, :, 100:] = 3e38, 3e38
    check(mask, (q, k, v, dout), {"scores": scores}, deterministic=True)
    dout[0, 0, :20] = torch.nan
    attn = mask.compile(64, target="sm_90a")
    out, lse = attn(q, k, v, scores=scores, return_lse=True)
    gradients = attn.backward(q, k, v, out, lse, dout, scores=scores, deterministic=True)
    usual = attn.backward(q, k, v, out, lse, dout, scores=scores)
    for ordered, other in zip(gradients, usual, strict=True):
        assert torch.equal(ordered.isnan(), other.isnan())
        assert torch.allclose(ordered.float(), other.float(), 2e-2, 1e-2, equal_nan=True)
    assert gradients[1][0, 0, 50:100].isfinite().all()


# ------------------------------------------------------------------ refusals


def test_entmax_is_refused():
    mask = mc.topk(40, CAUSAL, **SHARED)
    q, k, v, _ = few(9, 100)
    attn = mask.compile(64, target="sm_90a")
    scores = grid((9, 100))
    with pytest.raises(errors.TargetNotBuilt, match="entmax"):
        attn(q, k, v, scores=scores, normalizer="entmax")


def without(name, value):
    return lambda data: {**data, name: value(data[name])}


REFUSED = {
    "dtype": (without("index_k", lambda x: x.float()), errors.DataType, "bfloat16"),
    "mixture": (without("index_k", lambda x: x.to(E4M3)), errors.DataType, "bfloat16"),
    "factors": (without("index_k", lambda x: (x, x[:, 1:, 0])), errors.DataShape, r"index_k\[1\]"),
    "half a slab": (
        lambda data: {name: x if name == "index_w" else x[..., :24].to(E4M3)
                      for name, x in data.items()}, errors.DataRange, "multiple of 16",
    ),
    "shape": (without("index_w", lambda x: x[:, 1:]), errors.DataShape, "index_w"),
    "length": (without("index_k", lambda x: x[:, 1:]), errors.DataShape, "index_k"),
    "odd rows": (
        lambda data: {**data, "index_q": data["index_q"][..., :12], "index_k":
                      data["index_k"][..., :12]}, errors.DataRange, "12 elements",
    ),
    "address": (without("index_k", lambda x: torch.cat([x, x], -1)[..., 1:65]),
                errors.Misaligned, "index_k"),
    "order": (without("index_k", lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)),
              errors.NotContiguous, "index_k"),
    "missing": (lambda data: {"index_q": data["index_q"]}, errors.DataMissing, "index_"),
    "unknown": (lambda data: {**data, "scores": data["index_w"]}, errors.DataUnknown, "scores"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    change, error, text = REFUSED[name]
    attn = mc.topk(9, CAUSAL, score="indexer", share="all").compile(64, target="sm_90a")
    q, k, v, _ = few(20, 90)
    with pytest.raises(error, match=text):
        attn(q, k, v, **change(indexer(1, 4, 20, 90, 64)))


def test_a_parameter():
    mask = mc.topk(9, CAUSAL, **SHARED) | mc.window(mc.param("w", 3))
    attn = mask.compile(64, target="sm_90a")
    q, k, v, _ = few(20, 90)
    scores = grid((20, 90))
    plain = attn(q, k, v, scores=scores)
    assert not torch.equal(plain, attn(q, k, v, scores=scores, w=20))
    fixed = (mc.topk(9, CAUSAL, **SHARED) | mc.window(20)).compile(64, target="sm_90a")
    assert torch.equal(fixed(q, k, v, scores=scores), attn(q, k, v, scores=scores, w=20))
