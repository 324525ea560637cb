"""Tiny models of transformers against eager attention: forward, backward, generate, packing."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tests.support import models
from tests.support.thorough import alternating

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


@pytest.mark.parametrize("name", [n for n in models.DECODERS if n != "gpt_oss"])
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
