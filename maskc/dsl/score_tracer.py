"""Score formulas: `mc.score`, `mc.from_score_mod` and `mc.table`.

The user's function runs once, with values of `score_values` for the score and the place of a pair.
The result is checked (`score_checks`) and becomes a `Score`: the formula over numbered slots, and
the names and arrays of the slots. Plans and kernels know only the formula.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from maskc.core import expr as E
from maskc.core import score as S
from maskc.core.data import check_name
from maskc.core.errors import NotAScore, ScoreNotTraceable, with_article
from maskc.core.source import SourceLoc, caller, outside
from maskc.dsl import nodes
from maskc.dsl.arguments import WORDS, check_order, named, required
from maskc.dsl.followed import computed, told, torch_calls
from maskc.dsl.hidden_pairs import check_finite, split, without_hidden
from maskc.dsl.mask import Mask
from maskc.dsl.placed_scores import ScoreTables
from maskc.dsl.rebinding import Rebinder
from maskc.dsl.score_checks import check_derivative
from maskc.dsl.score_values import (
    NamedTable,
    ScoreRegistry,
    Value,
    WatchedTable,
    call,
    collecting,
    is_traced,
    maximum,
    minimum,
    real,
    refuse,
)
from maskc.dsl.tabled import tabling

_PLACES: dict[str, S.Score | E.Expr] = {"s": S.Score(), "q": E.Q, "k": E.K, "h": E.H, "b": S.B}
_ONCE = "the function runs once, with values that stand for all pairs"
_OF_SCORE = tuple("sqkhb")
_OF_SCORE_MOD = tuple("sbhqk")


class EvaluatedScoreWarning(UserWarning):
    """A part of a score_mod cannot be traced: it is evaluated for the lengths of each call."""


class ScoreMaskWarning(UserWarning):
    """A score formula hides pairs: they became a mask."""


@dataclass(frozen=True, eq=False)
class Score:
    """A score formula: created by `mc.score`, passed to `mask.compile(score=...)`."""

    inputs: S.Inputs
    """The formula over slots called table0, table1, ..., and what belongs to these."""
    mask: Mask | None = None
    """The mask of the pairs that keep a weight, if the formula hides some. Compiling intersects it
    with the mask.
    """

    @property
    def formula(self) -> S.Formula:
        """The part of the score that plans and kernels use."""
        return self.inputs.formula

    def __repr__(self) -> str:
        hidden = "" if self.mask is None else f", which hides all but {self.mask!r}"
        return f"score({self.inputs.text}{hidden})"


def score(function: Callable[..., object]) -> Score:
    """Make a score formula, which replaces s = scale * q . k before the softmax.

    Args:
        function: takes s, then any of q, k, h and b in this order: the query, the key, the head and
            the sequence as integers. It may use + - * / **, comparisons, & | ~, the functions of
            torch, NumPy and `mc.scores` (exp, log, tanh, sqrt, sigmoid, abs, min, max, where, ...),
            mc.n_q, mc.n_kv, parameters `mc.param("name", 0.5)`, tables `mc.table("name")` and
            arrays of its own, indexed by such formulas. Integers divide by // and %.

    Returns:
        The formula, for `mask.compile(score=...)` or `mc.attention(score=...)`.

    Raises:
        ScoreNotTraceable: it does something that cannot be traced, such as `if` (MC129).
        ScoreDerivative: its derivative by s may be infinite (MC130).
        ScoreHidesPairs: it hides pairs by a condition that no mask can express (MC131).
        ArgumentOrder: the names of its arguments contradict their positions (MC121).

    Warns:
        ScoreMaskWarning: it hides pairs: `where(k <= q, s, -inf)` became a mask.
    """
    return _traced(function, _OF_SCORE, caller(), False)


def from_score_mod(score_mod: Callable[..., object], *, exact: bool = False) -> Score:
    """Convert a FlexAttention score_mod(score, b, h, q_idx, kv_idx) to a score formula.

    The rules of `mc.score` apply. Tensors that the function captures become tables, and get a
    gradient if they require one.

    If a part depends on b, h, q and k only and cannot be traced, such as `torch.bucketize(q - k,
    steps)`, it is evaluated for the lengths of each call and read from a table.

    Args:
        score_mod: the function.
        exact: raise an error if a part cannot be traced.

    Returns:
        The score formula.

    Raises:
        MaskcError: as `mc.score`.

    Warns:
        EvaluatedScoreWarning: a part is read from a table with an entry for each query and key.
    """
    at = caller()
    try:
        return _traced(score_mod, _OF_SCORE_MOD, at, True)
    except ScoreNotTraceable as refused:
        made = None if exact else _with_tables(score_mod, at, refused)
        if made is None:
            raise
        return made


def table(name: str, *, integer: bool = False) -> NamedTable:
    """Declare a table for score formulas, which calls pass by name.

    Args:
        name: the keyword under which calls pass it: an array of up to four dimensions on the device
            of q. Indices below 0 count from the end, as in NumPy; a dimension of size 1 broadcasts.
            An index out of range gives NaN.
        integer: True for integers, to be used in indices and conditions; False for real numbers.

    Returns:
        A table that formulas index: `mc.table("bias")[h, q - k]`.

    Raises:
        ReservedName: the name is a keyword of calls, or not an identifier (MC111).
    """
    return NamedTable(check_name(name, caller()), integer)


def as_score(given: object) -> Score:
    """Convert the argument `score=`.

    Raises:
        NotAScore: something else.
    """
    if isinstance(given, Score):
        return given
    hint = "write mc.score(lambda s, q, k, h, b: ...), or mc.from_score_mod(f) for FlexAttention's"
    what, module = with_article(type(given).__name__), getattr(given, "__module__", "")
    if isinstance(given, Mask):
        hint = "a mask is the fourth argument: mc.attention(q, k, v, mask)"
    elif callable(given):
        what = "a function"
        if module == "maskc.scores":
            hint = f"call it to get a formula: mc.scores.{getattr(given, '__name__', '')}(...)"
    elif hasattr(given, "shape"):
        hint = "numbers are added by score=mc.scores.bias(), called with bias="
    raise NotAScore(what, hint, at=caller() or "score")


# ------------------------------------------------------------------ tracing


def _with_tables(
    score_mod: Callable[..., object], at: SourceLoc | None, refused: ScoreNotTraceable
) -> Score | None:
    """Trace the formula again, with parts that cannot be traced read from tables."""
    with collecting() as registry:
        tables = ScoreTables(registry)
        try:
            with tabling(tables):
                score = _traced(score_mod, _OF_SCORE_MOD, at, True, registry)
        except ScoreNotTraceable:
            return None
    pairs = [x for x in tables.computed if x.pairs and x in score.inputs.captured.values()]
    if pairs:
        warnings.warn(
            f"{pairs[0].at}: {refused.finding}. This part is evaluated for the lengths of each "
            "call instead, into a table with a number for each query and key. exact=True "
            f"refuses it; or {refused.args[1]}",
            EvaluatedScoreWarning, stacklevel=outside(),
        )  # fmt: skip
    return score


def _arguments(
    function: Callable[..., object], order: tuple[str, ...], at: SourceLoc | None, whole: bool
) -> list[Value]:
    needed = required(function)
    if needed is None:
        hint = "pass a lambda, or a function made by def"
        raise ScoreNotTraceable("it is not a Python function", hint, at=at)
    names, plain = needed
    if not plain or not (len(names) == 5 if whole else 1 <= len(names) <= 5):
        finding = f"it takes {len(names)} arguments"
        wanted = f"({', '.join(WORDS[role] for role in order)})"
        hint = f"expected {wanted}" + ("" if whole else ", or the first ones of these")
        raise ScoreNotTraceable(finding, hint, at=at)
    placed = order[: len(names)]
    of_score = ("s", "score", "scores")
    roles = ["s" if name.strip("_").lower() in of_score else named(name) for name in names]
    check_order(names, roles, placed, at)
    return [Value(_PLACES[role]) for role in placed]


def _torch_call(function: Any, args: Any, named: Any) -> Any:
    if is_traced((*args, *named.values())):
        return call("torch", function, args, named)
    return computed(function, args, named)


def _traced(
    function: Callable[..., object], order: tuple[str, ...], at: SourceLoc | None, whole: bool,
    within: ScoreRegistry | None = None,
) -> Score:  # fmt: skip
    given = _arguments(function, order, at, whole)
    rebound = Rebinder(WatchedTable, {"min": minimum, "max": maximum}).function(function)
    with collecting() if within is None else nullcontext(within) as registry:
        with told(ScoreNotTraceable, at, _ONCE):
            with torch_calls(_torch_call, refuse):
                result = rebound(*given)
            if result is None:
                refuse("it returns None", "end the function with `return` and the new score")
            node = real(result)
        node = _without_params(node, registry)
    kept_node, kept = without_hidden(node)
    check_finite(kept_node, registry.places, at)
    check_derivative(kept_node, registry.places, at)
    if kept is None:
        return _finished(kept_node, None, registry, at)
    said, left = split(kept, _arrays(registry), registry.defaults)
    if left is not None:
        kept_node = S.Choice(left, kept_node, S.Number(-math.inf))
    return _finished(kept_node, said and nodes.Where(*said, loc=at), registry, at)


def _without_params(node: S.Real, registry: ScoreRegistry) -> S.Real:
    """Return the formula with integer parameters as arguments of a call, like all other data."""

    def change(part: Any) -> Any:
        if isinstance(part, E.Param):
            registry.slot(part.name, 0, True)
            registry.defaults[part.name] = part.default
            return S.Entry(part.name, ())
        return None

    return E.transform(node, change)


def _arrays(registry: ScoreRegistry) -> dict[str, Any]:
    return {name: _plain(array) for name, array in registry.captured.items()}


def _finished(
    node: S.Real, mask: Mask | None, registry: ScoreRegistry, at: SourceLoc | None
) -> Score:
    used = dict.fromkeys(part.slot for part in E.walk(node) if isinstance(part, (S.Read, S.Entry)))
    slots = tuple(registry.slots[name] for name in used)
    if len(slots) > S.MAX_SLOTS:
        finding = f"it reads {len(slots)} tables and parameters"
        raise ScoreNotTraceable(finding, f"at most {S.MAX_SLOTS} are known", at=at)
    formula, _ = S.numbered(S.Formula(node, slots, at))
    if mask is not None:
        warnings.warn(
            f"{at}: the formula hides pairs, which became a mask: {mask!r}", ScoreMaskWarning,
            stacklevel=outside(),
        )  # fmt: skip
    defaults = {name: value for name, value in registry.defaults.items() if name in used}
    captured = {name: array for name, array in _arrays(registry).items() if name in used}
    text = S.to_score_text(node)
    return Score(S.Inputs(formula, tuple(used), defaults, captured, text), mask)


def _plain(array: Any) -> Any:
    return array.view(np.ndarray) if isinstance(array, WatchedTable) else array
