"""Mask functions of transformers as masks, against their own evaluation on all pairs."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from transformers import masking_utils as hf

import maskc as mc
from maskc.core.errors import NotTraceable
from maskc.integrations.transformers.masks import LayerPlace, mask_of

N, B = 14, 2
PLACES = {
    "whole": LayerPlace(N, N, 0, 0),
    "dynamic": LayerPlace(3, N, N - 3, 0),
    "one": LayerPlace(1, N, N - 1, 0),
    "sliding": LayerPlace(3, 8, N - 3, N - 8),
    "static_begin": LayerPlace(5, N, 0, 0),
    "static_middle": LayerPlace(2, N, 6, 0),
    "static_sliding": LayerPlace(2, 6, 9, 7),
    "cross": LayerPlace(4, N, 0, 0),
}
IDS = torch.tensor([[0] * 5 + [1] * 2 + [2] * 7, [0] * 9 + [1] * 5])
POSITIONS = torch.tensor([[*range(5), *range(2), *range(7)], [*range(9), *range(5)]])
IMAGES = torch.tensor([[-1, -1, 0, 0, 0, -1, 1, 1, -1, -1, -1, 2, 2, 2], [-1] * 10 + [0] * 4])
LEFT = torch.tensor([3, 0])
PADDING = {
    "none": None,
    "ones": torch.ones(B, N, dtype=torch.bool),
    "left": torch.arange(N)[None] >= LEFT[:, None],
    "short": torch.arange(N - 2)[None] >= LEFT[:, None],  # a static cache that is not yet full
}
SLIDING = hf.sliding_window_causal_mask_function(4)
CHUNKED = hf.chunked_causal_mask_function(4, LEFT)


def _user(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q % 3 == 0) & (k < 5)


def _packed(base: Any, images: Any = None) -> Any:
    """Return what create_causal_mask makes of packed position_ids."""
    found = hf.remap_positions_for_packed_sequence(base, POSITIONS)
    if images is not None:
        found = hf.or_masks(found, hf.blockwise_overlay(images))
    return hf.and_masks(found, hf.packed_sequence_mask_function(IDS))


FUNCTIONS = {
    "causal": hf.causal_mask_function,
    "full": hf.bidirectional_mask_function,
    "sliding": SLIDING,
    "both_ways": hf.sliding_window_bidirectional_mask_function(4),
    "chunked": CHUNKED,
    "images": hf.or_masks(hf.causal_mask_function, hf.blockwise_overlay(IMAGES)),
    "two_images": hf.or_masks(
        SLIDING, hf.blockwise_overlay(IMAGES), hf.blockwise_overlay(IMAGES.flip(1))
    ),
    "sliding_images": hf.or_masks(SLIDING, hf.blockwise_overlay(IMAGES)),
    "overlay_alone": hf.sliding_window_overlay(4),
    "or_user": hf.or_masks(hf.causal_mask_function, _user),
    "and_user": hf.and_masks(SLIDING, _user),
}
PACKED = {
    "causal": _packed(hf.causal_mask_function),
    "sliding": _packed(SLIDING),
    "chunked": _packed(hf.chunked_causal_mask_function(4, torch.zeros(B, dtype=torch.long))),
    "padded_chunks": _packed(CHUNKED),
    "images": _packed(hf.causal_mask_function, IMAGES),
    "user": _packed(hf.or_masks(SLIDING, _user)),
    "without_positions": hf.and_masks(SLIDING, hf.packed_sequence_mask_function(IDS)),
    "other_positions": hf.and_masks(
        hf.remap_positions_for_packed_sequence(SLIDING, POSITIONS.flip(1)),
        hf.packed_sequence_mask_function(IDS),
    ),
    "no_segments": hf.remap_positions_for_packed_sequence(SLIDING, POSITIONS),
}


def evaluated(function: Any, padding: Any, place: LayerPlace) -> np.ndarray:
    """bool [B, n_q, n_kv], as transformers' own eager mask has it."""
    found = hf.sdpa_mask(
        batch_size=B, q_length=place.n_q, kv_length=place.n_kv, q_offset=place.q_offset,
        kv_offset=place.kv_offset, mask_function=function, attention_mask=padding,
        allow_is_causal_skip=False, allow_is_bidirectional_skip=False, device="cpu",
    )  # fmt: skip
    return np.broadcast_to(found[:, 0].numpy(), (B, place.n_q, place.n_kv))


