"""Attention by matrices against maskc's own, and matrices against `Mask.dense`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.ir.names import declared_names
from maskc.lab.evaluate import matrices as M
from maskc.reference.attention import attention

N = 83
MASKS = {
    "window": mc.causal() & mc.window(9),
    "sinks": mc.causal() & (mc.sinks(4) | mc.window(5)),
    "xor": (mc.window(9) ^ mc.strided(4)) - mc.sinks(3),
    "random": mc.causal() & mc.random_blocks(16, 1, seed=0),
    "rows without a key": mc.causal() & mc.dilated(3, stride=5) - mc.window(0),
    "nothing": mc.causal() - mc.causal(),
}


def right(q, k, v, keep: np.ndarray):
    """Attention with a scale of 0.3, by the reference."""
    found, _ = attention(q.numpy(), k.numpy(), v.numpy(), keep, scale=0.3)
    return torch.from_numpy(found).float()


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("rows", [16, 1024])
def test_attention_is_that_of_the_mask(name: str, rows: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(M, "_ROWS", rows)
    mask, matrices = MASKS[name], M.Matrices()
    torch.manual_seed(0)
    q = torch.randn(2, 4, N, 16)
    k, v = torch.randn(2, 2, 2, N, 16).unbind(0)
    keep = mask.dense(N)
    assert np.array_equal(matrices.of(mask, N).numpy(), keep)
    out = matrices.attention(q, k, v, mask, scale=0.3)
    assert torch.allclose(out, right(q, k, v, keep), atol=1e-5)
    again = mc.attention(q, k, v, mask, scale=0.3)
    assert torch.allclose(out, again, atol=1e-5)


def test_matrices_made_elsewhere_are_used():
    mask, matrices = mc.causal() & (mc.window(9) | mc.sinks(2)), M.Matrices()
    parts = M.leaves({"mask": mask, "again": mc.window(9) | mc.causal()})
    assert parts == [mc.causal(), mc.window(9), mc.sinks(2)]
    for part in parts:
        matrices.give(part, N, M.packed(part, N))
    assert np.array_equal(matrices.of(mask, N).numpy(), mask.dense(N))
    matrices.give(mc.window(1), N, np.zeros((N, -(-N // 8)), np.uint8))
    assert not matrices.of(mc.window(1), N).any()


def test_what_needs_more_than_a_matrix_goes_to_maskc():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 64, 16).unbind(0)
    matrices = M.Matrices()
    best = mc.topk(5, of=mc.causal(), share="group")
    assert torch.equal(matrices.attention(q, k, v, best), mc.attention(q, k, v, best))
    capped = matrices.attention(q, k, v, mc.causal(), softcap=2.0)
    assert torch.equal(capped, mc.attention(q, k, v, mc.causal(), softcap=2.0))


def test_masks_that_read_arrays():
    """Arrays with a row for each sequence; others are read anew, the same are not."""
    torch.manual_seed(0)
    q = torch.randn(2, 4, N, 16)
    k, v = torch.randn(2, 2, 2, N, 16).unbind(0)
    matrices, rng = M.Matrices(), np.random.default_rng(0)
    flags, tree = mc.flags("far"), mc.tree("tree")
    masks = [
        mc.causal() & (mc.window(3) | flags), (tree | mc.window(2)) & mc.causal() - flags,
        mc.topk(3, of=mc.causal() & flags),
    ]  # fmt: skip
    for _ in range(2):
        above = np.stack([rng.integers(-1, np.maximum(np.arange(N), 1)) for _ in range(2)])
        above[:, 0] = -1
        data = {"far": torch.from_numpy(rng.random((2, N)) < 0.4), "tree": mc.parents(above)}
        for mask in masks:
            own = {name: value for name, value in data.items() if name in declared_names(mask)}
            out = matrices.attention(q, k, v, mask, **own)
            assert torch.allclose(out, mc.attention(q, k, v, mask, **own), atol=1e-5)
            made = {key: keep for key, (_, keep) in matrices._of_data.items()}
            assert torch.equal(out, matrices.attention(q, k, v, mask, **own))
            assert all(keep is matrices._of_data[key][1] for key, keep in made.items())


SELECTIONS = {
    "keys": mc.topk(7, of=mc.causal()),
    "blocks": mc.topk(2, of=mc.causal(), block=8, q_block=8, score="block_mean"),
    "beside a window": mc.causal() & (mc.window(3) | mc.topk(4, of=mc.causal() - mc.sinks(2))),
    "all keys": mc.topk(N, of=mc.causal()),
}


@pytest.mark.parametrize("name", SELECTIONS)
@pytest.mark.parametrize("rows", [24, 1024])
def test_selections_are_those_of_the_reference(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
):
    """Two sequences, two query heads for each head of keys; scores with equals among them."""
    monkeypatch.setattr(M, "_ROWS", rows)
    torch.manual_seed(1)
    q = torch.randint(-2, 3, (2, 4, N, 8)).float()
    k, v = torch.randint(-2, 3, (2, 2, 2, N, 8)).float().unbind(0)
    mask = SELECTIONS[name]
    out = M.Matrices().attention(q, k, v, mask, scale=0.3)
    for b in range(2):
        own_q, own_k, own_v = (x[b : b + 1] for x in (q, k, v))
        keep = mask.dense(N, n_heads=4, q=own_q.numpy(), k=own_k.numpy()).reshape(1, 4, N, N)
        assert torch.allclose(out[b : b + 1], right(own_q, own_k, own_v, keep), atol=1e-5)


def test_gradients_pass():
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 2, 48, 16).unbind(0)
    mask, matrices = mc.causal() & (mc.window(5) | mc.sinks(2)), M.Matrices()
    found = []
    for call in (matrices.attention, mc.attention):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        call(*leaves, mask).square().sum().backward()
        found.append([x.grad for x in leaves])
    for ours, theirs in zip(*found, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)
