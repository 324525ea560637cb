"""Compiled masks by name, for operators, which take no Python objects."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import torch

from maskc.core.errors import BadOption, MaskcError, NestedTensor, NoGradient, WrongRank
from maskc.core.problem import Direction
from maskc.integrations.torch.operators import register

_LOCK = threading.Lock()
_NAMED: dict[str, Any] = {}
"""Compiled masks, and errors met on the way to one; filled by `handle` alone. Kept for good: a
compiled graph, or the backward half of one, knows its masks by handle only, and nobody says when
the last of them goes."""


def handle(
    find: Callable[..., Any] | None, owner_id: int, head_dim: int, head_dim_v: int, heads: int,
    dtype: Any, place: tuple[str, int], wanted: bool, score_id: int = 0,
) -> str:  # fmt: skip
    """The name of a compiled mask, the same in every process: a digest of what it computes.

    While torch.compile traces, this runs as it is and its result becomes a constant of the graph,
    guarded by the identity of its owner. Errors get names too, and are raised when the graph runs:
    a compiler would hide one behind an error of its own.

    Args:
        find: see `maskc.integrations.torch.Finder`; the next six are its arguments.
        owner_id: `id` of the owner, which the caller keeps alive.
        wanted: whether the call needs a gradient.
        score_id: `id` of the formula of the score, likewise; 0: none, or the owner has it.
    """
    found: Any
    owner = ctypes.cast(owner_id, ctypes.py_object).value
    own = {"score": ctypes.cast(score_id, ctypes.py_object).value} if score_id else {}
    try:
        found = owner
        if find is not None:
            found = find(owner, head_dim, head_dim_v, heads, dtype, place, **own)
        text = found.identity
        if wanted:
            found.target.check(found.bundle.problem, Direction.backward)
    except MaskcError as error:
        found, text = error, str(error)
    key = sha256(text.encode()).hexdigest()[:32]
    with _LOCK:
        register(named)
        _NAMED.setdefault(key, found)
    return key


def check_dimensions(of_q: int, of_v: int) -> None:
    """Refuse q or v without four dimensions, also from inside a trace.

    Raises:
        MaskcError: with all the text of a WrongRank as its only argument, which is what
            torch.compile shows of an error.
    """
    for name, found in (("q", of_q), ("v", of_v)):
        if found != 4:
            error = WrongRank(name, f"of {found} dimensions", at=name)
            raise MaskcError(str(error)) from error


_REFUSED: dict[str, Callable[..., MaskcError]] = {
    "nested": NestedTensor,
    "chosen by": NoGradient,
    "number": lambda name, at: BadOption(name, "a number", "a tensor that requires grad", at=at),
}


def refuse(what: str, name: str, compiling: bool) -> None:
    """Raise about one argument, also from inside a trace.

    Raises:
        NestedTensor, NoGradient, BadOption: in a trace a MaskcError with their text, see
            `check_dimensions`.
    """
    error = _REFUSED[what](name, at=name)
    if compiling:
        raise MaskcError(str(error)) from error
    raise error


# What torch.compiler.assume_constant_result sets, which imports torch's compiler.
for _function in (handle, check_dimensions, refuse):
    setattr(_function, "_dynamo_marked_constant", True)  # noqa: B010


def operators() -> tuple[Any, Any]:
    """The operators of both passes, for code that must name them.

    A selective checkpoint policy or a profiler does.

    Returns:
        (torch.ops.maskc.attention.default, torch.ops.maskc.attention_backward.default).
    """
    with _LOCK:
        register(named)
    return torch.ops.maskc.attention.default, torch.ops.maskc.attention_backward.default


def named(key: str) -> Any:
    """The compiled mask of a handle.

    Raises:
        BadOption: this process never made it: the graph was traced elsewhere.
        MaskcError: what making it raised.
    """
    found = _NAMED.get(key)
    if found is None:
        raise BadOption("mask", "a handle made in this process", repr(key), at="mask")
    if isinstance(found, MaskcError):
        raise found.with_traceback(None)
    return found
