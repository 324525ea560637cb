"""Texts that an editor shows for public names: signatures with types, and all arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import pytest

import maskc as mc
from maskc import testing
from maskc.runtime import CompiledMask

FREE = {"data", "options"}
"""Keywords of a mask's own, the names of the data that it reads, and those of another call."""
SEE_ANOTHER = {
    "CompiledMask.launch", "Mask.__call__", "Pattern.__call__",
}  # fmt: skip
"""Their arguments are those of what their docstring names, of somebody's own function, or none."""


def public() -> Iterator[tuple[str, Callable[..., object]]]:
    named = {name: getattr(mc, name) for name in dir(mc) if not name.startswith("_")}
    named |= {"CompiledMask": CompiledMask, "testing.check": testing.check}
    for name, value in named.items():
        if inspect.isclass(value) and not issubclass(value, Exception | Warning):
            for inner, member in vars(value).items():
                made = getattr(member, "__func__", getattr(member, "fget", member))
                if inspect.isfunction(made) and (inner == "__call__" or inner[0] != "_"):
                    yield f"{name}.{inner}", made
        elif callable(value) and not inspect.isclass(value):
            yield name, value


FUNCTIONS = dict(public())


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_has_a_type_and_is_explained(name: str):
    function = FUNCTIONS[name]
    given = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    text = inspect.getdoc(function)
    assert text, "no docstring"
    for each in given:
        assert each.annotation is not each.empty, each
        if name in SEE_ANOTHER:
            continue
        assert each.kind is not each.VAR_KEYWORD or each.name in FREE, each
        assert len(given) == 1 or each.name in text.partition("Args:")[2], each.name


def test_there_are_some():
    assert {"causal", "window", "attention", "Mask.dense", "CompiledMask.backward"} <= set(
        FUNCTIONS
    )
