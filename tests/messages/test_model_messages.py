"""The full text of every refusal around models of transformers (MC605 to MC609, MC613 to MC615)."""

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


def hybrid(name: str) -> None:
    models.decoder(name).ours(input_ids=IDS, position_ids=PACKED, use_cache=False)


def short_mask() -> None:
    """The mask of the new tokens alone, with others in the cache."""
    model = models.decoder("mistral").ours
    cache = model(input_ids=IDS, use_cache=True).past_key_values
    model(input_ids=IDS[:, :3], past_key_values=cache, attention_mask=torch.ones_like(IDS[:, :3]))


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
    "longformer": lambda: ours("LongformerConfig", **models.ENCODER, attention_window=8),
    "big_bird": lambda: ours("BigBirdConfig", **models.ENCODER | {"vocab_size": 99}),
    "position_bias": biased,
    "output_attentions": lambda: llama(output_attentions=True),
    "unknown": lambda: llama(tree=torch.ones(1)),
    "deepseek_v32": deepseek,
    "torch_function": as_tensor,
    "packed_with_a_cache": lambda: llama(position_ids=PACKED),
    "packed_beside_mamba": lambda: hybrid("bamba"),
    "packed_beside_mamba_1": lambda: hybrid("jamba"),
    "integers": lambda: llama(attention_mask=torch.ones(1, 1, 24, 24, dtype=torch.long)),
    "a_part": sam,
    "lengths": other_lengths,
    "no_mask": no_mask,
    "short_mask": short_mask,
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_a_refusal(name: str, message) -> None:
    with pytest.raises(MaskcError) as raised:
        TEXTS[name]()
    message("models", name, str(raised.value))


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
