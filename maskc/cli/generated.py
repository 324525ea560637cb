"""Generated modules as files: what a pattern gives, and whether a folder holds just that."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from maskc.cli.entries import Entry
from maskc.cli.options import Asked
from maskc.core.errors import Drift, MaskcError

if TYPE_CHECKING:
    from maskc.core.problem import Problem
    from maskc.core.target import Target

FOLDER = "generated"
"""Where generated files lie when nothing else is said."""

_SUFFIXES = (".py", ".c", ".cu")


def generated_files(entry: Entry, asked: Asked) -> dict[str, str]:
    """File names and texts of one pattern's module and sources."""
    from maskc import driver

    problem = asked.problem(entry.mask)
    targets = _targets(
        asked, problem, lambda target: driver.in_modules(entry.mask, problem, target)
    )
    return driver.generate(entry.mask, entry.name, problem, targets, entry.title)


def _targets(
    asked: Asked, problem: Problem, chooses: Callable[[Target], bool]
) -> tuple[Target, ...]:
    """The one asked for, else all that have such a kernel.

    Args:
        chooses: whether a target has kernels for what the mask chooses at run time.
    """
    from maskc.core.target import TARGETS, Target

    if asked.target is not None:
        return (Target.named(asked.target),)
    able, refusal = [], None
    for target in TARGETS.values():
        try:
            target.check(problem)
        except MaskcError as error:
            refusal = refusal or error
        else:
            able += [target] if chooses(target) else []
    if refusal is not None and not able:
        raise refusal
    return tuple(able)


_NAMED = 12
"""Files that a message names; the others are counted."""


def check_files(files: dict[str, str], folder: Path, found: list[Entry]) -> None:
    """Compare texts with what lies in a folder.

    Args:
        files: name -> text, as the patterns give now.
        found: the patterns. Files of other patterns are left over only where all patterns of a
            folder were compiled.

    Raises:
        Drift: names files that have changed, are missing, or are left over.
    """
    wrong = []
    for name, text in sorted(files.items()):
        path = folder / name
        if not path.is_file():
            wrong.append(f"{name} (missing)")
        elif path.read_bytes() != text.encode():
            wrong.append(f"{name} (changed)")
    names = {entry.name for entry in found}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        ours = found[0].whole_folder or path.name.partition(".")[0] in names
        if ours and path.suffix in _SUFFIXES and path.name not in files:
            wrong.append(f"{path.name} (left over)")
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        named = ", ".join(wrong[:_NAMED]) + more
        raise Drift(named, found[0].source, shlex.quote(str(folder)), at=str(folder))
