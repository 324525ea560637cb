"""Whether a mask takes less time in parts than whole: by its tiles and the launches.

Times are in pairs of a full tile, and those of one head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from maskc.core.abi import MAX_ARRAYS
from maskc.core.bundle import N_KV_OF_ALL, OF_KEYS, Bundle, LayoutRecipe, PartBundle, SourceUnit
from maskc.core.layout import FULL
from maskc.core.problem import OF_HEADS, Direction, Features
from maskc.core.sizes import Sizes
from maskc.core.tensors import Shape
from maskc.dispatch.call import Bound, Place
from maskc.dispatch.tables import per_sequence
from maskc.layout import Classes, classes, sequence_arrays
from maskc.layout.tiles.build import build
from maskc.layout.work.residue_classes import views

ROW = {
    ("c", Direction.forward): 64, ("c", Direction.backward): 64,
    ("cuda", Direction.forward): 96, ("cuda", Direction.backward): 384,
}  # fmt: skip
"""Cost of a query's row in addition to its tiles, in pairs, by language and pass: q, out and lse
are read or written once per launch."""
PARTIAL = 1.3
"""Time of a partial tile, a full one's being 1."""
LAUNCH = {
    ("cuda", Direction.forward): 132 * 4e4,
    ("cuda", Direction.backward): 132 * 2e5,
}
"""Cost of a launch on a card of 132 multiprocessors, in pairs: about 3 us forward, and 30 us
backward, where a pass has three. In 156 calls of nine patterns, timed in parts and whole on an
H200, the chosen way takes 1.024 (forward) and 1.011 (backward) times as long as the faster one in
the geometric mean, 1.41 and 1.22 at most. Without this cost it was 3.1 and 7.9 at most."""
ANY_HEADS = 32
"""Heads of all sequences, where the number of sequences may not decide."""


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


def launch_cost(language: str, direction: Direction, heads: int) -> float:
    """Return the share of one head in the cost of a launch, in pairs.

    Args:
        language: of the target, `c` or `cuda`.
        direction: the pass.
        heads: query heads of all sequences.
    """
    return LAUNCH.get((language, direction), 0.0) / max(1, heads)


def heads_of(sizes: Sizes, invariant: bool) -> int:
    """Return the query heads that share a launch; ANY_HEADS where bits may not depend on the number
    of sequences."""
    return ANY_HEADS if invariant else sizes.batch * sizes.heads_q


def time_in_pairs(
    parts: Sequence[Tiled], language: str, n_q: int, n_kv: int, direction: Direction, heads: int
) -> float:
    """Return the time of one head for parts that run one after another, in pairs; a whole mask is
    one part.

    Args:
        parts: each part after the first adds to the results of the earlier ones.
        language: of the target, `c` or `cuda`.
        n_q, n_kv: lengths.
        direction: the pass.
        heads: query heads of all sequences, which share launches.

    Raises:
        See `build`.
    """
    row, launch = ROW[language, direction], launch_cost(language, direction, heads)
    total = float(row * n_q * (len(parts) - 1))
    for part in parts:
        tile, params = part.recipe.tile, {**part.params, N_KV_OF_ALL: n_kv}
        for view in views(part.stride, part.keys, n_q, n_kv):
            total += launch
            layout = build(part.recipe, view.n_q, view.n_kv, params, part.arrays)
            full = int((layout.kind == FULL).sum())
            tiles = full + PARTIAL * (layout.nnz - full)
            total += view.count * (row * view.n_q + tile.q * tile.k * tiles)
    return total


_ONCE = ("sink_logits", "dsink")
"""Inputs that only the first part takes into account."""


_SINGLE = 4
"""Bytes of an fp32 number; `lse` has such."""


