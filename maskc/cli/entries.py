"""The masks that a command works on: those of a file, of a folder, or of an expression."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from maskc.core.errors import MaskcError, NoPattern, NotAnInteger, SeveralErrors, UsageMistake

if TYPE_CHECKING:
    from maskc.dsl.mask import Mask
    from maskc.dsl.pattern import Pattern


@dataclass(frozen=True)
class MaskEntry:
    """A mask to work on."""

    name: str
    """The pattern's name; `mask` for an expression."""
    mask: Mask
    title: str
    """First line of its docstring, or its name."""
    source: str = ""
    """The mask's origin, as written on the command line: a path, or --expr and its text."""
    whole_folder: bool = False
    """Whether all patterns of a folder were asked for."""
    params: Mapping[str, int] = field(default_factory=dict)
    """Call-time parameters set with --set."""
    pattern: Pattern[...] | None = None
    """The pattern that made the mask; None if no pattern did."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The pattern's own parameters set with --set, as text."""

    def for_module(self) -> MaskEntry:
        """This entry, for commands that write code, where a parameter keeps its default.

        Raises:
            UsageMistake: --set named a parameter that calls give, or a module of this name would
                hide one that it imports itself.
        """
        if self.name in _IMPORTED:
            raise UsageMistake(
                f"the pattern {self.name!r} would be written as {self.name}.py, which hides the "
                f"module {self.name} from `import {self.name}`",
                f"rename the pattern, for example to {self.name}_mask", at="-o",
            )  # fmt: skip
        for name in self.params:
            raise UsageMistake(
                f"--set {name}: it is a parameter of the call, mc.param({name!r}, ...)",
                f"pass {name}=... when the compiled mask is called, or change its default",
                at="--set",
            )
        return self


_IMPORTED = frozenset(sys.stdlib_module_names) | {"maskc", "numpy"}
"""Modules that a generated module imports, and those that these import."""


def entries(
    path: str | None, expr: str | None, settings: tuple[str, ...], pattern: str | None
) -> list[MaskEntry]:
    """All masks the arguments name, in file order.

    Args:
        path: a pattern file, a folder, which means every *.py in it, or the name of a pattern of
            the library.
        expr: a mask expression, instead.
        settings: `name=value` texts; each must be a parameter somewhere.
        pattern: only the pattern of this name.

    Raises:
        UsageMistake: both or neither given, or a name that nothing has.
        MaskcError: the mistakes of all files together, as SeveralErrors.
    """
    if (path is None) == (expr is None):
        wrong = "a pattern file and --expr were both given" if path else "nothing to work on"
        hint = 'give a pattern file, a folder of them, or --expr "causal() & window(1023)"'
        raise UsageMistake(wrong, hint, at="FILE")
    with redirect_stdout(sys.stderr):  # what a file prints is no result of the command
        masks = _from_expr(expr) if expr is not None else _from_files(path or "")
        if pattern is not None:
            check_known(pattern, list(masks), "--pattern", "no pattern")
            masks = {pattern: masks[pattern]}
        made = _with_settings(masks, _settings(settings))
    source = shlex.quote(path or "") if expr is None else f"--expr {shlex.quote(expr)}"
    whole = path is not None and pattern is None and Path(path).is_dir()
    return [replace(entry, source=source, whole_folder=whole) for entry in made]


def _from_expr(expr: str) -> dict[str, Pattern[...] | Mask]:
    from maskc.dsl.parser import parse

    return {"mask": parse(expr)}


def _place_of(path: str) -> Path:
    """The path, or that of the library's pattern of this name; what lies here comes first.

    Raises:
        UsageMistake: there is neither, and it looks like a name (MC603).
    """
    from maskc import patterns

    if os.path.exists(path) or not path.isidentifier():
        return Path(path)
    if path not in patterns.names():
        raise UsageMistake(
            f"there is neither a file nor a published pattern {path!r}",
            f"{_meant(path, patterns.names(), 2)}`maskc patterns` lists them", at="FILE",
        )  # fmt: skip
    return patterns.about(path).file


