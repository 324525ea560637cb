"""Made-up scores, so that a picture shows what run-time selections look like."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maskc.driver import selects
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import TopK, walk

_MAX = 1 << 24
"""Scores that are made up, at most; they are a matrix."""
_NEAR, _TOPIC = 1.0, 1.5
"""Weights of the key's distance and of a shared topic, relative to noise of size 1."""
_TOPICS = 8


def with_scores(
    mask: Mask, n_q: int, n_kv: int, data: Mapping[str, object], seed: int
) -> tuple[dict[str, object], tuple[str, ...]]:
    """Return the data of a mask, with made-up `scores` for all of its run-time selections.

    Args:
        mask: any mask; the data of one without selections stay as given.
        n_q, n_kv: lengths of the whole mask.
        data: the given data; scores among them are kept.
        seed: of the made-up scores.

    Returns:
        The data, and texts for a caption about them.
    """
    if not selects(mask) or "scores" in data:
        return dict(data), ()
    if n_q * n_kv > _MAX:
        return dict(data), ("all candidates of topk",)
    sizes = {x.scored_blocks for x in walk(mask) if isinstance(x, TopK) and x.score == "given"}
    q_block, block = sizes.pop() if len(sizes) == 1 else (1, 1)
    q, k = np.arange(0, n_q, q_block) + n_kv - n_q, np.arange(0, n_kv, block)
    scores = made_up(q, k, seed)
    return {**data, "scores": scores}, (f"random scores, seed {seed}",)


def made_up(q: np.ndarray, k: np.ndarray, seed: int) -> np.ndarray:
    """float32 [queries, keys]: scores as attention has them. Near keys and keys of the query's own
    topic score more; topics come in stretches, and some keys score more for everybody.

    Args:
        q, k: positions of queries and keys in the text.
    """
    rng = np.random.default_rng(seed)
    bounds = np.sort(rng.random(3 * _TOPICS)) * max(k.max(initial=0), 1)
    topics = rng.integers(0, _TOPICS, 3 * _TOPICS + 1)
    of_q, of_k = (topics[np.searchsorted(bounds, tokens)] for tokens in (q, k))
    scores = rng.standard_normal((len(q), len(k)), dtype=np.float32)
    scores += (rng.random(len(k)) < 0.02) * np.float32(2)
    scores += np.float32(_TOPIC) * (of_q[:, None] == of_k)
    distance = np.abs(q[:, None] - k).astype(np.float32)
    scores -= np.float32(_NEAR) * np.log2(1 + distance) / np.float32(4)
    return scores


_DIM, _WAVES = 64, 16
"""Elements per row of synthetic q and k, and pairs of them that carry the position."""


def made_tensors(n_q: int, n_kv: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Make up q and k whose attention looks like that of a language model.

    Near keys, keys of the query's topic and the first key get more weight.

    Returns:
        float64 [1, 1, n_q, 64] and [1, 1, n_kv, 64]; queries are the last of the sequence.
    """
    rng = np.random.default_rng(seed)
    n = max(n_q, n_kv)
    bounds = np.sort(rng.random(3 * _TOPICS)) * n
    topics = rng.integers(0, _TOPICS, 3 * _TOPICS + 1)
    directions = rng.standard_normal((_TOPICS, _DIM - 2 * _WAVES)) * 0.5
    position = np.arange(n)
    content = directions[topics[np.searchsorted(bounds, position)]]
    angles = position[:, None] * 1.5 ** -np.arange(1, 1 + _WAVES)
    waves = np.concatenate([np.cos(angles), np.sin(angles)], axis=1)
    of_q, of_k = (
        np.concatenate([content + 0.6 * rng.standard_normal(content.shape), 1.2 * waves], axis=1)
        for _ in range(2)
    )
    of_k[0] += of_q.mean(axis=0) * 4  # a sink: all queries look at it
    return of_q[None, None, n - n_q :], of_k[None, None, n - n_kv :]
