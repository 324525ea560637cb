"""Tiny models of transformers against eager attention: both passes, generation, packing, dropout,
a bias of positions, and fifty steps of training.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import transformers

from maskc.core.errors import PackingLost, StateCrossesSequences
from tests.support import models
from tests.support.thorough import alternating, more

pytestmark = models.QUIET
FORWARD = 2e-6
"""Of the largest value; eager's own rounding in fp32 is of this size."""


decoder, encoder = cache(models.decoder), cache(models.encoder)


def near(ours: Any, eager: Any, share: float = FORWARD) -> None:
    worst = (ours - eager).abs().max().item()
    assert worst <= share * max(eager.abs().max().item(), 1), worst


def same_gradients(pair: models.Pair, ids: Any, mask: Any, **options: Any) -> None:
    """The gradient of a sum over all real tokens, of every parameter."""
    losses = []
    for model in pair:
        model.zero_grad()
        logits = model(input_ids=ids, attention_mask=mask, **options).logits
        loss = logits[mask.bool()].pow(2).mean()
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    models.same_gradients(pair)


@pytest.mark.parametrize("name", models.DECODERS)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits(name: str, side: str) -> None:
    pair = decoder(name)
    ids, mask = models.tokens(side)
    with torch.no_grad():
        ours, eager = (m(input_ids=ids, attention_mask=mask).logits for m in pair)
    near(ours[mask.bool()], eager[mask.bool()])


@pytest.mark.parametrize("name", models.DECODERS)
def test_gradients(name: str) -> None:
    ids, mask = models.tokens("left")
    same_gradients(decoder(name), ids, mask)


@pytest.mark.parametrize(
    ("name", "cache"), alternating(list(models.DECODERS), ["dynamic", "static"])
)
def test_generated_tokens(name: str, cache: str) -> None:
    ids, mask = models.tokens("left")
    ours, eager = (
        m.generate(
            ids, attention_mask=mask, max_new_tokens=12, do_sample=False,
            cache_implementation=cache, disable_compile=True,
        )
        for m in decoder(name)
    )  # fmt: skip
    assert torch.equal(ours, eager)


@pytest.mark.parametrize("name", [n for n in models.DECODERS if n not in ("gpt_oss", "qwen3_next")])
def test_packed_sequences(name: str) -> None:
    pair = decoder(name)
    ids, positions = models.packed()
    inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    with torch.no_grad():
        ours, eager = (m(**inputs).logits for m in pair)
    near(ours, eager)
    if name in ("llama", "mistral", "gemma3"):  # each sequence alone
        with torch.no_grad():
            alone = pair.ours(input_ids=ids[:1, 9:13], use_cache=False).logits
        near(ours[:1, 9:13], alone)


_SHOWN = "llama", "gpt_oss", "llama4"


@pytest.mark.parametrize(
    "name", [*_SHOWN, *(more(name) for name in models.DECODERS if name not in _SHOWN)]
)
def test_packed_sequences_that_no_mask_separates(name: str) -> None:
    """Models show position ids where masks are made, or where attention is called."""
    ids, positions = models.packed()
    cached = {"use_cache": True}
    masked = {"use_cache": False, "attention_mask": torch.ones_like(ids)}
    for options in (cached, masked):
        with pytest.raises(PackingLost), torch.no_grad():
            decoder(name).ours(input_ids=ids, position_ids=positions, **options)


@pytest.mark.parametrize("name", ["gpt_oss", *map(more, ("llama", "gemma3", "llama4"))])
def test_cumulative_lengths_separate_packed_sequences(name: str) -> None:
    """Pass what DataCollatorWithFlattening returns."""
    pair, (ids, _) = decoder(name), models.tokens()
    lengths = [9, 4, 11]
    ends = torch.tensor([0, 9, 13, 24], dtype=torch.int32)
    given = {
        "position_ids": torch.cat([torch.arange(n) for n in lengths])[None], "use_cache": False,
        "cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 11, "max_length_k": 11,
        "seq_idx": torch.repeat_interleave(torch.arange(3), torch.tensor(lengths))[None],
    }  # fmt: skip
    with torch.no_grad():
        packed = pair.ours(input_ids=ids[:1], **given).logits
        for part, logits in zip(ids[:1].split(lengths, 1), packed.split(lengths, 1), strict=True):
            near(logits, pair.eager(input_ids=part, use_cache=False).logits)
    if name == "gpt_oss":  # whose mask separates nothing: wrong lengths leave a leak
        given["cu_seq_lens_q"] = given["cu_seq_lens_k"] = torch.tensor([0, 13, 24])
        with pytest.raises(PackingLost, match="token 9"):
            pair.ours(input_ids=ids[:1], **given)


