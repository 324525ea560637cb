"""Content of the source pane: the pattern, its formula and pieces, and the kernels; linked by
lines."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskc import driver
from maskc.analysis.head_groups import HeadGroups
from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.expr_text import to_people
from maskc.dsl.mask import Mask
from maskc.dsl.nodes import walk
from maskc.ir.decompose import pieces_of
from maskc.ir.types import MaskIR
from maskc.plan.types import KernelPlan
from maskc.viz import words

_FROM_LINE = re.compile(r"// line (\d+):")
_PARSED = "--expr"
"""The file that the parser names in places."""
_LONGEST = 400_000
"""Characters of a file; longer ones are cut, and say so."""

Plain = dict[str, Any]


def sources(
    mask: Mask, heads: HeadGroups, plans: list[KernelPlan], name: str, text: str | None
) -> list[Plain]:
    """Files with a name, a kind, a text and links: pairs of a line and the pattern's line.

    Args:
        plans: one for each target.
        text: of the pattern's file; None if the mask was written elsewhere.
    """
    files = []
    if text is not None:
        lines = {node.loc.line for node in walk(mask) if node.loc is not None}
        links = [[line, line] for line in sorted(lines)]
        files.append({"name": "pattern", "kind": "pattern", "text": _cut(text), "links": links})
    files.append(_formulas(heads))
    for plan in plans:
        unit = driver.emit_bundle(plan, name).units[0]
        kind = "C" if plan.target.language == "c" else f"CUDA {plan.target.name}"
        links = _links(unit.text) if text is not None else []
        files.append({"name": kind, "kind": "generated", "text": _cut(unit.text), "links": links})
    return files


def pattern_text(mask: Mask, expression: str) -> str | None:
    """The file in which a mask was written; None if it cannot be read, or there are several.

    A cell of a notebook is no file on disk: Python remembers its lines for tracebacks. Of a parsed
    text it remembers the last one only.

    Args:
        expression: the text, where the mask was parsed from one.
    """
    files = {node.loc.file for node in walk(mask) if node.loc is not None}
    if len(files) != 1:
        return None
    file = files.pop()
    if file == _PARSED:
        return expression or None
    try:
        return Path(file).read_text("utf-8")
    except (OSError, ValueError):
        return "".join(linecache.getlines(file)) or None


def _cut(text: str) -> str:
    return words.cut(text, _LONGEST, "\n... cut here")


def _links(text: str) -> list[list[int]]:
    """The line below a comment, up to the next one, came from the line that it names."""
    links: list[list[int]] = []
    current = 0
    for number, line in enumerate(text.split("\n"), 1):
        if match := _FROM_LINE.search(line):
            current = int(match[1])
        elif not re.search(r"&&|\|\||\bm\.|\bq\b|\bk\b", line):
            current = 0
        if current:
            links.append([number, current])
    return links


def _formulas(heads: HeadGroups) -> Plain:
    """The IR as text, with the places of its comparisons."""
    lines: list[str] = []
    links: list[list[int]] = []
    for index, (ir, facts) in enumerate(zip(heads.masks, heads.facts, strict=True)):
        if heads.of_head:
            mine = tuple(h for h, which in enumerate(heads.of_head) if which == index)
            lines.append(f"# {words.heads(mine)}")
        for text, line in _conjuncts(ir.keep, ir, 0):
            lines.append(text)
            if line:
                links.append([len(lines), line])
        lines += ["", *(f"{piece.kind}: {to_people(piece.keep)}" for piece in pieces_of(ir))]
        lines += ["", *map(str, facts), ""]
    return {"name": "IR", "kind": "ir", "text": "\n".join(lines).rstrip(), "links": links}


def _conjuncts(keep: Expr, ir: MaskIR, depth: int) -> Iterator[tuple[str, int | None]]:
    """The formula line by line, each with the pattern's line."""
    if isinstance(keep, (E.All, E.Any)):
        yield f"{'  ' * depth}{'all of' if isinstance(keep, E.All) else 'any of'}", None
        for term in keep.terms:
            yield from _conjuncts(term, ir, depth + 1)
        return
    origins = dict(ir.origins)
    origin = origins.get(keep)
    if origin is None and E.is_condition(keep):
        origin = origins.get(E.negate(keep))
    line = origin.loc.line if origin and origin.loc else None
    yield f"{'  ' * depth}{to_people(keep)}", line
