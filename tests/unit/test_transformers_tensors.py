"""Masks that reach attention as tensors: made by a model itself, or by its user."""

from __future__ import annotations

import ast
from copy import deepcopy
from typing import Any

import pytest
import torch
import transformers

import maskc as mc
from maskc.core.errors import MaskNotATensor, ModelMask, ModelNotServed, PartNotServed
from maskc.integrations import transformers as hf
from maskc.integrations.transformers import attention, tensor_masks
from maskc.integrations.transformers.attention import layers, run
from maskc.integrations.transformers.carried import make_mask
from maskc.integrations.transformers.tensor_masks import parts_of
from tests.support import models

pytestmark = models.QUIET

B, H, N_Q, N_KV = 2, 4, 12, 17
LOWEST = torch.finfo(torch.float32).min
PADDING = torch.ones(B, 1, 1, N_KV, dtype=torch.bool)
PADDING[0, ..., :3] = False
CAUSAL = torch.ones(N_Q, N_KV, dtype=torch.bool).tril(N_KV - N_Q)
BLOCKS = torch.arange(N_Q)[:, None] // 5 == torch.arange(N_KV) // 5
HOLES = torch.rand(B, 1, N_Q, N_KV, generator=torch.Generator().manual_seed(4)) > 0.4
BY_HEAD = torch.rand(1, H, N_Q, N_KV, generator=torch.Generator().manual_seed(5)) > 0.4
NOISE = torch.randn(B, H, N_Q, N_KV, generator=torch.Generator().manual_seed(6))


def added(keep: Any, low: float = LOWEST, dtype: Any = torch.float32) -> Any:
    """Numbers that hide what is not kept."""
    return torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, low)


HALF_LOWEST = torch.finfo(torch.bfloat16).min
ONE_ROW_HIDDEN = added(CAUSAL)
ONE_ROW_HIDDEN[4] = LOWEST

MASKS: dict[str, tuple[Any, mc.Mask, bool]] = {
    "all": (torch.ones(1, 1, N_Q, N_KV, dtype=torch.bool), mc.full(), False),
    "keys": (PADDING, mc.flags("model_keys"), False),
    "expanded keys": (PADDING.expand(B, H, N_Q, N_KV), mc.flags("model_keys"), False),
    "causal": (CAUSAL, mc.causal(), False),
    "causal and keys": (CAUSAL & PADDING, mc.intervals("model_runs"), False),
    "blocks": (BLOCKS[None, None], mc.intervals("model_runs"), False),
    "holes": (HOLES, mc.block_table("model_pairs", 1), False),
    "by head": (BY_HEAD, mc.block_table("model_pairs", 1), False),
    "nothing is added": (torch.zeros(B, 1, N_Q, N_KV), mc.full(), False),
    "lowest": (added(PADDING), mc.flags("model_keys"), False),
    "-inf": (added(BLOCKS, -torch.inf), mc.intervals("model_runs"), False),
    "lowest of bfloat16": (added(PADDING, HALF_LOWEST, torch.bfloat16),
                           mc.flags("model_keys"), False),
    "-10000": (added(PADDING, -1e4), mc.full(), True),
    "a bias": (NOISE, mc.full(), True),
    "a bias of all heads": (NOISE[:1, :1], mc.full(), True),
    "a causal bias": (NOISE.masked_fill(~CAUSAL, LOWEST), mc.causal(), True),
}  # fmt: skip


