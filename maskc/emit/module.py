"""Writes a bundle as a Python module that a stranger can read, import and call."""

from __future__ import annotations

import json
import textwrap
from base64 import b85encode
from collections.abc import Sequence
from dataclasses import dataclass

from maskc.core import expr as E
from maskc.core.bundle import Bundle, Launch, LayoutRecipe, SourceUnit, TileLoop, Variant, WorkList
from maskc.core.data import DataDecl
from maskc.core.expr_text import to_python
from maskc.core.problem import Direction
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


_WIDTH = 100
"""Most columns of a generated module."""


def module_files(bundle: Bundle, mask: str, title: str) -> dict[str, str]:
    """File names and texts: the module, and its sources beside it.

    Args:
        bundle: whose units have keys of their own.
        mask: the mask as maskc prints it.
        title: the first line of the pattern's docstring, or its name.
    """
    keys = [unit.key for unit in bundle.units]
    names = [
        f"{bundle.name}.{key}.{Target.named(unit.target).suffix}"
        for key, unit in zip(keys, bundle.units, strict=True)
    ]
    cuda = ("launch",) if any(unit.modes for unit in bundle.units) else ()
    words = ("GeneratedMask", "bundle", "data", "kernel", *cuda, "loop", "mask", "tiles")
    text = environment().get_template("module.py.j2").render(
        bundle=bundle, mask=_filled(f"Mask: {_in_docstring(mask)}", "      "),
        title=_in_docstring(title), sources=tuple(zip(keys, names, strict=True)),
        files=_filled(", ".join(names) + ".")[:-1], words=", ".join(words),
        variants=[_mask(v) for v in bundle.variants],
        of_head=repr(bundle.head_variant), arrays=repr(bundle.arrays),
        declared=[_data(decl) for decl in bundle.data], params=repr(bundle.params),
        kernels=list(map(_kernel, bundle.units)), unread=repr(bundle.unread),
        report=_in_docstring(bundle.report),
    )  # fmt: skip
    files = {f"{bundle.name}.py": text}
    files |= {name: unit.text for unit, name in zip(bundle.units, names, strict=True)}
    return files


def _kernel(unit: SourceUnit) -> str:
    """Arguments of `kernel`, one a line."""
    words = [_word(unit.target), f"SOURCE[{_word(unit.key)}]"]
    for mode, chosen in unit.modes:
        words += [_launch(mode, chosen.macro, one) for one in chosen.launches]
    words += [f"tile=({unit.tile.q}, {unit.tile.k})", f"ranges={unit.ranges}"]
    if unit.directions != (Direction.forward,):
        words.append(_several("passes=(", [_word(d.value) for d in unit.directions], 16))
    if unit.maps:
        pairs = [f"({_word(each.tensor)}, {each.rows})" for each in unit.maps]
        words.append(_several("maps=(", pairs, 16))
    if unit.work is not None:
        found = {name: getattr(unit.work, name) for name in WorkList.__dataclass_fields__}
        kept = [f"{_word(name)}: {n}" for name, n in found.items() if n or name == "group_tokens"]
        words.append(f"work={{{', '.join(kept)}}}")
    words += [f"row_floats={unit.row_floats}"] if unit.row_floats else []
    words += [f"key_floats={unit.key_floats}"] if unit.key_floats else []
    words += ["distances=True"] if unit.distances else []
    words += [f"form={_word(unit.form)}"] if unit.form else []
    if unit.costs:
        each = [f"({_word(c.mode)}, {c.row}, {c.tile}, {c.masked})" for c in unit.costs]
        words.append(_several("costs=(", each, 16))
    return ",\n".join(words)


def _launch(mode: str, macro: str, one: Launch) -> str:
    words = [_word(one.entry), _word(one.grid.name), f"threads={one.threads}"]
    words += [f"shared={one.shared_bytes}"] if one.shared_bytes else []
    words += [f"per_block={one.per_block}"] if one.per_block != 1 else []
    words += [f"resident={one.resident}"] if one.resident != 1 else []
    words += [f"mode={_word(mode)}"] if mode != "usual" else []
    words += [f"macro={_word(macro)}"] if macro else []
    return _several("launch(", words, 16)


def _word(text: str) -> str:
    """A plain word in double quotes."""
    return json.dumps(text)


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
    return _Mask(_quoted(variant.keep), recipes, variant.shape, args)


def _recipe(recipe: LayoutRecipe) -> _Recipe:
    loops = tuple(map(_loop, recipe.loops or ()))
    fixed = repr(recipe.fixed) if recipe.fixed else ""
    tile = recipe.tile
    return _Recipe(tile.q, tile.k, loops, recipe.loops is None, fixed, recipe.square)


def _loop(loop: TileLoop) -> _Loop:
    where = "" if loop.guard == E.ALWAYS else _quoted(loop.guard)
    return _Loop(_quoted(loop.first), _quoted(loop.last), where, loop.step, repr(loop.full))


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
