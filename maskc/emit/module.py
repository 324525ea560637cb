"""Writes a bundle as a Python module that a stranger can read, import and call."""

from __future__ import annotations

import json
import textwrap
from base64 import b85encode
from collections.abc import Sequence
from dataclasses import dataclass, fields

from maskc.core import expr as E
from maskc.core.bundle import Bundle, Launch, LayoutRecipe, SourceUnit, TileLoop, Variant, WorkList
from maskc.core.data import DataDecl
from maskc.core.expr_text import to_python
from maskc.core.gather import Gather
from maskc.core.problem import Direction, Problem
from maskc.core.selection import Score, Selection, Share
from maskc.core.target import Target
from maskc.emit.environment import environment


@dataclass(frozen=True, slots=True)
class _Loop:
    first: str
    last: str
    where: str
    step: int
    full: str


@dataclass(frozen=True, slots=True)
class _Recipe:
    q: int
    k: int
    loops: tuple[_Loop, ...]
    numeric: bool
    fixed: str
    square: bool


@dataclass(frozen=True, slots=True)
class _Mask:
    keep: str
    recipes: tuple[_Recipe, ...]
    shape: int
    args: str
    axes: tuple[str, ...]
    rests: str
    lists: str


@dataclass(frozen=True, slots=True)
class _Bundle:
    name: str
    problem: Problem
    variants: tuple[_Mask, ...]
    of_head: str
    arrays: str
    declared: tuple[str, ...]
    params: str
    unread: str
    kernels: tuple[str, ...]
    parts: tuple[tuple[int, bool, int | None, _Bundle], ...]
    selections: tuple[str, ...]
    report: bool


_WIDTH = 100
"""Most columns of a generated module."""


def module_files(bundle: Bundle, mask: str, title: str) -> dict[str, str]:
    """File names and texts: the module, and its sources beside it.

    Args:
        bundle: whose units have keys of their own.
        mask: the mask as maskc prints it.
        title: the first line of the pattern's docstring, or its name.
    """
    sources = _sources(bundle, "")
    names = {unit.key: f"{bundle.name}.{unit.key}.{unit.suffix}" for unit in sources.values()}
    texts = {names[unit.key]: unit.text for unit in sources.values()}
    cuda = ("launch",) if any(unit.modes for unit in bundle.units) else ()
    part = ("part",) if bundle.parts else ()
    chosen = ("selection",) if bundle.selections else ()
    words = (
        "GeneratedMask", "bundle", "data", "kernel", *cuda, "loop", "mask", *part, *chosen, "tiles",
    )  # fmt: skip
    text = environment().get_template("module.py.j2").render(
        mask=_filled(f"Mask: {_in_docstring(mask)}", "      "),
        title=_in_docstring(title), sources=tuple(names.items()),
        files=_filled(", ".join(names.values()) + ".")[:-1], imports=_imported(words),
        whole=_bundle(bundle, sources), report=_in_docstring(bundle.report),
    )  # fmt: skip
    return {f"{bundle.name}.py": text, **texts}


@dataclass(frozen=True, slots=True)
class _Source:
    key: str
    suffix: str
    text: str


_Sources = dict[object, _Source]
"""By `_mark`."""


def _sources(bundle: Bundle, prefix: str) -> _Sources:
    """All sources of a bundle and its parts; those equal but for comments once, under their first
    name."""
    found: _Sources = {}
    for unit in bundle.units:
        suffix = Target.named(unit.target).suffix
        found.setdefault(_mark(unit), _Source(prefix + unit.key, suffix, unit.text))
    for number, part in enumerate(bundle.parts):
        for mark, source in _sources(part.bundle, f"part{number}.").items():
            found.setdefault(mark, source)
    return found


def _mark(unit: SourceUnit) -> object:
    """Equal for sources that are equal but for comments."""
    return unit.target, unit.directions, unit.digest