def check(function: Any, padding: Any, place: LayerPlace) -> Any:
    found = mask_of(function, padding, place)
    dense = found.mask.dense(place.n_q, found.n_kv, **found.data)
    right = evaluated(function, padding, place)
    assert not right[:, :, found.n_kv :].any()  # what is cut off is dead
    right = right[:, :, : found.n_kv]
    np.testing.assert_array_equal(np.broadcast_to(dense, right.shape), right)
    return found


@pytest.mark.parametrize(("name", "at"), [*product(FUNCTIONS, PLACES)])
def test_a_function_at_a_place(name: str, at: str) -> None:
    for padding in PADDING.values():
        if at == "cross" and padding is not None and padding.shape[1] != N:
            continue
        check(FUNCTIONS[name], padding, PLACES[at])


@pytest.mark.parametrize("name", PACKED)
def test_packed_sequences(name: str) -> None:
    results = check(PACKED[name], None, PLACES["whole"])
    assert (results.sequences is None) == (name == "no_segments")


def test_the_known_ones_are_combinators_without_content() -> None:
    def of(name: str, at: str, functions: Any = FUNCTIONS) -> mc.Mask:
        return mask_of(functions[name], None, PLACES[at]).mask

    assert of("causal", "whole") == mc.causal()
    assert of("sliding", "whole") == mc.window.hf(4)
    assert of("both_ways", "whole") == mc.window.hf_bidirectional(4)
    assert of("full", "whole") == mc.full()
    assert of("causal", "whole", PACKED) == mc.causal() & mc.documents("packing")
    # One mask for every step of generation: nothing is planned anew.
    for at in ("dynamic", "one", "sliding", "static_middle", "static_sliding", "static_begin"):
        assert of("sliding", at) is of("sliding", "whole")
    other = hf.and_masks(hf.causal_mask_function, hf.packed_sequence_mask_function(IDS + 5))
    assert mask_of(other, None, PLACES["whole"]).mask is of("causal", "whole", PACKED)


def test_an_offset_may_be_a_tensor_and_padding_of_ones_is_none() -> None:
    from maskc.integrations.transformers.carried import make_mask

    offset = torch.tensor(6)
    mask = make_mask(B, 2, N, offset, 0, SLIDING, PADDING["ones"])
    assert mask.found.mask == mc.window.hf(4)
    assert mask.found.n_kv == 8
    assert mask.shape == (B, 1, 2, N)


def test_what_does_not_trace_is_refused_with_its_line() -> None:
    def odd(b: Any, h: Any, q: Any, k: Any) -> Any:
        return torch.sqrt(q) > k

    with pytest.raises(NotTraceable, match=r"test_transformers_masks\.py"):
        mask_of(hf.or_masks(hf.causal_mask_function, odd), None, PLACES["whole"])


def test_the_images_of_gemma_4() -> None:
    """The mask that the model composes is what docs/huggingface.md calls transformers' reading."""
    from transformers import Gemma4TextConfig
    from transformers.models.gemma4 import modeling_gemma4 as gemma4

    from maskc.integrations.transformers import register

    register()
    kinds = ["sliding_attention", "full_attention"]
    config = Gemma4TextConfig(sliding_window=4, layer_types=kinds, num_hidden_layers=2)
    config._attn_implementation_internal = "maskc"
    masks = gemma4.create_masks_for_vision_model(
        config=config, inputs_embeds=torch.zeros(B, N, 8), attention_mask=None, cache=None,
        position_ids=None, block_sequence_ids=IMAGES,
    )  # fmt: skip
    image = mc.documents("images") & mc.flags("images_shown")
    found = masks["sliding_attention"].found
    assert found.mask.equals((mc.causal() | image) & mc.window(3, None))
    assert torch.equal(found.data["images"], IMAGES)
    assert masks["full_attention"].found.mask == mc.causal()


def test_names_alone_are_not_trusted() -> None:
    def causal_mask_function(batch_idx: Any, head_idx: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx <= q_idx + 1

    check(causal_mask_function, None, PLACES["whole"])
