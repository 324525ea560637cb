"""Information loss against a plain computation in fp64, and against what must hold for any mask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import BadTensors
from maskc.lab.evaluate.information import _Part
from maskc.lab.evaluate.tensors import LayerTensors, Tensors, _layer

N, HEADS, GROUPS, DIM = 48, 4, 2, 8
MASKS = {
    "window": mc.window(7),
    "sinks": mc.sinks(2) | mc.window(5),
    "far": mc.dilated(4, stride=3) - mc.window(0),
    "best": mc.topk(6, of=mc.causal()),
    "blocks": mc.topk(2, of=mc.causal(), block=4, q_block=4, score="block_mean"),
    "heads": mc.per_head([mc.window(3), mc.window(5), mc.window(9), mc.sinks(4)]),
}


def drawn(layers: int = 2, batch: int = 2, seed: int = 0) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(layers, batch, HEADS, N, DIM)).astype(np.float32) * 2
    k, v = (rng.normal(size=(layers, batch, GROUPS, N, DIM)).astype(np.float32) for _ in "kv")
    return q, k, v


def plain(q: np.ndarray, k: np.ndarray, v: np.ndarray, keep: np.ndarray) -> dict[str, float]:
    """One layer, one sequence, loops over heads, fp64."""
    base = np.tril(np.ones((N, N), bool))
    kept, error, cosine, kl, floor, ceiling = [], [], [], [], [], []
    for h in range(HEADS):
        scores = q[h].astype(np.float64) @ k[h // (HEADS // GROUPS)].astype(np.float64).T / DIM**0.5
        values = v[h // (HEADS // GROUPS)].astype(np.float64)
        weights = np.where(base, np.exp(scores), 0)
        weights /= weights.sum(1, keepdims=True)
        own = keep[h if keep.ndim == 3 else ...] & base
        for row in range(N):
            p = weights[row] * own[row]
            kept.append(p.sum())
            dense = weights[row] @ values
            out = p @ values / p.sum() if p.sum() > 0 else 0 * dense
            error.append(np.linalg.norm(out - dense) / np.linalg.norm(dense))
            both = np.linalg.norm(out) * np.linalg.norm(dense)
            cosine.append(out @ dense / both if both > 0 else 0.0)
            if p.sum() > 0:
                sparse = p[p > 0] / p.sum()
                kl.append((sparse * np.log(sparse / weights[row][p > 0])).sum())
            count = own[row].sum()
            floor.append(count / (row + 1))
            ceiling.append(np.sort(weights[row])[::-1][:count].sum())
    names = ("retained", "output_error", "cosine", "kl", "floor", "ceiling")
    return dict(zip(names, map(np.mean, (kept, error, cosine, kl, floor, ceiling)), strict=True))


@pytest.mark.parametrize("name", MASKS)
def test_as_computed_plainly(name: str):
    q, k, v = drawn(layers=1, batch=1)
    mask = MASKS[name]
    found = mc.evaluate.information_loss({name: mask}, mc.evaluate.tensors(q, k, v))[name]
    chosen = {"q": q[0], "k": k[0]} if "topk" in str(mask) else {}
    keep = mask.dense(N, n_heads=HEADS, **chosen)
    right = plain(q[0, 0], k[0, 0], v[0, 0], keep[0] if keep.ndim == 4 else keep)
    for field, value in right.items():
        got = getattr(found, field)
        assert getattr(got, "value", got) == pytest.approx(value, abs=2e-5), field
    assert found.rows == HEADS * N
    (layer,) = found.layers
    assert np.mean(layer.retained) == pytest.approx(right["retained"], abs=2e-5)
    assert np.mean(layer.cosine) == pytest.approx(right["cosine"], abs=2e-5)


def test_bounds_and_ends():
    """Full loses nothing; nothing beats the ceiling; outputs stay within the bound."""
    given = mc.evaluate.tensors(*drawn())
    losses = mc.evaluate.information_loss({"full": mc.full(), **MASKS}, given)
    full = losses["full"]
    assert full.retained.value == pytest.approx(1, abs=1e-6)
    assert full.output_error.value == pytest.approx(0, abs=1e-5)
    assert (full.floor, full.empty_rows, full.bound_used) == (1.0, 0, 0.0)
    for name, each in losses.items():
        assert each.retained.value <= each.ceiling + 1e-5, name
        assert 0 < each.bound_used <= 1 or name == "full", name
        assert each.retained.low <= each.retained.value <= each.retained.high
    best = losses["best"]
    assert best.retained.value == pytest.approx(best.ceiling, abs=1e-5)
    assert losses["far"].empty_rows == 3 * HEADS * 2 * 2


def test_a_row_without_a_key_retains_nothing():
    empty = mc.evaluate.information_loss(
        {"none": mc.causal() - mc.causal()}, mc.evaluate.tensors(*drawn(1, 1))
    )["none"]
    assert (empty.retained.value, empty.output_error.value, empty.kl) == (0, 1, 0)
    assert empty.empty_rows == empty.rows


def test_parts_of_rows_add_up(monkeypatch: pytest.MonkeyPatch):
    from maskc.lab.evaluate import information

    given = mc.evaluate.tensors(*drawn())
    whole = mc.evaluate.information_loss(MASKS, given)
    monkeypatch.setattr(information, "_ELEMENTS", HEADS * N * 7)
    parts = mc.evaluate.information_loss(MASKS, given)
    for name in MASKS:
        assert parts[name].retained.value == pytest.approx(whole[name].retained.value, abs=1e-6)
        assert parts[name].empty_rows == whole[name].empty_rows


def test_tokens_of_equal_attention_retain_the_share_of_keys():
    """Where all keys are alike, the retained mass is the share of kept keys."""
    q, k, v = drawn(1, 1)
    found = mc.evaluate.information_loss({"w": mc.window(7)}, mc.evaluate.tensors(q, 0 * k, v))["w"]
    share = np.mean([min(8, row + 1) / (row + 1) for row in range(N)])
    assert found.retained.value == pytest.approx(share, abs=1e-6)
    assert found.floor == pytest.approx(share, abs=1e-6)


def test_a_file_of_tensors(tmp_path: Path):
    q, k, v = drawn()
    sinks = np.linspace(0, 1, HEADS).astype(np.float32)
    np.savez(tmp_path / "x.npz", q=q, k=k, v=v, scale=0.5, softcap=3, sink_logits=sinks)
    read = mc.evaluate.read_npz(tmp_path / "x.npz")
    assert (read.n, read.sequences, len(read.layers)) == (N, 2, 2)
    assert read.layers[1].scale == 0.5
    assert read.layers[1].softcap == 3
    direct = mc.evaluate.tensors(q, k, v, scale=0.5, softcap=3.0, sink_logits=sinks)
    got, same = (mc.evaluate.information_loss(MASKS, each) for each in (read, direct))
    assert got == same


def test_json_and_back():
    given = mc.evaluate.tensors(*drawn(1, 1))
    loss = mc.evaluate.information_loss({"w": mc.window(7)}, given)["w"]
    evaluated = mc.evaluate.Evaluated("w", "window(7)", "pattern", "", 3, 0.5, None, loss)
    whole = mc.evaluate.Evaluation("x", N, 1, "causal()", (evaluated,), ("much",))
    assert mc.evaluate.Evaluation.from_json(whole.to_json()) == whole
    assert whole.named("w") is evaluated


@pytest.mark.parametrize("kind", ["a cap", "sinks", "a bias"])
def test_what_softmax_sees_beside_the_mask(kind: str):
    """Soft-cap, sink logits and position bias belong to dense attention and to the pattern's."""
    q, k, v = (torch.from_numpy(x[0]) for x in drawn(layers=1))
    rng = torch.Generator().manual_seed(3)
    bias = 3 * torch.randn(1, HEADS, N, N, generator=rng)
    sinks = torch.linspace(-1, 3, HEADS)
    score = mc.score(lambda s, q, k, h, b: s + mc.table("bias")[b, h, q, k])
    more: dict[str, object] = {
        "a cap": {"softcap": 1.5}, "sinks": {"sinks": sinks},
        "a bias": {"score": score, "tables": {"bias": bias}},
    }[kind]  # fmt: skip
    layer = LayerTensors(0, q, k, v, DIM**-0.5, **more)
    masks = {"window": mc.window(3) | mc.sinks(1), "none": mc.causal() - mc.full(),
             "best": mc.topk(6, of=mc.causal())}  # fmt: skip
    losses = mc.evaluate.information_loss(masks, Tensors((layer,), "drawn"), resamples=5)

    keys, values = (x.double().repeat_interleave(HEADS // GROUPS, 1) for x in (k, v))
    products = q.double() @ keys.mT * DIM**-0.5
    logits = products
    if kind == "a cap":
        logits = 1.5 * torch.tanh(logits / 1.5)
    if kind == "a bias":
        logits = logits + bias.double()
    of_sinks = sinks if kind == "sinks" else torch.full((HEADS,), -torch.inf)
    of_sinks = of_sinks.double()[None, :, None, None].expand(2, HEADS, N, 1)

    def attended(keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(out, log-sum-exp with the sink)."""
        whole = torch.cat([logits.masked_fill(~keep, -torch.inf), of_sinks], -1)
        weights = whole.softmax(-1).nan_to_num(0)
        return weights[..., :-1] @ values, whole.logsumexp(-1)

    causal = torch.ones(N, N).tril().bool()
    dense, lse = attended(causal)
    for name, mask in masks.items():
        if name == "best":  # ranks by q . k, whatever softmax sees
            ranked = products.masked_fill(~causal, -torch.inf)
            keep = causal & (ranked >= ranked.sort(-1, descending=True).values[..., 5:6])
        else:
            keep = torch.from_numpy(mask.dense(N)) & causal
        out, kept = attended(keep)
        error = ((out - dense).norm(dim=-1) / dense.norm(dim=-1)).mean()
        assert losses[name].output_error.value == pytest.approx(float(error), abs=1e-5)
        retained = (kept - lse).exp().mean()
        assert losses[name].retained.value == pytest.approx(float(retained), abs=1e-5)
        assert losses[name].floor - 1e-5 <= losses[name].ceiling
    assert losses["window"].retained.value <= losses["window"].ceiling


@pytest.mark.parametrize("kind", ["gemma2", "gpt_oss", "t5"])
def test_captured_tensors_give_the_models_own_attention(kind: str):
    """With the soft-cap, the sink logits or the position bias that the model gives it."""
    transformers = pytest.importorskip("transformers")
    from tests.support.models import BASE

    torch.manual_seed(0)
    ids = torch.arange(3, 3 + 24)[None]
    if kind == "t5":
        config = transformers.T5Config(
            vocab_size=64, d_model=32, d_kv=16, d_ff=32, num_layers=2, num_heads=2,
            relative_attention_num_buckets=8, relative_attention_max_distance=16,
        )  # fmt: skip
        model = transformers.T5EncoderModel._from_config(config)
        outputs = [block.layer[0].SelfAttention.o for block in model.encoder.block]
    else:
        of_kind = {
            "gemma2": (transformers.Gemma2Config, {"attn_logit_softcapping": 2.0}),
            "gpt_oss": (transformers.GptOssConfig, {"num_local_experts": 2,
                                                    "num_experts_per_tok": 1}),
        }  # fmt: skip
        make, more = of_kind[kind]
        model = transformers.AutoModelForCausalLM.from_config(make(**BASE, **more))
        outputs = [layer.self_attn.o_proj for layer in model.model.layers]
    for weight in model.parameters():
        weight.data.mul_(4)
    seen: list[torch.Tensor] = []
    for output in outputs:
        output.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    given = mc.evaluate.capture(model, ids)
    for layer, out in zip(given.layers, seen, strict=True):
        assert (layer.softcap, layer.sinks, layer.score) != (None, None, None)
        heads, dim = layer.q.shape[1], layer.v.shape[-1]
        part = _Part(layer, 0, 0, 24, torch.from_numpy(layer.base.dense(24, **layer.data)))
        right = out[0].view(24, heads, dim).transpose(0, 1)
        torch.testing.assert_close(part.out, right, rtol=1e-4, atol=1e-4)


def test_what_is_not_kept_is_refused(monkeypatch: pytest.MonkeyPatch):
    """A keyword of attention that changes its result, and is no part of tensors."""
    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(BadTensors, match="takes alibi_slopes"):
        _layer("a model", 3, x, x, x, mc.causal(), alibi_slopes=torch.ones(1))
    with pytest.raises(BadTensors, match="takes dropout_p"):
        _layer("a model", 3, x, x, x, mc.causal(), dropout_p=0.5)


def test_a_layer_of_a_model():
    """Captured tensors give the model's own attention output."""
    transformers = pytest.importorskip("transformers")
    from tests.support.models import BASE

    torch.manual_seed(0)
    config = transformers.MistralConfig(**BASE, sliding_window=8)
    model = transformers.AutoModelForCausalLM.from_config(config)
    before = model.config._attn_implementation
    ids = torch.arange(3, 3 + 24)[None]
    outputs = []
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(lambda _, given: outputs.append(given[0]))
    given = mc.evaluate.capture(model, ids)
    assert [each.layer for each in given.layers] == [0, 1]
    assert model.config._attn_implementation == before
    for each, out in zip(given.layers, outputs, strict=True):
        assert each.base.equals(mc.window.hf(8))
        right = mc.attention(each.q, each.k, each.v, each.base, scale=each.scale)
        torch.testing.assert_close(right.transpose(1, 2).reshape(out.shape), out)
    assert [x.layer for x in mc.evaluate.capture(model, ids, layers=[1]).layers] == [1]
    loss = mc.evaluate.information_loss({"same": mc.window(7), "less": mc.window(3)}, given)
    assert loss["same"].retained.value == pytest.approx(1, abs=1e-6)
    assert loss["less"].retained.value < 1
