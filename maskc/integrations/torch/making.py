"""Masks and formulas that code under torch.compile makes once, while it is traced.

Dynamo cannot follow how these are made. It identifies their ingredients by `id`, which it guards,
and finds the results as attributes of `_MADE`. They need such a place because their captured
tensors are operands of the graph.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import MethodType
from typing import Any

import torch

from maskc.core.errors import MaskcError

_NUMBERS = count()


class _Made:
    """Masks and formulas, as attributes."""


_MADE = _Made()

# ------------------------------------------------------------------ what traced code calls


def has_place(thing: Any) -> bool:
    """Whether an object is there before the graph runs, or is a function without tensors."""
    if isinstance(thing, MethodType):
        return _is_placed(id(thing.__func__)) and _is_placed(id(thing.__self__))
    return _is_placed(id(thing))


def made(make: Callable[..., Any], thing: Any) -> Any:
    """`make(thing)`, made once and kept as long as the thing lives.

    Raises:
        MaskcError: with the text of what `make` raises, see `handles.check_dimensions`.
    """
    return getattr(_MADE, _name(make, id(thing)))


def stated(make: Callable[..., Any], thing: Any) -> Any:
    """`make(thing)`, which is a constant of the graph: integers, None and tuples of them."""
    return _stated(make, id(thing))


def checked(check: Callable[..., None], *args: Any) -> None:
    """Run `check(*args)`, which refuses; integers become constants.

    Raises:
        MaskcError: as of `made`.
    """
    _checked(check, *args)


def made_of_function(
    make: Callable[..., Any], function: Any
) -> tuple[Any, float | None, float, float]:
    """(formula or None, soft-cap, factor, shift) of a score_mod.

    Args:
        make: score_mod -> the same.
        function: a score_mod.

    Raises:
        MaskcError: as of `made`.
    """
    if isinstance(function, MethodType):
        inner, owner = function.__func__, function.__self__
        rules = _rules(make, inner, id(inner), id(owner))
    else:
        rules = _rules(make, function, id(function))
    name, softcap, factor, shift = rules.split(" ")
    formula = getattr(_MADE, name) if name else None
    return formula, float(softcap) or None, float(factor), float(shift)


_REASON = (
    "maskc makes masks and formulas outside of graphs: define the BlockMask, and a score_mod that "
    "reads tensors, before the compiled function runs"
)


@torch.compiler.disable(reason=_REASON)
def uncompiled(function: Callable[..., Any], *args: Any) -> Any:
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


def _name(make: Callable[..., Any], identity: int) -> str:
    thing = _object(identity)
    with _as_text():
        return _keep(make(thing), thing)


def _stated(make: Callable[..., Any], identity: int) -> Any:
    return make(_object(identity))


def _checked(check: Callable[..., None], *args: Any) -> None:
    with _as_text():
        check(*args)


def _rules(make: Callable[..., Any], function: Any, identity: int, of_self: int = 0) -> str:
    """Describe a score_mod: the formula's name (empty if numbers suffice), then
    soft-cap (0: none), factor and shift. It is one text, as floats would become inputs of a graph.

    Args:
        make: see `made_of_function`.
        function: the function, without what it belongs to as a method.
        identity: of the function, which the trace guards.
        of_self: of what the function belongs to as a method; 0 where it is none.
    """
    whole = MethodType(function, _object(of_self)) if of_self else function
    with _as_text():
        formula, softcap, factor, shift = make(whole)
    name = ""
    if formula is not None:
        name = _keep(formula, function if identity == id(function) else None)
    return f"{name} {softcap or 0.0!r} {factor!r} {shift!r}"


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


for _function in (_is_placed, _name, _stated, _checked, _rules):  # see `handles`
    setattr(_function, "_dynamo_marked_constant", True)  # noqa: B010
