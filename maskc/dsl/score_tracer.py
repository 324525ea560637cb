"""Formulas of the score: `mc.score`, `mc.from_score_mod` and `mc.table`.

The user's function runs once, with values of `score_values` for the score and the place of a pair.
What comes back is checked (`score_checks`) and becomes a `Score`: the formula over numbered slots,
which is all that plans and kernels know, and beside it the names and arrays that belong to slots.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.data import check_name
from maskc.core.errors import ArgumentOrder, MaskcError, NotAScore, ScoreNotTraceable
from maskc.core.source import SourceLoc, caller, outside, raised_at
from maskc.dsl import nodes
from maskc.dsl.arguments import _named
from maskc.dsl.mask import Mask
from maskc.dsl.rebinding import Rebinder
from maskc.dsl.score_checks import check_derivative, check_finite, mask_formula, without_hidden
from maskc.dsl.score_values import (
    Registry,
    Table,
    Value,
    WatchedTable,
    call,
    collecting,
    is_traced,
    maximum,
    minimum,
    real,
)

_PLACES: dict[str, S.Score | E.Expr] = {"s": S.Score(), "q": E.Q, "k": E.K, "h": E.H, "b": S.B}
_OF_SCORE = tuple("sqkhb")
_OF_SCORE_MOD = tuple("sbhqk")
_WORDS = {"s": "score", "q": "query", "k": "key", "h": "head", "b": "sequence"}


class ScoreMaskWarning(UserWarning):
    """A formula of the score hides pairs: they became a mask."""


@dataclass(frozen=True, eq=False)
class Score:
    """A formula of the score; `mc.score` makes it, `mask.compile(score=...)` takes it."""

    inputs: S.Inputs
    """The formula over slots called table0, table1, ..., and what belongs to these."""
    mask: Mask | None = None
    """The pairs that the formula leaves a weight, where it hides some: compiled masks join it."""

    @property
    def formula(self) -> S.Formula:
        """What plans and kernels know of it."""
        return self.inputs.formula

    def __repr__(self) -> str:
        hidden = "" if self.mask is None else f", which hides all but {self.mask!r}"
        return f"score({self.inputs.text}{hidden})"


def score(function: Callable[..., object]) -> Score:
    """A formula of the score: what softmax sees in place of s = scale * q . k.

    Args:
        function: takes s, then any of q, k, h and b in this order: the query, the key, the head and
            the sequence as integers. It may use + - * / **, comparisons, & | ~, the functions of
            torch, NumPy and `mc.scores` (exp, log, tanh, sqrt, sigmoid, abs, min, max, where, ...),
            mc.n_q, mc.n_kv, parameters `mc.param("name", 0.5)`, tables `mc.table("name")` and
            arrays of its own, indexed by such formulas. Integers divide by // and %.

    Returns:
        The formula, to be given to `mask.compile(score=...)` or `mc.attention(score=...)`.

    Raises:
        ScoreNotTraceable: it does something that cannot be followed, such as `if` (MC129).
        ScoreDerivative: its derivative by s may be infinite (MC130).
        ScoreHidesPairs: it hides pairs in a way that no mask says (MC131).
        ArgumentOrder: the names of its arguments contradict their places (MC121).

    Warns:
        ScoreMaskWarning: it hides pairs: `where(k <= q, s, -inf)` became a mask.
    """
    return _traced(function, _OF_SCORE, caller(), False)


def from_score_mod(score_mod: Callable[..., object]) -> Score:
    """A FlexAttention score_mod(score, b, h, q_idx, kv_idx) as a formula of the score.

    It follows the rules of `mc.score`. Tensors that the function holds become tables; where they
    require grad they get their gradient.

    Args:
        score_mod: the function.

    Raises:
        As `mc.score`.
    """
    return _traced(score_mod, _OF_SCORE_MOD, caller(), True)


def table(name: str, *, integer: bool = False) -> Table:
    """A table that calls give by name, for formulas of the score.

    Args:
        name: the keyword under which calls give it: an array of up to four dimensions on the device
            of q. Indices below 0 count from the end, as in NumPy; a dimension of one entry is
            shared by all. An index outside gives NaN.
        integer: whether it holds integers, for indices and conditions; others hold real numbers.

    Returns:
        What formulas index: `mc.table("bias")[h, q - k]`.

    Raises:
        ReservedName: the name is a keyword of calls, or no identifier (MC111).
    """
    return Table(check_name(name, caller()), integer)


def as_score(given: object) -> Score:
    """What `score=` was given.

    Raises:
        NotAScore: something else.
    """
    if isinstance(given, Score):
        return given
    what = "a function" if callable(given) else f"a {type(given).__name__}"
    raise NotAScore(what, at=caller() or "score")


# ------------------------------------------------------------------ tracing


def _arguments(
    function: Callable[..., object], order: tuple[str, ...], at: SourceLoc | None, whole: bool
) -> list[Value]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise ScoreNotTraceable("it is no Python function", "write a lambda", at=at) from None
    needed = [each for each in parameters if each.default is each.empty]
    wanted = f"({', '.join(_WORDS[role] for role in order)})"
    plain = all(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in needed)
    if not plain or not (len(needed) == 5 if whole else 1 <= len(needed) <= 5):
        found = f"it takes {len(needed)} arguments"
        hint = f"expected {wanted}" + ("" if whole else ", or the first ones of these")
        raise ScoreNotTraceable(found, hint, at=at)
    said, right = [], []
    for each, role in zip(needed, order, strict=False):
        stem = each.name.strip("_").lower()
        known = "s" if stem in ("s", "score", "scores") else getattr(_named(stem), "name", None)
        said.append(f"{each.name} is the {_WORDS[known]}" if known else f"{each.name} is unknown")
        right.append(f"{each.name} is the {_WORDS[role]}")
    wrong = [a != b and not a.endswith("unknown") for a, b in zip(said, right, strict=True)]
    if any(wrong):
        raise ArgumentOrder(", ".join(said), ", ".join(right), at=at)
    return [Value(_PLACES[role]) for role in order[: len(needed)]]


@cache
def _mode(torch: Any) -> type:
    """Sees every call of torch, so that plain tensors may be indexed by traced values."""

    def seen(_: object, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
        named = named or {}
        if any(map(is_traced, (*args, *named.values()))):
            return call("torch", function, args, named)
        return function(*args, **named)

    bases = (torch.overrides.TorchFunctionMode,)
    return type("TracingScore", bases, {"__torch_function__": seen})


def _traced(
    function: Callable[..., object], order: tuple[str, ...], at: SourceLoc | None, whole: bool
) -> Score:
    import sys

    given = _arguments(function, order, at, whole)
    rebound = Rebinder(WatchedTable, {"min": minimum, "max": maximum}).function(function)
    torch = sys.modules.get("torch")
    with collecting() as registry:
        try:
            with _mode(torch)() if torch is not None else nullcontext():
                result = rebound(*given)
            node = real(result)
        except MaskcError:
            raise
        except Exception as error:
            found = f"it raised {type(error).__name__}: {error}"
            place = raised_at(error, at.file) if at is not None else None
            hint = "the function runs once, with values that stand for all pairs"
            raise ScoreNotTraceable(found, hint, at=place or at) from error
        node = _without_params(node, registry)
    kept_node, kept = without_hidden(node)
    check_finite(kept_node, registry.places, at)
    check_derivative(kept_node, registry.places, at)
    return _finished(kept_node, kept, registry, at)


def _without_params(node: S.Real, registry: Registry) -> S.Real:
    """Integer parameters as what calls give, like everything else that is no constant."""

    def change(part: Any) -> Any:
        if isinstance(part, E.Param):
            registry.slot(part.name, 0, True)
            registry.defaults[part.name] = part.default
            return S.Entry(part.name, ())
        return None

    return E.transform(node, change)


def _finished(node: S.Real, kept: E.Term | None, registry: Registry, at: SourceLoc | None) -> Score:
    used = dict.fromkeys(
        each.slot for each in E.walk(node) if isinstance(each, (S.Read, S.Entry))
    )  # fmt: skip
    slots = tuple(registry.slots[name] for name in used)
    if len(slots) > S.MAX_SLOTS:
        found = f"it reads {len(slots)} tables and parameters"
        raise ScoreNotTraceable(found, f"at most {S.MAX_SLOTS} are known", at=at)
    formula, _ = S.numbered(S.Formula(node, slots, at))
    mask = None
    if kept is not None:
        mask = nodes.Where(mask_formula(kept, at), (), loc=at)
        warnings.warn(
            f"{at}: the formula hides pairs, which became a mask: {mask!r}", ScoreMaskWarning,
            stacklevel=outside(),
        )  # fmt: skip
    defaults = {name: value for name, value in registry.defaults.items() if name in used}
    captured = {name: _plain(each) for name, each in registry.captured.items() if name in used}
    text = S.to_score_text(node)
    return Score(S.Inputs(formula, tuple(used), defaults, captured, text), mask)


def _plain(array: Any) -> Any:
    return array.view(np.ndarray) if isinstance(array, WatchedTable) else array