@pytest.mark.parametrize(
    ("name", "missing"),
    [("bamba", "pass seq_idx, as"), ("jamba", "pass one sequence per row"),
     ("qwen3_next", "pass seq_idx and cu_seq_lens_q, as")],
)  # fmt: skip
def test_packed_sequences_beside_layers_with_a_state(name: str, missing: str) -> None:
    """Eager attention lets the state of one sequence into the next."""
    model, (ids, positions) = decoder(name).ours, models.packed()
    ends = torch.tensor([0, 9, 13, 24], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends} if name == "bamba" else {}
    with torch.no_grad(), pytest.raises(StateCrossesSequences, match=missing):
        model(input_ids=ids[:1], position_ids=positions[:1], use_cache=False, **lengths)
    row = torch.arange(24)[None]
    model(input_ids=ids[:1], position_ids=row, use_cache=False)  # not packed
    options = {"use_cache": False, "cu_seq_lens_q": ends[[0, 3]], "cu_seq_lens_k": ends[[0, 3]]}
    if name != "qwen3_next":  # whose own fallback refuses lengths
        model(input_ids=ids[:1], position_ids=row, **options)


def test_a_convolution_that_reads_where_sequences_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """LFM2 is right where its convolution separates sequences, like that of causal_conv1d."""
    from transformers.models.lfm2 import modeling_lfm2 as modeling

    inner = modeling.causal_conv1d_fn

    def separated(x: Any, *args: Any, seq_idx: Any = None, **options: Any) -> Any:
        lengths = [24] if seq_idx is None else torch.bincount(seq_idx[0]).tolist()
        return torch.cat([inner(part, *args, **options) for part in x.split(lengths, -1)], -1)

    pair, (ids, positions) = decoder("lfm2"), models.packed()
    inputs = {"input_ids": ids[:1], "position_ids": positions[:1], "use_cache": False}
    sequences = torch.repeat_interleave(torch.arange(3), torch.tensor([9, 4, 11]))[None]
    with torch.no_grad():
        alone = [
            pair.eager(input_ids=x, use_cache=False).logits for x in ids[:1].split([9, 4, 11], 1)
        ]
        monkeypatch.setattr(modeling, "causal_conv1d_fn", separated)
        near(pair.ours(seq_idx=sequences, **inputs).logits, torch.cat(alone, 1))
        with pytest.raises(StateCrossesSequences, match="conv"):
            pair.ours(**inputs)


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "llama4"])
def test_checkpointing(name: str) -> None:
    pair = models.decoder(name)
    for model in pair:
        model.train()
        model.gradient_checkpointing_enable()
    ids, mask = models.tokens("left")
    same_gradients(pair, ids, mask, use_cache=False)


@pytest.mark.parametrize("name", models.ENCODERS)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_encoders(name: str, side: str) -> None:
    pair = encoder(name)
    ids, mask = models.tokens(side)
    with torch.no_grad():
        ours, eager = (m(input_ids=ids, attention_mask=mask).logits for m in pair)
    near(ours[mask.bool()], eager[mask.bool()])
    if side == "left":
        same_gradients(pair, ids, mask)


def test_images() -> None:
    pair = models.pair("ViTConfig", "AutoModel", models.VIT)
    pixels = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        ours, eager = (m(pixel_values=pixels).last_hidden_state for m in pair)
    near(ours, eager)


# ------------------------------------------------------------------ a bias of positions


pytest.importorskip("transformers")


KINDS = {"t5": "T5Config", "mt5": "MT5Config", "umt5": "UMT5Config"}


@cache
def t5(name: str) -> models.Pair:
    pair = models.pair(KINDS[name], "AutoModelForSeq2SeqLM", models.T5)
    with torch.no_grad():  # buckets that are far apart
        theirs = dict(pair.eager.named_parameters())
        for key, weight in pair.ours.named_parameters():
            if "relative_attention_bias" in key:
                weight.normal_(std=2.0)
                theirs[key].copy_(weight)
    return pair


def inputs(side: str) -> dict[str, Any]:
    ids, mask = models.tokens(side)
    labels, _ = models.tokens(n=17)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_t5_logits(name: str, side: str) -> None:
    with torch.no_grad():
        ours, eager = (model(**inputs(side)).logits for model in t5(name))
    torch.testing.assert_close(ours, eager, rtol=1e-5, atol=2e-6 * eager.abs().max().item())


@pytest.mark.parametrize("name", KINDS)
def test_gradients_reach_the_buckets(name: str) -> None:
    pair = t5(name)
    for model in pair:
        model.zero_grad()
        model(**inputs("right")).loss.backward()
    biases = [name for name in models.same_gradients(pair) if "relative_attention_bias" in name]
    assert len(biases) >= 2


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_t5_generated_tokens(cache: str) -> None:
    given = inputs("left")
    del given["labels"]
    ours, eager = (
        m.generate(
            **given, max_new_tokens=12, do_sample=False, cache_implementation=cache,
            disable_compile=True,
        )
        for m in t5("t5")
    )  # fmt: skip
    assert torch.equal(ours, eager)


