"""Checks shared by the combinators: each returns a value the node may hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from maskc.core import expr as E
from maskc.core.errors import (
    BadAlign,
    BadChoice,
    BadIds,
    IntegerTooWide,
    NegativeWidth,
    NotAnInteger,
    NotConstant,
    NotPositions,
    NotPositive,
)
from maskc.core.expr import Expr
from maskc.core.expr_text import to_python
from maskc.core.source import SourceLoc
from maskc.core.widths import INT64, plain_integer
from maskc.dsl.collect import mistake
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import END, START, AtPositions, Placed, Positions
from maskc.dsl.not_a_mask import not_a_mask
from maskc.dsl.traced import Traced

_HOST = {"n_q", "n_kv"}
_VARIES = (
    "a number that changes from call to call is mc.param('w', 64), and calls pass it by name: w=64"
)


def shown(value: object) -> str:
    """Return the text for a value in an error message."""
    return to_python(value.expr) if isinstance(value, Traced) else repr(value)


def count(where: str, name: str, value: object, at: SourceLoc | None, least: int = 0) -> Expr:
    """Check an integer argument that is data: a literal, mc.param(...), or a formula in the
    lengths.
    """
    number = E.as_const(value.expr) if isinstance(value, Traced) else plain_integer(value)
    if number is None and isinstance(value, Traced) and _known_early(value.expr):
        return value.expr
    if number is None:
        error = NotAnInteger(where, name, shown(value), at=at)
        if not isinstance(value, Traced) and hasattr(
            value, "dtype"
        ):  # such as a traced number of JAX
            error.hint = _VARIES
        return mistake(error, E.const(least))
    if number < least:
        return mistake(_too_small(where, name, number, least, at), E.const(least))
    return E.const(_narrow(where, number, least, at))


def _narrow(where: str, number: int, least: int, at: SourceLoc | None) -> int:
    """Return the number if it fits 64 bits."""
    if abs(number) <= INT64:
        return number
    return mistake(IntegerTooWide(where, number, at=at), least)


def scaled(where: str, stride: int, side: Expr, at: SourceLoc | None) -> None:
    """Check that `count` keys, `stride` apart, stay within the range of 64-bit distances."""
    number = E.as_const(side)
    if number is not None:
        _narrow(where, stride * number, 0, at)


def _too_small(
    where: str, name: str, number: int, least: int, at: SourceLoc | None
) -> NotPositive | NegativeWidth:
    wrong = NotPositive if least == 1 else NegativeWidth
    return wrong(f"{where}({number})", name, number, at=at)


def _known_early(formula: Expr) -> bool:
    """Whether it is an integer that does not depend on a query, key or head."""
    return not E.is_condition(formula) and E.symbols(formula) <= _HOST


def constant(where: str, name: str, value: object, at: SourceLoc | None, least: int = 1) -> int:
    """A plain integer >= least: strides and block sizes shape the kernel."""
    number = None if isinstance(value, Traced) else plain_integer(value)
    if number is None:
        return mistake(NotConstant(where, name, shown(value), at=at), least)
    if number < least:
        return mistake(_too_small(where, name, number, least, at), least)
    return _narrow(where, number, least, at)


def seed(where: str, value: object, at: SourceLoc | None) -> int:
    """An integer of 64 bits, with a sign or without."""
    number = None if isinstance(value, Traced) else plain_integer(value)
    if number is None:
        return mistake(NotConstant(where, "seed", shown(value), at=at), 0)
    if -INT64 - 1 <= number <= 2 * INT64 + 1:
        return number
    return mistake(IntegerTooWide(where, number, at=at), 0)


def ids(where: str, values: Any, at: SourceLoc | None, least: int | None = 0) -> tuple[int, ...]:
    """Check ids [count] and return them as a sorted tuple of distinct plain integers.

    Raises:
        BadIds: something is not an integer, or less than `least` (MC118).
    """
    try:
        integers = [plain_integer(item) for item in values]
    except TypeError:
        integers = [None]
    known = [item for item in integers if item is not None]
    bound = "" if least is None else f" >= {least}"
    if len(known) < len(integers) or (least is not None and any(item < least for item in known)):
        return mistake(BadIds(where, bound, shown(values), at=at), ())
    if any(abs(_narrow(where, item, 0, at)) > INT64 for item in known):
        return ()
    return tuple(sorted(set(known)))


def choice(
    where: str, name: str, value: object, known: tuple[str, ...], at: SourceLoc | None
) -> str:
    """The value, which must be one of a few words."""
    if isinstance(value, str) and value in known:
        return value
    listed = ", ".join(map(repr, known))
    return mistake(BadChoice(where, name, listed, value, at=at), known[0])


def align(where: str, value: str, at: SourceLoc | None) -> str:
    """END or START."""
    return value if value in (END, START) else mistake(BadAlign(where, value, at=at), END)


def placed(where: str, made: Placed, at: object, loc: SourceLoc | None) -> Mask:
    """Return the mask over positions from calls, or the mask itself if `at` is None."""
    placed_at = positions(where, at, loc)
    if placed_at is None:
        return made
    if getattr(made, "align", END) != END:
        mistake(NotPositions(where, "which leave nothing to align", at=loc), made)
    return AtPositions(replace(made, align=START), placed_at, loc=loc)


def positions(where: str, at: object, loc: SourceLoc | None) -> Positions | None:
    """Check the argument `at=`; None if it was not passed."""
    if at is None or isinstance(at, Positions):
        return at
    return mistake(NotPositions(where, f"found {at!r:.60}", at=loc), None)


def mask(where: str, value: object, at: SourceLoc | None) -> Mask:
    """Return a mask; a value that is not a mask becomes the full mask after an error."""
    from maskc.dsl.nodes import Full

    if isinstance(value, Mask):
        return value
    return mistake(not_a_mask(where, value, at), Full(loc=at))
