"""Rows whose keys data bound, on every target: keys that are NaN reach the queries that see them,
and tiles that data leave dead are never read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.testing.emulator import machine
from tests.support.exact_attention import called, tensors
from tests.support.probe import fenced
from tests.support.thorough import each

N, TILE = 280, 128
CAUSAL = mc.causal()


def ends(last):
    """From the first key, to another last one in each sequence."""
    high = np.repeat(np.array(last)[:, None], N, axis=1).astype(np.int32)
    return np.zeros_like(high), high


def ids(*lengths):
    return np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)


MASKS = {
    "padding": (mc.intervals("x") & CAUSAL, {"x": ends([100, 217])}),
    "prefix": (mc.intervals("x") | CAUSAL, {"x": ends([60, 131])}),
    "padding and a window": (mc.intervals("x") & mc.window(50, 9), {"x": ends([90, 217])}),
    "documents and a window": (
        mc.documents("x") & mc.flags("pad") & mc.window(70),
        {"x": ids(90, 30, 160), "pad": np.arange(N) < 250},
    ),
    "flags": (mc.flags("pad") & CAUSAL, {"pad": np.arange(N) % 7 != 3}),
    "lengths": (
        mc.from_mask_mod(lambda b, h, q, k: (k < torch.tensor([70, 201])[b]) & (k <= q)),
        {},
    ),
}
TARGETS = ("cpu", "sm_80", "sm_90a", "simt")


def at_ends(given):
    """The arrays, each at the end of its memory: who reads behind one crashes."""
    if isinstance(given, tuple):
        return tuple(map(at_ends, given))
    return fenced(given)


def on_device(given):
    return tuple(map(on_device, given)) if isinstance(given, tuple) else torch.from_numpy(given)


def case(name, target, monkeypatch):
    """(compiled, tensors, data, [batch or 1, n, n])."""
    mask, data = MASKS[name][0], {key: at_ends(value) for key, value in MASKS[name][1].items()}
    if target != "cpu":
        machine.install(monkeypatch)
        data = {key: on_device(value) for key, value in data.items()}
    live = mask.dense(N, **MASKS[name][1])
    made = tensors(N, N, 64, torch.bfloat16, 0, batch=2, heads=2, kv_heads=1, device="cpu")
    given = [torch.from_numpy(fenced(x.view(torch.int16).numpy())).view(x.dtype) for x in made]
    return mask.compile(head_dim=64, target=target), given, data, live.reshape(-1, N, N)


@pytest.mark.parametrize(("name", "target"), each(list(MASKS), TARGETS))
def test_keys_that_are_nan_reach_who_sees_them(name, target, monkeypatch):
    attn, (q, k, v, _), data, live = case(name, target, monkeypatch)
    clean = attn(q, k, v, **data)
    poisoned = [0, 59, 60, 99, 127, 128, 200, 216]
    k[:, :, poisoned] = torch.nan
    out = attn(q, k, v, **data)
    touched = torch.tensor(live[:, :, poisoned].any(-1))[:, None].expand(2, 2, N)
    assert torch.equal(out.isnan().any(-1), touched)
    assert torch.equal(out[~touched], clean[~touched])


@pytest.mark.parametrize(
    ("name", "target"), each(["padding", "padding and a window", "lengths"], TARGETS)
)
def test_dead_tiles_are_never_read(name, target, monkeypatch):
    """In no pass, whatever lies there."""
    attn, given, data, live = case(name, target, monkeypatch)
    clean = called(attn, *given, data, deterministic=True)
    dead = ~live.any(1)  # [batch, keys]
    first = [-(-int(np.flatnonzero(~row)[-1] + 1) // TILE) * TILE for row in dead]
    assert min(first) < N
    for batch, start in enumerate(first):
        for x in given[1:3]:
            x[batch, :, start:] = torch.nan
    for key, x in called(attn, *given, data, deterministic=True).items():
        assert torch.equal(x, clean[key]), key
