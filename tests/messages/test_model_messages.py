"""The full text of every refusal around models of transformers (MC605 to MC609, MC613, MC614)."""

# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from maskc.core.errors import MaskcError
from tests.support import models

pytestmark = models.QUIET


def ours(kind: str = "LlamaConfig", auto: str = "AutoModel", **options: Any) -> Any:
    from maskc.integrations.transformers import register

    register()
    config = getattr(transformers, kind)(**options)
    return getattr(transformers, auto).from_config(config, attn_implementation="maskc").eval()


def llama(train: bool = False, options: dict[str, Any] | None = None, **inputs: Any) -> None:
    model = ours("LlamaConfig", "AutoModelForCausalLM", **models.BASE | (options or {}))
    model.train(train)
    model(input_ids=IDS, **inputs)


def deepseek() -> None:
    ours(
        "DeepseekV32Config", vocab_size=64, hidden_size=64, intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=16,
        kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=16, n_routed_experts=4,
        num_experts_per_tok=2, first_k_dense_replace=2, index_topk=4, index_n_heads=2,
        index_head_dim=16, n_group=1, topk_group=1,
    )(input_ids=IDS)  # fmt: skip


def sam() -> None:
    """A model whose vision tower looks a class up by the implementation's name."""
    ours("SamConfig", vision_config=models.SAM)


def biased() -> None:
    """A bias of positions, and a soft-cap whose order with it nobody settled."""
    from maskc.integrations.transformers.attention import run

    q = torch.zeros(1, 2, 3, 16)
    run(torch.nn.Module(), q, q, q, None, position_bias=torch.zeros(1, 2, 3, 3), softcap=5.0)


def other_lengths() -> None:
    """A mask made for other keys than those that come."""
    from maskc.integrations.transformers.attention import run
    from maskc.integrations.transformers.carried import make_mask

    q = torch.zeros(1, 2, 3, 16)
    run(torch.nn.Module(), q, q, q, make_mask(1, 3, 5, 2))


def no_mask() -> None:
    from maskc.integrations.transformers.attention import run

    q, k = torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 5, 16)
    run(torch.nn.Module(), q, k, k, None, is_causal=True)


def as_tensor() -> None:
    from maskc.integrations.transformers.carried import make_mask

    torch.add(make_mask(1, 3, 3, config=transformers.LlamaConfig()), 1)


IDS = torch.arange(3, 27)[None]
PACKED = torch.cat([torch.arange(10), torch.arange(14)])[None]

