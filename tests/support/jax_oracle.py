"""Attention in jnp and fp64 for arrays [B, N, H, D], and the cases that tests of JAX share."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

import maskc as mc

BATCH, TOKENS, HEADS, KV_HEADS, DIM = 2, 150, 4, 2, 64
DOCUMENTS = np.repeat(np.arange(5), 30)
FLAGS = np.arange(TOKENS) % 7 == 0
LOW = np.maximum(np.arange(TOKENS) - np.arange(TOKENS) % 11 - 3, 0)

MASKS = {
    "causal": (mc.causal(), {}),
    "sinks and window": (mc.causal() & (mc.sinks(4) | mc.window(16)), {}),
    "dilated": (mc.causal() & (mc.window(8) | mc.dilated(64, stride=4)), {}),
    "global tokens": (mc.window(16, 16) | mc.global_tokens([3, 77, 140]), {}),
    "chunked": (mc.chunked(40) & mc.causal(), {}),
    "random blocks": (mc.random_blocks(16, 3, seed=1) | mc.sinks(2), {}),
    "per head": (mc.per_head([mc.causal(), mc.window(9), mc.full(), mc.sinks(20)]), {}),
    "empty rows": (mc.window(20) & mc.where(lambda q, k: k % 50 >= 45), {}),
    "parameter": (mc.causal() & mc.window(mc.param("left", 8)), {"left": 33}),
}
"""Masks whose lists follow from the lengths."""

DATA_MASKS = {
    "documents": (mc.causal() & mc.documents("doc"), {"doc": DOCUMENTS}),
    "flags": (mc.causal() & mc.flags("keep"), {"keep": FLAGS}),
    "intervals": (mc.intervals("span"), {"span": (LOW, np.arange(TOKENS) + 1)}),
    "positions": (
        mc.causal(at=mc.positions(q="of_q", k="of_k")) & mc.window(40),
        {"of_q": np.arange(TOKENS) + 3, "of_k": np.arange(TOKENS) * 5 // 4},
    ),
    "block table": (
        mc.block_table("table", 32),
        {"table": np.random.default_rng(0).random((HEADS, 5, 5)) < 0.6},
    ),
}
"""Masks that read arrays of the call."""


def inputs(dtype="float32", seed=0, tokens=TOKENS, keys=None, dim=DIM, kv_heads=KV_HEADS):
    """q, k, v and a gradient of out, of normal numbers."""
    shapes = [(tokens, HEADS), (keys or tokens, kv_heads), (keys or tokens, kv_heads),
              (tokens, HEADS)]  # fmt: skip
    draws = np.random.default_rng(seed)
    return [
        jnp.asarray(draws.standard_normal((BATCH, *shape, dim)), dtype) for shape in shapes
    ]  # fmt: skip


def dense_of(mask, n_q, n_kv=None, heads=HEADS, **data):
    """The mask as booleans [1, 1 or heads, n_q, n_kv]."""
    found = np.asarray(mask.dense(n_q, n_kv, n_heads=heads, **data))
    return found.reshape((1, -1, *found.shape[-2:]))


def attended(q, k, v, keep, scale=None, softcap=None, slopes=None, sinks=None, change=None):
    """(out, lse) in the dtype of the arguments; `change` takes scores [B, H, Nq, Nkv]."""
    heads = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, heads, axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    if slopes is not None:
        n_q, n_kv = scores.shape[-2:]
        far = jnp.abs(jnp.arange(n_q)[:, None] + n_kv - n_q - jnp.arange(n_kv))
        scores = scores - slopes[:, None, None] * far
    if change is not None:
        scores = change(scores)
    scores = jnp.where(keep, scores, -jnp.inf)
    top = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    if sinks is not None:
        top = jnp.maximum(top, jax.lax.stop_gradient(sinks)[:, None, None])
    top = jnp.where(jnp.isfinite(top), top, 0)
    weights = jnp.where(keep, jnp.exp(jnp.where(keep, scores, 0) - top), 0)
    total = weights.sum(-1, keepdims=True)
    if sinks is not None:
        total = total + jnp.exp(sinks[:, None, None] - top)
    some = total > 0
    safe = jnp.where(some, total, 1)
    out = jnp.einsum("bhqk,bkhd->bqhd", weights / safe, v)
    lse = jnp.where(some, jnp.log(safe) + top, -jnp.inf)[..., 0]
    return out, lse


def in_double(function, *arrays):
    """A function of jnp in fp64."""
    with jax.enable_x64(True):
        return jax.tree.map(
            np.asarray, function(*(jnp.asarray(np.asarray(x, np.float64)) for x in arrays))
        )


def error(found, expected):
    """The largest difference, by the largest expected value where that is not tiny."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    if not finite.any():
        return 0.0
    return np.abs(found[finite] - expected[finite]).max() / max(np.abs(expected[finite]).max(), 0.1)
