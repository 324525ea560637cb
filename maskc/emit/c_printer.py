"""Formulas as C and CUDA text. Division and remainder follow Python, not C."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from maskc.core import expr as E
from maskc.core.expr_text import Printer
from maskc.core.widths import ID_LIST, is_list


def _bare(text: str) -> str:
    """An operand in parentheses without them: the call around it has its own."""
    if not (text.startswith("(") and text.endswith(")")):
        return text
    depth = 0
    for sign in text[:-1]:
        depth += (sign == "(") - (sign == ")")
        if not depth:  # the first one closes here
            return text
    return text[1:-1]


def nested(function: str, args: Iterable[str]) -> str:
    """Calls of a function of two arguments inside one another."""
    return reduce(lambda left, right: f"{function}({left}, {right})", args)


class CPrinter(Printer):
    """A printer for predicates over `Mask m`: constants are `m.c0`, arrays `m.a0[...]`.

    What it prints is of type Integer, which has 32 bits, or 64 where a call needs them: symbols and
    constants have it, elements of arrays are converted.
    """

    conj, disj, negation = "&&", "||", "!"
    true, false = "1", "0"
    joint = 4

    def __init__(
        self, arrays: tuple[str, ...] = (), selections: frozenset[str] = frozenset(),
        tiled: bool = False, counts: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """Name the inputs of the formulas.

        Args:
            selections: arrays with entries that are bits, 32 per word.
            tiled: whether these are lists instead; `m.chosen0` holds the bits of the current tile.
            counts: constants that are never negative.
        """
        self._slot = {name: number for number, name in enumerate(arrays)}
        self._selections, self._tiled, self.counts = selections, tiled, counts

    def symbol(self, name: str) -> str:
        return f"m.{name}" if name[0] == "c" and name[1:].isdigit() else name

    def param(self, name: str, default: int) -> str:
        raise TypeError(f"parameter {name} (default {default}) was not bound to an argument")

    def load(self, array: str, index: list[str]) -> str:
        if is_list(array):
            return f"listed(m.l{array.removeprefix(ID_LIST)}, {index[0]})"
        number = self._slot[array]
        if array in self._selections and self._tiled:
            return f"(m.chosen{number}[q - m.tile_q] >> (k - m.tile_k) & 1)"
        if len(index) == 1:
            return f"(Integer)m.a{number}[{index[0]}]"
        row, column = index
        if array in self._selections:
            return f"(m.a{number}[({row}) * m.row{number} + {column} / 32] >> {column} % 32 & 1)"
        return f"(Integer)m.a{number}[({row}) * m.row{number} + {column}]"

    def floordiv(self, num: str, den: int, nonnegative: bool) -> tuple[str, int]:
        return (f"{num} / {den}", 6) if nonnegative else (f"floor_div({_bare(num)}, {den})", 7)

    def mod(self, num: str, den: int, nonnegative: bool) -> tuple[str, int]:
        return (f"{num} % {den}", 6) if nonnegative else (f"floor_mod({_bare(num)}, {den})", 7)

    def function(self, name: str) -> str:
        """The function that `min` or `max` of two numbers is."""
        return f"{name}_int"

    def extreme(self, name: str, args: list[str]) -> str:
        return nested(self.function(name), args)

    def member(self, value: str, node: E.Member) -> str:
        """A chain of comparisons; where there are many ids, kernels read bits instead, see
        ir/lift."""
        tests = [
            f"{value} == {low}" if low == high else f"({low} <= {value} && {value} <= {high})"
            for low, high in node.ranges
        ]
        return f"{'' if node.inside else '!'}({' || '.join(tests)})"
