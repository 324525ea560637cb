"""Data atoms follow `align`: with an entry per token the last query is the last token.

What is right is written here token by token, apart from the package's own reference.
"""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import DataShape
from maskc.reference.attention import attention

LENGTHS = ((9, 79), (79, 79), (70, 71), (90, 40), (1, 130))


def ancestor(parents: np.ndarray, q: int, k: int) -> bool:
    while q >= 0 and q != k:
        q = int(parents[q])
    return q == k


def drawn(tokens: int, seed: int = 3) -> dict[str, np.ndarray]:
    """Arrays with an entry per token."""
    rng = np.random.default_rng(seed)
    parents = np.array([rng.integers(-1, t) if t else -1 for t in range(tokens)])
    low = rng.integers(0, tokens, tokens)
    return {
        "parents": parents, "ids": np.sort(rng.integers(0, 6, tokens)),
        "mixed": rng.integers(0, 4, tokens), "on": rng.random(tokens) < 0.5,
        "low": low, "high": low + rng.integers(0, 30, tokens),
    }  # fmt: skip


def atoms(arrays: dict[str, np.ndarray]) -> dict[str, tuple]:
    """By name: how the atom is written, what a call gives, and whether token x sees key k, where y
    is the token that key k is."""
    parents, ids, mixed, on = (arrays[name] for name in ("parents", "ids", "mixed", "on"))
    low, high = arrays["low"], arrays["high"]
    return {
        "tree": (mc.tree, mc.parents(parents), lambda x, y, k: ancestor(parents, x, y)),
        "documents": (mc.documents, ids, lambda x, y, k: ids[x] == ids[y]),
        "mixed": (mc.documents, mixed, lambda x, y, k: mixed[x] == mixed[y]),
        "flags": (
            lambda name, **word: mc.flags(name, on="q", **word), on, lambda x, y, k: on[x],
        ),
        "intervals": (mc.intervals, (low, high), lambda x, y, k: low[x] <= k < high[x]),
    }  # fmt: skip


@pytest.mark.parametrize("align", ["end", "start"])
@pytest.mark.parametrize("name", ["tree", "documents", "mixed", "flags", "intervals"])
@pytest.mark.parametrize(("n_q", "n_kv"), LENGTHS)
def test_every_answer_takes_query_q_for_its_token(name, n_q, n_kv, align):
    tokens = n_q if name in ("flags", "intervals") and n_q > n_kv else max(n_q, n_kv)
    written, value, sees = atoms(drawn(tokens))[name]
    mask = written("x", align=align)
    of_q, of_k = (0, 0) if align == "start" else (tokens - n_q, tokens - n_kv)
    right = np.array([[sees(q + of_q, k + of_k, k) for k in range(n_kv)] for q in range(n_q)])
    assert np.array_equal(mask.dense(n_q, n_kv, x=value), right)
    assert mask.count(n_q, n_kv, x=value) == right.sum()
    tiles = mask.layout(n_q, n_kv, block=(16, 16), x=value).to_dense()
    for row, column in np.ndindex(tiles.shape):
        part = right[row * 16 : (row + 1) * 16, column * 16 : (column + 1) * 16]
        assert tiles[row, column] == (2 if part.all() else int(part.any()))


@pytest.mark.parametrize("name", ["tree", "documents", "flags", "intervals"])
def test_kernels_too(name):
    n_q, n_kv = 9, 79
    written, value, _ = atoms(drawn(n_kv))[name]
    mask = written("x") & mc.causal()
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((1, 2, n, 16), np.float32) for n in (n_q, n_kv, n_kv))
    attn = mask.compile(head_dim=16, dtype="float32", target="cpu")
    right, lse = attention(q, k, v, mask.dense(n_q, n_kv, x=value))
    out, found = attn(q, k, v, return_lse=True, x=value)
    assert np.allclose(out, right, atol=1e-5)
    assert np.allclose(found, lse, atol=1e-5)


def test_entries_of_the_queries_alone_stay_valid():
    arrays = drawn(79)
    on, low, high = arrays["on"], arrays["low"], arrays["high"]
    queries, spans = mc.flags("x", on="q"), mc.intervals("x")
    assert np.array_equal(queries.dense(9, 79, x=on), queries.dense(9, 79, x=on[-9:]))
    long, short = (low, high), (low[-9:], high[-9:])
    assert np.array_equal(spans.dense(9, 79, x=long), spans.dense(9, 79, x=short))
    start = mc.intervals("x", align="start")
    short = low[:9], high[:9]
    assert np.array_equal(start.dense(9, 79, x=long), start.dense(9, 79, x=short))
    batch = np.stack([on, ~on])
    assert np.array_equal(queries.dense(9, 79, x=batch), queries.dense(9, 79, x=batch[:, -9:]))


def test_documents_of_all_tokens_or_a_pair():
    ids, ends = np.repeat([0, 1, 2], [30, 40, 9]), mc.cu_seqlens([0, 30, 70, 79])
    mask = mc.documents("x")
    right = ids[-20:, None] == ids
    for given in (ids, ends, (ids[-20:], ids)):
        assert np.array_equal(mask.dense(20, 79, x=given), right)
        assert mask.count(20, 79, x=given) == right.sum()
    with pytest.raises(DataShape, match=r"\[79\] of all tokens, or a pair, for queries \[20\]"):
        mask.count(20, 79, x=ids[:20])


def test_draft_tokens_behind_a_cache():
    """The tree of a speculative decoder: the draft hangs from the last token of the cache."""
    cache, draft = 70, [-1, 0, 0, 1, 1, 2, 3, 3, 7]
    parents = [*range(-1, cache - 1), *(cache - 1 if p < 0 else p + cache for p in draft)]
    dense_mask = mc.tree("x").dense(len(draft), len(parents), x=mc.parents(parents))
    for row, line in enumerate(dense_mask):
        seen, token = set(range(cache)), row
        while token >= 0:
            seen.add(cache + token)
            token = draft[token]
        assert set(np.flatnonzero(line)) == seen


@pytest.mark.parametrize("text", [
    "tree('x', align=\"start\")", "documents('x', align=\"start\")",
    "intervals('x', align=\"start\")", "flags('x', on=\"q\", align=\"start\")",
])  # fmt: skip
def test_align_is_printed_and_read(text):
    assert str(mc.parse(text)) == text
    assert mc.parse(text) != mc.parse(text.replace(', align="start"', ""))
