"""Helpers for tests of single keys that heads choose together: what ranks, and the judge.

What ranks lies on a grid so coarse that scores are exact in fp32: ties are ties everywhere.
"""

from __future__ import annotations

import numpy as np
import torch

from tests.support.exact_attention import DEVICE, called, exact_and_rough, tensors, wrong
from tests.support.hopper import nan_memory


def grid(shape, seed=0, dtype=torch.float32, most=3):
    """Small integers."""
    made = np.random.default_rng(seed).integers(-most, most + 1, shape).astype(np.float32)
    return torch.tensor(made, device=DEVICE).to(dtype)


def indexer(batch, heads, n_q, n_kv, dim, seed=0, dtype=torch.bfloat16, weights=torch.float32):
    shapes = (batch, heads, n_q, dim), (batch, n_kv, dim), (batch, heads, n_q)
    kinds = dtype, dtype, weights
    made = (grid(s, seed + i, t) for i, (s, t) in enumerate(zip(shapes, kinds, strict=True)))
    return dict(zip(("index_q", "index_k", "index_w"), made, strict=True))


def with_factors(data, seed=9, dtype=torch.float32):
    """Keys with factors of their own: -1, 1/2, 1, 2."""
    keys = data["index_k"]
    drawn = np.random.default_rng(seed).choice([-1, 0.5, 1, 2], keys.shape[:2])
    return {**data, "index_k": (keys, torch.tensor(drawn, device=DEVICE).to(dtype))}


def _on_host(x):
    return tuple(map(_on_host, x)) if isinstance(x, tuple) else x.float().cpu()


def live_of(mask, q, k, data):
    """bool [batch, heads, n_q, n_kv], by the reference."""
    (batch, heads, n_q, _), n_kv = q.shape, k.shape[2]
    on_host = {name: _on_host(x) for name, x in data.items()}
    if "scores" in data:
        on_host["scores"] = on_host["scores"].expand(batch, heads, n_q, n_kv)
    with np.errstate(all="ignore"):
        found = mask.dense(n_q, n_kv, n_heads=heads, heads_kv=k.shape[1], **on_host)
    shape = (batch, heads, n_q, n_kv)
    if found.ndim == 3:
        found = found[:, None]
    return torch.tensor(np.broadcast_to(found, shape).copy(), device=DEVICE)


def check(mask, made, data, **features):
    """Both passes, in memory full of NaN against fp64; then what is to be
    the same once more: the bits are."""
    q, k, v, dout = made
    target = features.pop("target", "sm_90a")
    attn = mask.compile(
        q.shape[-1], head_dim_v=v.shape[-1], dtype=str(q.dtype)[6:], target=target
    )  # fmt: skip
    assert attn.target.name == target
    backward = features.pop("backward", True)
    ordered = features.pop("deterministic", False)
    given = (q, k, v, dout if backward else None, data, ordered)
    with nan_memory():
        computed = called(attn, *given, **features)
    live = live_of(mask, q, k, data)
    features.pop("nan_safe", None)
    unseen = ~live.any((0, 1, 2))  # their values may be anything
    k, v = (torch.where(unseen[:, None], 0.0, x) for x in (k, v))
    exact, rough = exact_and_rough(q, k, v, dout, live, backward=backward, **features)
    faults = wrong(computed, exact, rough)
    assert not faults, (tuple(q.shape), tuple(k.shape), faults)
    given = given if ordered else (q, k, v, None, data)
    again = called(attn, *given, **features)
    assert all(torch.equal(again[name], computed[name]) for name in again)
    return computed, live


def few(n_q, n_kv, dim=64, heads=2, kv_heads=1, batch=1, dtype=torch.bfloat16, seed=0):
    return tensors(n_q, n_kv, dim, dtype, seed, batch=batch, heads=heads, kv_heads=kv_heads)
