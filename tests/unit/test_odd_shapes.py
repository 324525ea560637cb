"""One table of odd shapes for every family, both passes where it has them, against fp64.

CUDA's kernels run in the emulator. 65537 tokens, where that takes too long, are in tests/gpu.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.problem import Direction
from maskc.plan.families import sm80
from maskc.testing.emulator import machine
from tests.support.exact_attention import called, exact_and_rough, live_pairs, wrong
from tests.support.hopper import nan_memory

DTYPES = {"cpu": "float32", "simt": "float32", "sm_80": "bfloat16", "sm_90a": "bfloat16"}
DIM = 64
MASK = mc.causal() & mc.window(70)
SHAPES = {
    "more keys than queries": (1, 2, 1, 40, 150),
    "more queries than keys": (1, 2, 1, 150, 40),
    "one query": (2, 2, 2, 1, 100),
    "one key": (1, 2, 1, 100, 1),
    "one head": (2, 1, 1, 70, 70),
    "six heads share two": (1, 6, 2, 70, 70),
}
"""Sequences, heads of queries and of keys, queries, keys."""
EMPTY = {
    "no keys": (1, 2, 1, 70, 0),
    "no queries": (1, 2, 1, 0, 70),
    "no sequences": (0, 2, 1, 70, 70),
    "nothing": (0, 2, 1, 0, 0),
}


@pytest.fixture(params=DTYPES, scope="module")
def attn(request):
    """The mask for a target, which the machine has."""
    target = request.param
    with pytest.MonkeyPatch.context() as patch, nullcontext() if target == "cpu" else nan_memory():
        if target != "cpu":
            machine.install(patch)
        yield MASK.compile(DIM, dtype=DTYPES[target], target=target)


def tensors(attn, batch, heads, kv_heads, n_q, n_kv):
    """q, k, v and dout."""
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, attn.bundle.problem.dtype.value)
    sizes = ((heads, n_q), (kv_heads, n_kv), (kv_heads, n_kv), (heads, n_q))
    return [torch.randn((batch, *x, DIM), generator=generator).to(dtype) for x in sizes]


def passes(attn, q, k, v, dout):
    """Return what the target has of both passes."""
    return called(attn, q, k, v, dout if Direction.backward in attn.target.directions else None)


def judged(attn, made):
    live = live_pairs(MASK, made[0].shape[2], made[1].shape[2], device="cpu")
    computed = passes(attn, *made)
    exact, rough = exact_and_rough(*made, live)
    if made[0].dtype != torch.float32:
        assert not wrong(computed, exact, rough)
        return
    for name, x in computed.items():
        size = exact[name].abs() if name == "lse" else exact[f"size of {name}"]
        error = torch.where(x == exact[name], 0.0, (x - exact[name]).abs())
        assert (error <= 1e-5 * torch.maximum(size, exact[name].abs().max()) + 1e-30).all(), name


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(attn, name):
    judged(attn, tensors(attn, *SHAPES[name]))


def test_the_last_group_of_heads_is_smaller(monkeypatch):
    """Keys of two heads fit the cache that sm_80 counts on, so the third head is alone."""
    machine.install(monkeypatch)
    monkeypatch.setattr(sm80, "L2_BYTES", 2 * 70 * 2 * (DIM + DIM))
    attn = (MASK & mc.window(60)).compile(DIM, target="sm_80")
    with nan_memory():
        q, k, v, _ = tensors(attn, 1, 3, 3, 70, 70)
        out = attn(q, k, v)
        alone = [attn(q[:, h : h + 1], k[:, h : h + 1], v[:, h : h + 1]) for h in range(3)]
    assert torch.equal(out, torch.cat(alone, dim=1))


@pytest.mark.parametrize("name", EMPTY)
def test_nothing_to_add_up(attn, name):
    made = tensors(attn, *EMPTY[name])
    computed = passes(attn, *made)
    assert computed["out"].shape == made[0].shape
    assert not computed["out"].any()
    assert (computed["lse"] == -torch.inf).all()
    for x, name in zip(made, ("dq", "dk", "dv"), strict=False):
        assert name not in computed or (
            computed[name].shape == x.shape and not computed[name].any()
        )


def test_rows_beyond_2_to_the_31_elements(attn):
    """Heads that lie so far apart; the memory between them is never touched."""
    made = tensors(attn, 1, 2, 2, 70, 70)
    step = (1 << 31) + 64
    far = []
    for x in made:
        bytes_of = np.empty((step + 70 * DIM) * x.element_size(), np.int8)  # nobody fills these
        room = torch.from_numpy(bytes_of).view(x.dtype)
        far.append(room.as_strided(x.shape, (0, step, DIM, 1)).copy_(x))
    want, found = passes(attn, *made), passes(attn, *far)
    for name, x in want.items():
        assert torch.equal(x, found[name]), name
