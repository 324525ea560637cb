"""Generated CPU kernels against masked dense attention in fp64, on random masks.

One compilation holds several random masks, one per head, so every example tests them all.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver, testing
from maskc.core import expr as E
from maskc.core.abi import MAX_ARRAYS
from maskc.reference.attention import attention
from maskc.testing.strategies import masks
from tests.support.thorough import examples, more

shipped = pytest.mark.shipped_flags
"""Masks drawn at random, whose compilation takes longest, have these flags in a thorough run."""
HEADS = 4


def arrays_read(mask: mc.Mask) -> int:
    heads = [driver.lowered(mask, head, HEADS).keep for head in range(HEADS)]
    return len({name for keep in heads for name in E.arrays(keep)})


def worst(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest error over the largest value; infinities must agree in place and sign."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    odd = np.isinf(expected)
    assert (np.where(odd, found, 0) == np.where(odd, expected, 0)).all()
    assert not np.isnan(found).any()
    scale = max(1.0, np.abs(expected[~odd]).max(initial=0))
    return np.abs(found[~odd] - expected[~odd]).max(initial=0) / scale


@settings(max_examples=examples(10))
@given(st.integers(0, 1 << 16), st.lists(masks(max_depth=2), min_size=HEADS, max_size=HEADS))
def test_random_masks_forward_and_backward(seed, parts):
    """Check masks as users check theirs: lengths, data, options, strides and both passes are drawn
    again."""
    mask = mc.per_head(parts)
    assume(arrays_read(mask) <= MAX_ARRAYS)
    options = {"head_dim": 20, "dtype": "float32", "target": "cpu"}
    assert testing.check(mask, examples=4, seed=seed, **options) > 0


@shipped
@pytest.mark.parametrize(("n_q", "n_kv"), [(0, 0), (0, 5), (5, 0)])
def test_no_queries_or_no_keys(n_q, n_kv):
    attn = mc.causal().compile(head_dim=20, dtype="float32", target="cpu")
    q, k, v = (np.ones((1, 2, n, 20), np.float32) for n in (n_q, n_kv, n_kv))
    out, lse = attn(q, k, v, return_lse=True)
    assert out.shape == q.shape
    assert not out.any()
    assert np.isneginf(lse).all()
    assert not any(x.any() for x in attn.backward(q, k, v, out, lse, np.ones_like(q)))


@shipped
@pytest.mark.parametrize("dtype", [more("float32"), "bfloat16", more("float16")])
def test_probe_reads_the_mask_back(dtype):
    """Zero q makes every live key weigh the same: one-hot v shows exactly which those are."""
    import ml_dtypes

    kind = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    mask = (mc.causal() & (mc.sinks(3) | mc.window(20))) | mc.global_tokens([50]).rows
    n = 96
    attn = mask.compile(head_dim=16, head_dim_v=n, dtype=dtype, target="cpu")
    q = np.zeros((1, 1, n, 16), dtype=kind)
    v = np.eye(n, dtype=kind)[None, None]
    out = attn(q, q, v).astype(np.float64)[0, 0]
    assert ((out > 0) == mask.dense(n)).all()


@shipped
def test_nan_reaches_only_who_sees_it():
    mask, n = mc.causal() & mc.window(30), 150
    attn = mask.compile(head_dim=16, dtype="float32", target="cpu")
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 1, n, 16), dtype=np.float32) for _ in range(3))
    clean = attn(q, k, v)
    dense = mask.dense(n)
    for poisoned in (k, v):
        kept = poisoned[0, 0, 70].copy()
        poisoned[0, 0, 70] = np.nan
        out = attn(q, k, v)
        sees = dense[:, 70]
        assert np.isnan(out[0, 0, sees]).all()
        assert (out[0, 0, ~sees] == clean[0, 0, ~sees]).all()
        poisoned[0, 0, 70] = kept


@shipped
def test_bits_do_not_depend_on_the_batch():
    mask = mc.causal() & mc.window(40)
    attn = mask.compile(head_dim=32, dtype="float32", target="cpu")
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((3, 2, 100, 32), dtype=np.float32) for _ in range(3))
    whole = attn(q, k, v)
    alone = attn(q[1:2], k[1:2], v[1:2])
    assert (whole[1:2] == alone).all()


@shipped
def test_a_parameter_changes_without_compiling():
    mask = mc.window(mc.param("w", 10))
    attn = mask.compile(head_dim=16, dtype="float32", target="cpu")
    rng = np.random.default_rng(5)
    q, k, v = (rng.standard_normal((1, 1, 200, 16), dtype=np.float32) for _ in range(3))
    attn(q, k, v)
    built = dict(attn.reports)
    for width in (0, 7, 150):
        expected, _ = attention(q, k, v, mask.dense(200, w=width))
        assert worst(attn(q, k, v, w=width), expected) < 1e-5
    assert dict(attn.reports) == built
