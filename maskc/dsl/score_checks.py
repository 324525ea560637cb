"""Whether a formula of the score is smooth enough.

Ranges of values come from interval arithmetic: q, k, h and b count tokens, tables and parameters
may hold anything. A derivative by the score must be finite for every score; what a formula makes of
places and tables alone is the user's own matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NoReturn

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.errors import ScoreDerivative
from maskc.core.score import Range, of_whole
from maskc.core.source import SourceLoc

_ALL: Range = (-math.inf, math.inf)
_TINY = 5e-324
"""The least positive number: the end of a range that is open at 0."""


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