def _bundle(bundle: Bundle, sources: _Sources) -> _Bundle:
    return _Bundle(
        name=bundle.name,
        problem=bundle.problem,
        variants=tuple(map(_mask, bundle.variants)),
        of_head=repr(bundle.head_variant),
        arrays=repr(bundle.arrays),
        declared=tuple(map(_data, bundle.data)),
        params=repr(bundle.params),
        unread=repr(bundle.unread) if bundle.unread else "",
        kernels=tuple(_kernel(unit, sources[_mark(unit)].key) for unit in bundle.units),
        parts=tuple(
            (part.stride, part.aligned, part.keys, _bundle(part.bundle, sources))
            for part in bundle.parts
        ),
        selections=tuple(map(_selection, bundle.selections)),
        report=bool(bundle.report),
    )


def _kernel(unit: SourceUnit, key: str) -> str:
    """Arguments of `kernel`, one a line; `key` names its source."""
    words = [_word(unit.target), f"SOURCE[{_word(key)}]"]
    for mode, chosen in unit.modes:
        words += [_launch(mode, chosen.macro, one) for one in chosen.launches]
    words += [f"tile=({unit.tile.q}, {unit.tile.k})", f"ranges={unit.ranges}"]
    if unit.directions != (Direction.forward,):
        words.append(_several("passes=(", [_word(d.value) for d in unit.directions], 16))
    if unit.maps:
        pairs = [
            f"({_word(each.tensor)}, {each.rows}{f', {each.box}' if each.box else ''})"
            for each in unit.maps
        ]
        words.append(_several("maps=(", pairs, 16))
    if unit.work is not None:
        found = [(each, getattr(unit.work, each.name)) for each in fields(WorkList)]
        kept = [f"{_word(each.name)}: {n}" for each, n in found if n != each.default]
        words.append(f"work={{{', '.join(kept)}}}")
    words += [f"row_floats={unit.row_floats}"] if unit.row_floats else []
    words += [f"key_floats={unit.key_floats}"] if unit.key_floats else []
    words += ["distances=True"] if unit.distances else []
    words += ["by_documents=True"] if unit.by_documents else []
    words += [f"form={_word(unit.form)}"] if unit.form else []
    if unit.costs:
        each = [f"({_word(c.mode)}, {c.row}, {c.tile}, {c.masked})" for c in unit.costs]
        words.append(_several("costs=(", each, 16))
    if unit.boxes is not None:
        own = unit.boxes
        words.append(f"boxes=({own.extents}, {own.q}, {own.k}, {own.seen})")
    if unit.gather is not None:
        words.append(_gather(unit.gather))
    if unit.reach:
        words.append(_several("reach=(", [repr(to_python(each)) for each in unit.reach], 16))
    return ",\n".join(words)


def _gather(own: Gather) -> str:
    constants = _tuple([repr(to_python(value)) for value in own.constants])
    spans = [
        f"({', '.join(repr(to_python(x)) for x in (span.guard, span.first, span.last))})"
        for span in own.beside
    ]
    return _several("gather=(", [constants, _tuple(spans), _tuple(_bounds(own.rests))], 16)


def _bounds(rests: Sequence[E.Expr | None]) -> list[str]:
    return ["None" if rest is None else repr(to_python(rest)) for rest in rests]


def _tuple(words: Sequence[str]) -> str:
    return _several("(", words, 20)


def _launch(mode: str, macro: str, one: Launch) -> str:
    words = [_word(one.entry), _word(one.grid.name), f"threads={one.threads}"]
    words += [f"shared={one.shared_bytes}"] if one.shared_bytes else []
    words += [f"per_block={one.per_block}"] if one.per_block != 1 else []
    words += [f"resident={one.resident}"] if one.resident != 1 else []
    words += [f"feature={_word(one.feature.value)}"] if one.feature else []
    words += [f"mode={_word(mode)}"] if mode != "usual" else []
    words += [f"macro={_word(macro)}"] if macro else []
    return _several("launch(", words, 16)


