"""What compilation hands to the runtime: sources, formulas and recipes, all plain values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from maskc.core.data import DataDecl
from maskc.core.expr import Expr
from maskc.core.problem import Problem, TileShape
from maskc.core.source import SourceLoc

_COMMENT = re.compile(r"//.*")


@dataclass(frozen=True)
class TileLoop:
    """The tiles first, first + step, ..., last of every tile row where `guard` holds.

    All formulas are over ti, n_q, n_kv and parameters.
    """

    guard: Expr
    first: Expr
    last: Expr
    """Inclusive; below `first` there is no tile."""
    step: int
    full: bool


@dataclass(frozen=True)
class LayoutRecipe:
    """How lengths become tiles, without isl."""

    tile: TileShape
    keep: Expr
    """The mask over q, k, n_q, n_kv, parameters and data arrays."""
    loops: tuple[TileLoop, ...] | None
    """Disjoint and complete closed forms; None where only the numbers decide."""
    fixed: tuple[tuple[str, int], ...] = ()
    """Parameter values for which `loops` hold; with others the numbers decide."""
    square: bool = False
    """Whether `loops` hold only where n_q == n_kv."""


@dataclass(frozen=True)
class Variant:
    """One of the distinct masks among the heads."""

    keep: Expr
    """The mask over q, k, n_q, n_kv, parameters and data arrays."""
    shape: int
    """Which formula of the source evaluates it."""
    args: tuple[Expr, ...]
    """Values of the formula's constants c0, c1, ..., over n_q, n_kv and parameters."""
    recipes: tuple[LayoutRecipe, ...]
    """One per tile shape of the units."""

    def recipe(self, tile: TileShape) -> LayoutRecipe:
        """The recipe for a tile shape; numeric when none was prepared."""
        for recipe in self.recipes:
            if recipe.tile == tile:
                return recipe
        return LayoutRecipe(tile, self.keep, None)


@dataclass(frozen=True)
class SourceUnit:
    """One kernel source and all that launching it takes."""

    target: str
    text: str
    tile: TileShape
    ranges: bool
    """Whether tile lists are closed forms inside the kernel, so that forward needs no lists."""
    threads: int = 0
    """Per block (CUDA)."""
    shared_bytes: int = 0
    """Dynamic shared memory per block (CUDA)."""
    origins: tuple[tuple[int, SourceLoc, str], ...] = field(default=(), compare=False)
    """(line of text, the user's position, the term there), for compiler messages."""

    @cached_property
    def digest(self) -> str:
        """sha256 of the text without its comments, hexadecimal: what decides the binary."""
        lines = (_COMMENT.sub("", line).rstrip() for line in self.text.splitlines())
        return sha256("\n".join(filter(None, lines)).encode()).hexdigest()


@dataclass(frozen=True)
class Bundle:
    """A compiled mask before it is built."""

    name: str
    problem: Problem
    variants: tuple[Variant, ...]
    head_variant: tuple[int, ...]
    """For each query head its variant; empty when all share variant 0."""
    arrays: tuple[str, ...]
    """Data arrays in the order of the kernel's `array` slots."""
    data: tuple[DataDecl, ...]
    params: tuple[tuple[str, int], ...]
    """Names and defaults, sorted."""
    units: tuple[SourceUnit, ...]
    """One per target."""
    unread: tuple[str, ...] = ()
    """Keywords the mask declares but does not need; calls may pass them."""
    report: str = field(default="", compare=False)
    """What explain() prints."""

    def unit(self, target: str) -> SourceUnit | None:
        return next((unit for unit in self.units if unit.target == target), None)
