"""Backward passes on a Hopper in which one tile column has all keys of a tile row: dq is stored by
the main launch, not added up."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from tests.support.exact_attention import live_pairs, tensors
from tests.support.hopper import DIMS, check, compiled, modes, needs_backward


@pytest.mark.parametrize("form", ["large", "small"])
@pytest.mark.parametrize("dim", DIMS)
@needs_backward
def test_tiles_of_dq_that_one_column_has(dim, form):
    mask = mc.where(lambda q, k: (q // 64 == k // 64) & (k % 3 > 0) & (q >= 130))
    attn = compiled(mask, dim, mode=form)
    for lengths in ((777, 777), (500, 333), (333, 500)):
        made = tensors(*lengths, dim, torch.bfloat16, heads=8, kv_heads=2, batch=2)
        check(attn, made, live_pairs(mask, *lengths))
        check(attn, made, live_pairs(mask, *lengths), deterministic=True)
    assert {mode for name, mode in modes(attn) if "backward" in name} == {"exclusive_dq"}


@needs_backward
def test_a_part_that_stores_dq():
    mask = mc.causal() & (mc.window(127) | mc.where(lambda q, k: (q - k) % 128 == 0))
    attn = compiled(mask, 128)
    check(attn, tensors(9000, 9000, 128, torch.bfloat16), live_pairs(mask, 9000, 9000))
    assert {"exclusive_dq", "separate_dq"} == {
        mode for name, mode in modes(attn) if "backward" in name
    }