def qkv() -> tuple[Any, Any, Any]:
    draw = torch.Generator().manual_seed(0)
    q = torch.randn(B, H, N_Q, 16, generator=draw)
    k, v = (torch.randn(B, H // 2, N_KV, 16, generator=draw) for _ in range(2))
    return q, k, v


def right(q: Any, k: Any, v: Any, mask: Any, softcap: float | None = None) -> Any:
    """Attention in fp64, [B, n_q, H, D]; rows without a key are 0."""
    k, v = (x.repeat_interleave(2, 1).double() for x in (k, v))
    scores = q.double() @ k.mT / 4
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -torch.inf)
    else:
        scores = scores + mask.double()
    return (scores.softmax(-1).nan_to_num() @ v).transpose(1, 2)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_a_tensor_is_a_mask(name: str, softcap: float | None) -> None:
    tensor, mask, has_bias = MASKS[name]
    assert parts_of(tensor)[::2] == (mask, has_bias)
    q, k, v = qkv()
    out, _ = run(torch.nn.Module(), q, k, v, tensor, softcap=softcap)
    torch.testing.assert_close(out.double(), right(q, k, v, tensor, softcap), atol=3e-6, rtol=1e-5)


@pytest.mark.parametrize("name", MASKS)
def test_what_no_host_has_read_is_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing reads the tensor on a GPU or in a graph."""
    tensor = MASKS[name][0]
    parts = tensor_masks._parts(tensor, look=False)
    assert str(parts.mask) in ("flags('model_keys')", "block_table('model_pairs', 1)")
    assert parts.has_bias == tensor.is_floating_point()
    monkeypatch.setattr(attention, "parts_of", lambda _: parts)
    q, k, v = qkv()
    out, _ = run(torch.nn.Module(), q, k, v, tensor)
    torch.testing.assert_close(out.double(), right(q, k, v, tensor), atol=3e-6, rtol=1e-5)


def test_a_row_of_lowest_numbers_hides_nothing() -> None:
    """They are finite: softmax gives all keys of such a row the same weight."""
    for look in (True, False):
        mask, data, has_bias = tensor_masks._parts(ONE_ROW_HIDDEN, look)
        kept = torch.as_tensor(mask.dense(N_Q, N_KV, **data)).reshape(N_Q, N_KV)
        assert has_bias
        assert bool(kept[4].all())
        assert torch.equal(kept[:4], CAUSAL[:4])


def test_a_bias_has_a_gradient() -> None:
    q, k, v = qkv()
    bias = NOISE.clone().requires_grad_()
    out, _ = run(torch.nn.Module(), q, k, v, bias)
    out.square().sum().backward()
    twin = NOISE.double().requires_grad_()
    right(q, k, v, twin).square().sum().backward()
    torch.testing.assert_close(bias.grad.double(), twin.grad, atol=1e-5, rtol=1e-4)
    zeros = torch.zeros(1, 1, N_Q, N_KV, requires_grad=True)  # learned, and no number yet
    out, _ = run(torch.nn.Module(), q, k, v, zeros)
    out.square().sum().backward()
    assert bool(zeros.grad.any())


def test_a_bias_beside_a_bias_of_positions() -> None:
    q, k, v = qkv()
    tensor = NOISE.masked_fill(~CAUSAL, LOWEST)
    out, _ = run(torch.nn.Module(), q, k, v, tensor, position_bias=NOISE.flip(0))
    expected = right(q, k, v, tensor.double() + NOISE.flip(0))
    torch.testing.assert_close(out.double(), expected, atol=3e-6, rtol=1e-5)


def test_all_layers_read_a_tensor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until somebody writes into it; the slices of a tensor are told apart."""
    seen = []
    read = tensor_masks._parts
    monkeypatch.setattr(tensor_masks, "_parts", lambda *given, **named: seen.append(1) or read(
        *given, **named))  # fmt: skip
    tensor = CAUSAL.clone()[None, None]
    for _ in range(3):
        assert parts_of(tensor).mask == mc.causal()
        assert parts_of(tensor[..., :10]).mask == mc.intervals("model_runs")
    assert len(seen) == 2
    tensor[..., 0] = False
    assert parts_of(tensor).mask == mc.intervals("model_runs")
    assert len(seen) == 3
    with torch.inference_mode():  # where nothing counts writes
        held = CAUSAL.clone()
        assert parts_of(held).mask == mc.causal()
        held[:, 0] = False
        assert parts_of(held).mask == mc.intervals("model_runs")


def test_a_memo_keeps_no_tensor_alive() -> None:
    import weakref

    for mask, keys in ((CAUSAL, N_KV), (HOLES, N_KV), (NOISE, N_KV), (HOLES, 9)):
        tensor = mask.clone()[..., :keys]
        parts_of(tensor)
        watched = weakref.ref(tensor if tensor._base is None else tensor._base)
        del tensor
        assert watched() is None


def test_a_mask_made_anew_builds_and_plans_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from maskc import driver

    q, k, v = qkv()
    run(torch.nn.Module(), q, k, v, HOLES)
    builds = []
    for name in ("build", "plan"):
        if hasattr(driver, name):
            monkeypatch.setattr(driver, name, lambda *_, **__: builds.append(1))
    for shift in range(3):
        tensor = HOLES.roll(shift, -1)
        out, _ = run(torch.nn.Module(), q, k, v, tensor)
        torch.testing.assert_close(out.double(), right(q, k, v, tensor), atol=3e-6, rtol=1e-5)
    assert not builds


@pytest.mark.filterwarnings("ignore")
def test_a_graph_of_torch_compile_takes_it() -> None:
    q, k, v = qkv()

    def attend(mask: Any) -> Any:
        return run(torch.nn.Module(), q, k, v, mask)[0]

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for tensor in (HOLES, added(PADDING), NOISE):
        torch.testing.assert_close(
            compiled(tensor).double(), right(q, k, v, tensor), atol=3e-6, rtol=1e-5
        )


def test_masks_of_four_dimensions_that_a_user_makes() -> None:
    pair = models.decoder("gemma2")  # windows, and a soft-cap in front of the mask
    ids, padding = models.tokens("left")
    keep = torch.ones(24, 24, dtype=torch.bool).tril() & padding.bool()[:, None, None]
    keep |= torch.eye(24, dtype=torch.bool)  # no row is empty
    for ours, theirs in ((keep, added(keep)), (added(keep), added(keep))):
        found = pair.ours(ids, attention_mask=ours).logits
        torch.testing.assert_close(found, pair.eager(ids, attention_mask=theirs).logits)
    hf.set_mask(pair.ours, mc.window(2))
    near = keep & torch.as_tensor(mc.window(2).dense(24))
    found = pair.ours(ids, attention_mask=keep).logits
    torch.testing.assert_close(found, pair.eager(ids, attention_mask=added(near)).logits)


def test_a_vision_tower_that_makes_its_mask() -> None:
    """Pixtral separates images by a mask of four dimensions."""
    config = transformers.PixtralVisionConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        image_size=32, patch_size=8, head_dim=16,
    )  # fmt: skip
    hf.register()
    torch.manual_seed(0)
    build = transformers.PixtralVisionModel._from_config
    ours = build(deepcopy(config), attn_implementation="maskc").eval()
    eager = build(deepcopy(config), attn_implementation="eager").eval()
    eager.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad(), layers() as seen:
        found = ours(images).last_hidden_state
    torch.testing.assert_close(found, eager(images).last_hidden_state)
    assert [layer.mask for layer in seen] == [mc.intervals("model_runs")] * 2


