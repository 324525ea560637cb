"""Masks that are products over the axes of a grid of tokens numbered row by row.

A coordinate of token t is (t // low) mod (high // low), t // low on the outermost axis. Suppose
that a formula reads queries and keys only through coordinates, and each term has one axis. Then it
is a conjunction of relations between the coordinates of a query and of a key, axis by axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from maskc.core import expr as E
from maskc.core.expr import Expr

MAX_AXES = 3
"""A tensor map has room for this many axes in addition to elements and heads."""


@dataclass(frozen=True)
class GridMask:
    """A mask as one relation for every axis, outermost first."""

    extents: tuple[int, ...]
    """The extents of all axes except the first."""
    axes: tuple[Expr, ...]
    """Over the coordinates q and k of a query and of a key on the axis; n_q and n_kv are the
    extent of the first axis, on every axis. It holds where all of them do, if n_q == n_kv is a
    multiple of what one step along the first axis has."""


@dataclass(frozen=True)
class _Span:
    """A coordinate of a token t: (t // low) mod (high // low)."""

    low: int
    high: int | None
    """A multiple of low; None: t // low."""


@lru_cache(maxsize=1 << 10)
def grid_mask(keep: Expr) -> GridMask | None:
    """The mask as a product over two or three axes; None if the formula does not show one.

    Neighbouring axes beyond the third count as one.
    """
    if E.arrays(keep):
        return None
    keep = E.transform(keep, _reduced)
    terms = E.conjuncts(keep)
    cuts = _cuts([_extent(list(_spans(term))) for term in terms])
    while len(cuts) > MAX_AXES:
        sizes = [high // low for low, high in pairwise(cuts)]
        cuts.pop(1 + sizes.index(min(sizes)))
    if len(cuts) < 2 or any(b % a for a, b in pairwise(cuts)):
        return None
    ends = [*cuts[1:], None]
    period = cuts[-1]
    axes: list[Expr] = []
    for low, high in zip(cuts, ends, strict=True):
        own_terms = [term for term in terms if _inside(_extent(list(_spans(term))), low, high)]
        formula = _over_coordinates(E.conj(*own_terms), low, high, period)
        if formula is None:
            return None
        axes.insert(0, formula)
    extents = (high // low for low, high in pairwise(cuts))
    return GridMask(tuple(extents)[::-1], tuple(axes))


def _reduced(node: Expr) -> Expr | None:
    """Rewrite (t + 5) mod 8 as (t mod 8 + 5) mod 8, which reads a coordinate of t."""
    if not isinstance(node, E.Mod) or not isinstance(node.num, E.Sum):
        return None
    terms = ((factor, E.transform(term, _reduced)) for factor, term in node.num.terms)
    moved = ((factor, E.mod(term, node.den) if _span(term) else term) for factor, term in terms)
    return E.mod(E.linear(node.num.const, moved), node.den)


def _span(node: Expr) -> _Span | None:
    """The coordinate that a formula is, of a query or a key."""
    if node in (E.Q, E.K):
        return _Span(1, None)
    if not isinstance(node, (E.FloorDiv, E.Mod)) or (inner := _span(node.num)) is None:
        return None
    cut = inner.low * node.den
    if inner.high is not None and inner.high % cut:
        return None
    return _Span(cut, inner.high) if isinstance(node, E.FloorDiv) else _Span(inner.low, cut)


def _spans(node: Expr) -> Iterator[_Span]:
    """All coordinates that a formula reads."""
    span = _span(node)
    if span is not None:
        yield span
        return
    for part in node.parts:
        yield from _spans(part)


def _extent(spans: list[_Span]) -> _Span | None:
    """The span from the finest to the coarsest of several; None if there are none."""
    if not spans:
        return None
    highs = [span.high for span in spans if span.high is not None]
    return _Span(min(span.low for span in spans), max(highs) if len(highs) == len(spans) else None)


def _inside(span: _Span | None, low: int, high: int | None) -> bool:
    """Whether a term belongs to an axis; one that reads no token belongs to the first."""
    if span is None:
        return high is None
    return low <= span.low and (high is None or (span.high is not None and span.high <= high))


def _cuts(terms: list[_Span | None]) -> list[int]:
    """The places where axes begin, the innermost first; no term reads across a cut."""
    spans = [span for span in terms if span is not None]
    ends = {1} | {span.low for span in spans} | {span.high for span in spans if span.high}
    return sorted(
        cut for cut in ends
        if not any(span.low < cut and (span.high is None or cut < span.high) for span in spans)
    )  # fmt: skip


def _over_coordinates(keep: Expr, low: int, high: int | None, period: int) -> Expr | None:
    """The formula over coordinates of an axis; None if it reads others."""
    sound = True

    def coordinate(node: Expr) -> Expr | None:
        nonlocal sound
        if node in (E.N_Q, E.N_KV):
            return E.scale(period, node)
        span = _span(node)
        if span is None:
            return None
        token: Expr = next(part for part in E.walk(node) if part in (E.Q, E.K))
        if span.low % low or (high is not None and (span.high is None or high % span.high)):
            sound = False
            return E.ZERO
        moved = E.floordiv(token, span.low // low)
        if span.high is None or span.high == high:
            return moved
        return E.mod(moved, span.high // span.low)

    made = E.transform(keep, coordinate)
    return made if sound else None
