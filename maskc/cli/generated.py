"""Generated modules as files: write them, or compare them with a folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from maskc.cli.entries import MaskEntry
from maskc.cli.options import KernelOptions
from maskc.core.errors import Drift, MaskcError

if TYPE_CHECKING:
    from maskc.core.problem import Problem
    from maskc.core.target import Target
    from maskc.plan.types import KernelPlan

FOLDER = "generated"
"""The default folder of generated files."""

_SUFFIXES = (".py", ".plan.json", ".c", ".cu")


@dataclass(frozen=True)
class LeftOut:
    """A target that a pattern has no kernel for."""

    pattern: str
    target: str
    reason: MaskcError

    def __str__(self) -> str:
        return f"{self.pattern}: nothing for {self.target}: {self.reason}"

    def as_dict(self) -> dict[str, str]:
        """The target and the reason, for --json."""
        code, why = self.reason.code, self.reason.finding
        return {"pattern": self.pattern, "target": self.target, "code": code, "reason": why}


def generated_files(
    entry: MaskEntry, asked: KernelOptions, standalone: bool = False
) -> tuple[dict[str, str], list[LeftOut]]:
    """File names and texts of one pattern's module and sources, and what they lack.

    Args:
        standalone: sources have the text of all static files of kernels; else they include them
            from this package.

    Raises:
        MaskcError: a target that was asked for by name has no kernel, or no target has one.
    """
    from maskc import driver

    plans, left_out = _plans(entry, asked)
    given = entry.mask, entry.name, list(plans.values()), entry.title
    return driver.generate(*given, standalone), left_out


def _plans(entry: MaskEntry, asked: KernelOptions) -> tuple[dict[str, KernelPlan], list[LeftOut]]:
    """Plans by target: of those asked for, else of all that have such a kernel."""
    from maskc import driver
    from maskc.core.target import TARGETS, Target

    problem = asked.problem(entry.mask)
    if asked.targets:
        named = map(Target.named, asked.targets)
        return {
            target.name: driver.plan_module(entry.mask, problem, target) for target in named
        }, []
    plans: dict[str, KernelPlan] = {}
    left_out: list[LeftOut] = []
    for target in TARGETS.values():
        if not _concerns(target, problem):
            continue
        try:
            plans[target.name] = driver.plan_module(entry.mask, problem, target)
        except MaskcError as error:
            left_out.append(LeftOut(entry.name, target.name, error))
    if not plans:
        raise left_out[0].reason
    return plans, left_out


def _concerns(target: Target, problem: Problem) -> bool:
    """Whether to report a missing kernel: only for dtypes that the target supports."""
    return bool(target.directions) or problem.dtype in target.dtypes


# ------------------------------------------------------------------ drift

_NAMED = 12
"""Files that a message names; the others are counted."""


def check_files(files: Mapping[str, str], folder: Path, entries: Sequence[MaskEntry]) -> None:
    """Compare texts with what lies in a folder.

    Args:
        files: name -> text, as generated now.
        entries: the patterns. Files of other patterns are left over only where all patterns of a
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
    names = {entry.name for entry in entries}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        ours = entries[0].whole_folder or path.name.partition(".")[0] in names
        if ours and path.name.endswith(_SUFFIXES) and path.name not in files:
            wrong.append(f"{path.name} (left over)")
    _refuse(wrong, entries, f"-o {shlex.quote(str(folder))}", str(folder))


def _refuse(wrong: Sequence[str], entries: Sequence[MaskEntry], options: str, at: str) -> None:
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        named = ", ".join(wrong[:_NAMED]) + more
        raise Drift(named, f"{entries[0].source} {options}", at=at)


_HEAD = """\
# What every pattern compiles to: pattern, target, sha256 of its sources without their comments, and
# of its plan (how lengths become tiles, how kernels are launched). Written by `maskc compile`.
"""
_DIGITS = 16
"""The digits of a digest: enough to see that something has changed."""


def manifest_rows(entry: MaskEntry, asked: KernelOptions) -> list[str]:
    """One line for each target of a pattern; for targets without a kernel, the reason."""
    from maskc import driver
    from maskc.emit.module import digests

    plans, left_out = _plans(entry, asked)
    rows = []
    for target, plan in plans.items():
        marks = (digest[:_DIGITS] for digest in digests(driver.emit_bundle(plan, entry.name)))
        rows.append(" ".join((entry.name, target, *marks)))
    return rows + [
        f"{omission.pattern} {omission.target} none {omission.reason.code}" for omission in left_out
    ]


def manifest_text(rows: Sequence[str]) -> str:
    """The file that holds these lines."""
    return _HEAD + "".join(f"{row}\n" for row in rows)


def check_manifest(rows: Sequence[str], file: Path, entries: Sequence[MaskEntry]) -> None:
    """Compare lines with those that a file holds.

    Raises:
        Drift: names the patterns and targets that differ.
    """
    held = file.read_text("utf-8").splitlines() if file.is_file() else []
    before = {line for line in held if not line.startswith("#")}
    now = set(rows)
    names = {entry.name for entry in entries}
    gone = {line for line in before - now if entries[0].whole_folder or line.split()[0] in names}
    wrong = dict.fromkeys(" ".join(line.split()[:2]) for line in sorted((now - before) | gone))
    _refuse(list(wrong), entries, f"--manifest {shlex.quote(str(file))}", str(file))
