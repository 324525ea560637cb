"""Models of transformers with a bias of positions, and dropout of attention while they train."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tests.support import models
from tests.support.thorough import more

pytestmark = models.QUIET
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
def test_logits(name: str, side: str) -> None:
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
def test_generated_tokens(cache: str) -> None:
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
