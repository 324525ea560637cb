"""The scores by which topk ranks, from q and k, each by its definition in fp64.

A candidate is a block of `block` keys; where blocks count from positions, neighbouring keys whose
positions ascend between two multiples of `block`. The queries of a block of `q_block`, on all the
heads that share, select together: a candidate's score is the mean of the scores of those of its
pairs that the mask allows, and a candidate with no such pair is none. NaN ranks below every number,
-inf included; equal scores (and NaN among NaN) go to the lower index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from maskc.core.errors import DataMissing
from maskc.dsl import nodes as N

TENSORS = ("q", "k", "index_q", "index_k", "index_w")
"""Keywords of dense() that scores are computed from."""


def needs(mask: N.TopK) -> tuple[str, ...]:
    """The tensors from which its score is computed; empty if the call passes the scores."""
    return {"indexer": TENSORS[2:], "given": ()}.get(mask.score, TENSORS[:2])


def scores_of(mask: N.TopK, tensors: Mapping[str, object]) -> np.ndarray:
    """One score per pair, or per block of queries and of keys for "block_mean".

    Where blocks count from positions it is per pair too: the mean of a block's products is the
    product of its means.

    Args:
        tensors: q [batch, heads, n_q, D] and k [batch, heads_kv, n_kv, D]. For "indexer":
            index_q [batch, index heads, n_q, Di], index_k [batch, n_kv, Di] and index_w
            [batch, index heads, n_q]. There index_k may be a pair with factors [batch, n_kv].

    Returns:
        float64 [batch, heads, rows, columns]; one head for "indexer".

    Raises:
        DataMissing: a tensor that the score needs, or `scores` itself.
    """
    match mask.score:
        case "qk" | "block_mean":
            q, k = (_wide(name, tensors) for name in ("q", "k"))
            if mask.score == "block_mean" and mask.at is None:
                q, k = _means(q, mask.q_block), _means(k, mask.block)
            k = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
            products: np.ndarray = q @ k.swapaxes(2, 3)
            return products
        case "indexer":
            pair = tensors.get("index_k")
            factors: Any = 1.0
            if isinstance(pair, tuple):
                tensors = {**tensors, "index_k": pair[0], "factors": pair[1]}
                factors = 1.0 if pair[1] is None else _wide("factors", tensors)[:, None, None]
            q, k, w = (_wide(name, tensors) for name in TENSORS[2:])
            hits = np.maximum(q @ k[:, None].swapaxes(2, 3), 0)
            scores: np.ndarray = factors * (w[..., None] * hits).sum(axis=1, keepdims=True)
            return scores
    raise DataMissing("scores", "what topk ranks", at="scores")


def _wide(name: str, tensors: Mapping[str, object]) -> np.ndarray:
    x = tensors.get(name)
    if x is None:
        raise DataMissing("scores", f"what topk ranks, or {name}", at="scores")
    if hasattr(x, "detach") and hasattr(x, "double"):
        x = x.double().numpy(force=True)
    return np.asarray(x).astype(np.float64)


def _means(x: np.ndarray, block: int) -> np.ndarray:
    """The means of blocks of rows; the last block may have fewer rows."""
    blocks = [x[:, :, first : first + block] for first in range(0, x.shape[2], block)]
    return np.stack([part.mean(axis=2) for part in blocks], axis=2) if blocks else x


# ------------------------------------------------------------------ choosing


def blocks_of(positions: np.ndarray | None, block: int, count: int) -> list[slice]:
    """The blocks of `count` tokens: of consecutive ones, or by their positions [count]."""
    if positions is None:
        return [slice(first, min(first + block, count)) for first in range(0, count, block)]
    blocks: list[slice] = []
    for token in range(count):
        before, here = positions[token - 1], positions[token]
        if token and before < here and before // block == here // block:
            blocks[-1] = slice(blocks[-1].start, token + 1)
        else:
            blocks.append(slice(token, token + 1))
    return blocks


def select(
    allowed: np.ndarray, scores: np.ndarray, k: int, down: list[slice], across: list[slice],
    whole: bool = False,
) -> np.ndarray:  # fmt: skip
    """The pairs in the `k` best candidates of each block of queries.

    Args:
        allowed: bool [heads, n_q, n_kv], the heads that select together.
        scores: float64, one per pair [heads, n_q, n_kv] or, where blocks were scored already,
            [heads, query blocks, key blocks].
        down, across: the blocks of queries, and of keys.
        whole: whether scores of all pairs of a block count, not of the allowed ones alone.

    Returns:
        bool [n_q, n_kv]; the caller intersects it with what each head allows.
    """
    heads, n_q, n_kv = allowed.shape
    chosen = np.zeros((n_q, n_kv), dtype=bool)
    if heads == 1 and (len(down), len(across)) == (
        n_q,
        n_kv,
    ):  # candidates are pairs: there is nothing to average
        for row in range(n_q):
            (keys,) = np.nonzero(allowed[0, row])
            values = scores[0, row, keys]
            none = np.isnan(values)
            chosen[row, keys[np.lexsort((keys, np.where(none, 0.0, -values), none))[:k]]] = True
        return chosen
    for row, rows in enumerate(down):
        ranked = []
        for column, columns in enumerate(across):
            live = allowed[:, rows, columns]
            if not live.any():
                continue
            if scores.shape == allowed.shape:
                values = scores[:, rows, columns]
                score = _mean(values[live.any(axis=(1, 2))] if whole else values[live])
            else:
                score = _mean(scores[:, row, column][live.any(axis=(1, 2))])
            ranked.append((math.isnan(score), 0.0 if math.isnan(score) else -score, column))
        for _, _, column in sorted(ranked)[:k]:
            chosen[rows, across[column]] = True
    return chosen


def _mean(values: np.ndarray) -> float:
    listed = values.ravel().tolist()
    total = float(sum(listed))  # fsum raises for infinities of both signs
    return math.fsum(listed) / len(listed) if math.isfinite(total) else total
