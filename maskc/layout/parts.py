"""Whether a mask takes less time in parts than whole: by its tiles, which lengths decide.

Times are in pairs of a full tile, and those of one head, so that nothing but the mask and the
lengths decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from maskc.core.bundle import N_KV_OF_ALL, LayoutRecipe
from maskc.core.layout import FULL
from maskc.layout.tiles.build import build
from maskc.layout.work.residue_classes import views

_ROW = {"c": 64, "cuda": 384}
"""Pairs that take as long as a query's row does beside its tiles, by language: q, out and lse are
read or written once per launch."""
_PARTIAL = 1.3
"""Time of a partial tile, a full one's being 1."""


class Regrouped(Protocol):
    """A part of a mask."""

    @property
    def stride(self) -> int:
        """1: over the tokens as they are; s >= 2: over those of every residue class modulo s."""

    @property
    def aligned(self) -> bool:
        """Whether it holds only where the stride divides n_kv - n_q."""


def obstacle(parts: Sequence[Regrouped], n_q: int, n_kv: int) -> str:
    """Why a mask does not run in these parts at these lengths; empty where it may."""
    odd = [part.stride for part in parts if part.aligned and (n_kv - n_q) % part.stride]
    if odd:
        return f"n_kv - n_q is no multiple of {' or '.join(map(str, odd))}"
    if parts and n_kv < parts[0].stride:  # their queries would be in no launch of the first part
        return f"some classes modulo {parts[0].stride} have no keys"
    return ""


@dataclass(frozen=True)
class Tiled:
    """A mask, or a part of one, with what its tiles depend on besides lengths."""

    recipe: LayoutRecipe
    params: Mapping[str, int] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    """int32, one sequence's and one head's."""
    stride: int = 1
    """1: over the tokens as they are; s >= 2: over those of every residue class modulo s."""
    keys: int | None = None
    """Over all queries and the keys of this residue; None: see `stride`."""


def time_in_pairs(parts: Sequence[Tiled], language: str, n_q: int, n_kv: int) -> float:
    """What parts take one after another; a mask whole is one part.

    Args:
        parts: each after the first joins its results with those that are there.
        language: of the target, `c` or `cuda`.
        n_q, n_kv: lengths.

    Raises:
        See `build`.
    """
    row = _ROW[language]
    total = float(row * n_q * (len(parts) - 1))
    for part in parts:
        tile, params = part.recipe.tile, {**part.params, N_KV_OF_ALL: n_kv}
        for found in views(part.stride, part.keys, n_q, n_kv):
            layout = build(part.recipe, found.n_q, found.n_kv, params, part.arrays)
            full = int((layout.kind == FULL).sum())
            tiles = full + _PARTIAL * (layout.nnz - full)
            total += found.count * (row * found.n_q + tile.q * tile.k * tiles)
    return total
