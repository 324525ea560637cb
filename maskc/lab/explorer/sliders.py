"""The numbers of a pattern as parameters: the page moves them without asking anyone.

A pattern is called with `mc.param(...)` in place of its integers, as `mc.pattern` allows. Numbers
that shape the formula (strides, block sizes, how many terms there are) refuse that, and stay as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from maskc.core import expr as E
from maskc.core.data import RESERVED
from maskc.core.errors import MaskcError
from maskc.core.expr import Expr
from maskc.dsl import nodes as N
from maskc.dsl.mask import Mask
from maskc.dsl.parameters import param
from maskc.dsl.pattern import Pattern
from maskc.ir.lowered import on_all_heads
from maskc.ir.set_comparison import equals

_MAX = 1 << 30
"""The largest parameter of a call."""


@dataclass(frozen=True)
class Movable:
    """A mask some of whose numbers are parameters."""

    mask: Mask
    labels: Mapping[str, str]
    """Labels of the parameters of these names."""
    stuck: tuple[tuple[str, object], ...]
    """The pattern's other arguments and their values."""


def movable(
    pattern: Pattern[...], values: Mapping[str, object], n_heads: int | None = None,
    taken: Collection[str] = (),
) -> Movable:  # fmt: skip
    """The pattern's mask for these values, with parameters wherever it is the same mask then.

    Args:
        values: of some parameters of the pattern; the others have their defaults.
        n_heads: query heads, where the mask does not say how many there are.
        taken: names that its parameters must not have, because a mask shown with it uses them.

    Raises:
        MaskcError: the pattern refuses the values as they are.
    """
    call: Callable[..., Mask] = pattern
    full = {name: values.get(name, default) for name, _, default in pattern.parameters}
    plain = call(**full)
    numbers = {
        name: value for name, kind, _ in pattern.parameters
        if kind is int and type(value := full[name]) is int and value >= 0
    }  # fmt: skip
    traced = {name: param(_name(name, taken), value) for name, value in numbers.items()}
    alone = (name for name in traced if _same(plain, call, full, {name: traced[name]}, n_heads))
    chosen = {name: traced[name] for name in alone}
    if not _same(plain, call, full, chosen, n_heads):
        chosen = {}
    mask = call(**{**full, **chosen}) if chosen else plain
    stuck = tuple((name, value) for name, value in full.items() if name not in chosen)
    return Movable(mask, {_name(name, taken): name for name in chosen}, stuck)


def movable_mask(mask: Mask, taken: Collection[str] = ()) -> Movable:
    """A mask that no pattern made, with parameters for its widths and counts.

    `causal() & window(1023)` has one: window. Every number gets a parameter of its own.
    """
    used = {*params_of(mask), *taken}
    labels: dict[str, str] = {}

    def free(value: Expr, label: str) -> Expr:
        number = E.as_const(value)
        if number is None or number < 0 or number > _MAX:
            return value
        name = _name(label, used)
        used.add(name)
        labels[name] = label if label in taken else name
        return E.Param(name, number)

    def inside(node: Mask) -> Mask:
        match node:
            case N.Window(left, right):
                if left is not None:
                    left = free(left, "window")
                if right is not None and right != E.ZERO:
                    right = free(right, "window_right")
                return replace(node, left=left, right=right)
            case N.Sinks(n) | N.Prefix(n):
                return replace(node, n=free(n, type(node).__name__.lower()))
            case N.GlobalTokens(ids) if isinstance(ids, Expr):
                return replace(node, ids=free(ids, "global_tokens"))
            case N.PerHead() | N.Algebra() | N.Complement():
                return node.over(inside)
        return node

    return Movable(inside(mask), labels, ())


def params_of(mask: Mask) -> dict[str, int]:
    """Names and defaults of the parameters of a mask, and names that data have."""
    params: dict[str, int] = {}
    for node in N.walk(mask):
        params |= dict.fromkeys((decl.name for decl in node.decls), 0)
        for part in node.formulas:
            params |= E.params(part)
    return params


def _name(label: str, taken: Collection[str]) -> str:
    """A keyword for a parameter that the pattern may call anything."""
    label = label.lstrip("_") or "number"
    names = (label, *(f"{label}_{i}" for i in range(2, len(taken) + 4)))
    return next(name for name in names if name not in RESERVED and name not in taken)


def _same(
    plain: Mask, call: Callable[..., Mask], full: Mapping[str, object],
    numbers: Mapping[str, object], n_heads: int | None,
) -> bool:  # fmt: skip
    """Whether the mask with these parameters at their values is the plain one."""
    if not numbers:
        return True
    try:
        traced = call(**{**full, **numbers})
        pairs = zip(on_all_heads(traced, n_heads), on_all_heads(plain, n_heads), strict=True)
        return all(
            (fixed := _at_defaults(one.keep)) == other.keep or equals(fixed, other.keep) is True
            for one, other in pairs
        )
    except (MaskcError, TypeError, ValueError, ArithmeticError):
        return False  # the pattern's own code wants a plain number


def _at_defaults(keep: Expr) -> Expr:
    return E.with_values(keep, E.params(keep))
