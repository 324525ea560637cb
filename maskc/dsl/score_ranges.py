"""Ranges of the values that score formulas may have, by interval arithmetic.

q, k, h and b count tokens, heads and sequences; tables and parameters may have any value. Ranges of
a part may be given. Splitting such a range into many small ones gives tighter results if the part
occurs several times, as in x * sigmoid(x).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.expr import Term
from maskc.core.score import of_whole

Array = Any
"""float64, one number for each range that is followed."""
_TINY = 5e-324
"""The smallest positive number: the end of a range that excludes 0."""
_REACH = 64.0
"""The largest absolute score up to which ranges are split."""
_CELLS = 1 << 13


class ScoreSpan(NamedTuple):
    """All numbers from `low` to `high`."""

    low: Array
    high: Array


def _span(low: float, high: float) -> ScoreSpan:
    return ScoreSpan(np.float64(low), np.float64(high))


_ALL = _span(-np.inf, np.inf)


def is_at_least(node: S.Real, least: float, strictly: bool = False) -> bool:
    """Whether a formula is proved to be at least `least` (or above it) for scores from -64 to 64.

    Tables and sums of positions may have any value. If the plain range of the formula suffices,
    scores may have any value too.
    """

    def holds(span: ScoreSpan) -> bool:
        return bool(np.all(span.low > least if strictly else span.low >= least))

    if holds(Ranges({}).of(node)):
        return True
    ends = np.linspace(-_REACH, _REACH, _CELLS + 1)
    cells = ScoreSpan(ends[:-1], ends[1:])
    return any(holds(Ranges({part: cells}).of(node)) for part in _carriers(node))


def _carriers(node: S.Real) -> Iterator[S.Real]:
    """Yield proper parts such that the formula depends on nothing else."""
    for part in dict.fromkeys(E.walk(node)):
        if isinstance(part, S.Real) and part != node and _varies(part):
            rest = E.transform(node, {part: S.Number(0.0)}.get)
            if not _varies(rest):
                yield part


def _varies(node: Term) -> bool:
    return any(isinstance(part, (S.Score, S.Read, S.Whole)) for part in E.walk(node))


class Ranges:
    """Computes ranges of formulas from known ranges of some parts."""

    def __init__(self, known: Mapping[Term, ScoreSpan]) -> None:
        """Arrays of `known` have one number for each range that is followed."""
        self._known = known

    @np.errstate(all="ignore")
    def of(self, node: S.Real) -> ScoreSpan:
        """The values that a formula may have."""
        known = self._known.get(node)
        if known is not None:
            return known
        match node:
            case S.Number(value):
                return _span(value, value)
            case S.Whole(number):
                return _span(*of_whole(number))
            case S.Choice(condition, then, other):
                return self._chosen(condition, self.of(then), self.of(other))
            case S.Call("mul", (left, right)) if left == right:
                low, high = self.of(left)
                ends = low * low, high * high
                least = np.where((low <= 0) & (high >= 0), 0.0, np.minimum(*ends))
                return ScoreSpan(least, np.maximum(*ends))
            case S.Call(function, args):
                return _of_call(function, [self.of(arg) for arg in args])
        return _ALL

    def _chosen(self, condition: Term, then: ScoreSpan, other: ScoreSpan) -> ScoreSpan:
        always, never = self._decided(condition)
        ends = zip(then, other, (np.minimum, np.maximum), strict=True)
        return ScoreSpan(*(
            np.where(never, two, np.where(always, one, both(one, two))) for one, two, both in ends
        ))  # fmt: skip

    def _decided(self, condition: Term) -> tuple[Array, Array]:
        """(surely true, surely false)."""
        match condition:
            case S.Less(left, right):
                one, two = self.of(left), self.of(right)
                return one.high < two.low, one.low >= two.high
            case S.Logic("not", (part,)):
                always, never = self._decided(part)
                return never, always
            case S.Logic(word, (left, right)):
                (a, not_a), (b, not_b) = self._decided(left), self._decided(right)
                return (a & b, not_a | not_b) if word == "and" else (a | b, not_a & not_b)
        return np.bool_(False), np.bool_(False)


def _product(a: Array, b: Array) -> Array:
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _times(a: ScoreSpan, b: ScoreSpan) -> ScoreSpan:
    ends = [_product(x, y) for x in a for y in b]
    return ScoreSpan(np.minimum.reduce(np.broadcast_arrays(*ends)),
                np.maximum.reduce(np.broadcast_arrays(*ends)))  # fmt: skip


def _over(a: ScoreSpan, b: ScoreSpan) -> ScoreSpan:
    through = (b.low <= 0) & (b.high >= 0)
    span = _times(a, ScoreSpan(1 / b.high, 1 / b.low))
    positive = (a.low > 0) & (b.low > 0)
    low = np.where(positive, np.maximum(span.low, _TINY), span.low)
    return ScoreSpan(np.where(through, -np.inf, low), np.where(through, np.inf, span.high))


def _rising(function: Any, x: ScoreSpan) -> ScoreSpan:
    return ScoreSpan(function(x.low), function(x.high))


def _log(x: Array) -> Array:
    return np.where(x <= 0, -np.inf, np.log(np.maximum(x, _TINY)))


def _gelu(x: ScoreSpan) -> ScoreSpan:
    return ScoreSpan(np.full_like(np.float64(x.low), -0.17), np.maximum(x.high, 0.0))


def _of_call(function: str, args: list[ScoreSpan]) -> ScoreSpan:
    x, *rest = args
    match function:
        case "add":
            return ScoreSpan(x.low + rest[0].low, x.high + rest[0].high)
        case "sub":
            return ScoreSpan(x.low - rest[0].high, x.high - rest[0].low)
        case "mul":
            return _times(*args)
        case "div":
            return _over(*args)
        case "min":
            return ScoreSpan(np.minimum(x.low, rest[0].low), np.minimum(x.high, rest[0].high))
        case "max":
            return ScoreSpan(np.maximum(x.low, rest[0].low), np.maximum(x.high, rest[0].high))
        case "neg":
            return ScoreSpan(-x.high, -x.low)
        case "abs":
            ends = abs(x.low), abs(x.high)
            through = (x.low <= 0) & (x.high >= 0)
            return ScoreSpan(np.where(through, 0.0, np.minimum(*ends)), np.maximum(*ends))
        case "exp":
            return ScoreSpan(np.maximum(np.exp(x.low), _TINY), np.maximum(np.exp(x.high), _TINY))
        case "log":
            return _rising(_log, x)
        case "tanh":
            return _rising(np.tanh, x)
        case "sqrt":
            return _rising(lambda end: np.sqrt(np.maximum(end, 0.0)), x)
        case "sigmoid":
            return _rising(lambda end: np.clip(1 / (1 + np.exp(-end)), _TINY, 1.0), x)
        case "erf" | "sign" | "sin" | "cos":
            return _span(-1.0, 1.0)
        case "gelu":
            return _gelu(x)
        case "step":
            return _span(0.0, 1.0)
        case "floor":
            return _rising(np.floor, x)
    return _ALL
