"""Single keys that heads choose together, on a Hopper or in its emulator: lists are made on the
device, and keys gathered. Results against fp64 over what the reference chooses.
"""

from __future__ import annotations

import pytest

import maskc as mc
from maskc.core import errors
from maskc.core import gather as G
from maskc.runtime.arrays import TORCH
from maskc.runtime.checks import Sizes
from maskc.runtime.gather import room_for
from maskc.runtime.ranking import Ranking

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from tests.support.exact_attention import DEVICE  # noqa: E402
from tests.support.gathered import (  # noqa: E402
    check,
    few,
    grid,
    indexer,
    live_of,
    with_factors,
)
from tests.support.hopper import HOPPER, freed  # noqa: E402, F401

if not HOPPER:
    pytest.skip("no Hopper GPU", allow_module_level=True)

CAUSAL = mc.causal()
SHARED = {"score": "given", "share": "all"}
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


# ------------------------------------------------------------------ what ranks


@pytest.mark.parametrize("wanted", [0, 1, 64, 65, 150, 1000])
@both
def test_few_all_and_more_than_all(wanted, target):
    mask = mc.topk(wanted, mc.full(), **SHARED)
    check(mask, few(5, 150), {"scores": grid((5, 150))}, target=target)


ODD = {
    "constant": lambda x: torch.zeros_like(x),
    "zeros": lambda x: torch.where(x > 0, 0.0, -0.0),
    "nan": lambda x: torch.where(x > 0, torch.nan, x),
    "all nan": lambda x: torch.full_like(x, torch.nan),
    "-inf": lambda x: torch.where(x < 2, -torch.inf, x),
    "inf": lambda x: torch.where(x > 1, torch.inf, -torch.inf),
    "inf and nan": lambda x: torch.where(x > 2, torch.nan, torch.where(x > 0, -torch.inf, x)),
    "tiny": lambda x: x * 1e-44,
    "close": lambda x: 1 + x * 2.0**-23,
}


@pytest.mark.parametrize("name", ODD)
def test_odd_scores(name):
    scores = ODD[name](grid((20, 300)))
    check(mc.topk(11, CAUSAL, **SHARED), few(20, 300), {"scores": scores})


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@both
def test_scores_of_other_types_and_strides(dtype, target):
    scores = grid((2, 1, 30, 90), dtype=getattr(torch, dtype))[..., 5:75]
    check(mc.topk(11, CAUSAL, **SHARED), few(30, 70, batch=2), {"scores": scores}, target=target)


@pytest.mark.parametrize("share", ["group", "all"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 6), (2, 1), (2, 6)])
@both
def test_heads_that_choose_together(share, shape, target):
    mask = mc.topk(9, CAUSAL, score="given", share=share) | mc.window(2)
    made = few(20, 90, heads=6, kv_heads=2, batch=2)
    check(mask, made, {"scores": grid((*shape, 20, 90))}, target=target)


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 64, 100, 130, 256])
@both
def test_heads_of_an_indexer(heads, target):
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    check(mask, few(70, 140), indexer(1, heads, 70, 140, 64), target=target)


@pytest.mark.parametrize("dim", [8, 32, 72, 128, 200, 256])
@both
def test_dimensions_of_an_indexer(dim, target):
    mask = mc.topk(30, CAUSAL, score="indexer", share="group")
    data = indexer(1, 4, 20, 140, dim, weights=torch.bfloat16)
    check(mask, few(20, 140, heads=4, kv_heads=2), data, target=target)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@both
def test_an_indexer_of_each_type(dtype, target):
    """Tokens before heads, and one set for all sequences."""
    kind = getattr(torch, dtype)
    data = indexer(1, 4, 40, 140, 64, dtype=kind, weights=kind)
    data["index_q"] = data["index_q"].transpose(1, 2).contiguous().transpose(1, 2)
    data["index_w"] = data["index_w"].transpose(1, 2).contiguous().transpose(1, 2)
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    check(mask, few(40, 140, batch=2, dtype=kind), data, target=target)


E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize("heads", [1, 8, 12, 64, 130])
@pytest.mark.parametrize("dim", [16, 128, 144, 256])
def test_an_indexer_in_e4m3(heads, dim):
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    check(mask, few(70, 140), indexer(1, heads, 70, 140, dim, dtype=E4M3), backward=heads == 12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, E4M3])
@pytest.mark.parametrize("batch", [1, 2])
def test_keys_of_an_indexer_with_factors(dtype, batch):
    """Of all sequences or of each, in any floating-point dtype."""
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    kind = torch.bfloat16 if dtype == E4M3 else dtype
    data = with_factors(indexer(batch, 6, 40, 140, 128, dtype=dtype), dtype=kind)
    check(mask, few(40, 140, batch=2, dtype=kind), data)


