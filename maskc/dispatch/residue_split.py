"""Masks in parts, over residue classes of the tokens: when the parts hold, and their launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from maskc.core.abi import MAX_ARRAYS
from maskc.core.bundle import N_KV_OF_ALL, OF_KEYS, Bundle, PartBundle
from maskc.core.problem import OF_HEADS, Direction, Features
from maskc.core.sizes import Sizes
from maskc.core.tensors import Shape
from maskc.dispatch.call import Bound, Place
from maskc.layout import Classes, classes
from maskc.layout.work.residue_classes import views


class Regrouped(Protocol):
    """A part of a mask."""

    @property
    def stride(self) -> int:
        """1: over the tokens as they are; s >= 2: over those of every residue class modulo s."""

    @property
    def aligned(self) -> bool:
        """Whether it holds only where the stride divides n_kv - n_q."""

    @property
    def keys(self) -> int | None:
        """Over all queries and the keys of this residue; None: see `stride`."""


def obstacle(parts: Sequence[Regrouped], n_q: int, n_kv: int) -> str:
    """Why a mask does not run in these parts at these lengths; empty if it may."""
    odd = [part.stride for part in parts if part.aligned and (n_kv - n_q) % part.stride]
    if odd:
        return f"n_kv - n_q is no multiple of {' or '.join(map(str, odd))}"
    if parts and n_kv < parts[0].stride:  # their queries would be in no launch of the first part
        return f"some classes modulo {parts[0].stride} have no keys"
    return ""


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
        fold: whether sequences become heads where nothing is regrouped too.
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


def in_turn(
    parts: Sequence[Regrouped], direction: Direction, features: Features = frozenset()
) -> list[int]:
    """Return the order in which the parts of a pass run.

    In backward passes, longer strides come first among parts with all keys: if one tile has all
    keys of a query, dq needs no sum, provided that nothing must be added (see EXCLUSIVE_DQ).
    """
    if direction is Direction.forward or features & OF_HEADS:
        return list(range(len(parts)))
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
