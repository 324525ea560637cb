"""Match the parameters of a traced function to indices (q, k, h, b), by name or else by
position."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from maskc.core import expr as E
from maskc.core.errors import ArgumentOrder, NotTraceable
from maskc.core.source import SourceLoc
from maskc.dsl.traced import Traced

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_PLACE = {2: "qk", 3: "hqk", 4: "bhqk"}
_STEMS = {
    "b": "b", "batch": "b", "h": "h", "head": "h", "q": "q", "query": "q", "k": "k", "kv": "k",
    "key": "k",
}  # fmt: skip
_ENDINGS = ("_idx", "_index", "_i", "_id", "_pos", "idx", "i")
WORDS = {"s": "score", "b": "sequence", "h": "head", "q": "query", "k": "key"}
"""Names of the arguments in messages."""


def named(name: str) -> str | None:
    """The index that a name stands for: `q`, `q_idx`, `kv_idx`, `batch`, `head_index`, ..."""
    name = name.strip("_").lower()
    for ending in ("", *_ENDINGS):
        stem = _STEMS.get(name.removesuffix(ending)) if name.endswith(ending) else None
        if stem is not None:
            return stem
    return None


def required(function: Callable[..., object]) -> tuple[list[str], bool] | None:
    """Return the names of parameters without a default, and whether all are positional-only.

    Returns None if the function has no signature.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    needed = [p for p in parameters if p.default is p.empty]
    return [p.name for p in needed], all(p.kind in _POSITIONAL for p in needed)


def check_order(
    names: list[str], meanings: Sequence[str | None], placed: Sequence[str], at: SourceLoc | None
) -> None:
    """Raise an error if names of parameters contradict their positions.

    Raises:
        ArgumentOrder: the message shows both readings.
    """
    if any(
        role is not None and role != place for role, place in zip(meanings, placed, strict=True)
    ):
        raise ArgumentOrder(_reading(names, meanings), _reading(names, placed), at=at)


def arguments(
    predicate: Callable[..., object], at: SourceLoc | None, by_place: bool
) -> tuple[Traced, ...]:
    """Return the traced arguments for a call of the function.

    Args:
        predicate: the function.
        at: where the user wrote it.
        by_place: whether it is called by position, as FlexAttention does; names that contradict
            their positions are then refused.

    Raises:
        NotTraceable: the function has another number or kind of parameters.
        ArgumentOrder: known names and positions disagree.
    """
    needed = required(predicate)
    if needed is None:
        hint = "pass a lambda, or a function made by def"
        raise NotTraceable("it is not a Python function", hint, at=at)
    names, plain = needed
    if not plain:
        what = "it takes * or keyword-only arguments, expected (q, k) or (h, q, k)"
        raise NotTraceable(what, at=at)
    roles = [named(name) for name in names]
    placed = _BY_PLACE.get(len(names))
    known = [role for role in roles if role is not None]
    whole = len(set(known)) == len(roles) in _BY_PLACE
    if not whole or (by_place and "".join(known) != placed):
        if placed is None:
            finding = f"it takes {len(names)} arguments, expected (q, k) or (h, q, k)"
            raise NotTraceable(finding, at=at)
        check_order(names, roles, placed, at)
        known = list(placed)
    return tuple(Traced(E.Sym(role)) for role in known)


def _reading(names: list[str], roles: Sequence[str | None]) -> str:
    said = (
        f"{name} is {'unknown' if role is None else 'the ' + WORDS[role]}"
        for name, role in zip(names, roles, strict=True)
    )
    return ", ".join(said)
