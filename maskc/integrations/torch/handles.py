"""Compiled masks by name, for operators, which take no Python objects."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import torch

from maskc.core.errors import (
    BadOption,
    MaskcError,
    NestedTensor,
    NoGradient,
    NotExported,
    WrongRank,
)
from maskc.core.forks import new_lock
from maskc.core.problem import Direction
from maskc.integrations.torch.operators import register

_LOCK = new_lock()
_NAMED: dict[str, Any] = {}
"""Compiled masks, and errors raised while compiling one; only `handle` adds to it. Entries are
never removed: a compiled graph, or its backward half, refers to masks by handle only, and nothing
reports when the last graph is freed."""


class _Operands:
    """Tensors that the mask of each handle captured, as attributes. A compiler follows attributes
    to tensors, and so detects which of them its graph writes."""


_OPERANDS = _Operands()


def operands(key: str) -> tuple[Any, ...]:
    """The tensors that formulas of a mask captured, and that may change, see `Held.watched`."""
    operand_pair: tuple[Any, ...] = getattr(_OPERANDS, key)
    return operand_pair


def handle(
    find: Callable[..., Any] | None, owner_id: int, head_dim: int, head_dim_v: int, heads: int,
    dtype: Any, place: tuple[str, int], wanted: bool, score_id: int = 0,
) -> str:  # fmt: skip
    """Return the name of a compiled mask, which is the same in every process: a digest of its
    content.

    While torch.compile traces, this runs as it is and its result becomes a constant of the graph,
    guarded by the identity of its owner. Errors get names too, and are raised when the graph runs:
    a compiler would hide one behind an error of its own.

    Args:
        find: see `maskc.integrations.torch.Finder`; the next six are its arguments.
        owner_id: `id` of the owner, which the caller keeps alive.
        wanted: whether the call needs a gradient.
        score_id: `id` of the score formula, likewise; 0: none, or the owner has it.
    """
    owner_or_error: Any
    owner = ctypes.cast(owner_id, ctypes.py_object).value
    score_option = {"score": ctypes.cast(score_id, ctypes.py_object).value} if score_id else {}
    try:
        owner_or_error = owner
        if find is not None:
            owner_or_error = find(owner, head_dim, head_dim_v, heads, dtype, place, **score_option)
        text = owner_or_error.identity
        if wanted:
            owner_or_error.target.check(owner_or_error.bundle.problem, Direction.backward)
    except MaskcError as error:
        owner_or_error, text = error, str(error)
    key = sha256(text.encode()).hexdigest()[:32]
    held = getattr(owner_or_error, "held", None)
    with _LOCK:
        register(named)
        if key not in _NAMED:
            setattr(_OPERANDS, key, () if held is None else held.watched)
            _NAMED[key] = owner_or_error
    return key


def in_graph(key: str, followed: bool) -> str:
    """Return the name of a handle's compiled mask in a graph: text if the graph may run elsewhere.

    Args:
        key: the handle.
        followed: whether Dynamo follows the call, and so knows where tensors come from.

    Raises:
        MaskcError: with the text of NotExported, or of the error met on the way to the mask, see
            `check_dimensions`.
    """
    kind = _leaving()
    if not kind:
        return key
    from maskc.portable import to_graph

    try:
        if kind == _ONNX:
            raise NotExported(kind, "it has no such operator", _HINT_ONNX, at="mask")
        if not followed:
            _refuse_state(operands(key), kind)
        text = to_graph(named(key), kind)
    except MaskcError as error:
        raise MaskcError(str(error)) from error
    with _LOCK:
        _NAMED.setdefault(text, _NAMED[key])
    return text


def _refuse_state(captured: tuple[Any, ...], kind: str) -> None:
    """Raise an error for captured tensors that belong to the exported module. The program would
    silently hold copies, and writes to the module's tensors would not reach them.
    """
    mode = torch._guards.detect_fake_mode()
    converter = getattr(getattr(mode, "fake_tensor_converter", None), "meta_converter", None)
    known = getattr(getattr(converter, "describer", None), "lookup_tensor", {})
    if any(x in known for x in captured):
        finding = "a tensor that its mask captured is a buffer of the module"
        raise NotExported(kind, finding, _HINT_STATE, at="mask")


_HINT_STATE = (
    "export with strict=True, which follows the buffer, or name the data in the mask, as in "
    "mc.documents('doc'), and pass doc=self.buffer"
)
_ONNX = "an ONNX program"
_HINT_ONNX = "export the model with scaled_dot_product_attention and mask.dense() for ONNX"


def _leaving() -> str:
    """The kind of program that is recorded now, and that other processes may run; or nothing."""
    onnx = sys.modules.get("torch.onnx")
    if onnx is not None and onnx.is_in_onnx_export():
        return _ONNX
    if torch.compiler.is_exporting():
        return "an exported program"
    return "a traced program" if torch._C._get_tracing_state() is not None else ""


def check_dimensions(of_q: int, of_v: int) -> None:
    """Raise an error if q or v does not have four dimensions, even inside a trace.

    Raises:
        MaskcError: with all the text of a WrongRank as its only argument, which is what
            torch.compile shows of an error.
    """
    for name, shape in (("q", of_q), ("v", of_v)):
        if shape != 4:
            error = WrongRank(name, f"of {shape} dimensions", at=name)
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
for _function in (handle, in_graph, check_dimensions, refuse):
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
        BadOption: this process never made it: the graph was compiled elsewhere.
        StaleProgram: it is the text of an exported program that another version wrote.
        MaskcError: what making it raised.
    """
    graph = _NAMED.get(key)
    if graph is None:
        if not key.startswith("["):
            raise BadOption("mask", "a handle made in this process", repr(key), at="mask")
        from maskc.portable import from_graph

        graph = _NAMED.setdefault(key, from_graph(key))
    if isinstance(graph, MaskcError):
        raise graph.with_traceback(None)
    return graph
