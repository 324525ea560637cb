"""Bounds of a formula on a tile as C or CUDA text: prints the walk of `maskc.core.tile_bounds`.

Every operation becomes a line; equal lines are printed once. Numbers have 64 bits, independent of
the attention kernel: bounds never exceed the possible values of the formula.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.tile_bounds import Span, TileBounds, Verdict
from maskc.core.widths import ID_LIST, is_list
from maskc.emit.spec import TileText

Text = str | int | bool


class TextOperations:
    """Writes operations as lines; what is known while printing is computed."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._names: dict[str, str] = {}

    def named(self, kind: str, value: str) -> str:
        """The variable of a kind that has this value."""
        if value not in self._names:
            self._names[value] = f"t{len(self._names)}"
            self.lines.append(f"const {kind} {self._names[value]} = {value};")
        return self._names[value]

    def constant(self, value: int) -> Text:
        return value

    def truth(self, value: bool) -> Text:
        return value

    def add(self, a: Text, b: Text) -> Text:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if 0 in (a, b):
            return b if a == 0 else a
        return self.named("i64", f"{_operand(a)} + {_operand(b)}")

    def times(self, factor: int, a: Text) -> Text:
        if isinstance(a, int) or factor == 1:
            return factor * a if isinstance(a, int) else a
        return self.named("i64", f"{_operand(factor)} * {a}")

    def floordiv(self, a: Text, den: int) -> Text:
        return a // den if isinstance(a, int) else self.named("i64", f"floor_div({a}, {den})")

    def least(self, a: Text, b: Text) -> Text:
        return self._extreme("min_int", min, a, b)

    def greatest(self, a: Text, b: Text) -> Text:
        return self._extreme("max_int", max, a, b)

    def _extreme(self, name: str, pick: Callable[[int, int], int], a: Text, b: Text) -> Text:
        if isinstance(a, int) and isinstance(b, int):
            return pick(a, b)
        return a if a == b else self.named("i64", f"{name}({a}, {b})")

    def at_most(self, a: Text, b: Text) -> Text:
        if isinstance(a, int) and isinstance(b, int):
            return a <= b
        return True if a == b else self.named("i32", f"{a} <= {b}")

    def equal(self, a: Text, b: Text) -> Text:
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return True if a == b else self.named("i32", f"{a} == {b}")

    def both(self, a: Text, b: Text) -> Text:
        return self._join("&", False, a, b)

    def either(self, a: Text, b: Text) -> Text:
        return self._join("|", True, a, b)

    def _join(self, sign: str, absorbing: bool, a: Text, b: Text) -> Text:
        if isinstance(a, bool) or isinstance(b, bool):
            known, other = (a, b) if isinstance(a, bool) else (b, a)
            return absorbing if known is absorbing else other
        return a if a == b else self.named("i32", f"{a} {sign} {b}")

    def negation(self, a: Text) -> Text:
        return not a if isinstance(a, bool) else self.named("i32", f"!{a}")

    def choose(self, condition: Text, a: Text, b: Text) -> Text:
        if isinstance(condition, bool):
            return a if condition else b
        return a if a == b else self.named("i64", f"{condition} ? {a} : {b}")


def _operand(value: Text) -> str:
    """A number behind an operator, where a sign needs parentheses."""
    return f"({value})" if isinstance(value, int) and value < 0 else str(value)


Load = Callable[[E.Load, tuple[Span, ...]], str]
"""C text of a `struct Span`: the values of an array between the bounds of its indices."""


class TextLeaves:
    """Bounds of symbols on a box q0 .. q1, k0 .. k1; constants are members of `m`."""

    def __init__(self, do: TextOperations, load: Load) -> None:
        self._do, self._load = do, load

    def symbol(self, name: str) -> Span:
        if name in ("q", "k"):
            return Span(f"{name}0", f"{name}1")
        return Span(f"m.{name}", f"m.{name}")

    def load(self, node: E.Load, index: tuple[Span, ...]) -> Span:
        if is_list(node.array):
            ((low, high),) = index
            text = f"listed_between(m.l{node.array.removeprefix(ID_LIST)}, {low}, {high})"
        else:
            text = self._load(node, index)
        name = self._do.named("struct Span", text)
        return Span(f"{name}.low", f"{name}.high")

    def member(self, value: Span, ranges: tuple[tuple[int, int], ...]) -> Verdict:
        do = self._do
        within = [
            Verdict(
                do.both(do.at_most(value.low, last), do.at_most(first, value.high)),
                do.both(do.at_most(first, value.low), do.at_most(value.high, last)),
            )
            for first, last in ranges
        ]
        return Verdict(
            reduce(do.either, (span.may for span in within)),
            reduce(do.either, (span.must for span in within)),
        )


def tile_text(keep: Expr, load: Load, static_part: bool = False) -> TileText:
    """The text of a lifted formula, with `struct Span` and the functions of
    templates/common/lib/tile_bounds.h in scope."""
    do = TextOperations()
    result = TileBounds(do, TextLeaves(do, load)).condition(keep)
    may, must = (str(int(x)) if isinstance(x, bool) else str(x) for x in result)
    return TileText(tuple(do.lines), may, must, static_part)