TEXTS = {
    "longformer": (
        lambda: ours("LongformerConfig", **models.ENCODER, attention_window=8),
        "MC605  LongformerModel cannot run with attn_implementation='maskc': it computes attention by itself and never calls transformers' attention interface\n"
        "    hint: load it with attn_implementation='eager'",
    ),
    "big_bird": (
        lambda: ours("BigBirdConfig", **models.ENCODER | {"vocab_size": 99}),
        "MC605  BigBirdModel cannot run with attn_implementation='maskc': it computes attention by itself and never calls transformers' attention interface\n"
        "    hint: load it with attn_implementation='eager'",
    ),
    "position_bias": (
        biased,
        "MC606  Module calls its attention with position_bias and softcap, which maskc does not compute\n"
        "    hint: load the model with attn_implementation='eager'",
    ),
    "output_attentions": (
        lambda: llama(output_attentions=True),
        "MC606  LlamaAttention of llama calls its attention with output_attentions=True, which maskc does not compute\n"
        "    hint: load the model with attn_implementation='eager' to look at attention weights",
    ),
    "unknown": (
        lambda: llama(tree=torch.ones(1)),
        "MC606  LlamaAttention of llama calls its attention with tree, which maskc does not compute\n"
        "    hint: load the model with attn_implementation='eager'",
    ),
    "deepseek_v32": (
        deepseek,
        "MC606  DeepseekV32Attention of deepseek_v32 calls its attention with indices, which maskc does not compute\n"
        "    hint: the keys chosen by the model's indexer would be ignored: load the model with attn_implementation='eager'",
    ),
    "torch_function": (
        as_tensor,
        "MC607  llama reads torch.add of its attention mask, which is a set in maskc and not a tensor\n"
        "    hint: this model computes with masks itself: load it with attn_implementation='eager'",
    ),
    "packed_with_a_cache": (
        lambda: llama(position_ids=PACKED),
        "MC608  LlamaAttention of llama got position_ids that restart at token 10 of sequence 0, and a mask without packed sequences, so tokens would see other sequences\n"
        "    hint: transformers packs only without a cache and without a mask: pass use_cache=False and attention_mask=None, also in training; give models that never pack one sequence per row",
    ),
    "integers": (
        lambda: llama(attention_mask=torch.ones(1, 1, 24, 24, dtype=torch.long)),
        "MC609  LlamaAttention of llama calls its attention with a mask of shape (1, 1, 24, 24) and torch.int64\n"
        "    hint: masks are booleans that keep pairs, or numbers that are added to scores, and broadcast to the scores; where a model made this one: load the model with attn_implementation='eager'",
    ),
    "a_part": (
        sam,
        "MC614  SamVision cannot run with attn_implementation='maskc': it has an attention class for each implementation it knows, and none that calls maskc\n"
        "    hint: give this part another implementation: attn_implementation={'': 'maskc', 'prompt_encoder_config': 'maskc', 'mask_decoder_config': 'maskc', 'vision_config': 'eager'}",
    ),
    "lengths": (
        other_lengths,
        "MC609  Module calls its attention with 3 queries and 3 keys, and a mask for 3 and 5\n"
        "    hint: load the model with attn_implementation='eager'",
    ),
    "no_mask": (
        no_mask,
        "MC609  Module calls its attention with is_causal=True, no mask, and 3 queries for 5 keys\n"
        "    hint: the positions of the queries are unknown: load the model with attn_implementation='eager'",
    ),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_refusal(name: str) -> None:
    run, text = TEXTS[name]
    with pytest.raises(MaskcError) as raised:
        run()
    assert str(raised.value) == text


@pytest.mark.parametrize("found", ["5.17.0", "5.23.4", "4.57.1"])
def test_an_older_transformers_is_refused(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from maskc.integrations.transformers import register

    monkeypatch.setattr("transformers.__version__", found)
    with pytest.raises(MaskcError) as raised:
        register()
    assert str(raised.value) == (
        f"MC613  maskc needs transformers 5.24 or later, and {found} is installed\n"
        "    hint: pip install 'transformers>=5.24'"
    )
    for served in ("5.24.0", "5.25.0.dev0", "6.0.1", "10.1.0"):
        monkeypatch.setattr("transformers.__version__", served)
        register()


def test_the_oldest_transformers_is_the_packages_own() -> None:
    from maskc.integrations.transformers import OLDEST

    project = Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    assert re.findall(r'"transformers>=([0-9.]+)"', project) == [OLDEST]


@pytest.mark.parametrize("keyword", ["indices", "block_indices", "sinks"])
def test_selections_of_the_model_are_never_ignored(keyword: str) -> None:
    from maskc.core.errors import ModelArgument
    from maskc.integrations.transformers.attention import run

    q = torch.zeros(1, 2, 3, 16)
    with pytest.raises(ModelArgument, match=keyword):
        run(torch.nn.Module(), q, q, q, None, **{keyword: torch.zeros(1, dtype=torch.long)})


def test_packing_is_lost_beside_a_mask_of_ones_too() -> None:
    from maskc.core.errors import PackingLost

    with pytest.raises(PackingLost):
        llama(position_ids=PACKED, attention_mask=torch.ones_like(IDS), use_cache=False)
    llama(position_ids=PACKED, use_cache=False)


def test_a_packed_batch_that_the_model_never_packs_is_refused() -> None:
    """gpt-oss hands no position_ids to its mask, so eager attention leaks here."""
    from maskc.core.errors import PackingLost

    pair = models.decoder("gpt_oss")
    with pytest.raises(PackingLost, match="GptOssAttention of gpt_oss"):
        pair.ours(input_ids=IDS, position_ids=PACKED, use_cache=False)
