"""Formulas as GLSL ES 3.00: the predicate of a mask in the fragment shader of the explorer.

GLSL computes in 32 bits and wraps. A text is therefore only valid if `Shader.bound` shows that no
intermediate value exceeds 32 bits; callers check this first. Division of negative numbers is
undefined in GLSL, so `floor_div` and `floor_mod` only divide numbers >= 0. The text contains no
name written by a user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.widths import INT32, largest, number, reach
from maskc.emit.c_printer import CPrinter

WIDEST = INT32 - 1
"""The largest bound for which a shader is exact: ends of ranges are one past the last number."""
_CHAIN = 8
"""Ranges of numbers up to which membership is a chain of comparisons."""

LIBRARY = """\
int floor_div(int a, int b) { return a >= 0 ? a / b : ~(~a / b); }
int floor_mod(int a, int b) { return a >= 0 ? a % b : b - 1 - ~a % b; }
"""
"""Functions that every predicate may call; a shader includes them once."""


@dataclass(frozen=True)
class Shader:
    """A predicate over `int q, int k`, and the names of its inputs.

    `n_q`, `n_kv` and p0, p1, ... are integers that can be set without another build.
    """

    text: str
    """One expression."""
    params: tuple[str, ...]
    """The parameters p0, p1, ... by the names that formulas use."""
    arrays: tuple[str, ...]
    """The arrays that the functions a0, a1, ... read; they take an index, or a row and a column."""
    lists: tuple[tuple[tuple[int, int], ...], ...]
    """The closed ranges that the functions in0(x), in1(x), ... look in; they ascend."""
    bound: Expr
    """The largest magnitude of anything computed: a symbol or an array in it stands for its own."""

    def exact(self, values: Mapping[str, int]) -> bool:
        """Whether nothing wraps, for these magnitudes of lengths, parameters and arrays."""
        return number(self.bound, values) <= WIDEST


def shader(keep: Expr) -> Shader | None:
    """The shader of a formula over q and k; None if it spells a number of more than 32 bits.

    Args:
        keep: a condition over q, k, lengths, parameters and arrays.
    """
    params = tuple(E.params(keep))
    arrays = E.arrays(keep)
    nodes = dict.fromkeys(node for node in E.walk(keep) if isinstance(node, E.Member))
    lists = tuple(dict.fromkeys(node.ranges for node in nodes if len(node.ranges) > _CHAIN))
    bound = largest([*reach(keep), E.N_Q, E.N_KV])
    least = dict.fromkeys(["q", "k", "n_q", "n_kv", *params, *arrays], 1)
    if number(bound, least) > WIDEST:  # constants and factors alone
        return None
    return Shader(GlslPrinter(params, arrays, lists)(keep), params, arrays, lists, bound)


class GlslPrinter(CPrinter):
    """A printer for predicates; its arguments are the fields of a `Shader`."""

    true, false = "true", "false"

    def __init__(
        self, params: tuple[str, ...], arrays: tuple[str, ...],
        lists: tuple[tuple[tuple[int, int], ...], ...] = (),
    ) -> None:  # fmt: skip
        super().__init__()
        self._params, self._arrays, self._lists = params, arrays, lists

    def symbol(self, name: str) -> str:
        return name

    def param(self, name: str, default: int) -> str:
        return f"p{self._params.index(name)}"

    def load(self, array: str, index: list[str]) -> str:
        return f"a{self._arrays.index(array)}({', '.join(index)})"

    def function(self, name: str) -> str:
        return name

    def member(self, value: str, node: E.Member) -> str:
        if len(node.ranges) <= _CHAIN:
            return super().member(value, node)
        return f"{'' if node.inside else '!'}in{self._lists.index(node.ranges)}({value})"
