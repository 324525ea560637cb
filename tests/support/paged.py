"""Sequences in shuffled pages of a pool, and their attention by definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Keeps = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Whether queries at positions p [n, 1] see keys k [m]."""


@dataclass
class Pool:
    """Pages of all sequences; every slot that no sequence owns is NaN, keys and values alike."""

    lengths: list[int]
    page: int
    kv_heads: int
    dim: int
    dim_v: int = 0
    layout: str = "NHD"
    seed: int = 0
    spare: int = 3
    """Pages of nobody."""
    k: list[np.ndarray] = field(default_factory=list)
    v: list[np.ndarray] = field(default_factory=list)
    """float32 [keys, heads, D] of each sequence."""

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        self.dim_v = self.dim_v or self.dim
        counts = [-(-n // self.page) for n in self.lengths]
        free = rng.permutation(sum(counts) + self.spare)
        width = max([*counts, 1]) + 1
        self.table = rng.choice([-1, 2**31 - 1, len(free)], (len(counts), width)).astype(np.int32)
        self.indices = free[: sum(counts)].astype(np.int32)
        self.indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        for sequence, (start, count) in enumerate(zip(self.indptr, counts, strict=False)):
            self.table[sequence, :count] = free[start : start + count]
        shape = len(free), self.page, self.kv_heads
        self.k_pool = np.full((*shape, self.dim), np.nan, np.float32)
        self.v_pool = np.full((*shape, self.dim_v), np.nan, np.float32)
        for sequence, length in enumerate(self.lengths):
            self.k.append(_numbers(rng, length, self.kv_heads, self.dim))
            self.v.append(_numbers(rng, length, self.kv_heads, self.dim_v))
            token = np.arange(length)
            page = self.table[sequence, token // self.page]
            self.k_pool[page, token % self.page] = self.k[-1]
            self.v_pool[page, token % self.page] = self.v[-1]
        if self.layout == "HND":
            self.k_pool, self.v_pool = (
                np.ascontiguousarray(x.swapaxes(1, 2)) for x in (self.k_pool, self.v_pool)
            )

    def queries(self, counts: list[int], heads: int, more: int = 0) -> np.ndarray:
        """float32 [tokens, heads, D]; `more` rows of nobody."""
        rng = np.random.default_rng(self.seed + 1)
        return _numbers(rng, sum(counts) + more, heads, self.dim)


def _numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Multiples of 1/16, which every dtype of kernels holds exactly."""
    return (rng.integers(-24, 25, shape) / 16).astype(np.float32)


def exact(
    pool: Pool, q: np.ndarray, counts: list[int],
    keeps: Callable[[int, int], Keeps],
    logit: Callable[..., np.ndarray] = lambda s, **_: s,
    sinks: np.ndarray | None = None, scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """out [tokens, heads, Dv] and lse [tokens, heads] in fp64.

    Args:
        keeps: of (sequence, head).
        logit: of a score, with p, k and head by name.
    """
    heads, group = q.shape[1], q.shape[1] // pool.kv_heads
    out = np.zeros((len(q), heads, pool.dim_v))
    lse = np.full((len(q), heads), -np.inf)
    scale = pool.dim**-0.5 if scale is None else scale
    row = 0
    for sequence, count in enumerate(counts):
        n, k = pool.lengths[sequence], np.arange(pool.lengths[sequence])
        for i in range(count):
            p = np.array([[n - count + i]])
            for head in range(heads):
                own_k = pool.k[sequence][:, head // group].astype(float)
                own_v = pool.v[sequence][:, head // group].astype(float)
                s = logit(own_k @ q[row, head] * scale, p=p[0, 0], k=k, head=head)
                live = np.broadcast_to(keeps(sequence, head)(p, k), (1, n))[0]
                s = np.where(live, s, -np.inf)
                more = [] if sinks is None else [sinks[head]]
                top = max([*s, *more], default=-np.inf)
                if top > -np.inf:
                    weights = np.exp(s - top)
                    total = weights.sum() + sum(np.exp(x - top) for x in more)
                    out[row, head] = weights @ own_v / total
                    lse[row, head] = top + np.log(total)
            row += 1
    return out, lse
