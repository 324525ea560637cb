"""Which keys queries may still see when a sequence grows token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, reduce

import islpy as isl

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.ir.sets import Universe, budget, greatest, least


@dataclass(frozen=True, slots=True)
class Retention:
    """Keys that must be kept: some first ones for ever, the others for a number of tokens."""

    forever: tuple[tuple[int, int], ...]
    """(first, last) of runs of keys that queries at any later position may see, ascending."""
    newest: int
    """The number of the newest other keys that are seen, now or later; at least as many as tokens
    are new in a call."""
    all_seen: bool
    """Whether a single new query sees every key that is kept."""


@dataclass(frozen=True, slots=True)
class Unbounded:
    """There is no such number."""

    reason: str


@lru_cache(maxsize=1 << 8)  # objects of islpy leave memory behind: ask once for each question
def retention(keeps: tuple[Expr, ...], queries: int) -> Retention | Unbounded:
    """Decide which keys must be kept for calls of at most `queries` new queries.

    A call has n tokens in total; its queries are the last ones. A key is needed at n if a query of
    that call sees it, or a query of a later call, which comes after the first n tokens.

    Args:
        keeps: the masks of all heads, each once; none reads arrays or has parameters.
        queries: the most new tokens of a call.

    Raises:
        TooHard: isl's budget is spent.
    """
    with budget():
        now = [_seen(keep, queries) for keep in keeps]
        later = isl.Map(
            "{ [n_q, n_kv, k] -> [n, k] : 1 <= n <= n_kv - n_q and k < n }"
        )  # every length between the call's first query and the key itself
        needed = [keys.project_out(isl.dim_type.set, 0, 1).union(keys.apply(later)) for keys in now]
        held = reduce(isl.Set.union, needed).coalesce()
        written = isl.Set("{ [n, k] : 0 <= k < n }")
        forgotten = written.subtract(held).project_out(isl.dim_type.set, 0, 1)
        forever = isl.Set("{ [k] : k >= 0 }").subtract(forgotten).coalesce()
        if not forever.is_empty() and not greatest(forever, 0).is_int():
            first = ", ".join(map(str, _smallest(forever, 3)))
            return Unbounded(f"keys {first} and so on without end are seen from any later position")
        others = held.subtract(forever.insert_dims(isl.dim_type.set, 0, 1))
        ages = others.apply(isl.Map("{ [n, k] -> [n - k] }"))
        most = isl.Val.zero(isl.DEFAULT_CONTEXT) if ages.is_empty() else greatest(ages, 0)
        if not most.is_int():
            return Unbounded(
                "the number of newer tokens after which a key is still seen has no bound"
            )
        newest = max(int(most.to_str()), queries)
        kept = isl.Set(f"{{ [n, k] : 0 <= k < n and k >= n - {newest} }}")
        kept = kept.union(written.intersect(forever.insert_dims(isl.dim_type.set, 0, 1)))
        single = (_seen(keep, 1).project_out(isl.dim_type.set, 0, 1) for keep in keeps)
        all_seen = queries == 1 and all(kept.is_subset(keys) for keys in single)
        return Retention(tuple(_runs(forever)), newest, all_seen)


def _seen(keep: Expr, queries: int) -> isl.Set:
    """[n_q, n_kv, k]: the keys that some query of a call sees."""
    universe = Universe(("n_q", "n_kv", "q", "k"), ())
    inside = E.conj(
        E.ge(E.N_Q, E.const(1)), E.le(E.N_Q, E.const(queries)), E.le(E.N_Q, E.N_KV),
        E.ge(E.Q, E.ZERO), E.lt(E.Q, E.N_Q), E.ge(E.K, E.ZERO), E.lt(E.K, E.N_KV),
    )  # fmt: skip
    pairs = universe.set(keep).intersect(universe.set(inside))
    return pairs.project_out(isl.dim_type.set, 2, 1).coalesce()


def _smallest(keys: isl.Set, most: int) -> Iterator[int]:
    for _ in range(most):
        if keys.is_empty():
            return
        first = least(keys, 0).to_str()
        yield int(first)
        keys = keys.subtract(isl.Set(f"{{ [k] : k <= {first} }}"))


def _runs(keys: isl.Set) -> Iterator[tuple[int, int]]:
    """The runs of consecutive keys of a bounded set."""
    while not keys.is_empty():
        first = int(least(keys, 0).to_str())
        beyond = isl.Set(f"{{ [k] : k > {first} }}").subtract(keys)
        last = int(least(beyond, 0).to_str()) - 1
        yield first, last
        keys = keys.subtract(isl.Set(f"{{ [k] : k <= {last} }}"))
