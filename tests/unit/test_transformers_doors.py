"""register, check, mask_of and set_mask."""

from __future__ import annotations

import sys
import types
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import transformers

import maskc as mc
from maskc.core.errors import BadOption, DataMissing, DataRange, ExtraMissing, ModelMask, NotAMask
from maskc.integrations import transformers as hf
from tests.support import models

pytestmark = models.QUIET
decoder = cache(models.decoder)


def test_registering_twice_changes_nothing() -> None:
    hf.register()
    before = transformers.PreTrainedModel.get_correct_attn_implementation
    hf.register()
    assert transformers.PreTrainedModel.get_correct_attn_implementation is before


def test_the_implementation_can_be_set_later_and_is_saved(tmp_path: Any) -> None:
    model = models.decoder("llama").eager
    ids, _ = models.tokens()
    before = model(ids).logits
    model.set_attn_implementation("maskc")
    assert model.config._attn_implementation == "maskc"
    torch.testing.assert_close(model(ids).logits, before)
    model.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="maskc")
    torch.testing.assert_close(again(ids).logits, before)
    refused = transformers.AutoModel.from_config(
        transformers.LongformerConfig(**models.ENCODER, attention_window=8)
    )
    refused.set_attn_implementation("maskc")  # transformers itself warns and changes nothing
    assert refused.config._attn_implementation == "eager"


# ---------------------------------------------------------------- check, mask_of


def test_the_table_of_a_model() -> None:
    model = decoder("gpt_oss").eager
    results = hf.check(model)
    assert results.ok
    assert str(results).splitlines()[:3] == [
        "layer  module           mask       live   heads  head dim  kernel  extras",
        "0      GptOssAttention  window(7)  28.5%  4/2    16        cpu     sink logits",
        "1      GptOssAttention  causal()   52.1%  4/2    16        cpu     sink logits",
    ]
    assert "GptOssForCausalLM equals eager" in str(results)
    assert model.config._attn_implementation == "eager"  # left as it was
    assert not model.training


def test_a_compiled_model_is_checked_as_if_it_were_not() -> None:
    model, (ids, _) = deepcopy(decoder("llama").ours), models.tokens()
    wrapped = torch.compile(model, backend="eager")
    for compiled in (wrapped, model):
        if compiled is model:
            model.compile(backend="eager")
        compiled(input_ids=ids, use_cache=False)
        assert hf.mask_of(compiled, 1).equals(mc.causal())
        results = hf.check(compiled)
        assert results.ok
        assert (results.model, len(results.rows)) == ("LlamaForCausalLM", 2)


def test_padding_and_packing_are_part_of_the_mask() -> None:
    model = decoder("gemma2").ours
    ids, mask = models.tokens("left")
    given = {"input_ids": ids, "attention_mask": mask}
    assert hf.mask_of(model, 0, **given) == mc.window(7) & mc.flags("padding")
    assert hf.mask_of(model, 1, **given) == mc.causal() & mc.flags("padding")
    ids, positions = models.packed()
    packed = hf.mask_of(model, 1, input_ids=ids, position_ids=positions, use_cache=False)
    assert packed == mc.causal() & mc.documents("packing")
    assert hf.check(model, **given).ok


def test_a_mask_of_a_model_is_one_to_compare() -> None:
    mistral = hf.mask_of(decoder("mistral").ours)
    assert mistral.equals(mc.causal() & mc.window(7))
    assert mistral.subset_of(hf.mask_of(decoder("llama").ours))
    with pytest.raises(BadOption, match="one that calls attention: 0, 1"):
        hf.mask_of(decoder("llama").ours, 2)


def test_encoders_with_images_and_two_inputs_are_checked() -> None:
    vit = transformers.ViTConfig(**models.VIT)
    results = hf.check(transformers.AutoModel.from_config(vit))
    assert results.ok
    assert [row.layer for row in results.rows] == [0, 1]
    bart = transformers.BartConfig(
        vocab_size=64, d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, pad_token_id=0,
    )  # fmt: skip
    results = hf.check(transformers.AutoModel.from_config(bart))
    assert results.ok
    assert [row.mask for row in results.rows] == [mc.full(), mc.causal(), mc.full()]


def test_a_difference_is_said() -> None:
    row = hf.Row(0, "A", mc.causal(), 0.5, (4, 2), (16, 8), "cpu", ())
    table = str(hf.Check("Model", (row,), 0.5, 1.0))
    assert "0      A       causal()  50.0%  4/2    16/8      cpu" in table
    assert table.endswith("Model DIFFERS FROM EAGER: largest difference 5.0e-01 of 1.0e+00")


