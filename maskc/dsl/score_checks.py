"""Whether a formula of the score is smooth enough, and which pairs it hides.

Ranges of values come from interval arithmetic: q, k, h and b count tokens, tables and parameters
may hold anything. A derivative by the score must be finite for every score; what a formula makes of
places and tables alone is the user's own matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial, reduce
from typing import NoReturn

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.errors import ScoreDerivative, ScoreHidesPairs
from maskc.core.expr import Expr, Term, is_condition
from maskc.core.score import Range, of_whole
from maskc.core.source import SourceLoc

_ALL: Range = (-math.inf, math.inf)
_TINY = 5e-324
"""The least positive number: the end of a range that is open at 0."""
_HIDDEN = -1e30
"""What is added to a score, or replaces it, to leave a pair no weight."""


# ------------------------------------------------------------------ ranges


def of_real(node: S.Real) -> Range:
    """The values that a formula may have."""
    match node:
        case S.Number(value):
            return value, value
        case S.Whole(number):
            return of_whole(number)
        case S.Choice(_, then, other):
            return _joined(of_real(then), of_real(other))
        case S.Call("mul", (left, right)) if left == right:
            low, high = of_real(left)
            ends = sorted((low * low, high * high))
            return (0.0 if low <= 0 <= high else ends[0]), ends[1]
        case S.Call(function, args):
            return _of_call(function, [of_real(arg) for arg in args])
    return _ALL


def _joined(a: Range, b: Range) -> Range:
    return min(a[0], b[0]), max(a[1], b[1])


def _product(a: float, b: float) -> float:
    return 0.0 if 0.0 in (a, b) else a * b


def _times(a: Range, b: Range) -> Range:
    ends = [_product(x, y) for x in a for y in b]
    return min(ends), max(ends)


def _exp(x: float) -> float:
    return math.inf if x > 709 else max(math.exp(x), _TINY)


def _log(x: float) -> float:
    return -math.inf if x <= 0 else math.log(x) if math.isfinite(x) else x


def _of_call(function: str, args: list[Range]) -> Range:
    low, high = args[0]
    match function:
        case "add":
            return low + args[1][0], high + args[1][1]
        case "sub":
            return low - args[1][1], high - args[1][0]
        case "mul":
            return _times(*args)
        case "div":
            below, above = args[1]
            if below <= 0 <= above:
                return _ALL
            ends = (
                0.0 if math.isinf(above) else 1 / above,
                0.0 if math.isinf(below) else 1 / below,
            )
            found = _times(args[0], ends)
            positive = low > 0 and below > 0
            return (max(found[0], _TINY), found[1]) if positive else found
        case "min":
            return min(low, args[1][0]), min(high, args[1][1])
        case "max":
            return max(low, args[1][0]), max(high, args[1][1])
        case "neg":
            return -high, -low
        case "abs":
            least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
            return least, max(abs(low), abs(high))
        case "exp":
            return _exp(low), _exp(high)
        case "log":
            return _log(low), _log(high)
        case "tanh":
            return math.tanh(low), math.tanh(high)
        case "sqrt":
            return math.sqrt(max(low, 0.0)), math.sqrt(max(high, 0.0))
        case "sigmoid":
            return _TINY, 1.0
        case "erf":
            return math.erf(low), math.erf(high)
        case "gelu":
            return -0.17, max(high, 0.0)
        case "sign" | "sin" | "cos":
            return -1.0, 1.0
        case "step":
            return 0.0, 1.0
    return _ALL


# ------------------------------------------------------------------ derivatives


def check_derivative(
    node: S.Real, places: Mapping[object, SourceLoc], at: SourceLoc | None
) -> None:
    """Refuse a formula whose derivative by the score may be infinite or undefined.

    Args:
        node: the formula.
        places: where its parts were written.
        at: where it was written.

    Raises:
        ScoreDerivative: with the line of the part.
    """

    def wrong(part: S.Real, found: str, hint: str) -> NoReturn:
        raise ScoreDerivative(found, hint, at=places.get(part, at))

    for part in E.walk(node):
        if not (isinstance(part, S.Call) and S.by_score(part)):
            continue
        match part:
            case S.Call("log", (value,)) if of_real(value)[0] <= 0:
                text = S.to_score_text(value)
                wrong(part, f"log({text}), where {text} may be 0 or less", _KEEP_AWAY)
            case S.Call("sqrt", (value,)) if S.by_score(value) and of_real(value)[0] <= 0:
                text = S.to_score_text(value)
                wrong(part, f"sqrt({text}), where {text} may be 0 or less", _KEEP_AWAY)
            case S.Call("div", (_, value)) if S.by_score(value):
                low, high = of_real(value)
                if low <= 0 <= high:
                    text = S.to_score_text(value)
                    wrong(part, f"a division by {text}, which may be 0", _KEEP_AWAY)


_KEEP_AWAY = "keep it away from 0, as torch.clamp(x, min=1e-6) or sqrt(x * x + 1e-6) do"


# ------------------------------------------------------------------ hidden pairs


def _all(*parts: Term | None) -> Term | None:
    """The condition that all hold, of which None holds always."""
    kept = [part for part in parts if part not in (None, E.ALWAYS)]
    return reduce(partial(S.joined, "and"), kept) if kept else None


def without_hidden(node: S.Real, sign: int = -1) -> tuple[S.Real, Term | None]:
    """The formula of the pairs that it leaves a weight, and which ones these are; None: all.

    Args:
        node: a formula, or a part of one.
        sign: of the infinity that hides a pair there.
    """

    def hidden(part: S.Real) -> bool:
        return isinstance(part, S.Number) and part.value * sign >= -_HIDDEN

    def joined(function: str, *parts: tuple[S.Real, Term | None]) -> tuple[S.Real, Term | None]:
        kept = _all(*(of_part for _, of_part in parts))
        return (node if kept is None else S.Call(function, tuple(one for one, _ in parts))), kept

    match node:
        case S.Choice(condition, then, other):
            if hidden(other):
                inner, kept = without_hidden(then, sign)
                return inner, _all(condition, kept)
            if hidden(then):
                inner, kept = without_hidden(other, sign)
                return inner, _all(S.negated(condition), kept)
            (one, of_one), (two, of_two) = (without_hidden(x, sign) for x in (then, other))
            if of_one is None and of_two is None:
                return node, None
            first = _all(condition, of_one) or E.ALWAYS
            second = _all(S.negated(condition), of_two) or E.ALWAYS
            return S.Choice(condition, one, two), S.joined("or", first, second)
        case S.Call("add", (left, right)):
            return joined("add", without_hidden(left, sign), without_hidden(right, sign))
        case S.Call("sub", (left, right)):
            return joined("sub", without_hidden(left, sign), without_hidden(right, -sign))
        case S.Call("neg", (value,)):
            return joined("neg", without_hidden(value, -sign))
        case S.Call("mul", (S.Number(factor) as number, value)) if 0 < abs(factor) < -_HIDDEN:
            own = without_hidden(value, sign if factor > 0 else -sign)
            return joined("mul", (number, None), own)
        case S.Call("mul", (value, S.Number(factor) as number)) if 0 < abs(factor) < -_HIDDEN:
            own = without_hidden(value, sign if factor > 0 else -sign)
            return joined("mul", own, (number, None))
        case S.Call("log", (S.Choice(condition, then, other),)) if sign < 0:
            if _is_zero(other):
                return S.Call("log", (then,)), condition
            if _is_zero(then):
                return S.Call("log", (other,)), S.negated(condition)
    return node, None


def _is_zero(part: S.Real) -> bool:
    """Whether its logarithm hides a pair."""
    return part == S.Number(0.0) or (isinstance(part, S.Whole) and part.number == E.ZERO)


def check_finite(node: S.Real, places: Mapping[object, SourceLoc], at: SourceLoc | None) -> None:
    """Refuse literals that leave a pair no weight, or all of it, in places that are not understood.

    Raises:
        ScoreHidesPairs: an infinite literal, or a huge negative one.
    """
    for part in E.walk(node):
        for inner in part.parts if isinstance(part, (S.Call, S.Choice)) else (part,):
            if isinstance(inner, S.Number) and not _HIDDEN < inner.value < -_HIDDEN:
                found = f"{inner.value:g} in {S.to_score_text(part)}"
                raise ScoreHidesPairs(found, _A_MASK, at=places.get(part, at))


_A_MASK = "keep pairs by a mask: mc.where(lambda q, k: ...) & mask, or mc.from_mask_mod(f)"


def mask_formula(kept: Term, at: SourceLoc | None) -> Expr:
    """The condition as a mask's formula.

    Raises:
        ScoreHidesPairs: it reads tables, the score or b, which no such mask does.
    """
    plain = isinstance(kept, Expr) and is_condition(kept)
    own = (S.Entry, S.Trunc, E.Pick, S.Product, S.Test, S.Real)
    if not plain or any(isinstance(part, own) or part == S.B for part in E.walk(kept)):
        text = S.to_score_text(kept)
        raise ScoreHidesPairs(f"all but those with {text}", _A_MASK, at=at)
    return kept  # type: ignore[return-value]
