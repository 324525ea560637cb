"""Rows of very few keys on a Hopper: tiles of 16 x 16 in registers, and when a call takes them.

Run with `make test-gpu`. The bound is the contract's, see tests/support/exact_attention.py; many
more cases are in tests/unit/test_tiny_emulated.py.
"""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from tests.support import cases
from tests.support.exact_attention import live_pairs, tensors, vectors
from tests.support.hopper import check, compiled, half, modes, same_bits

FORWARD, BACKWARD = ("sm_90a_tiny", "default"), ("sm_90a_tiny_backward", "exclusive_dq")
ALONE, MASKS = (cases.masks(table, cases.CARD) for table in (cases.TINY_ALONE, cases.TINY))
LENGTHS = [(1, 1), (15, 17), (64, 64), (333, 777), (777, 333), (4096, 4096)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", [64])
@pytest.mark.parametrize("name", MASKS)
def test_lengths(name, dim, dtype):
    mask = MASKS[name]
    attn = compiled(mask, dim, dtype, mode="tiny")
    for n_q, n_kv in LENGTHS:
        made = tensors(n_q, n_kv, dim, half(dtype), heads=8, kv_heads=2)
        check(attn, made, live_pairs(mask, n_q, n_kv))
    assert FORWARD in modes(attn)
    assert (BACKWARD in modes(attn)) == (name in ALONE)


@pytest.mark.parametrize("dim", [64])
@pytest.mark.parametrize("name", ["gaps", "empty rows", "both sides"])
def test_features(name, dim):
    mask, n = MASKS[name], 1000
    attn, live = compiled(mask, dim, mode="tiny"), live_pairs(mask, n, n)
    made = tensors(n, n, dim, torch.bfloat16)
    check(attn, made, live, softcap=3.0)
    check(attn, made, live, scale=-0.2)
    check(attn, made, live, softcap=3.0, **vectors(["sink_logits", "alibi_slopes"], 4))


@pytest.mark.parametrize("dim", [64])
def test_calls_take_them(dim):
    mask, n = ALONE["blocks of 16"], 4096
    attn = compiled(mask, dim)
    made = tensors(n, n, dim, torch.bfloat16, batch=1, heads=16, kv_heads=16)
    check(attn, made, live_pairs(mask, n, n), deterministic=True)
    assert modes(attn) == {FORWARD, BACKWARD}


def test_the_same_bits_on_every_run():
    mask, n = ALONE["gaps"], 4000
    attn, made = compiled(mask, 64), tensors(n, n, 64, torch.bfloat16, heads=8, kv_heads=2)
    same_bits(attn, made, 5)
    assert BACKWARD in modes(attn)


def test_heads_of_their_own():
    mask = mc.per_head([*ALONE.values()])
    attn = compiled(mask, 64, heads=4, mode="tiny")
    made = tensors(700, 700, 64, torch.bfloat16, heads=4, kv_heads=2)
    check(attn, made, live_pairs(mask, 700, 700, heads=4))
    assert modes(attn) == {FORWARD, BACKWARD}