# ---------------------------------------------------------------- models that compute with masks


class Unknown(transformers.PretrainedConfig):
    """The configuration of a model that is not transformers' own."""


def test_a_model_that_runs_on_sdpa_may_take_elements_of_its_mask() -> None:
    """They are SDPA's booleans. What eager attention does with its mask is refused."""
    padding = torch.ones(B, N_KV, dtype=torch.bool)
    padding[0, :3] = False
    assert transformers.LlamaModel
    config = transformers.LlamaConfig()
    mask = make_mask(B, N_Q, N_KV, N_KV - N_Q, attention_mask=padding, config=config)
    keep = (CAUSAL & padding[:, None, None]).expand(B, 1, N_Q, N_KV)
    assert torch.equal(mask[:, :, -1:], keep[:, :, -1:])
    assert torch.equal(~mask, ~keep)
    assert torch.equal(torch.cat([mask, ~mask], dim=-1), torch.cat([keep, ~keep], dim=-1))
    assert (mask.dtype, mask.device) == (torch.bool, keep.device)
    for compute in (
        lambda: mask + 1,
        lambda: 1 - mask,
        lambda: torch.add(mask, 1),
        lambda: mask.sum(),
    ):
        with pytest.raises(MaskNotATensor):
            compute()
    for other in (Unknown(), transformers.BridgeTowerConfig()):  # eager attention alone
        assert transformers.BridgeTowerModel
        with pytest.raises(MaskNotATensor):
            make_mask(B, N_Q, N_KV, config=other)[:, :, -1:]


