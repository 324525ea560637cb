"""The meaning of a score formula, in float64, with its derivatives as dual numbers.

Every part of a formula has a value and its derivatives by s and by the entries of tables that it
was made of. Indices are those of NumPy: below 0 they count from the end, a dimension of one entry
is shared by all, and dimensions that are missing in front are too; outside of a table lies NaN.
Of two equal numbers min and max take half of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskc.core import expr as E
from maskc.core import score as S
from maskc.reference.formula import Values

Array = Any
"""A NumPy array or number."""
Index = tuple[Array, ...]


@dataclass(frozen=True)
class ScoreShare:
    """Table entries that pairs read, and the derivatives of their logits by them."""

    name: str
    index: Index
    """int64 [pairs] along every dimension of the table."""
    slope: Array
    """float64 [pairs]."""


@dataclass(frozen=True)
class Logits:
    """The logits of some pairs."""

    value: Array
    slope: Array
    """d value / d s."""
    shares: tuple[ScoreShare, ...]


@dataclass(frozen=True)
class _Dual:
    value: Array
    by: Mapping[object, Array]
    """Derivatives by "s", or by the index of the entry."""


class ScoreOf:
    """A formula with its data."""

    def __init__(
        self, inputs: S.Inputs, given: Mapping[str, object], n_q: int, n_kv: int, heads: int = 1,
        batch: int = 1,
    ) -> None:  # fmt: skip
        """`given`: arrays and numbers by name; parameters have defaults."""
        held = inputs.held(batch, heads, n_q, n_kv)
        values = {**inputs.defaults, **held, **given}
        self._logit = inputs.formula.logit
        self._lengths = {"n_q": n_q, "n_kv": n_kv}
        self._names = {
            slot.name: name for slot, name in zip(inputs.formula.slots, inputs.names, strict=True)
        }
        self._tables = {}
        for slot, name in self._names.items():
            table = values[name]
            table = table.detach().cpu().resolve_neg() if hasattr(table, "detach") else table
            kind = np.int64 if _integer(inputs, slot) else np.float64
            self._tables[slot] = np.asarray(table).astype(kind)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a table, by its name."""
        return next(
            self._tables[slot].shape for slot, slot_name in self._names.items() if slot_name == name
        )

    def __call__(self, s: Array, q: object, k: object, h: int, b: int) -> Logits:
        """The logits of pairs: s float64 [pairs]; q and k as many, or one for all."""
        evaluation = _Evaluation(self._tables, {**self._lengths, "q": q, "k": k, "h": h, "b": b}, s)
        dual = evaluation.real(self._logit)
        value = np.broadcast_to(dual.value, s.shape)

        def slope(by: object) -> Array:
            """The derivative; 0 where a pair has no weight."""
            return np.where(np.isneginf(value), 0.0, dual.by.get(by, 0.0))

        shares = tuple(
            ScoreShare(self._names[slot], index, slope(number))
            for number, (slot, index) in enumerate(evaluation.read)
            if number in dual.by
        )
        return Logits(value, slope("s"), shares)


def _integer(inputs: S.Inputs, name: str) -> bool:
    return next(slot.integer for slot in inputs.formula.slots if slot.name == name)