# ------------------------------------------------------------------ dropout


def means(model: Any, given: dict[str, Any], seeds: int) -> tuple[Any, Any]:
    """Mean and standard deviation of the logits of a model that trains, over seeds."""
    model.train()
    found = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        with torch.no_grad():
            found.append(model(**given).logits)
    model.eval()
    every = torch.stack(found)
    return every.mean(0), every.std(0)


@pytest.mark.parametrize("kind", ["llama", "bert", more("t5")])
def test_dropout_is_eager_dropout_in_distribution(kind: str) -> None:
    """Logits of a model that trains: the same mean and the same spread over seeds."""
    seeds = 200
    if kind == "llama":
        options = models.BASE | {"attention_dropout": 0.3, "num_hidden_layers": 1}
        pair = models.pair("LlamaConfig", "AutoModelForCausalLM", options)
    elif kind == "bert":
        options = models.ENCODER | {"attention_probs_dropout_prob": 0.3, "num_hidden_layers": 1}
        pair = models.pair("BertConfig", "AutoModelForMaskedLM", options)
    else:
        pair = models.pair("T5Config", "AutoModelForSeq2SeqLM", models.T5)
        for model in pair:  # only that of attention
            for module in model.modules():
                if type(module).__name__ == "T5Attention":
                    module.dropout = 0.3
    ids, mask = models.tokens("none")
    given = {"input_ids": ids, "attention_mask": mask}
    if kind == "t5":
        given["decoder_input_ids"] = ids[:, :17]
    (ours, spread), (eager, theirs) = (means(model, given, seeds) for model in pair)
    with torch.no_grad():
        calm = pair.ours(**given).logits
    assert (spread > 0).float().mean() > 0.9
    error = (spread.square() + theirs.square()).div(seeds).sqrt()
    far = ((ours - eager).abs() - 5 * error).clamp(min=0)
    assert far.max().item() <= 1e-5 * eager.abs().max().item() + 0.2 * error.max().item()
    assert (spread.mean() / theirs.mean()).item() == pytest.approx(1, abs=0.1)
    assert not torch.allclose(ours, calm, atol=1e-7)


def test_a_model_that_trains_repeats_with_its_seed() -> None:
    options = models.BASE | {"attention_dropout": 0.3}
    pair = models.pair("LlamaConfig", "AutoModelForCausalLM", options)
    ids, mask = models.tokens("left")
    pair.ours.train()
    grads = []
    for checkpointing in (False, True, False):
        if checkpointing:
            pair.ours.gradient_checkpointing_enable()
        else:
            pair.ours.gradient_checkpointing_disable()
        pair.ours.zero_grad()
        torch.manual_seed(5)
        pair.ours(input_ids=ids, attention_mask=mask, labels=ids, use_cache=False).loss.backward()
        grads.append(pair.ours.model.layers[0].self_attn.q_proj.weight.grad.clone())
    for again in grads[1:]:
        torch.testing.assert_close(again, grads[0], rtol=1e-5, atol=1e-7)


# ------------------------------------------------------------------ training


STEPS, N, BATCH = 50, 64, 4
TEXT = (Path(__file__).parents[2] / "docs" / "language.md").read_bytes()
"""The language's page, byte by byte."""
OPTIONS = {"vocab_size": 256, "layer_types": ["sliding_attention", "full_attention"],
           "sliding_window": 16, "use_sliding_window": True}  # fmt: skip


def rows() -> Any:
    """Bytes [STEPS * BATCH, N], from everywhere in the text."""
    text = torch.tensor(list(TEXT), dtype=torch.long)
    places = torch.linspace(0, len(text) - N, STEPS * BATCH).long()
    return torch.stack([text[place : place + N] for place in places.tolist()])


def pair() -> models.Pair:
    return models.pair("Qwen3Config", "AutoModelForCausalLM", models.BASE | OPTIONS)


def near_losses(ours: list[float], eager: list[float]) -> None:
    """Rounding grows with the steps; a wrong mask would be seen in the second digit."""
    assert len(ours) == len(eager) >= STEPS
    assert ours[-1] < 0.8 * ours[0]
    for step, (mine, right) in enumerate(zip(ours, eager, strict=True)):
        assert mine == pytest.approx(right, rel=2e-4), step


def test_a_plain_loop() -> None:
    text, losses = rows(), []
    for model in pair():
        model.train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        found = []
        for step in range(STEPS):
            ids = text[step::STEPS]
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        losses.append(found)
    near_losses(*losses)


@pytest.mark.filterwarnings("ignore")
def test_the_trainer(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    data = [{"input_ids": row, "labels": row} for row in rows()]
    losses = []
    for model in pair():
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=1e-3,
            lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True, seed=0,
        )  # fmt: skip
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    near_losses(*losses)
