"""The recipe of gathered keys: what their lists are made of when lengths are known."""

from __future__ import annotations

from dataclasses import dataclass

from maskc.core import expr as E
from maskc.core.expr import Expr


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tiles of a row `ti`, or of a column `tj`: first <= tile < last if `guard` holds,
    otherwise none. Tiles may be single tokens."""

    guard: Expr
    first: Expr
    last: Expr
    """Past the end."""

    def substituted(self, values: dict[Expr, Expr]) -> Span:
        """Return the range with other terms."""
        ends = (self.guard, self.first, self.last)
        return Span(*(E.substitute(end, values) for end in ends))


@dataclass(frozen=True, slots=True)
class Gather:
    """The recipe of lists of single keys, for when lengths are known."""

    constants: tuple[Expr, ...]
    """The constants of the kernel's formulas, over n_q, n_kv and parameters."""
    alongside: tuple[Span, ...]
    """Ranges that contain all keys that a query sees without a selection."""
    rests: tuple[Expr | None, ...] = ()
    """A bound on what each constant is added to, as in `Variant`."""
