"""`@mc.pattern`: a mask with a name and typed parameters."""

from __future__ import annotations

import inspect
import keyword
import operator
import sys
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Generic, NoReturn, ParamSpec

from maskc.core.errors import (
    BadParameter,
    BadParameterValue,
    BadPatternName,
    NotAMaskReturned,
    NotPicklable,
)
from maskc.core.source import SourceLoc, caller
from maskc.dsl.followed import during
from maskc.dsl.mask import Mask
from maskc.dsl.meant import closest
from maskc.dsl.traced import Traced

P = ParamSpec("P")
"""The parameters of a decorated function."""
Kind = type | UnionType
"""The type of a parameter; a union for one value or several, as in int | tuple."""


@dataclass(frozen=True)
class Pattern(Generic[P]):
    """A named function that returns a mask for its parameters; `@mc.pattern` creates one.

    Call it like the function to get the mask.
    """

    name: str
    function: Callable[P, Mask] = field(compare=False)
    parameters: tuple[tuple[str, Kind, object], ...]
    """(name, type, default) of each, in order."""
    loc: SourceLoc | None = field(default=None, compare=False)

    @property
    def doc(self) -> str:
        """The function's docstring without indentation; '' if it has none."""
        return inspect.getdoc(self.function) or ""

    def __call__(self, *placed: P.args, **values: P.kwargs) -> Mask:
        """Return the mask for these parameter values; the others keep their defaults.

        Args:
            placed: positional values, of the annotated types.
            values: values by parameter name.

        Returns:
            The mask.

        Raises:
            BadParameter: there is no such parameter (MC204).
            BadParameterValue: a value has the wrong type (MC205).
            NotAMaskReturned: the function returned something else (MC206).
        """
        known = {name: kind for name, kind, _ in self.parameters}
        given: list[tuple[str, object]] = [*zip(known, placed, strict=False), *values.items()]
        for name, value in given:
            if name not in known:
                near = closest(name, known)
                meant = f"did you mean {near}? " if near else ""
                named = ", ".join(known) or "none"
                raise BadParameter(self.name, name, named, meant, at=self.loc)
            if not _fits(value, known[name]):
                raise BadParameterValue(self.name, name, kind_name(known[name]), value, at=self.loc)
        mask: object = self.function(*placed, **values)
        if not isinstance(mask, Mask):
            raise NotAMaskReturned(self.name, type(mask).__name__, at=self.loc)
        return mask

    def __getattr__(self, name: str) -> NoReturn:
        """Raise an error that says to call the pattern first: attributes belong to the mask."""
        hint = "" if name.startswith("__") or not hasattr(Mask, name) else (
            f"; call it to get its mask: {self.name}().{name}"
        )  # fmt: skip
        raise AttributeError(f"a pattern has no attribute {name!r}{hint}", name=name, obj=self)

    def __copy__(self) -> Pattern[P]:
        return self

    def __deepcopy__(self, memo: object) -> Pattern[P]:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle a pattern by its module and name, like a function.

        Raises:
            NotPicklable: it is neither at the top level of a module nor in a pattern file.
        """
        module, name = self.function.__module__, self.function.__qualname__
        if module == FILE:
            path = Path.cwd() / self.function.__code__.co_filename
            return _from_file, (str(path), self.name)
        if getattr(sys.modules.get(module), name, None) is not self:
            raise NotPicklable(self.name, name.rpartition(".")[0] or module, at=self.loc)
        return _from_module, (module, name)

    def with_text(self, settings: dict[str, str]) -> Mask:
        """Return the mask for parameter values written as text (`--set name=value`).

        Args:
            settings: texts by parameter name, such as {"left": "255"}.

        Returns:
            The mask.

        Raises:
            BadParameter: there is no such parameter (MC204).
            BadParameterValue: a text cannot be converted to the parameter's type (MC205).
        """
        call: Callable[..., Mask] = self
        return call(**self.read(settings))

    def read(self, settings: Mapping[str, str]) -> dict[str, object]:
        """Convert texts to values by the types of the parameters; raises the errors of `with_text`.

        Args:
            settings: texts by parameter name.

        Returns:
            The values by name; texts of unknown names are unchanged.
        """
        kinds = {name: kind for name, kind, _ in self.parameters}
        return {
            name: _read(self, name, kinds[name], text) if name in kinds else text
            for name, text in settings.items()
        }


FILE = "maskc_pattern_file"
"""The module name of a pattern file; no import can find it."""


def _from_file(path: str, name: str) -> Pattern[...] | Mask:
    from maskc.dsl.loader import load

    return load(path)[name]


def _from_module(module: str, name: str) -> Pattern[...]:
    pattern: Pattern[...] = getattr(import_module(module), name)
    return pattern


def pattern(function: Callable[P, Mask]) -> Pattern[P]:
    """Make a pattern from a function in which every parameter has a default.

    Args:
        function: takes keywords and returns a mask. Its name names the generated module, and its
            annotations (int, float, bool, str, tuple) decide the types of parameters.

    Returns:
        A pattern that is called like the function.

    Raises:
        BadPatternName: its name is longer than 40 characters (MC203).
        BadParameterValue: a parameter has no default, or one of another type than annotated
            (MC205).
    """
    at = caller()
    name = function.__name__
    check_pattern_name(name, at)
    hints = inspect.get_annotations(function, eval_str=False)
    parameters = []
    for label, parameter in inspect.signature(function).parameters.items():
        kind = _kind(hints.get(label), parameter.default)
        if parameter.default is parameter.empty:
            error = BadParameterValue(name, label, "a default value", "none", at=at)
            error.hint = (
                f"give it one, such as {label}=64; a mask_mod is no pattern, but "
                f"mc.from_mask_mod({name}) is a mask"
            )
            raise error
        if not _fits(parameter.default, kind):
            raise BadParameterValue(name, label, kind_name(kind), parameter.default, at=at)
        parameters.append((label, kind, parameter.default))
    made = Pattern(name, function, tuple(parameters), at)
    object.__setattr__(made, "__doc__", function.__doc__)
    object.__setattr__(made, "__wrapped__", function)  # help() and inspect.signature look here
    noted = _noted.get()
    if noted is not None:
        noted.append(made)
    return made


_noted: ContextVar[list[Pattern[...]] | None] = ContextVar("maskc_patterns", default=None)


def noting_patterns() -> AbstractContextManager[list[Pattern[...]]]:
    """Yield a list that collects the patterns created during the `with` block."""
    return during(_noted, [])


_LONGEST = 40


def check_pattern_name(name: object, at: SourceLoc | str | None) -> None:
    """Raise an error if a name cannot name a generated module and its files.

    Raises:
        BadPatternName: it is a keyword, too long, not an identifier, or one that Python normalises.
    """
    good = (
        isinstance(name, str) and name.isidentifier() and len(name) <= _LONGEST
        and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name
    )  # fmt: skip
    if not good:
        raise BadPatternName(name, at=at)


_KINDS = {"int": int, "str": str, "bool": bool, "float": float, "tuple": tuple}


def kind_name(kind: Kind) -> str:
    """Return the type of a parameter as text, as in an annotation."""
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _kind(hint: object, default: object) -> Kind:
    """Return the type of an annotation, which may be text."""
    text = hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
    names = [part.partition("[")[0].strip() for part in text.split("|")]
    if not all(name in _KINDS for name in names):
        return type(default)
    return reduce(operator.or_, (_KINDS[name] for name in names))


def _alternatives(kind: Kind) -> tuple[type, ...]:
    return (kind,) if isinstance(kind, type) else kind.__args__


def _fits(value: object, kind: Kind) -> bool:
    return any(_is_of(value, alternative) for alternative in _alternatives(kind))


def _is_of(value: object, kind: type) -> bool:
    if kind is int:
        return isinstance(value, (int, Traced)) and not isinstance(value, bool)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _read(owner: Pattern[...], name: str, kind: Kind, text: str) -> object:
    for alternative in _alternatives(kind):
        try:
            return _value(alternative, text)
        except (ValueError, KeyError):
            continue
    raise BadParameterValue(owner.name, name, kind_name(kind), text, at=owner.loc)


_TRUTH = {"true": True, "1": True, "false": False, "0": False}


def _value(kind: type, text: str) -> object:
    """Convert a text to a value of a type; raises ValueError or KeyError if it is not one."""
    if kind is bool:
        return _TRUTH[text.lower()]
    if kind is tuple:
        items = (item.strip().lower() for item in text.strip("()[] ").split(",") if item.strip())
        return tuple(_TRUTH[item] if item.isalpha() else int(item) for item in items)
    return kind(text)
