"""Writes a bundle as a Python module that a stranger can read, import and call."""

from __future__ import annotations

import json
import textwrap
from base64 import b85encode
from dataclasses import dataclass

from maskc.core import expr as E
from maskc.core.bundle import Bundle, LayoutRecipe, TileLoop, Variant
from maskc.core.data import DataDecl
from maskc.core.expr_text import to_python
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


def module_files(bundle: Bundle, mask: str, title: str) -> dict[str, str]:
    """File names and texts: the module, and one source per target beside it.

    Args:
        bundle: with one unit per target.
        mask: the mask as maskc prints it.
        title: the first line of the pattern's docstring, or its name.
    """
    sources = tuple(
        (unit.target, f"{bundle.name}.{unit.target}.{Target.named(unit.target).suffix}")
        for unit in bundle.units
    )
    text = environment().get_template("module.py.j2").render(
        bundle=bundle, mask=_in_docstring(mask), title=_in_docstring(title), sources=sources,
        files=[file for _, file in sources], variants=[_mask(v) for v in bundle.variants],
        of_head=repr(bundle.head_variant), arrays=repr(bundle.arrays),
        declared=[_data(decl) for decl in bundle.data], params=repr(bundle.params),
        unread=repr(bundle.unread),
        report=_in_docstring(bundle.report),
    )  # fmt: skip
    files = {f"{bundle.name}.py": text}
    files |= {file: unit.text for unit, (_, file) in zip(bundle.units, sources, strict=True)}
    return files


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
    args = repr(tuple(map(to_python, variant.args)))
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
        words += [f"values={b85encode(decl.values).decode()!r}", f"shape={decl.shape!r}"]
    return ", ".join(words)
