"""The public surface: what `dir` shows, what star imports, and every name with its arguments."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import maskc as mc
from maskc import testing
from maskc.dsl.pattern import Pattern
from maskc.runtime import CompiledMask
from maskc.runtime.call_path import Passes

ROOMS = ("distributed", "evaluate", "nn", "patterns", "scores", "testing")


def own(module: ModuleType) -> list[str]:
    """The public names of a room: those that it lists, or that it defines or passes on."""
    if listed := getattr(module, "__all__", None):
        return sorted(listed)
    if hasattr(module, "__dir__") and module.__name__ == "maskc.patterns":
        return sorted(dir(module))
    return sorted(
        name
        for name, value in vars(module).items()
        if name[0] != "_" and not isinstance(value, (ModuleType, bool))
        and getattr(value, "__module__", module.__name__).startswith(module.__name__)
    )  # fmt: skip


def arguments(function: object) -> str:
    """The arguments without their types, which differ in how Pythons write them."""
    try:
        parameters = list(inspect.signature(function).parameters.values())  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    shown, named = [], False
    for parameter in parameters:
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not named:
            shown.append("*")
        named = named or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        shown.append(f"{stars}{parameter.name}{default}")
    return f"({', '.join(shown)})"


def methods(kind: type) -> Iterator[str]:
    """Public methods and properties that a class itself defines, or for it the path of a call."""
    defined = {**vars(Passes), **vars(kind)} if issubclass(kind, Passes) else vars(kind)
    for name, member in sorted(defined.items()):
        if name not in ("__call__", "__init__") and name[0] == "_":
            continue
        made = getattr(member, "__func__", member)
        if inspect.isfunction(made):
            yield f"    {name}{arguments(made)}"
        elif isinstance(member, (property, cached_property)):
            yield f"    {name}"


def lines(name: str, value: object) -> Iterator[str]:
    if isinstance(value, ModuleType):
        yield f"{name}: module"
    elif isinstance(value, Pattern):
        given = ", ".join(f"{label}={default!r}" for label, _, default in value.parameters)
        yield f"{name}({given}): pattern"
    elif inspect.isclass(value):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"{name}: class of {bases}" if bases else f"{name}: class"
        if not issubclass(value, BaseException):
            yield from methods(value)
    elif callable(value):
        yield f"{name}{arguments(value)}"
        if not inspect.isfunction(value):
            yield from methods(type(value))
    else:
        yield f"{name}: {type(value).__name__}"


def test_every_public_name_and_its_arguments(golden) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("hypothesis")
    snapshot = []
    for name in dir(mc):
        value = getattr(mc, name)
        snapshot += lines(name, value)
        if isinstance(value, ModuleType):
            for inner in own(value):
                snapshot += [f"    {line}" for line in lines(inner, getattr(value, inner))]
    golden("api.txt", "\n".join(snapshot) + "\n")


def test_every_name_of_an_integration_in_the_reference_and_its_arguments(golden) -> None:
    for module in ("torch", "transformers", "jax"):
        pytest.importorskip(module)
    pages = sorted((Path(__file__).parents[2] / "docs" / "reference").glob("*.md"))
    shown = "\n".join(page.read_text() for page in pages)
    names = re.findall(r"^::: (maskc\.integrations\.\S+)", shown, re.M)
    assert "maskc.integrations.transformers.register" in names
    snapshot = []
    for name in names:
        module, _, last = name.rpartition(".")
        snapshot += lines(name, getattr(import_module(module), last))
    golden("api_integrations.txt", "\n".join(snapshot) + "\n")


def test_dir_shows_public_names_alone() -> None:
    pytest.importorskip("torch")
    shown = dir(mc)
    assert {*ROOMS, "attention", "causal", "CompiledMask", "to_e4m3", "__version__"} <= {*shown}
    assert {*shown} == {*mc.__all__, "nn", "to_e4m3", "__version__"}
    assert len({*mc.__all__}) == len(mc.__all__)
    for name in ("api", "core", "conventions", "driver", "dsl", "TYPE_CHECKING", "import_module"):
        assert name not in shown
    passed_on = {
        name for name, value in vars(mc).items()
        if name[0] != "_" and not isinstance(value, (ModuleType, bool))
        and getattr(value, "__module__", "maskc").startswith("maskc")
    }  # fmt: skip
    assert passed_on <= {*shown}, "a public name is missing in __all__"


STAR = """
import sys
from maskc import *
assert causal().count(4) == 10 and testing.check and patterns.longformer and CompiledMask
assert "torch" not in sys.modules, "torch"
"""
WITHOUT = """
import sys
sys.modules["torch"] = None
import inspect, maskc
assert "nn" not in dir(maskc) and "patterns" in dir(maskc)
inspect.getmembers(maskc)
"""


@pytest.mark.parametrize("program", [STAR, WITHOUT], ids=["star", "without torch"])
def test_no_name_needs_torch_where_it_is_not(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("wrong", ["pattrns", "atention", "testng", "scaled_dot_product"])
def test_a_misspelt_name_is_told_which_was_meant(wrong: str) -> None:
    with pytest.raises(AttributeError, match="did you mean") as caught:
        getattr(mc, wrong)
    assert "did you mean 'patterns'" in str(caught.value) or wrong != "pattrns"


EVIDENCE = """
from maskc.evaluate.texts import demo_texts
import maskc as mc
import maskc.evaluate.statistics
import maskc.lab.evaluate.texts
assert demo_texts is maskc.lab.evaluate.texts.demo_texts is mc.evaluate.texts.demo_texts
assert mc.evaluate.statistics.holm is maskc.evaluate.statistics.holm
assert mc.evaluate.Evaluation is maskc.lab.evaluate.Evaluation
"""


def test_files_of_evaluate_are_imported_once() -> None:
    """A second copy would have classes of its own, which `isinstance` tells apart."""
    subprocess.run([sys.executable, "-c", EVIDENCE], check=True)


# ------------------------------------------------------------------ what an editor shows


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
