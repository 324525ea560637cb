"""Which index a parameter of a traced function is: by its name, else by its place."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from maskc.core import expr as E
from maskc.core.errors import ArgumentOrder, NotTraceable
from maskc.core.source import SourceLoc
from maskc.dsl.tables import BATCH
from maskc.dsl.traced import Traced

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_PLACE: dict[int, tuple[E.Sym, ...]] = {
    2: (E.Q, E.K), 3: (E.H, E.Q, E.K), 4: (BATCH, E.H, E.Q, E.K),
}  # fmt: skip
_STEMS = {
    "b": BATCH, "batch": BATCH, "h": E.H, "head": E.H, "q": E.Q, "query": E.Q, "k": E.K,
    "kv": E.K, "key": E.K,
}  # fmt: skip
_ENDINGS = ("_idx", "_index", "_i", "_id", "_pos", "idx", "i")


def _named(name: str) -> E.Sym | None:
    """The index that a name stands for: `q`, `q_idx`, `kv_idx`, `batch`, `head_index`, ..."""
    name = name.strip("_").lower()
    for ending in ("", *_ENDINGS):
        found = _STEMS.get(name.removesuffix(ending)) if name.endswith(ending) else None
        if found is not None:
            return found
    return None


def arguments(
    predicate: Callable[..., object], at: SourceLoc | None, by_place: bool
) -> tuple[Traced, ...]:
    """The traced arguments with which the function is called.

    Args:
        predicate: the function.
        at: where the user wrote it.
        by_place: whether others call it by place, as FlexAttention does; names that contradict
            their places are refused then.

    Raises:
        NotTraceable: the function has another number or kind of parameters.
        ArgumentOrder: names and places, both of which are known, disagree.
    """
    try:
        parameters = inspect.signature(predicate).parameters.values()
    except (TypeError, ValueError):
        raise NotTraceable("it is not a Python function", at=at) from None
    needed = [p for p in parameters if p.default is p.empty]
    if not all(p.kind in _POSITIONAL for p in needed):
        what = "it takes * or keyword-only arguments, expected (q, k) or (h, q, k)"
        raise NotTraceable(what, at=at)
    named = [_named(p.name) for p in needed]
    placed = _BY_PLACE.get(len(needed))
    known = [name for name in named if name is not None]
    whole = len(set(known)) == len(named) in _BY_PLACE
    if whole and (not by_place or tuple(known) == placed):
        return tuple(map(Traced, known))
    if placed is None:
        found = f"it takes {len(needed)} arguments, expected (q, k) or (h, q, k)"
        raise NotTraceable(found, at=at)
    if any(name is not None and name != place for name, place in zip(named, placed, strict=True)):
        names = [p.name for p in needed]
        raise ArgumentOrder(_reading(names, named), _reading(names, placed), at=at)
    return tuple(map(Traced, placed))


def _reading(names: list[str], roles: Sequence[E.Sym | None]) -> str:
    words = {"b": "sequence", "h": "head", "q": "query", "k": "key"}
    said = [
        f"{name} is {'unknown' if role is None else 'the ' + words[role.name]}"
        for name, role in zip(names, roles, strict=True)
    ]
    return ", ".join(said)
