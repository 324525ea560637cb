"""Backward passes on a Hopper in which a launch of its own makes dq, by tile rows: nothing is added
up, so that bits are the same on every run."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc.core.sizes import Sizes
from maskc.dispatch.launch_plan import few_pairs
from tests.support.exact_attention import live_pairs, tensors
from tests.support.hopper import SIZES, check, compiled, half, modes, needs_backward, same_bits

MASKS = {
    "sinks and a window": mc.causal() & (mc.sinks(16) | mc.window(63)),
    "window": mc.window(90, 40),
    "tested": mc.causal() & (mc.strided(7) | mc.window(20)) - mc.global_tokens([60]).rows,
    "distances": mc.window(5, 5)
    | mc.dilated(5, stride=3)
    | mc.dilated(5, stride=9)
    | mc.dilated(5, stride=20),
    "full": mc.full(),
    "empty rows": mc.block_diagonal(128) & mc.where(lambda q, k: q // 64 % 2 == 0),
    "nothing": mc.full() - mc.full(),
}
HEADS = mc.per_head([mc.causal(), mc.window(9), mc.full() - mc.prefix(80), mc.sinks(2)])


def sizes_of(q, k):
    """The sizes of a call."""
    return Sizes(q.shape[0], q.shape[1], k.shape[1], q.shape[2], k.shape[2])


def backward_modes(attn):
    return {mode for name, mode in modes(attn) if "backward" in name}


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("name", MASKS)
@needs_backward
def test_all_lengths(name, dim, dtype):
    mask = MASKS[name]
    attn = compiled(mask, dim, dtype, mode="small separate_dq")
    given = {size: tensors(*size, dim, half(dtype)) for size in SIZES}
    few = [size for size, (q, k, *_) in given.items() if few_pairs(sizes_of(q, k))]
    for size in sorted(given, key=few.__contains__):  # those that may run another way come last
        if few and size == few[0]:
            assert backward_modes(attn) <= {"separate_dq", "exclusive_dq"}
            assert "separate_dq" in backward_modes(attn) or name in ("empty rows", "nothing")
        check(attn, given[size], live_pairs(mask, *size))


@pytest.mark.parametrize("dim", [64, 96, 128])
@pytest.mark.parametrize("name", ["sinks and a window", "window", "tested"])
@needs_backward
def test_more_rows_than_blocks(name, dim):
    """Blocks come to several tile rows, with columns cut, and grouped heads."""
    attn, mask, n = (
        compiled(MASKS[name], dim, mode="small separate_dq", most_tiles=4),
        MASKS[name],
        1000,
    )
    made = tensors(n, n, dim, torch.bfloat16, batch=2, heads=24, kv_heads=8)
    check(attn, made, live_pairs(mask, n, n))
    same_bits(attn, made, 5)
    assert backward_modes(attn) == {"separate_dq"}


@pytest.mark.parametrize("dim", [64, 128])
@needs_backward
def test_features_and_heads(dim):
    attn = compiled(MASKS["window"], dim, mode="small separate_dq")
    made = tensors(300, 333, dim, torch.bfloat16, heads=4, kv_heads=2)
    live = live_pairs(MASKS["window"], 300, 333)
    check(attn, made, live, softcap=3.0)
    for scale in (0.0, 1e-12, -3.0, 40.0):
        check(attn, made, live, scale=scale)
    assert backward_modes(attn) == {"separate_dq"}
    own = compiled(HEADS, dim, heads=4, mode="small separate_dq", most_tiles=2)
    check(own, made, live_pairs(HEADS, 300, 333, heads=4))


@pytest.mark.parametrize("dim", [64, 128])
@needs_backward
def test_what_calls_take_it(dim):
    """Calls with short rows take it without being told: deterministic or not."""
    mask, n = MASKS["sinks and a window"], 4096
    attn = compiled(mask, dim)
    made = tensors(n, n, dim, torch.bfloat16, batch=1, heads=2, kv_heads=1)
    check(attn, made, live_pairs(mask, n, n))
    check(attn, made, live_pairs(mask, n, n), deterministic=True)
    assert backward_modes(attn) == {"separate_dq"}


@needs_backward
def test_a_part_that_joins():
    """Masks in parts: later parts add their dq to that of earlier ones."""
    mask = mc.causal() & (mc.window(63) | mc.where(lambda q, k: (q - k) % 64 == 0))
    attn = compiled(mask, 64)
    check(attn, tensors(5000, 5000, 64, torch.bfloat16), live_pairs(mask, 5000, 5000))
