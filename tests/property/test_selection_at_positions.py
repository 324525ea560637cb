"""Blocks that count from positions: packed documents select as each of them does alone.

A document alone has blocks that count from its first token, which other tests compare with their
definitions; here it is cut out of a packed row and selects by itself.
"""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from tests.support.thorough import examples

H, HKV, DIM = 4, 2, 8
AT, SAME = mc.positions(q="pq", k="pk"), mc.documents("d")


def integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Small integers: products and their means have few ties, and are exact in fp32."""
    return rng.integers(-8, 9, shape).astype(np.float32)


def attended(q, k, v, live):
    """out of dense attention in fp64."""
    k, v = (np.repeat(x, H // HKV, 1).astype(np.float64) for x in (k, v))
    scores = np.where(live, q @ k.swapaxes(2, 3) * DIM**-0.5, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-1e9)
    weights = np.exp(scores - top) * live
    total = weights.sum(-1, keepdims=True)
    return weights / np.where(total > 0, total, 1) @ v


@settings(max_examples=examples(40))
@given(
    st.lists(st.lists(st.integers(0, 20), min_size=1, max_size=4), min_size=1, max_size=2),
    st.sampled_from([(2, 1), (4, 1), (4, 3), (5, 2)]),
    st.sampled_from(["qk", "block_mean", "given", "indexer"]),
    st.sampled_from(["head", "group", "all"]), st.integers(0, 4), st.integers(0, 1 << 16),
)  # fmt: skip
def test_packed_documents_select_as_alone(rows, sizes, score, share, k_best, seed):
    (block, q_block), rng, batch = sizes, np.random.default_rng(seed), len(rows)
    n = max(1, *map(sum, rows))
    ids, place = np.zeros((batch, n), int), np.zeros((batch, n), int)
    for own_ids, own, row in zip(ids, place, rows, strict=True):
        lengths = [*row, n - sum(row)]
        own_ids[:] = np.repeat(np.arange(len(lengths)), lengths)
        own[:] = np.concatenate([np.arange(length) for length in lengths])
    q, k, v = (integers(rng, batch, heads, n, DIM) for heads in (H, HKV, HKV))
    ranking = {
        "given": {"scores": integers(rng, batch, H, n, n)},
        "indexer": {
            "index_q": integers(rng, batch, 2, n, 4), "index_k": integers(rng, batch, n, 4),
            "index_w": integers(rng, batch, 2, n),
        },
    }.get(score, {})  # fmt: skip
    more = {"score": score, "block": block, "q_block": q_block, "share": share}
    packed = mc.topk(k_best, of=SAME & mc.causal(at=AT), at=AT, **more)
    alone = mc.topk(k_best, of=mc.causal(), **more)
    data = {"d": ids, "pq": place, "pk": place}
    tensors = ranking if score == "given" else {"q": q, "k": k, **ranking}
    heads = {"n_heads": H, "heads_kv": HKV}

    live = np.zeros((batch, H, n, n), bool)
    for b, row in enumerate(rows):
        ends = np.cumsum([0, *row, n - sum(row)])
        for first, stop in pairwise(ends):
            here = slice(first, stop)
            cut = {
                name: x[b : b + 1, :, here, here] if name == "scores"
                else x[b : b + 1, here] if name == "index_k"
                else x[b : b + 1, :, here]
                for name, x in tensors.items()
            }  # fmt: skip
            live[b, :, here, here] = alone.dense(stop - first, **heads, **cut)
    shown = packed.dense(n, **heads, **tensors, **data)
    shown = shown if shown.ndim == 4 else shown[:, None]  # all heads choose together
    np.testing.assert_array_equal(np.broadcast_to(shown, live.shape), live)
    out = mc.attention(q, k, v, packed, **ranking, **data)
    np.testing.assert_allclose(out, attended(q, k, v, live), rtol=1e-4, atol=1e-4)


def test_positions_of_every_head() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (integers(rng, 1, heads, 24, DIM) for heads in (H, HKV, HKV))
    place = np.stack([np.concatenate([np.arange(a), np.arange(24 - a)]) for a in (3, 8, 9, 24)])[
        None
    ]
    more = {"score": "block_mean", "block": 4}
    mask = mc.topk(2, of=mc.causal(at=AT), at=AT, **more)
    dense_mask = mask.dense(24, n_heads=H, heads_kv=HKV, q=q, k=k, pq=place, pk=place)
    for head in range(H):
        own = place[:, head]
        one = mask.dense(24, q=q[:, [head]], k=k[:, [head // 2]], pq=own, pk=own)
        np.testing.assert_array_equal(dense_mask[0, head], one.reshape(24, 24))
    out = mc.attention(q, k, v, mask, pq=place, pk=place)
    np.testing.assert_allclose(out, attended(q, k, v, dense_mask), rtol=1e-4, atol=1e-4)
    together = mc.topk(2, of=mc.causal(at=AT), at=AT, share="all", **more)
    with pytest.raises(mc.MaskcError, match="MC303") as error:
        mc.attention(q, k, v, together, pq=place, pk=place)
    assert "one row for all heads, as these choose together" in str(error.value)


def test_moba_of_packed_documents() -> None:
    rng, lengths = np.random.default_rng(0), [40, 23, 0, 61]
    n, ends = sum(lengths), np.cumsum([0, *lengths])
    q, k, v = (integers(rng, 1, heads, n, DIM) for heads in (H, HKV, HKV))
    place = np.concatenate([np.arange(length) for length in lengths])
    data = {"doc": mc.cu_seqlens(ends), "q_position": place, "k_position": place}
    out = mc.attention(q, k, v, mc.patterns.moba(block=16, top=2, packed=True), **data)
    for first, stop in pairwise(ends):
        cut = (np.ascontiguousarray(x[:, :, first:stop]) for x in (q, k, v))
        alone = mc.attention(*cut, mc.patterns.moba(block=16, top=2))
        np.testing.assert_allclose(out[:, :, first:stop], alone, rtol=1e-5, atol=1e-5)


def test_documents_around_a_selection_warn() -> None:
    chosen = mc.chunked(4) | mc.topk(2, of=mc.causal(), block=4)
    said = r"chooses among the keys of all documents, and & documents\('d'\) drops"
    for left, right in ((chosen, SAME), (SAME & mc.window(9), chosen)):
        with pytest.warns(mc.PackedSelectionWarning, match=said) as warned:
            left & right
        assert warned[0].filename == __file__
        assert "at=mc.positions(...)" in str(warned[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mc.topk(2, of=SAME & mc.causal()) & SAME
        mc.topk(2, of=mc.causal()) | SAME
        mc.topk(2, of=mc.causal()) & mc.window(3)
