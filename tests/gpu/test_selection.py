"""Masks that choose blocks at run time, on GPUs: every result of both passes against fp64.

Inputs lie on a grid so coarse that scores are exact in fp32: fp64 chooses the same blocks.
"""

from __future__ import annotations

import pytest
import torch

import maskc as mc
from maskc import driver
from maskc.runtime.device_lists.topk_launch import SelectedPlan
from maskc.verify.samples import sample_data
from tests.support import cases
from tests.support.chosen_keys import live_of, on_grid
from tests.support.exact_attention import DEVICE, called, exact_and_rough, tensors, wrong
from tests.support.hopper import WAYS, check, compiled, half, needs_hopper, no_waiting

HEADS = 4
MASKS = cases.masks(cases.SELECTIONS, cases.CARD)
SIZES = [(1, 1), (130, 128), (333, 777), (300, 65)]


def on_device(data):
    return {name: torch.as_tensor(x, device=DEVICE) for name, x in data.items()}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("mode", [None, *WAYS])
def test_both_passes(name, mode):
    needs_hopper()
    mask = MASKS[name]
    attn = compiled(mask, 64, heads=HEADS, mode=mode)
    for number, (n_q, n_kv) in enumerate(SIZES):
        data = sample_data(mask, n_q, n_kv, seed=number)
        made = on_grid(tensors(n_q, n_kv, 64, torch.bfloat16, number))
        check(attn, made, live_of(mask, *made[:2], data), on_device(data))
        assert isinstance(attn._last[1], SelectedPlan)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_the_host_gives_the_same_bits(name, deterministic):
    """Results of the forward pass and of the deterministic backward pass."""
    needs_hopper()
    mask = MASKS[name]
    attn, hosted = (compiled(mask, 64, heads=HEADS) for _ in range(2))
    hosted._planner.lister.active = False
    data = on_device(sample_data(mask, 333, 400))
    made = on_grid(tensors(333, 400, 64, torch.bfloat16))
    found, want = (called(x, *made, data, deterministic=deterministic) for x in (attn, hosted))
    names = found if deterministic else ("out", "lse")
    assert all(torch.equal(found[name], want[name]) for name in names)


def test_nothing_waits_and_a_graph_holds_it():
    needs_hopper()
    mask = MASKS["moba"]
    attn = mask.compile(64, n_heads=HEADS)
    q, k, v, dout = on_grid(tensors(700, 700, 64, torch.bfloat16))
    others = on_grid(tensors(700, 700, 64, torch.bfloat16, 1))[:3]

    def both():
        out, lse = attn(q, k, v, return_lse=True)
        return out, *attn.backward(q, k, v, out, lse, dout, deterministic=True)

    both()
    with no_waiting():
        both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = both()
    for to, x in zip((q, k, v), others, strict=True):
        to.copy_(x)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(held, both(), strict=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", [96, 128, 256])
def test_head_dims(dim, dtype):
    needs_hopper()
    mask = MASKS["moba"]
    attn = compiled(mask, dim, dtype, HEADS)
    made = on_grid(tensors(260, 300, dim, half(dtype)))
    live = live_of(mask, *made[:2], {})
    check(attn, made, live, deterministic=True, softcap=3.0)


@pytest.mark.parametrize("name", MASKS)
def test_forward_of_sm80(name):
    mask = MASKS[name]
    attn = mask.compile(64, n_heads=HEADS, target="sm_80")
    for n_q, n_kv in SIZES:
        data = sample_data(mask, n_q, n_kv)
        q, k, v, dout = on_grid(tensors(n_q, n_kv, 64, torch.bfloat16))
        live = live_of(mask, q, k, data)
        out, lse = attn(q, k, v, return_lse=True, **data)
        exact, rough = exact_and_rough(q, k, v, dout, live, backward=False)
        assert not wrong({"out": out, "lse": lse}, exact, rough)


def test_tensors_that_rank_may_be_on_the_device():
    mask = MASKS["indexer"]
    attn = mask.compile(64, n_heads=HEADS)
    data = sample_data(mask, 200, 200)
    made = on_grid(tensors(200, 200, 64, torch.bfloat16))
    there = {name: torch.tensor(x, device=DEVICE) for name, x in data.items()}
    assert torch.equal(attn(*made[:3], **data), attn(*made[:3], **there))


def test_an_indexer_in_e4m3_ranks_blocks():
    """With factors; the host reads the same numbers in fp32."""
    mask = MASKS["indexer"]
    attn = mask.compile(64, n_heads=HEADS)
    data = {name: torch.tensor(x) for name, x in sample_data(mask, 200, 200).items()}
    made = on_grid(tensors(200, 200, 64, torch.bfloat16))
    there = {name: x.to(DEVICE) for name, x in data.items()}
    for name in ("index_q", "index_k"):
        there[name] = there[name].to(torch.float8_e4m3fn)
        data[name] = there[name].float().cpu().numpy()
    factors = torch.arange(200)[None] % 3 - 1.0
    data["index_k"] = data["index_k"], factors.numpy()
    there["index_k"] = there["index_k"], factors.to(DEVICE)
    out = attn(*made[:3], **there)
    assert isinstance(attn._last[1], SelectedPlan)
    data["index_w"] = data["index_w"].numpy()
    assert torch.equal(attn(*made[:3], **data), out)


def test_gradients_through_torch():
    mask = MASKS["moba"]
    needs_hopper()
    made = [x.requires_grad_() for x in on_grid(tensors(150, 150, 64, torch.bfloat16))[:3]]
    out = mc.attention(*made, mask)
    out.sum().backward()
    live = live_of(mask, *(x.detach() for x in made[:2]), {})
    q, k, v = (x.detach() for x in made)
    exact, rough = exact_and_rough(q, k, v, torch.ones_like(out), live)
    found = dict(zip(("dq", "dk", "dv"), (x.grad for x in made), strict=True))
    assert not wrong({"out": out.detach(), **found}, exact, rough)


def test_every_mask_here_has_a_kernel():
    assert all(driver.selects(mask) >= 16 for mask in MASKS.values())
