"""Dropout through torch: generators, autograd, torch.compile, checkpointing, modules."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.errors import DropoutRate, DropoutSeed
from maskc.reference.dropout import factors

CAUSAL = mc.causal()


def tensors(n=40, heads=2, kv_heads=1, dim=16, requires_grad=True):
    generator = torch.Generator().manual_seed(0)
    shapes = (heads, kv_heads, kv_heads)
    made = [torch.randn((2, h, n, dim), generator=generator) for h in shapes]
    return [x.requires_grad_(requires_grad) for x in made]


def plain(q, k, v, kept, live, lse=False):
    """Attention by torch in fp64, with these factors."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    logits = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~torch.from_numpy(live), -torch.inf)
    out = logits.softmax(-1) * torch.from_numpy(kept) @ v
    return (out, logits.logsumexp(-1)) if lse else out


def test_gradients_are_those_of_autograd():
    live, kept = CAUSAL.dense(40), factors(0.2, 9, 2, 2, 40, 40)
    ours, theirs = tensors(), tensors()
    drops = {"dropout_p": 0.2, "dropout_seed": 9}
    out, lse = mc.attention(*ours, CAUSAL, return_lse=True, **drops)
    right, right_lse = plain(*theirs, kept, live, lse=True)
    torch.testing.assert_close(out.double(), right, rtol=1e-5, atol=1e-5)
    weights = torch.randn(out.shape), torch.randn(lse.shape)
    ((out * weights[0]).sum() + (lse * weights[1]).sum()).backward()
    ((right * weights[0]).sum() + (right_lse * weights[1]).sum()).backward()
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-5)


def test_manual_seed_repeats():
    q, k, v = tensors(requires_grad=False)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append([mc.attention(q, k, v, CAUSAL, dropout_p=0.5) for _ in range(2)])
    assert all(torch.equal(a, b) for a, b in zip(runs[0], runs[1], strict=True))
    assert not torch.equal(runs[0][0], runs[0][1])
    assert not torch.equal(runs[0][0], runs[2][0])


def test_a_tensor_holds_the_seed():
    q, k, v = tensors(requires_grad=False)
    attn = CAUSAL.compile(16, dtype="float32", target="cpu")
    right = attn(q, k, v, dropout_p=0.5, dropout_seed=77)
    for seed in (torch.tensor([77]), torch.tensor(77), np.array([77])):
        assert torch.equal(attn(q, k, v, dropout_p=0.5, dropout_seed=seed), right)
    with pytest.raises(DropoutSeed, match="MC431"):
        attn(q, k, v, dropout_p=0.5, dropout_seed=torch.tensor([1.0]))


def test_evaluation_draws_nothing():
    q, k, v = tensors(requires_grad=False)
    state = torch.get_rng_state()
    mc.attention(q, k, v, CAUSAL, dropout_p=0.0)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("way", ["a mask", "a compiled mask", "the generator's seed"])
def test_torch_compile(way):
    """lse does not see dropout, nor does its gradient."""
    attn = CAUSAL.compile(16, dtype="float32", target="cpu")
    seed = None if way == "the generator's seed" else 5

    def loss(q, k, v):
        drops = {"return_lse": True, "dropout_p": 0.25, "dropout_seed": seed}
        call = attn if way == "a compiled mask" else partial(mc.attention, mask=CAUSAL)
        out, lse = call(q, k, v, **drops)
        return out.square().sum() + lse.sin().sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    ours, theirs = tensors(), tensors()
    results = []
    for function, given_to in ((compiled, ours), (loss, theirs)):
        torch.manual_seed(3)
        results.append(function(*given_to))
        results[-1].backward()
    torch.testing.assert_close(*results)
    for x, y in zip(ours, theirs, strict=True):
        torch.testing.assert_close(x.grad, y.grad)


def test_checkpoints_draw_again_what_they_drew():
    from torch.utils.checkpoint import checkpoint

    grads = []
    for wrapped in (False, True):
        q, k, v = tensors()
        torch.manual_seed(4)

        def run(q, k, v):
            return mc.attention(q, k, v, CAUSAL, dropout_p=0.5)

        out = checkpoint(run, q, k, v, use_reentrant=False) if wrapped else run(q, k, v)
        out.square().sum().backward()
        grads.append(q.grad)
    assert torch.equal(*grads)


def test_a_module_drops_while_it_trains():
    q, k, v = tensors(requires_grad=False)
    layer = mc.nn.Attention(CAUSAL, dropout=0.5)
    assert "dropout=0.5" in repr(layer)
    assert torch.equal(layer(q, k, v, dropout_seed=3),
                       mc.attention(q, k, v, CAUSAL, dropout_p=0.5, dropout_seed=3))  # fmt: skip
    assert not torch.equal(layer(q, k, v), layer(q, k, v))
    layer.eval()
    assert torch.equal(layer(q, k, v), mc.attention(q, k, v, CAUSAL))
    again = pickle.loads(pickle.dumps(layer))
    assert again.dropout == 0.5
    with pytest.raises(DropoutRate, match="MC430"):
        mc.nn.Attention(CAUSAL, dropout=2)


def test_with_a_score_and_conventions():
    q, k, v = tensors()
    drops = {"dropout_p": 0.5, "dropout_seed": 3}
    score = mc.score(lambda s, q, k: s + 0 * q)
    right = mc.attention(q, k, v, CAUSAL, **drops)
    torch.testing.assert_close(mc.attention(q, k, v, CAUSAL, score=score, **drops), right)
    torch.testing.assert_close(mc.attention(q, k, v, is_causal=True, **drops), right)
    swapped = [x.transpose(1, 2) for x in (q, k, v)]
    out = mc.attention(*swapped, CAUSAL, layout="bshd", **drops)
    torch.testing.assert_close(out.transpose(1, 2), right)


def test_captured_arrays_and_data():
    """Masks that hold arrays hold them in the kernels with dropout, too."""
    q, k, v = tensors(requires_grad=False)
    table = torch.arange(40) // 7
    mask = mc.where(lambda q, k: table[q] == table[k])
    drops = {"dropout_p": 0.5, "dropout_seed": 3}
    right = plain(q, k, v, factors(0.5, 3, 2, 2, 40, 40), mask.dense(40))
    torch.testing.assert_close(mc.attention(q, k, v, mask, **drops).double(), right,
                               rtol=1e-5, atol=1e-5)  # fmt: skip
    ids = torch.arange(40) // 9
    right = mc.attention(q, k, v, mc.where(lambda q, k: ids[q] == ids[k]), **drops)
    out = mc.attention(q, k, v, mc.documents("doc"), doc=ids, **drops)
    torch.testing.assert_close(out, right)
