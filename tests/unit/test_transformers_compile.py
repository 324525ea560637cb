"""Whole models inside torch.compile(fullgraph=True), their masks included."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import maskc as mc
from maskc.core.errors import PackingLost
from maskc.integrations import transformers as hf
from tests.support import models
from tests.support.thorough import more

FOLLOWED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("graphs"),
    pytest.mark.skipif(not FOLLOWED, reason="an older compiler breaks the graph at masks"),
]


def compiled(model: Any, backend: str = "aot_eager", **options: Any) -> Any:
    return torch.compile(model, fullgraph=True, backend=backend, **options)


def near(ours: Any, eager: Any) -> None:
    torch.testing.assert_close(ours, eager, atol=2e-6, rtol=2e-5)


@pytest.mark.parametrize("name", [*map(more, ("mistral", "gemma3", "llama4")), "gpt_oss"])
def test_a_training_step_of_padded_tokens(name: str, graphs: Any) -> None:
    ours, eager = models.decoder(name)
    ids, mask = models.tokens("left")
    real, losses = mask.bool(), []
    for model, run in ((ours, compiled(ours)), (eager, eager)):
        logits = run(input_ids=ids, attention_mask=mask, use_cache=False).logits[real]
        logits.pow(2).mean().backward()
        losses.append(logits.detach())
        assert model is ours or graphs() == 1
    near(*losses)
    models.same_gradients(models.Pair(ours, eager))


@pytest.mark.parametrize("name", [more("gemma3"), "llama4"])
def test_packed_sequences(name: str) -> None:
    ours, eager = models.decoder(name)
    ids, positions = models.packed()
    inputs = {"input_ids": ids, "position_ids": positions, "use_cache": False}
    with torch.no_grad():
        near(compiled(ours)(**inputs).logits, eager(**inputs).logits)


def test_packed_sequences_that_no_mask_separates() -> None:
    ids, positions = models.packed()
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "use_cache": False}
    with torch.no_grad(), pytest.raises(RuntimeError, match="MC608"):
        compiled(models.decoder("llama4").ours)(position_ids=positions, **inputs)


def test_packed_sequences_beside_layers_with_a_state() -> None:
    ids, positions = models.packed()
    run = torch.compile(models.decoder("lfm2").ours, backend="eager")
    with torch.no_grad():
        run(input_ids=ids, use_cache=False)
        with pytest.raises((RuntimeError, PackingLost), match="MC615"):
            run(input_ids=ids, position_ids=positions, use_cache=False)


def test_lengths_share_one_graph(graphs: Any) -> None:
    ours, eager = models.decoder("mistral")
    run = compiled(ours, "eager", dynamic=True)
    for n in (24, 19, 40):
        ids, mask = models.tokens("left", n)
        with torch.no_grad():
            near(*(m(input_ids=ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
                   for m in (run, eager)))  # fmt: skip
    assert graphs() == 1


def test_a_mask_of_ones_own() -> None:
    """A mask of `set_mask` also reaches a model that was compiled with another one, or none."""
    ours, _ = models.decoder("mistral")
    run = compiled(ours, "eager")
    ids, mask = models.tokens("left")
    given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    results = []
    for masks in ({1: None}, {1: mc.window(3, 0)}, {1: mc.window(1, 0)}, {1: None}):
        hf.set_mask(ours, masks)
        with torch.no_grad():
            results.append(ours(**given).logits[mask.bool()])
            near(run(**given).logits[mask.bool()], results[-1])
    assert not any(torch.equal(one, other) for one, other in pairwise(results))


def test_a_mask_of_ones_own_beside_a_cache() -> None:
    """One graph follows the place of the queries."""
    from transformers import DynamicCache

    ours, _ = models.decoder("mistral")
    hf.set_mask(ours, mc.where(lambda q, k: (q - k) % 3 != 1))
    ids, _ = models.tokens("none")
    with torch.no_grad():
        whole = ours(input_ids=ids, use_cache=False).logits
        cache, parts = DynamicCache(config=ours.config), []
        for run, part in ((ours, ids[:, :12]), (compiled(ours, "eager"), ids[:, 12:])):
            parts.append(run(input_ids=part, past_key_values=cache).logits)
        near(torch.cat(parts, 1), whole)


def test_inductor() -> None:
    ours, eager = models.decoder("mistral")
    ids, _ = models.tokens("none")
    with torch.no_grad():
        near(compiled(ours, "inductor")(input_ids=ids, use_cache=False).logits, eager(ids).logits)


def test_other_implementations_are_as_they_were(graphs: Any) -> None:
    """`register` marks mask functions only for a compiler to see, and the graph stays whole."""
    _, eager = models.decoder("gemma3")
    ids, mask = models.tokens("left")
    given = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
    with torch.no_grad():
        near(*(m(**given).logits[mask.bool()] for m in (compiled(eager, "eager"), eager)))
    assert graphs() == 1


def test_a_function_that_no_graph_can_follow_breaks_it() -> None:
    """A mask function of one's own is traced by eager code, as without a compiler."""
    from transformers.masking_utils import create_causal_mask

    ours, _ = models.decoder("mistral")
    ids, _ = models.tokens("none")
    embeds = ours.model.embed_tokens(ids)

    def made() -> Any:
        return create_causal_mask(
            config=ours.config, inputs_embeds=embeds, attention_mask=None, past_key_values=None,
            or_mask_function=lambda b, h, q, k: k == 0,
        )  # fmt: skip

    with pytest.raises(torch._dynamo.exc.Unsupported):
        compiled(made, "eager")()
    assert torch.compile(made, backend="eager")().found.mask.equals(made().found.mask)


def test_a_bias_of_positions_is_learned_in_one_graph(graphs: Any) -> None:
    """T5's buckets: encoder, decoder and cross-attention, and the gradient of the embedding."""
    pair = models.pair("T5Config", "AutoModelForSeq2SeqLM", models.T5)
    ids, mask = models.tokens("right")
    given = {"input_ids": ids, "attention_mask": mask, "labels": models.tokens(n=17)[0]}
    losses = []
    for model, run in ((pair.ours, compiled(pair.ours)), (pair.eager, pair.eager)):
        model.zero_grad()
        out = run(**given, use_cache=False)
        out.loss.backward()
        losses.append(out.logits.detach())
        assert model is pair.eager or graphs() == 1
    torch.testing.assert_close(*losses, rtol=1e-5, atol=2e-6 * losses[1].abs().max().item())
    biases = [name for name in models.same_gradients(pair) if "relative_attention_bias" in name]
    assert len(biases) == 2
