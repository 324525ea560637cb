"""Rows of very few keys on a Hopper: tiles of 16 x 16 in registers, and when a call takes them.

Run with `make test-gpu`. The bound is the contract's, see tests/support/exact_attention.py; many
more cases are in tests/unit/test_tiny_emulated.py.
"""

from __future__ import annotations

import pytest

import maskc as mc

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from tests.support.exact_attention import called, live_pairs, tensors, vectors  # noqa: E402
from tests.support.hopper import (  # noqa: E402
    HOPPER,
    check,
    compiled,
    freed,  # noqa: F401
    half,
    modes,
)

if not HOPPER:
    pytest.skip("no Hopper GPU", allow_module_level=True)

FORWARD, BACKWARD = ("sm_90a_tiny", "usual"), ("sm_90a_tiny_backward", "once")
ALONE = {
    "blocks of 16": mc.block_diagonal(16),
    "blocks of 4": mc.block_diagonal(4),
    "gaps": mc.block_diagonal(8) & mc.where(lambda q, k: (q + k) % 3 > 0),
    "empty rows": mc.block_diagonal(16) & mc.where(lambda q, k: (q // 16 % 2 == 0) & (q % 5 > 0)),
}
SHORT = {
    "window": mc.window(15),
    "both sides": mc.window(20, 9),
    "blocks of 32": mc.block_diagonal(32),
    "blocks across tiles": mc.block_diagonal(12),
}
LENGTHS = [(1, 1), (15, 17), (64, 64), (333, 777), (777, 333), (4096, 4096)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", [64])
@pytest.mark.parametrize("name", [*ALONE, *SHORT])
def test_lengths(name, dim, dtype):
    mask = {**ALONE, **SHORT}[name]
    attn = compiled(mask, dim, dtype, mode="tiny")
    for n_q, n_kv in LENGTHS:
        made = tensors(n_q, n_kv, dim, half(dtype), heads=8, kv_heads=2)
        check(attn, made, live_pairs(mask, n_q, n_kv))
    assert FORWARD in modes(attn)
    assert (BACKWARD in modes(attn)) == (name in ALONE)


@pytest.mark.parametrize("dim", [64])
@pytest.mark.parametrize("name", ["gaps", "empty rows", "both sides"])
def test_features(name, dim):
    mask, n = {**ALONE, **SHORT}[name], 1000
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
    first = called(attn, *made)
    for _ in range(5):
        again = called(attn, *made)
        assert all(torch.equal(again[name], x) for name, x in first.items())
    assert BACKWARD in modes(attn)


def test_heads_of_their_own():
    mask = mc.per_head([*ALONE.values()])
    attn = compiled(mask, 64, heads=4, mode="tiny")
    made = tensors(700, 700, 64, torch.bfloat16, heads=4, kv_heads=2)
    check(attn, made, live_pairs(mask, 700, 700, heads=4))
    assert modes(attn) == {FORWARD, BACKWARD}
