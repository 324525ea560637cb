"""A run-time selection after lowering: who ranks what, by which scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from maskc.core.errors import DataType
from maskc.core.expr import Expr, arrays


class Score(Enum):
    """The score by which candidates are ranked."""

    qk = "qk"
    """q . k of each pair."""
    block_mean = "block_mean"
    """Mean q of a block of queries . mean k of a block of keys."""
    indexer = "indexer"
    """sum over index heads of index_w * relu(index_q . index_k), for each pair, times the key's
    factor if there is one (DeepSeek-V3.2)."""
    given = "given"
    """The tensor `scores`, one per pair or one per pair of blocks."""


class Share(Enum):
    """The query heads that choose together."""

    head = "head"
    group = "group"
    """The heads of one key/value head choose together."""
    all = "all"


SCORING: dict[Score, tuple[str, ...]] = {
    Score.qk: (),
    Score.block_mean: (),
    Score.indexer: ("index_q", "index_k", "index_w"),
    Score.given: ("scores",),
}
"""Keywords of a call for ranking tensors, in addition to q and k."""

FACTORS = "index_k[1]"
"""The factors by which `index_k` is multiplied, key by key, where it is a pair."""

SHAPES = {
    "index_q": "floating-point [batch, index heads, n_q, index dim]",
    "index_k": "floating-point [batch, n_kv, index dim], or a pair of that and of a factor for "
    "each key, [batch, n_kv]",
    FACTORS: "floating-point [batch, n_kv]",
    "index_w": "floating-point [batch, index heads, n_q]",
    "scores": "floating-point [n_q, n_kv], [heads, n_q, n_kv] or [batch, heads, n_q, n_kv], "
    "or as many per block of queries and of keys",
}
"""The shape and kind of each of them."""

TOKENS = {"index_q": 2, "index_k": 1, "index_w": 2}
"""The dimension of tokens in each of those that have one."""


def with_factors(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Split a pair `index_k` (tensor, factors) into two named tensors; factors of None are dropped.

    Raises:
        DataType: a tuple that is not a pair.
    """
    pair = data.get("index_k")
    if not isinstance(pair, tuple):
        return data
    if len(pair) != 2:
        finding = f"a tuple of {len(pair)}"
        raise DataType("index_k", finding, "a tensor, or a pair (keys, factors)", at="index_k")
    keys, factors = pair
    return {**data, "index_k": keys} | ({} if factors is None else {FACTORS: factors})


RANKING = ("scores", "n_heads", "heads_kv")
"""Keywords for ranking in questions about a mask, which have no q and k."""


@dataclass(frozen=True)
class Selection:
    """The `k` best candidates of every block of `q_block` queries.

    A candidate is a block of `block` keys that has at least one allowed pair with these queries on
    the heads that share. Equal scores go to the lower index; NaN ranks below every number.
    """

    name: str
    """The name by which formulas read it, as a table [query blocks, key blocks] of 0 and 1;
    [queries, keys] where blocks count from positions."""
    k: int
    score: Score
    block: int
    q_block: int
    share: Share
    allowed: tuple[Expr, ...]
    """Over q, k, lengths, parameters and arrays, the selections before this one among them; one
    formula per query head, or one for all."""
    at: tuple[str, ...] = ()
    """The arrays of positions by which blocks are counted, see `mc.topk`; empty if they are counted
    from the first token."""

    @property
    def table(self) -> tuple[int, int]:
        """Queries and keys of an entry of the table: blocks, or tokens where blocks count from
        positions."""
        return (1, 1) if self.at else (self.q_block, self.block)

    @property
    def reads(self) -> frozenset[str]:
        """The arrays that determine the choice."""
        return frozenset(self.at).union(*map(arrays, self.allowed))
