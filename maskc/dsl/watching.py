"""Hooks that run while a formula is traced: torch's calls, and Python operations that bypass the
traced value.

Most questions reach the traced value itself (`bool`, `len`, `str`, `hash`, `isinstance`), which
refuses them. `is`, `type` and `id` do not: every function of the user's that runs meanwhile is
looked through for them.
"""

from __future__ import annotations

import builtins
import dis
import operator
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from types import CodeType, FrameType
from typing import Any

from maskc.core.errors import NotTraceable
from maskc.core.source import located
from maskc.dsl.followed import among, computed, device, torch_calls
from maskc.dsl.functions import call
from maskc.dsl.tabled import Opaque
from maskc.dsl.tables import IndexedRows
from maskc.dsl.traced import Running, Traced, refuse, tracing

_LIBRARIES = frozenset({
    "maskc", "torch", "numpy", "cupy", "jax", "jaxlib", *sys.stdlib_module_names,
}) - {"__main__"}  # fmt: skip
_DECIDES = (builtins.id, operator.is_, operator.is_not)


@contextmanager
def watched() -> Iterator[None]:
    """While a function is traced."""
    before: Any = sys.getprofile()
    with tracing() as running, torch_calls(_torch_call, refuse):
        sys.setprofile(partial(_entered, running))
        try:
            yield
        finally:
            sys.setprofile(before if callable(before) else None)
            if hasattr(before, "enable"):  # cProfile's, which no other call puts back
                before.enable()


def _torch_call(function: Any, args: Any, named: Any) -> object:
    given = (*args, *named.values())
    if _is_traced(given):
        return call("torch", function, args, named)
    if getattr(function, "__name__", "") == "to" and any(
        device_of is device() for device_of in given
    ):
        return args[0]
    return computed(function, args, named)


def _is_traced(value: Any) -> bool:
    return among(value, (Traced, IndexedRows, Opaque))


def users(module: object) -> bool:
    """Whether functions of a module are the user's, or of a library that is followed like them."""
    return str(module or "").partition(".")[0] not in _LIBRARIES


# ------------------------------------------------------------------ `is`, `type`, `id`


def _entered(running: Running, frame: FrameType, event: str, function: Any) -> None:
    if event in ("c_return", "c_exception"):
        if running:
            running.pop()
    elif event == "c_call":
        running.append(function)
        if any(function is decider for decider in _DECIDES) and users(
            frame.f_globals.get("__name__")
        ):
            _refuse(f"{function.__name__}() would be decided for good", frame, frame.f_lasti)
    elif event == "call" and users(frame.f_globals.get("__name__")):
        _look_through(frame)


def _look_through(frame: FrameType) -> None:
    code = frame.f_code
    identities, offset = _identities(code), _reads_type(code)
    if not identities and offset is None:
        return
    here = frame.f_locals  # parameters, and what is captured
    if not any(map(_is_traced, here.values())):
        return
    for where, operands in identities:
        if any(_may_be_traced(here, names) for names in operands):
            _refuse("`is` would be decided for good; compare with ==", frame, where)
    if offset is not None and frame.f_globals.get("type", type) is type:
        _refuse("type() asks what a traced value may be, in a function that is not followed",
                frame, offset)  # fmt: skip


def _refuse(what: str, frame: FrameType, offset: int) -> None:
    raise NotTraceable(what, at=located(frame, offset))


@lru_cache(maxsize=1024)
def _reads_type(code: CodeType) -> int | None:
    if "type" not in code.co_names:
        return None
    return next(
        (i.offset for i in dis.get_instructions(code)
         if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and i.argval == "type"), None
    )  # fmt: skip


_ANY = "*"
"""A name for what a call or an expression gives."""


@lru_cache(maxsize=1024)
def _identities(code: CodeType) -> tuple[tuple[int, tuple[frozenset[str], ...]], ...]:
    """Every `is` but those with None: where it stands, and the local names of its operands."""
    instructions: list[dis.Instruction] = list(dis.get_instructions(code))
    stored = {i.argval for i in instructions if i.opname.startswith(("STORE_FAST", "STORE_DEREF"))}
    answers: list[tuple[int, tuple[frozenset[str], ...]]] = []
    for number, one in enumerate(instructions):
        if one.opname != "IS_OP":
            continue
        second = _operand(instructions, number - 1)
        first = None if second is None else _operand(instructions, second - 1)
        if first is None or second is None:
            answers.append((one.offset, (frozenset({_ANY}),)))
            continue
        parts = instructions[first:second], instructions[second:number]
        if any(_is_none(part) for part in parts):  # no traced value is None, whatever it stands for
            continue
        answers.append((one.offset, tuple(_names(part, stored) for part in parts)))
    return tuple(answers)


def _operand(instructions: list[dis.Instruction], last: int) -> int | None:
    """The first instruction of those that leave one value with instruction `last`."""
    depth = 0
    for number in range(last, -1, -1):
        one = instructions[number]
        if one.is_jump_target and number != last and depth:
            return None
        depth += dis.stack_effect(one.opcode, one.arg, jump=False)
        if depth == 1:
            return number
    return None


def _is_none(part: list[dis.Instruction]) -> bool:
    loads = [i for i in part if i.opname not in ("NOP", "CACHE", "EXTENDED_ARG", "RESUME")]
    return len(loads) == 1 and loads[0].opname == "LOAD_CONST" and loads[0].argval is None


def _names(part: list[dis.Instruction], stored: set[str]) -> frozenset[str]:
    names = set()
    for one in part:
        if one.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF")):
            names.add(_ANY if one.argval in stored else one.argval)
        elif one.opname.startswith("CALL") or one.opname.startswith("BINARY"):
            names.add(_ANY)
    return frozenset(names)


def _may_be_traced(here: Mapping[str, object], names: frozenset[str]) -> bool:
    """Whether an operand may be a traced value, by what the names hold when the function begins."""
    return any(name == _ANY or name not in here or _is_traced(here[name]) for name in names)