@pytest.mark.parametrize("most", [0, 1 << 22])
def test_the_share_of_kept_pairs(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted, or of the whole mask."""
    from maskc.integrations.transformers import model_checks

    monkeypatch.setattr(model_checks, "_DENSE", most)
    layer = types.SimpleNamespace(mask=mc.causal(), shape=(1, 4, 2, 30, 70), data={})
    assert model_checks._live(layer) == pytest.approx(mc.causal().dense(30, 70).mean())


# ---------------------------------------------------------------- masks of one's own


def test_layers_with_a_sparser_mask() -> None:
    pair = models.decoder("llama")
    ids, mask = models.tokens("left")
    sparse = mc.sinks(2) | mc.window(3)
    hf.set_mask(pair.ours, {1: sparse})
    assert hf.mask_of(pair.ours, 0) == mc.causal()
    assert hf.mask_of(pair.ours, 1) == mc.causal() & sparse
    pair.eager.set_attn_implementation("sdpa")
    layer = pair.eager.model.layers[1].self_attn
    inner = layer.forward
    seen = mask.bool()[:, None, None] & torch.as_tensor((mc.causal() & sparse).dense(24))

    def forward(*args: Any, **named: Any) -> Any:
        return inner(*args, **named | {"attention_mask": seen})

    layer.forward = forward
    ours, other = (m(ids, attention_mask=mask).logits for m in pair)
    torch.testing.assert_close(ours[mask.bool()], other[mask.bool()])
    hf.set_mask(pair.ours, {1: None})
    assert hf.mask_of(pair.ours, 1) == mc.causal()
    hf.set_mask(pair.ours, sparse)
    assert hf.mask_of(pair.ours, 0) == mc.causal() & sparse
    assert hf.mask_of(deepcopy(pair.ours), 1) == mc.causal() & sparse


PARTS = torch.arange(40) // 7
WHOLE = {
    "sinks": mc.sinks(2) | mc.window(3),
    "formula": mc.where(lambda q, k: (k < 2) | ((q - k) % 3 == 0)),
    "start": mc.window(5, align="start") - mc.window(1, align="start"),
    "heads": mc.heads(0, 1) & mc.window(2) | mc.heads(2, 3) & mc.block_diagonal(5),
    "captured": mc.from_mask_mod(lambda b, h, q, k: PARTS[q] == PARTS[k]),
}


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("name", ["mistral", "llama"])
def test_a_mask_of_ones_own_counts_from_the_first_token_in_every_cache(
    name: str, kind: str
) -> None:
    """Also where a sliding cache has dropped the first keys."""
    model, (ids, _) = models.decoder(name).ours, models.tokens()
    hf.set_mask(model, WHOLE[kind])
    options = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    results = []
    for choice in ({"use_cache": False}, {}, {"cache_implementation": "static"}):
        made = model.generate(ids, output_logits=True, **options, **choice)
        results.append(torch.stack(made.logits))
    for cached in results[1:]:
        torch.testing.assert_close(cached, results[0], atol=2e-6, rtol=2e-5)


def test_mistakes_with_masks_of_ones_own() -> None:
    model = models.decoder("mistral").ours
    with pytest.raises(NotAMask):
        hf.set_mask(model, {0: torch.ones(2, 2)})
    with pytest.raises(NotAMask):
        hf.set_mask(model, "causal")
    with pytest.raises(BadOption, match="one of the layers 0, 1, found 7"):
        hf.set_mask(model, {7: mc.causal()})
    hf.set_mask(model, mc.documents("doc"))
    ids, _ = models.tokens()
    with pytest.raises(DataMissing, match=r"set_mask.*doc\[q\] == doc\[k\]"):
        model(ids)
    hf.set_mask(model, mc.topk(4, of=mc.causal()))
    with pytest.raises(ModelMask, match="dropped keys of a sliding cache"):
        model.generate(ids, max_new_tokens=3, do_sample=False)
    model.set_attn_implementation("sdpa")
    with pytest.warns(hf.IgnoredMaskWarning, match="'sdpa', which ignores"):
        hf.set_mask(model, mc.window(3))
    hf.set_mask(model, {0: None, 1: None})


# ---------------------------------------------------------------- beside the usual


def test_masks_that_users_add() -> None:
    """A model whose mask gets an `or_mask_function`: traced, not known."""
    pair = models.decoder("llama")
    module = sys.modules[type(pair.ours).__module__]
    inner = module.create_causal_mask

    def prefix(b: Any, h: Any, q: Any, k: Any) -> Any:
        return k < 5

    def create(**named: Any) -> Any:
        return inner(**named, or_mask_function=prefix)

    ids, mask = models.tokens("right")
    module.create_causal_mask = create
    try:
        ours, eager = (m(ids, attention_mask=mask).logits for m in pair)
        shown = hf.mask_of(pair.ours, input_ids=ids)
    finally:
        module.create_causal_mask = inner
    torch.testing.assert_close(ours[mask.bool()], eager[mask.bool()])
    assert mc.diff(shown, mc.causal() | mc.prefix(5), n=24) is None


def test_images_in_gemma_3() -> None:
    """block_sequence_ids: the tokens of an image see each other, in windows, too."""
    pair = models.decoder("gemma3")
    ids, _ = models.tokens("none")
    blocks = torch.full((2, 24), -1)
    blocks[0, 4:18] = 0
    blocks[1, 2:8], blocks[1, 9:14] = 0, 1
    masking = transformers.masking_utils
    inner = masking.create_masks_for_generate
    found = []
    for model in pair:
        embeds = model.get_input_embeddings()(ids)
        masks = inner(
            config=model.config, inputs_embeds=embeds, attention_mask=None, cache=None,
            position_ids=None, block_sequence_ids=blocks,
        )  # fmt: skip
        found.append(model(input_ids=ids, attention_mask=masks, use_cache=False).logits)
    torch.testing.assert_close(*found)


def test_beams_and_speculation() -> None:
    ids, _ = models.tokens("none")
    for options in ({"num_beams": 3}, {"prompt_lookup_num_tokens": 3}):
        given = ids[:1]
        ours, eager = (
            m.generate(given, max_new_tokens=8, do_sample=False, **options)
            for m in decoder("llama")
        )
        assert torch.equal(ours, eager)


def test_a_forward_pass_that_goes_on_from_a_cache() -> None:
    """Several queries behind a cache, with a window that has dropped keys."""
    ids, _ = models.tokens("none")
    for name in ("mistral", "llama4", "gpt_oss"):
        found = []
        for model in decoder(name):
            with torch.no_grad():
                first = model(ids[:, :15], use_cache=True)
                cache = getattr(first, "past_key_values", None) or first.cache
                found.append(model(ids[:, 15:], past_key_values=cache).logits)
        torch.testing.assert_close(*found)


def test_a_vision_tower_with_cumulative_lengths() -> None:
    from maskc.integrations.transformers.attention import run

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 9, 16) for _ in range(3))
    lengths = torch.tensor([0, 4, 9], dtype=torch.int32)
    out, _ = run(torch.nn.Module(), q, k, v, None, cu_seq_lens_q=lengths, cu_seq_lens_k=lengths)
    keep = torch.block_diag(torch.ones(4, 4), torch.ones(5, 5)).bool()
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, keep)
    torch.testing.assert_close(out, right.transpose(1, 2))
    with pytest.raises(ModelMask, match="cu_seq_lens"):
        run(torch.nn.Module(), q, k, v, None, cu_seq_lens_q=lengths)
    given = {"cu_seq_lens_q": lengths, "cu_seq_lens_k": lengths}
    for longest in (5, torch.tensor(4)):  # a tensor may be on a card, and is not read
        promised, _ = run(torch.nn.Module(), q, k, v, None, **given, max_length_q=longest)
        assert torch.equal(promised, out)
    with pytest.raises(DataRange, match="max_seqlen promises 4"):
        run(torch.nn.Module(), q, k, v, None, **given, max_length_q=4)


def test_the_result_is_contiguous_and_operands_need_not_be() -> None:
    from maskc.integrations.transformers.attention import run

    q, k, v = (torch.randn(1, 9, 2, 16).transpose(1, 2) for _ in range(3))
    out, weights = run(torch.nn.Module(), q, k.mT.contiguous().mT, v, None)
    assert weights is None
    assert out.is_contiguous()
    assert out.shape == (1, 9, 2, 16)


def test_bfloat16() -> None:
    """Both round; they stay as near to fp32 as bf16 is."""
    pair = models.decoder("gpt_oss")
    ids, mask = models.tokens("left")
    right = pair.eager(ids, attention_mask=mask).logits
    ours = pair.ours.to(torch.bfloat16)(ids, attention_mask=mask).logits
    eager = pair.eager.to(torch.bfloat16)(ids, attention_mask=mask).logits
    real = mask.bool()
    worst = [(x.float() - right)[real].abs().max() for x in (ours, eager)]
    assert worst[0] <= 2 * worst[1]


@pytest.mark.filterwarnings("ignore")
def test_fp32_decides_where_half_precision_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    from maskc.integrations.transformers import model_checks as asked

    monkeypatch.setattr(asked, "_HALF", 0.0)
    model = models.decoder("gpt_oss").ours.to(torch.bfloat16)
    results = hf.check(model)
    assert results.from_fp32 is not None
    assert 0 < results.error <= 1.01 * sum(results.from_fp32)  # the triangle inequality
    assert results.ok
    assert "from fp32" in str(results)
    assert next(model.parameters()).dtype == torch.bfloat16
    assert not replace(results, from_fp32=(0.5, 0.1)).ok


def test_a_transformers_that_cannot_be_imported_says_why(monkeypatch: pytest.MonkeyPatch):
    """It is installed: the reason is its own, and the hint names an extra that exists."""
    broken = types.ModuleType("transformers")  # `from transformers import __version__` fails
    monkeypatch.setitem(sys.modules, "transformers", broken)
    with pytest.raises(ExtraMissing, match="cannot be imported: cannot import name") as raised:
        hf.register()
    assert "'maskc[transformers]'" in str(raised.value)
    assert isinstance(raised.value.__cause__, ImportError)
