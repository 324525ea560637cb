"""Continuous batching of transformers, by its own manager and cache: the tokens that a model makes
are those that it makes for each prompt alone."""

from __future__ import annotations

import pytest
import torch
import transformers

import maskc as mc
from maskc.core.errors import MaskcError
from maskc.integrations.transformers import continuous as C
from maskc.integrations.transformers import set_mask
from tests.support.models import BASE, DECODERS, QUIET

pytestmark = QUIET
PROMPTS = [list(range(5, 17)), [3], [20, 21, 22, 23]]
NEW = 10


def model_of(name):
    kind, more = DECODERS[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**BASE, **more})
    made = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return made.eval()


def batched(model, prompts=PROMPTS, batch_tokens=8):
    """By `generate_batch`; prompts that are longer than a batch are cut."""
    config = transformers.generation.configuration_utils.ContinuousBatchingConfig(
        page_size=8, num_blocks=32, max_batch_tokens=batch_tokens, max_requests_per_batch=4
    )
    options = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    found = model.generate_batch(
        prompts, generation_config=transformers.GenerationConfig(**options),
        continuous_batching_config=config, progress_bar=False,
    )  # fmt: skip
    return [request.generated_tokens for request in found.values()]


@pytest.fixture
def layers_run(monkeypatch):
    seen = []
    run = C.attention
    monkeypatch.setattr(C, "attention", lambda *a, **k: seen.append("ragged") or run(*a, **k))
    plan = C._plan
    monkeypatch.setattr(C, "_plan", lambda *a: seen.append("paged") or plan(*a))
    return seen


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt_oss"])
def test_models_make_the_tokens_of_each_prompt(name, layers_run):
    model = model_of(name)
    want = [
        model.generate(torch.tensor([p]), max_new_tokens=NEW, do_sample=False)[0, len(p) :].tolist()
        for p in PROMPTS
    ]
    with C.continuous_batching(model) as serving:
        assert batched(serving) == want
    assert set(layers_run) == {"ragged"}
    assert model.config._attn_implementation == "eager"


def test_masks_of_ones_own_are_read_in_positions_of_requests(layers_run):
    """A window and sinks; the definition is a dense mask of each prompt alone."""
    model = model_of("llama")

    def tokens(prompt):
        found = list(prompt)
        for _ in range(NEW):
            place = torch.arange(len(found))
            away = place[:, None] - place
            keep = (away >= 0) & ((away <= 3) | (place < 2))
            bias = torch.where(keep, 0.0, -torch.inf)[None, None]
            found.append(
                int(model(torch.tensor([found]), attention_mask=bias).logits[0, -1].argmax())
            )
        return found[len(prompt) :]

    with torch.no_grad():
        want = [tokens(prompt) for prompt in PROMPTS]
    set_mask(model, mc.window(3) | (mc.sinks(2) & mc.causal()))
    with C.continuous_batching(model):
        assert batched(model) == want
    assert set(layers_run) == {"paged"}


def test_what_is_refused():
    model = model_of("llama")
    x = torch.zeros(1, 4, 3, 16)
    module = model.model.layers[0].self_attn
    with pytest.raises(MaskcError, match="outside of continuous batching"):
        C.run_ragged(module, x, x, x)
    ends = torch.tensor([0, 3], dtype=torch.int32)
    lengths = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": 3, "max_length_k": 3}
    for given, why in (({"dropout": 0.1}, "dropout"), ({"position_bias": x}, "position_bias")):
        with pytest.raises(MaskcError, match=why):
            C.run_ragged(module, x, x, x, **lengths, **given)
    set_mask(model, mc.window(3))
    with pytest.raises(MaskcError, match="sliding cache"):
        C.run_ragged(module, x, x, x, **lengths, sliding_window=3)
