"""`mc.flex_attention` while torch.compile traces: its mask and its formula are made once, then.

Dynamo cannot follow how a mask or a formula is made. It knows a BlockMask and a score_mod by their
identity, which it guards, and finds what was made of them as attributes of `_MADE`: masks and
formulas must have a place, as the tensors that they captured are operands of the graph.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from operator import index
from types import MethodType
from typing import Any, NamedTuple

import torch

from maskc.core.errors import MaskcError

_NUMBERS = count()


class _Made:
    """Masks and formulas, as attributes."""


_MADE = _Made()


class Listed(NamedTuple):
    """What a trace knows of a BlockMask."""

    name: str
    """The mask's, see `_MADE`."""
    lengths: tuple[int, int] | None
    """Queries and keys that it was made for; None: any."""
    front: tuple[int, int]
    """Sequences and heads that it tells apart."""


# ------------------------------------------------------------------ what traced code calls


def has_place(thing: Any) -> bool:
    """Whether a BlockMask, a function or None is there before the graph runs."""
    if isinstance(thing, MethodType):
        return _is_placed(id(thing.__func__)) and _is_placed(id(thing.__self__))
    return _is_placed(id(thing))


def mask_of(block_mask: Any, of_q: Any, of_k: Any) -> Any:
    """The mask of a BlockMask.

    Args:
        of_q, of_k: the shapes of the call.

    Raises:
        MaskcError: with the text of what `mc.flex_attention` raises, see `handles`.
    """
    name, lengths, front = _listed(id(block_mask))
    wrong = lengths is not None and (of_q[2] != lengths[0] or of_k[2] != lengths[1])
    if wrong or front[0] not in (1, of_q[0]) or front[1] not in (1, of_q[1]):
        _refuse_sizes(id(block_mask), *map(index, of_q[:3]), index(of_k[2]))
    return getattr(_MADE, name)


def refuse_heads(of_q: Any, of_k: Any) -> None:
    """Refuse grouped heads.

    Raises:
        MaskcError: as of `mask_of`.
    """
    _refuse_heads(index(of_q), index(of_k))


def rules_of(score_mod: Any, heads: Any) -> tuple[Any, float | None, float, float]:
    """(formula or None, soft-cap, factor, shift) of a score_mod.

    Raises:
        MaskcError: as of `mask_of`.
    """
    if isinstance(score_mod, MethodType):
        function, owner = score_mod.__func__, score_mod.__self__
        found = _rules(function, index(heads), id(function), id(owner))
    else:
        found = _rules(score_mod, index(heads), id(score_mod))
    name, softcap, factor, shift = found.split(" ")
    score = getattr(_MADE, name) if name else None
    return score, float(softcap) or None, float(factor), float(shift)


_REASON = (
    "maskc makes masks and formulas outside of graphs: define the BlockMask, and a score_mod that "
    "reads tensors, before the compiled function runs"
)


@torch.compiler.disable(reason=_REASON)
def uncompiled(function: Any, *args: Any) -> Any:
    """The function's result, computed between two graphs."""
    return function(*args)


# ------------------------------------------------------------------ what runs while it is traced


def _object(identity: int) -> Any:
    return ctypes.cast(identity, ctypes.py_object).value


def _is_placed(identity: int) -> bool:
    """Whether `id` told where an object is. Of what traced code makes, Dynamo gives the identity
    of its own description, and of functions with constants alone it can make the function."""
    thing = _object(identity)
    described = type(thing).__module__.startswith("torch._dynamo.")
    return not described or bool(getattr(thing, "is_python_constant", bool)())


def _listed(identity: int) -> Listed:
    from maskc import flex

    block_mask = _object(identity)
    with _as_text():
        mask = flex.mask_of_block_mask(block_mask)
    return Listed(_keep(mask, block_mask), *flex.sizes_of(block_mask))


def _refuse_sizes(identity: int, batch: int, heads: int, n_q: int, n_kv: int) -> None:
    from maskc import flex

    with _as_text():
        flex.check_sizes(flex.sizes_of(_object(identity)), (batch, heads, n_q), n_kv)


def _refuse_heads(of_q: int, of_k: int) -> None:
    from maskc import flex

    with _as_text():
        flex.check_heads(of_q, of_k, False)


def _rules(function: Any, heads: int, identity: int, of_self: int = 0) -> str:
    """What a score_mod does: the formula's name, or nothing where numbers say everything, then
    soft-cap (0: none), factor and shift. It is one text, as floats would become inputs of a graph.

    Args:
        function: the function, without what it belongs to as a method.
        heads: query heads of the call.
        identity: of the function, which the trace guards.
        of_self: of what the function belongs to as a method; 0 where it is none.
    """
    from maskc import flex

    whole = MethodType(function, _object(of_self)) if of_self else function
    with _as_text():
        found = flex.numbers_or_formula(whole, torch.empty(1, heads, 1, 1))
    if isinstance(found, tuple):
        softcap, factor, shift = found
        return f" {softcap or 0.0!r} {factor!r} {shift!r}"
    return f"{_keep(found, function if identity == id(function) else None)} 0.0 1.0 0.0"


@contextmanager
def _as_text() -> Iterator[None]:
    """Errors as compilers show them, see `handles.check_dimensions`."""
    try:
        yield
    except MaskcError as error:
        raise MaskcError(str(error)) from error


def _keep(made: Any, owner: Any) -> str:
    """The name of an attribute that lasts as long as its owner; without one, for good."""
    known = vars(_MADE)
    name = next((name for name, thing in known.items() if thing is made), None)
    if name is None:
        name = f"made_{next(_NUMBERS)}"
        known[name] = made
        if owner is not None:
            weakref.finalize(owner, known.pop, name, None)
    return name


for _function in (_is_placed, _listed, _refuse_sizes, _refuse_heads, _rules):  # see `handles`
    setattr(_function, "_dynamo_marked_constant", True)  # noqa: B010