class _Evaluation(Values):
    def __init__(self, tables: Mapping[str, Array], places: Mapping[str, object], s: Array) -> None:
        super().__init__({name: np.asarray(x, np.int64) for name, x in places.items()})
        self._tables, self._s = tables, s
        self.read: list[tuple[str, Index]] = []

    # -------------------------------------------------------------- integers and conditions

    def whole(self, node: E.Expr) -> Array:
        return self.integer(node, [])

    def test(self, node: E.Term) -> Array:
        return self.truth(node)[0]

    def integer(self, expr: E.Expr, outside: list[np.ndarray]) -> Array:
        match expr:
            case S.Trunc(value):
                return np.trunc(np.nan_to_num(self.real(value).value, nan=0, posinf=2**31 - 1,
                                              neginf=-(2**31))).astype(np.int64)  # fmt: skip
            case E.Pick(condition, then, other):
                return np.where(self.test(condition), self.whole(then), self.whole(other))
            case S.Product(left, right):
                return self.whole(left) * self.whole(right)
            case S.Entry(slot, index):
                return self._entry(slot, index)[0].astype(np.int64)
        return super().integer(expr, outside)

    def comparison(self, expr: E.Term, outside: list[np.ndarray]) -> Array:
        match expr:
            case S.Less(left, right):
                return self.real(left).value < self.real(right).value
            case S.Logic("not", (part,)):
                return ~self.test(part)
            case S.Logic(word, (one, two)):
                join = np.logical_and if word == "and" else np.logical_or
                return join(self.test(one), self.test(two))
        return super().comparison(expr, outside)

    def _entry(self, slot: str, index: tuple[E.Expr, ...]) -> tuple[Array, Index]:
        table = self._tables[slot]
        if not index:
            flat = table.reshape(-1)[0]
            return np.asarray(flat), tuple(np.zeros(1, np.int64) for _ in table.shape)
        indices = index[len(index) - table.ndim :]
        places, outside = [], np.zeros(self._s.shape, bool)
        for part, size in zip(indices, table.shape, strict=True):
            place = np.broadcast_to(self.whole(part), self._s.shape)
            place = np.where(place < 0, place + size, place) if size > 1 else 0 * place
            outside |= (place < 0) | (place >= size)
            places.append(place)
        safe = tuple(np.where(outside, 0, place) for place in places)
        beyond = np.nan if table.dtype == np.float64 else -(2**31)
        return np.where(outside, beyond, table[safe]), safe

    # -------------------------------------------------------------- real numbers

    def real(self, node: S.Real) -> _Dual:
        match node:
            case S.Score():
                return _Dual(self._s, {"s": np.ones_like(self._s)})
            case S.Number(value):
                return _Dual(np.float64(value), {})
            case S.Whole(number):
                return _Dual(self.whole(number).astype(np.float64), {})
            case S.Read(slot, index):
                value, places = self._entry(slot, index)
                self.read.append((slot, tuple(np.broadcast_to(p, self._s.shape) for p in places)))
                return _Dual(value, {len(self.read) - 1: np.ones_like(self._s)})
            case S.Choice(condition, then, other):
                asked, one, two = self.test(condition), self.real(then), self.real(other)
                keys = dict.fromkeys((*one.by, *two.by))
                by = {x: np.where(asked, one.by.get(x, 0.0), two.by.get(x, 0.0)) for x in keys}
                return _Dual(np.where(asked, one.value, two.value), by)
            case S.Call(function, args):
                return _combined(function, list(map(self.real, args)))
        raise TypeError(f"no meaning for {node!r}")


def _half_step(x: Array) -> Array:
    return np.where(x > 0, 1.0, np.where(x < 0, 0.0, 0.5))


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _below(x: Array) -> Array:
    """The share of a normal distribution that lies below."""
    return (1 + _erf(x / math.sqrt(2))) / 2


_VALUES: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum,
    "max": np.maximum, "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log,
    "tanh": np.tanh, "sqrt": np.sqrt, "sigmoid": _sigmoid, "floor": np.floor, "sign": np.sign,
    "erf": _erf, "gelu": lambda x: x * _below(x), "sin": np.sin, "cos": np.cos,
}  # fmt: skip
_SLOPES: dict[str, Callable[..., tuple[object, ...]]] = {
    "add": lambda x, y: (1.0, 1.0), "sub": lambda x, y: (1.0, -1.0), "mul": lambda x, y: (y, x),
    "div": lambda x, y: (1 / y, -x / y**2),
    "min": lambda x, y: (_half_step(y - x), _half_step(x - y)),
    "max": lambda x, y: (_half_step(x - y), _half_step(y - x)),
    "neg": lambda x: (-1.0,), "abs": lambda x: (np.sign(x),), "exp": lambda x: (np.exp(x),),
    "log": lambda x: (1 / x,), "tanh": lambda x: (1 - np.tanh(x) ** 2,),
    "sqrt": lambda x: (0.5 / np.sqrt(x),),
    "sigmoid": lambda x: (_sigmoid(x) * (1 - _sigmoid(x)),),
    "erf": lambda x: (2 / math.sqrt(math.pi) * np.exp(-(x**2)),),
    "gelu": lambda x: (_below(x) + x * np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi),),
    "sin": lambda x: (np.cos(x),), "cos": lambda x: (-np.sin(x),),
    "floor": lambda x: (0.0,), "sign": lambda x: (0.0,),
}  # fmt: skip


@np.errstate(all="ignore")
def _combined(function: str, args: list[_Dual]) -> _Dual:
    values = [arg.value for arg in args]
    by: dict[object, Array] = {}
    for arg, slope in zip(args, _SLOPES[function](*values), strict=True):
        for key, inner in arg.by.items():
            by[key] = by.get(key, 0.0) + slope * inner
    return _Dual(_VALUES[function](*values), by)