def _from_files(path: str) -> dict[str, Pattern[...] | Mask]:
    from maskc.dsl.loader import load

    place = _place_of(path)
    files = [place]
    if os.path.isdir(path):
        files = sorted(
            file for file in place.glob("*.py")
            if not file.name.startswith(("_", ".")) and not file.is_dir()
        )  # fmt: skip
        if not files:
            raise NoPattern("folder", at=path)
    masks: dict[str, Pattern[...] | Mask] = {}
    owner: dict[str, Path] = {}
    wrong: list[MaskcError] = []
    for file in files:
        try:
            loaded = load(file)
        except MaskcError as error:
            wrong += error.errors if isinstance(error, SeveralErrors) else (error,)
            continue
        for name, value in loaded.items():
            if name in owner:
                both = f"{owner[name].name} and {file.name} both define {name!r}"
                raise UsageMistake(both, "give each its own name, or compile one at a time")
            masks[name], owner[name] = value, file
    if wrong:
        raise wrong[0] if len(wrong) == 1 else SeveralErrors(tuple(wrong))
    return masks


# ------------------------------------------------------------------ --set


def _settings(texts: tuple[str, ...]) -> dict[str, str]:
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            hint = "for example --set window=512"
            raise UsageMistake(f"--set expects name=value, found {text!r}", hint, at="--set")
        values[name.strip()] = value.strip()
    return values


def _with_settings(
    patterns: dict[str, Pattern[...] | Mask], settings: dict[str, str]
) -> list[MaskEntry]:
    made, known = [], set()
    for name, value in patterns.items():
        entry, names = _entry(name, value, settings)
        made.append(entry)
        known |= names
    for name in settings:
        check_known(name, sorted(known), "--set", "no parameter")
    return made


def _entry(
    name: str, value: Pattern[...] | Mask, settings: dict[str, str]
) -> tuple[MaskEntry, set[str]]:
    """The entry with the settings that are its own, and the names it knows."""
    from maskc.dsl.nodes import default_parameters
    from maskc.dsl.pattern import Pattern

    names: set[str] = set()
    title, pattern, settings_of = name, None, {}
    if isinstance(value, Pattern):
        pattern, names = value, {label for label, _, _ in value.parameters}
        settings_of = {key: text for key, text in settings.items() if key in names}
        mask = _called(value, settings_of)
        title = value.doc.split("\n")[0] or name
    else:
        mask = value
    of_call = default_parameters(mask).keys() - names
    params = {key: _integer(key, text) for key, text in settings.items() if key in of_call}
    made = MaskEntry(name, mask, title, params=params, pattern=pattern, settings=settings_of)
    return made, names | of_call


def _called(pattern: Pattern[...], settings: dict[str, str]) -> Mask:
    """The pattern's mask; what its own code raises becomes a mistake with its line."""
    from maskc.dsl.loader import failed, undisturbed

    try:
        with undisturbed():
            return pattern.with_text(settings)
    except (MaskcError, KeyboardInterrupt):
        raise
    except BaseException as error:
        file = pattern.loc.file if pattern.loc else ""
        raise failed(error, file, pattern.loc) from None


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise NotAnInteger("--set", name, text, at="--set") from None


def check_known(name: str, names: list[str], option: str, wrong: str, most: int = 3) -> None:
    """Check a name that an option gives.

    Args:
        most: names that are suggested.

    Raises:
        UsageMistake: it is none of `names`.
    """
    if name not in names:
        there = f"there is: {', '.join(names) or 'none'}"
        fault = f"{wrong} {name!r}"
        raise UsageMistake(fault, _meant(name, names, most) + there, at=option)


def _meant(name: str, names: Sequence[str], most: int) -> str:
    near = get_close_matches(name, names, n=most)
    return f"did you mean {' or '.join(near)}? " if near else ""