def _word(text: str) -> str:
    """A plain word in double quotes."""
    return json.dumps(text)


def _imported(words: Sequence[str]) -> str:
    line = f"from maskc.runtime.generated import {', '.join(words)}"
    if len(line) <= _WIDTH:
        return line
    lines = "".join(f"    {word},\n" for word in words)
    return f"from maskc.runtime.generated import (\n{lines})"


def _several(opening: str, words: Sequence[str], column: int) -> str:
    """What `opening` starts, on one line where it fits behind `column`, else one word a line."""
    line = f"{opening}{', '.join(words)}{',' if len(words) == 1 else ''})"
    if column + len(line) < _WIDTH and "\n" not in line:
        return line
    return opening + "\n" + "".join(f"    {word},\n" for word in words) + ")"


def _filled(text: str, indent: str = "") -> str:
    """Prose in lines of at most 100 columns."""
    return textwrap.fill(text, _WIDTH, subsequent_indent=indent, break_long_words=False,
                         break_on_hyphens=False)  # fmt: skip


def _in_docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def _quoted(expr: E.Expr, width: int = 70) -> str:
    """The formula as string literals, one a line, that Python joins."""
    lines = textwrap.wrap(
        to_python(expr), width, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=False,
    )  # fmt: skip
    return "\n".join(json.dumps(line) for line in lines)


def _mask(variant: Variant) -> _Mask:
    recipes = tuple(map(_recipe, variant.recipes))
    args = _several("args=(", [repr(to_python(arg)) for arg in variant.args], 16)
    axes = tuple(map(_quoted, variant.axes))
    rests = _several("rests=(", _bounds(variant.rests), 16) if variant.rests else ""
    lists = [
        f"({to_python(each.low)!r}, {to_python(each.high)!r}, {each.ranges})"
        for each in variant.lists
    ]
    ids = _several("lists=(", lists, 16) if lists else ""
    return _Mask(_quoted(variant.keep), recipes, variant.shape, args, axes, rests, ids)


def _recipe(recipe: LayoutRecipe) -> _Recipe:
    loops = tuple(map(_loop, recipe.loops or ()))
    fixed = repr(recipe.fixed) if recipe.fixed else ""
    tile = recipe.tile
    return _Recipe(tile.q, tile.k, loops, recipe.loops is None, fixed, recipe.square)


def _loop(loop: TileLoop) -> _Loop:
    where = "" if loop.guard == E.ALWAYS else _quoted(loop.guard)
    return _Loop(_quoted(loop.first), _quoted(loop.last), where, loop.step, repr(loop.full))


def _selection(one: Selection) -> str:
    words = [_word(one.name), str(one.k), *(_indented(_quoted(each)) for each in one.allowed)]
    words += [f"score={_word(one.score.value)}"] if one.score is not Score.qk else []
    words += [f"block={one.block}"] if one.block != 1 else []
    words += [f"q_block={one.q_block}"] if one.q_block != 1 else []
    words += [f"share={_word(one.share.value)}"] if one.share is not Share.head else []
    return _several("selection(", words, 12)


def _indented(text: str) -> str:
    """Further lines as deep as the first one."""
    return text.replace("\n", "\n    ")


def _data(decl: DataDecl) -> str:
    words = [repr(decl.name), repr(decl.kind.name), repr(decl.arrays)]
    words += [f"block={decl.block}"] if decl.block != 1 else []
    words += [f"options={decl.options!r}"] if decl.options else []
    if decl.values:
        text = b85encode(decl.values).decode()  # without quotes and backslashes
        lines = "".join(f"        {line!r}\n" for line in textwrap.wrap(text, 70))
        words += [f"values=(\n{lines}    )" if len(text) > 70 else f"values={text!r}"]
        words += [f"shape={decl.shape!r}"]
    return _several("data(", words, 12)
