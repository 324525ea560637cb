"""Check that a score formula is smooth enough for gradients.

The derivative by the score must be finite for every pair with a weight. Parts that depend only on
indices and tables are not checked. log is allowed at 0: log(0) is -inf, so the pair has no
weight and its gradient is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.errors import ScoreDerivative
from maskc.core.source import SourceLoc
from maskc.dsl.score_ranges import is_at_least


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

    def wrong(part: S.Real, finding: str, hint: str) -> NoReturn:
        raise ScoreDerivative(finding, hint, at=places.get(part, at))

    for part in E.walk(node):
        if not (isinstance(part, S.Call) and S.by_score(part)):
            continue
        match part:
            case S.Call("log", (value,)) if not is_at_least(value, 0):
                text = S.to_score_text(value)
                wrong(part, f"log({text}), where {text} may be below 0", _KEEP_AWAY)
            case S.Call("sqrt", (value,)) if S.by_score(value) and not is_at_least(value, 0, True):
                text = S.to_score_text(value)
                wrong(part, f"sqrt({text}), where {text} may be 0 or less", _KEEP_AWAY)
            case S.Call("div", (_, value)) if S.by_score(value):
                below = S.Call("neg", (value,))
                if not is_at_least(value, 0, True) and not is_at_least(below, 0, True):
                    text = S.to_score_text(value)
                    wrong(part, f"a division by {text}, which may be 0", _KEEP_AWAY)


_KEEP_AWAY = "keep it away from 0, as torch.clamp(x, min=1e-6) or sqrt(x * x + 1e-6) do"