def test_an_indexer_with_keys_in_e4m3_that_are_no_numbers():
    data = indexer(1, 6, 40, 140, 64, dtype=E4M3)
    keys = data["index_k"].float()
    keys[0, 7:60:3, 5] = torch.nan
    data["index_k"] = keys.to(E4M3)
    check(mc.topk(30, CAUSAL, score="indexer", share="all"), few(40, 140), data)


def scores_made(monkeypatch, q, k, w):
    """fp32 [n_q, n_kv]: what an indexer's keys are ranked by, as a call leaves it in its memory."""
    made, own = [], TORCH.empty
    monkeypatch.setattr(TORCH, "empty", lambda *asked: made.append(own(*asked)) or made[-1])
    mask = mc.topk(9, mc.full(), score="indexer", share="all")
    n_q, n_kv = q.shape[2], k.shape[1]
    attn = mask.compile(64, target="sm_90a")
    attn(*few(n_q, n_kv, heads=1)[:3], index_q=q, index_k=k, index_w=w)
    recipe = attn.bundle.list_source("sm_90a").gather
    sizes = Sizes(1, 1, 1, n_q, n_kv)
    room = room_for(9, recipe, Ranking({"index_q": None}, 1, 1, q.shape[1]), sizes, {})
    rows = made[-1][0].flatten()[room.scores : room.sums].view(n_q, room.pitch)
    return rows[:, :n_kv]


@pytest.mark.parametrize("dim", [64, 128, 256])
def test_scores_in_e4m3(monkeypatch, dim):
    """As accurate as docs/language.md says: Hopper adds up products of E4M3 with fewer bits than
    fp32 has."""
    torch.manual_seed(0)
    shapes = (1, 64, 100, dim), (1, 700, dim)
    q, k = (torch.randn(shape, device=DEVICE).to(E4M3) for shape in shapes)
    w = torch.rand(1, 64, 100, device=DEVICE)
    found = scores_made(monkeypatch, q, k, w)
    x, y, weights = q[0].double(), k[0].double(), w[0, ..., None].double()
    exact = (weights * (x @ y.T).relu()).sum(0)
    sizes = (weights * (x.abs() @ y.abs().T)).sum(0)
    errors_made = (found.double() - exact).abs() / sizes
    assert errors_made.max() < 2**-13
    assert errors_made.max() > 2**-22  # fp32 would not be worth a word


@both
def test_an_indexer_with_odd_keys(target):
    """NaN never wins; infinity does, or is last."""
    data = indexer(1, 6, 40, 140, 64)
    data["index_k"][0, 7:60:3, 5] = torch.nan
    data["index_k"][0, 70, 1] = torch.inf
    mask = mc.topk(30, CAUSAL, score="indexer", share="all")
    check(mask, few(40, 140), data, target=target)


def test_scores_are_kept_for_some_queries_at_a_time(monkeypatch):
    mask = mc.topk(30, CAUSAL, score="indexer", share="all") | mc.sinks(2)
    data = indexer(2, 4, 200, 140, 64)
    made = few(200, 140, batch=2)
    whole, _ = check(mask, made, data)
    for rows in (1, 64, 150):
        monkeypatch.setattr(G, "SCORE_BYTES", rows * 4 * 140)
        parts, _ = check(mask, made, data, backward=False)
        assert all(torch.equal(parts[name], whole[name]) for name in parts)


LONG = {
    "told by a sample": lambda x: torch.randn_like(x),
    "positive": lambda x: torch.rand_like(x) + 9,
    "ascending": lambda x: torch.arange(x.numel(), device=DEVICE).view(x.shape).float(),
    "one region": lambda x: torch.rand_like(x) + (torch.arange(x.shape[1], device=DEVICE) < 900),
    "few values": lambda x: x,
    "alike": lambda x: torch.zeros_like(x),
    "no numbers": lambda x: torch.where(x == 3, x, torch.nan),
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("wanted", [5, 700, 5000])
def test_long_rows(name, wanted):
    """Of more keys than a list of candidates holds."""
    torch.manual_seed(0)
    mask = mc.topk(wanted, CAUSAL, **SHARED) | mc.window(3)
    scores = LONG[name](grid((2, 12_000)))
    check(mask, few(2, 12_000, heads=1), {"scores": scores}, backward=False)


@both
def test_long_rows_of_an_indexer(target):
    mask = mc.topk(700, CAUSAL, score="indexer", share="all")
    data = indexer(1, 64, 2, 9000, 128)
    check(mask, few(2, 9000, heads=1), data, backward=False, target=target)


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
    """What nobody chose does not count, however large; NaN stays with the keys it reaches."""
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
    found = attn.backward(q, k, v, out, lse, dout, scores=scores, deterministic=True)
    usual = attn.backward(q, k, v, out, lse, dout, scores=scores)
    for ordered, other in zip(found, usual, strict=True):
        assert torch.equal(ordered.isnan(), other.isnan())
        assert torch.allclose(ordered.float(), other.float(), 2e-2, 1e-2, equal_nan=True)
    assert found[1][0, 0, 50:100].isfinite().all()


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
