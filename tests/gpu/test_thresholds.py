"""Keys chosen one by one on a Hopper, with its own kernels and those of sm_80: all passes against
fp64, and what only a card can tell."""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from tests.support.chosen_keys import (
    BOTH,
    PASSES,
    TARGETS,
    TOP,
    check_counts,
    check_entmax,
    check_nans,
    check_passes,
)
from tests.support.exact_attention import DEVICE, tensors


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", PASSES)
def test_passes(name, target):
    check_passes(name, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [name for name in PASSES if name != "logits"])
def test_entmax_of_the_chosen_keys(name, target):
    for alpha in (1.25, 1.5, 2.0):
        check_entmax(name, alpha, target=target)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", [64, 96, 128, 192, 256])
@pytest.mark.parametrize("mask", BOTH)
@pytest.mark.parametrize("target", TARGETS)
def test_passes_see_the_keys_that_were_chosen(target, mask, dim, dtype):
    """The forward's scores, q k^T, and the backward's, k q^T, are the same to the bit: else a key
    next to a threshold would be seen by one of them alone."""
    for seed, (n_q, n_kv) in enumerate([(150, 333), (1000, 1000), (700, 4096)]):
        check_counts(*BOTH[mask], dim, n_q, n_kv, seed, dtype, target)


@pytest.mark.parametrize("target", TARGETS)
def test_the_same_bits_on_every_run(target):
    q, k, v, dout = tensors(1500, 1500, 64, torch.bfloat16)
    attn = mc.topk(200, mc.causal()).compile(64, target=target)
    first = attn(q, k, v, return_lse=True)
    made = attn.backward(q, k, v, *first, dout, deterministic=True)
    for _ in range(20):
        again = attn(q, k, v, return_lse=True)
        assert all(map(torch.equal, again, first))
        more = attn.backward(q, k, v, *again, dout, deterministic=True)
        assert all(map(torch.equal, more, made))


def test_in_a_graph():
    if DEVICE != "cuda":
        pytest.skip("graphs are a card's")
    q, k, v, _ = tensors(500, 500, 64, torch.bfloat16)
    attn = TOP.compile(64, target="sm_90a")
    attn(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attn(q, k, v)
    q.copy_(torch.randn_like(q))
    k.copy_(torch.randn_like(k))
    graph.replay()
    assert torch.equal(out, attn(q, k, v))


def test_memory_is_a_few_numbers_a_row():
    if DEVICE != "cuda":
        pytest.skip("memory is a card's")
    q, k, v, _ = tensors(4096, 4096, 64, torch.bfloat16, batch=1, heads=8, kv_heads=8)
    attn = mc.topk(512, mc.causal()).compile(64, target="sm_90a")
    attn(q, k, v)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    attn(q, k, v)
    own = torch.cuda.max_memory_allocated() - before
    assert own <= 1.1 * (q.nbytes + 16 * q.shape[1] * q.shape[2])


def test_gradients_through_torch():
    if DEVICE != "cuda":
        pytest.skip("the target follows the device")
    q, k, v, dout = (x.requires_grad_() for x in tensors(200, 200, 64, torch.bfloat16))
    out = mc.attention(q, k, v, TOP)
    out.backward(dout)
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("name", ["union", "ordered"])
def test_rows_and_columns_that_are_cut(name):
    check_passes(name, most_tiles=1)


@pytest.mark.parametrize("target", TARGETS)
def test_keys_that_are_no_numbers(target):
    check_nans(target=target)