def test_a_mask_of_one_query_serves_many() -> None:
    """BridgeTower makes such masks; only where all queries see the same keys."""
    q, k, v = qkv()
    padding = PADDING[:, 0, 0]
    hide = make_mask(
        B, 1, N_KV, mask_function=transformers.masking_utils.bidirectional_mask_function,
        attention_mask=padding,
    )  # fmt: skip
    out, _ = run(torch.nn.Module(), q, k, v, hide)
    torch.testing.assert_close(out.double(), right(q, k, v, PADDING), atol=3e-6, rtol=1e-5)
    with pytest.raises(ModelMask, match="12 queries and 17 keys, and a mask for 1 and 17"):
        run(torch.nn.Module(), q, k, v, make_mask(B, 1, N_KV, N_KV - 1))


def test_no_mask_is_full_where_only_eager_attention_runs() -> None:
    from transformers.models.bridgetower.modeling_bridgetower import BridgeTowerSelfAttention

    config = transformers.BridgeTowerTextConfig(hidden_size=64, num_attention_heads=4)
    layer = BridgeTowerSelfAttention(config, is_causal=True)
    q, k, v = qkv()
    k, v = k[:, :, :N_Q], v[:, :, :N_Q]
    out, _ = run(layer, q, k, v, None)
    everything = torch.ones(N_Q, N_Q, dtype=torch.bool)
    torch.testing.assert_close(out.double(), right(q, k, v, everything), atol=3e-6, rtol=1e-5)


# ---------------------------------------------------------------- what is no mask


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(B, N_KV, dtype=torch.bool),  # padding, as flash attention takes it
        torch.ones(B, 1, N_Q, N_KV, dtype=torch.long),
        torch.ones(B, 1, N_Q, N_KV + 1, dtype=torch.bool),
        torch.ones(3, 1, N_Q, N_KV, dtype=torch.bool),
        torch.ones(1, B, H, N_Q, N_KV, dtype=torch.bool),
        "causal",
    ],
)
def test_what_is_no_mask(tensor: Any) -> None:
    q, k, v = qkv()
    with pytest.raises(ModelMask):
        run(torch.nn.Module(), q, k, v, tensor)


SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4,
}  # fmt: skip


def test_models_with_an_attention_class_for_each_name() -> None:
    hf.register()
    git = transformers.GitConfig(
        vocab_size=64, bos_token_id=1, eos_token_id=2,
        vision_config={"image_size": 8, "patch_size": 4, **SMALL}, **SMALL,
    )  # fmt: skip
    with pytest.raises(ModelNotServed, match="Git cannot run"):
        transformers.GitModel._from_config(git, attn_implementation="maskc")
    alone = transformers.SamVisionConfig(**models.SAM)
    with pytest.raises(ModelNotServed, match="SamVision cannot run"):
        transformers.SamVisionModel._from_config(alone, attn_implementation="maskc")


def test_the_rest_of_a_model_runs() -> None:
    hf.register()
    config = transformers.SamConfig(vision_config=models.SAM)
    with pytest.raises(PartNotServed) as raised:
        transformers.SamModel._from_config(deepcopy(config), attn_implementation="maskc")
    hint = str(raised.value).split("attn_implementation=")[-1]
    parts = ast.literal_eval(hint)
    assert parts[""] == "maskc"
    assert parts["vision_config"] == "eager"
    model = transformers.SamModel._from_config(config, attn_implementation=parts)
    assert model.config._attn_implementation == "maskc"
    assert model.config.vision_config._attn_implementation == "eager"