def slices(
    stride: int, sizes: Sizes, strides: Mapping[str, Shape], itemsize: int, features: Features,
    *, keys: int | None = None, fold: bool = False, by_head: bool = False,
) -> Iterator[Place]:  # fmt: skip
    """The launches of a part.

    Sequences are launched one by one where a tensor's heads are not equally far apart across
    them, or something belongs to a head by its number.

    Args:
        stride: 1 for the call as it is.
        sizes: of the call.
        strides: of its tensors and lse, in elements.
        itemsize: bytes of an element.
        features: of the call.
        keys: the residue of the keys, where all queries meet those alone.
        fold: whether sequences become heads where nothing is regrouped, too.
        by_head: whether heads have masks of their own.
    """
    if stride == 1 and not fold:
        yield Place(sizes, strides)
        return
    if keys is not None:
        yield _over_keys(keys, stride, sizes, strides, itemsize)
        return
    by_head = by_head or bool(features & OF_HEADS)
    one_by_one = sizes.batch > 1 and (by_head or not _even(sizes, strides))
    rounds = sizes.batch if one_by_one else 1
    heads = 1 if one_by_one else sizes.batch
    for view in classes(stride, sizes.n_q, sizes.n_kv):
        view_sizes = Sizes(view.count, heads * sizes.heads_q, heads * sizes.heads_kv,
                    view.n_q, view.n_kv)  # fmt: skip
        steps = {name: (by[2], by[1], stride * by[2]) for name, by in strides.items()}
        for sequence in range(rounds):
            shifts = {
                name: (sequence * by[0] + _first(name, view) * by[2])
                * (_SINGLE if name == "lse" else itemsize)
                for name, by in strides.items()
            }
            yield Place(view_sizes, steps, shifts, stride)


def _over_keys(
    residue: int, stride: int, sizes: Sizes, strides: Mapping[str, Shape], itemsize: int
) -> Place:
    """All queries, and the keys of one residue."""
    (view,) = views(stride, residue, sizes.n_q, sizes.n_kv)
    view_params = {
        name: (by[0], by[1], stride * by[2]) if name in OF_KEYS else by
        for name, by in strides.items()
    }
    shifts = {name: residue * strides[name][2] * itemsize for name in strides if name in OF_KEYS}
    shift = sizes.n_kv - sizes.n_q
    return Place(
        replace(sizes, n_kv=view.n_kv), view_params, shifts, shift=shift, keys=(residue, stride)
    )


def _first(name: str, view: Classes) -> int:
    return view.first if name in OF_KEYS else view.first_query


def _even(sizes: Sizes, strides: Mapping[str, Shape]) -> bool:
    """Whether the heads of all sequences are equally far apart, in every tensor."""
    return all(
        by[0] == (sizes.heads_kv if name in OF_KEYS else sizes.heads_q) * by[1]
        for name, by in strides.items()
    )


def _sums_last(parts: tuple[PartBundle, ...]) -> list[int]:
    """Return the order of parts: among parts with all keys, longer strides come first.

    If one tile has all keys of a query, dq needs no sum, provided that nothing must be added (see
    EXCLUSIVE_DQ).
    """
    return sorted(range(len(parts)), key=lambda i: (parts[i].keys is not None, -parts[i].stride))


def hold(whole: Bundle, n_q: int, n_kv: int) -> bool:
    """Whether a bundle has parts that are its mask at these lengths."""
    crowded = any(
        part.keys is not None and len(part.bundle.arrays) == MAX_ARRAYS for part in whole.parts
    )  # no room to say which keys there are
    return bool(whole.parts) and not crowded and not obstacle(whole.parts, n_q, n_kv)


def within(bound: Bound, part: PartBundle, n_kv: int) -> Bound:
    """A call's parameters as a part's mask has them, of so many keys in all."""
    if part.keys is None:
        return bound
    return replace(bound, params={**bound.params, N_KV_OF_ALL: n_kv}, key=(bound.key, n_kv))


def pays(
    whole: Bundle, unit: SourceUnit, sizes: Sizes, bound: Bound, direction: Direction,
    invariant: bool = False,
) -> bool:  # fmt: skip
    """Whether the parts of a bundle, where they hold, take less time than `unit` takes for it
    whole.

    Args:
        whole: the bundle.
        unit: its source for the pass.
        sizes: of the call.
        bound: parameters and data.
        direction: the pass.
        invariant: whether bits may not depend on the number of sequences.
    """
    if per_sequence(whole, bound.arrays):  # else the others of the batch would decide too
        return False

    def tiled(bundle: Bundle, unit: SourceUnit, stride: int, keys: int | None = None) -> Tiled:
        recipe = bundle.variants[0].recipe(unit.tile)
        mine = {name: bound.params[name] for name, _ in bundle.params if name in bound.params}
        data = sequence_arrays(recipe, bound.arrays, 0, 0) if bundle.data else {}
        return Tiled(recipe, mine, data, stride, keys)

    parts = []
    for part in whole.parts:
        part_unit = part.bundle.unit(unit.target, unit.directions[0])
        if part_unit is None:
            return False
        parts.append(tiled(part.bundle, part_unit, part.stride, part.keys))
    heads = heads_of(sizes, invariant)
    rest = ("cuda" if unit.modes else "c", sizes.n_q, sizes.n_kv, direction, heads)
    return time_in_pairs(parts, *rest) < time_in_pairs((tiled(whole, unit, 1),), *rest)
