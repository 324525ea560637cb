"""A mask in parts: launches one after another, each over the residue classes of a stride.

A class of a tensor [batch, heads, tokens, dim] is a view: tokens first, first + stride, ... The
classes of equal sizes are the sequences of one launch, and batch and heads together its heads. The
first part writes the results, each later one joins its own with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from maskc.core.abi import POINTERS, Pointers
from maskc.core.bundle import N_KV_OF_ALL, OF_KEYS, Bundle, PartBundle, SourceUnit
from maskc.core.problem import Direction, Feature, Features
from maskc.core.sizes import Sizes
from maskc.core.tensors import Output, Shape, singles
from maskc.layout import Classes, Tiled, classes, obstacle, sequence_arrays, time_in_pairs, views
from maskc.runtime.arrays import Library
from maskc.runtime.binding import Bound
from maskc.runtime.making import Arrays, Maker, Pass
from maskc.runtime.packing import packed
from maskc.runtime.plans import Plan, Sent
from maskc.runtime.prepare import Place, threshold_words
from maskc.runtime.tables import per_sequence

_ONCE = ("sink_logits", "dsink")
"""What the first part alone takes into account."""
_PER_HEAD = (Feature.alibi, Feature.sinks)
_SINGLE = 4
"""Bytes of an fp32 number; `lse` has such."""
_UNMOVED = (0,) * len(POINTERS)
"""Shifts of a launch that begins where the call's tensors do."""


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
    by_head = by_head or any(feature in features for feature in _PER_HEAD)
    one_by_one = sizes.batch > 1 and (by_head or not _even(sizes, strides))
    rounds = sizes.batch if one_by_one else 1
    heads = 1 if one_by_one else sizes.batch
    for found in classes(stride, sizes.n_q, sizes.n_kv):
        own = Sizes(found.count, heads * sizes.heads_q, heads * sizes.heads_kv,
                    found.n_q, found.n_kv)  # fmt: skip
        steps = {name: (by[2], by[1], stride * by[2]) for name, by in strides.items()}
        for sequence in range(rounds):
            shifts = {
                name: (sequence * by[0] + _first(name, found) * by[2])
                * (_SINGLE if name == "lse" else itemsize)
                for name, by in strides.items()
            }
            yield Place(own, steps, shifts, stride)


def _over_keys(
    residue: int, stride: int, sizes: Sizes, strides: Mapping[str, Shape], itemsize: int
) -> Place:
    """All queries, and the keys of one residue."""
    (found,) = views(stride, residue, sizes.n_q, sizes.n_kv)
    own = {
        name: (by[0], by[1], stride * by[2]) if name in OF_KEYS else by
        for name, by in strides.items()
    }
    shifts = {name: residue * strides[name][2] * itemsize for name in strides if name in OF_KEYS}
    return Place(replace(sizes, n_kv=found.n_kv), own, shifts)


def _first(name: str, found: Classes) -> int:
    return found.first if name in OF_KEYS else found.first_query


def _even(sizes: Sizes, strides: Mapping[str, Shape]) -> bool:
    """Whether the heads of all sequences are equally far apart, in every tensor."""
    return all(
        by[0] == (sizes.heads_kv if name in OF_KEYS else sizes.heads_q) * by[1]
        for name, by in strides.items()
    )


class Step(NamedTuple):
    """One launch of a plan in parts."""

    plan: Plan
    shifts: tuple[int | None, ...]
    """Bytes to add to each of POINTERS; None where the launch has nothing to do with it."""


class Sents(NamedTuple):
    """What each launch finds on the device; stands in for `Sent`."""

    steps: tuple[Sent, ...]
    lse: int = 0
    """None that calls share: launches join what they find there."""


@dataclass(frozen=True, eq=False)
class PartedPlan:
    """One direction of one signature, in parts; stands in for `Plan`."""

    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    """As `Plan` has them; the workspace serves one launch after another."""
    unwritten: bool
    """Whether launches leave rows of gradients alone, which are to be zero."""

    @property
    def kernel(self) -> object:
        """None where results are to be cleared first."""
        return None if self.unwritten or not self.steps else self.steps[0].plan.kernel

    @property
    def size(self) -> int:
        """Bytes this plan keeps alive."""
        return sum({id(step.plan.tables): step.plan.size for step in self.steps}.values())

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the kernels it runs, in order."""
        return tuple(name for step in self.steps for name in step.plan.sources)

    def place(self, library: Library, q: Any) -> tuple[Sents, int]:
        """What each launch finds on the device, and the stream to launch on; see Plan.place."""
        placed = [step.plan.place(library, q) for step in self.steps]
        return Sents(tuple([sent for sent, _ in placed])), placed[0][1] if placed else 0

    def run(
        self, plan: PartedPlan, sent: Sents, pointers: Pointers, scale: float | None,
        softcap: float | None, stream: int,
    ) -> None:  # fmt: skip
        """Launch all, in order."""
        pointers += (0,) * (len(POINTERS) - len(pointers))
        for (own, shifts), there in zip(self.steps, sent.steps, strict=True):
            moved = pointers if shifts == _UNMOVED else _moved(pointers, shifts)
            own.run(own, there, moved, scale, softcap, stream)


def _moved(pointers: Pointers, shifts: tuple[int | None, ...]) -> Pointers:
    """What a launch is given in place of the call's pointers."""
    both = zip(pointers, shifts, strict=True)
    return tuple([at + by if at and by is not None else 0 for at, by in both])


Make = Callable[[int, Features, Place], Plan]
"""(number of the part, features, tokens of a launch) -> its plan."""


def parted_plan(
    parts: tuple[PartBundle, ...],
    direction: Direction,
    features: Features,
    whole: Place,
    itemsize: int,
    outputs: tuple[Output, ...],
    make: Make,
) -> PartedPlan:
    """The plan of a call whose mask runs in parts; other arguments as in `slices`."""
    steps, unwritten, backward = [], False, direction is Direction.backward
    order = range(len(parts))
    if backward and features.isdisjoint(_PER_HEAD):
        order = _sums_last(parts)
    for turn, number in enumerate(order):
        part, own = parts[number], features - {Feature.sinks} if turn else features
        rest = (whole.sizes, whole.strides, itemsize, own)
        for place in slices(part.stride, *rest, keys=part.keys):
            no_keys = not place.sizes.n_kv and (backward or turn)
            if not place.sizes.n_q or no_keys:
                unwritten |= backward and not turn
                continue
            plan = make(number, own, replace(place, joins=turn > 0))
            shifts = tuple(
                None if turn and name in _ONCE else place.shifts.get(name, 0) for name in POINTERS
            )
            steps.append(Step(plan, shifts))
    return _in_order(steps, direction, outputs, unwritten)


def _sums_last(parts: tuple[PartBundle, ...]) -> list[int]:
    """The order of parts in which, of those that have all keys, longer strides are first: where one
    tile has all keys of a query, dq needs no sum, if nothing is to be joined (see ONCE)."""
    return sorted(range(len(parts)), key=lambda i: (parts[i].keys is not None, -parts[i].stride))


def _in_order(
    steps: list[Step], direction: Direction, outputs: tuple[Output, ...], unwritten: bool
) -> PartedPlan:
    """One after another, in a workspace that is enough for each."""
    at = 3 if direction is Direction.backward else 2  # a few forward launches have one too
    spaces = [step.plan.outputs[at] for step in steps if len(step.plan.outputs) > at]
    if spaces:
        most = max(spaces, key=lambda space: space.shape)
        outputs = (*outputs[:at], most, *outputs[at + 1 :])
    return PartedPlan(tuple(steps), outputs, unwritten)


def whole_plan(
    maker: Maker, unit: SourceUnit, wanted: Pass, bound: Bound, arrays: Arrays, place: Place,
    outputs: tuple[Output, ...],
) -> Plan | PartedPlan:  # fmt: skip
    """The plan of a call that runs whole, by the best source where `unit` is the first of several.

    Sequences become heads, or launches of their own, where its copies need that.
    """
    if unit.by_documents:  # whose tiles do not depend on how many queries there are
        unit = maker.chosen(unit, wanted, place.sizes, bound, arrays)
    fit = packed(maker.bundle, unit, wanted, place, arrays)
    if fit is not None:
        return maker.plan(fit[0], wanted, bound, arrays, fit[1], outputs)
    unit = maker.chosen(unit, wanted, place.sizes, bound, arrays)
    rest = (unit, wanted, bound, arrays)
    if unit.boxes is None or not unit.boxes.folds or place.sizes.batch < 2:
        return maker.plan(*rest, place, outputs)
    steps = [
        Step(
            maker.plan(*rest, own, outputs),
            tuple(own.shifts.get(name, 0) for name in POINTERS),
        )
        for own in slices(
            1, place.sizes, place.strides, maker.bundle.problem.dtype.itemsize, wanted.features,
            fold=True, by_head=bool(maker.bundle.head_variant),
        )
    ]  # fmt: skip
    return _in_order(steps, wanted.direction, outputs, False)


def chosen_plan(
    chooser: Maker, maker: Maker, unit: SourceUnit, wanted: Pass, bound: Bound, arrays: Arrays,
    place: Place, outputs: tuple[Output, ...],
) -> PartedPlan:  # fmt: skip
    """The plan of a call whose keys are chosen one by one: thresholds first, then the pass.

    Both have the same workspace, and are told where the thresholds, which it begins with, end.
    """
    first = Pass(Direction.forward, frozenset(), False, wanted.device)
    source = chooser.kernels.unit(Direction.forward)
    plans = (
        chooser.plan(source, first, bound, arrays, place, _no_results(wanted.direction)),
        maker.plan(unit, wanted, bound, arrays, place, outputs),
    )
    steps = [
        Step(plan, tuple(4 * threshold_words(own, place.sizes) if name == "delta" else 0
                         for name in POINTERS))
        for plan, own in zip(plans, (source, unit), strict=True)
    ]  # fmt: skip
    return _in_order(steps, wanted.direction, outputs, False)


def _no_results(direction: Direction) -> tuple[Output, ...]:
    """In place of what comes before the workspace."""
    return (singles(0),) * (3 if direction is Direction.backward else 2)


# ------------------------------------------------------------------ whether it pays


def hold(whole: Bundle, n_q: int, n_kv: int, features: Features = frozenset()) -> bool:
    """Whether a bundle has parts that are its mask at these lengths, with these features."""
    uneven = Feature.alibi in features and any(part.keys is not None for part in whole.parts)
    return bool(whole.parts) and not uneven and not obstacle(whole.parts, n_q, n_kv)


def within(bound: Bound, part: PartBundle, n_kv: int) -> Bound:
    """A call's parameters as a part's mask has them, of so many keys in all."""
    if part.keys is None:
        return bound
    return replace(bound, params={**bound.params, N_KV_OF_ALL: n_kv}, key=(bound.key, n_kv))


def pays(
    whole: Bundle, unit: SourceUnit, sizes: Sizes, params: Mapping[str, int],
    arrays: Callable[[], Mapping[str, np.ndarray]],
) -> bool:  # fmt: skip
    """Whether the parts of a bundle, where they hold, take less time than `unit` takes for it
    whole.

    Decided by the tiles of one head, so that no bit depends on batch, heads or card.
    """
    if per_sequence(whole, arrays()):  # else the others of the batch would decide too
        return False

    def tiled(bundle: Bundle, own: SourceUnit, stride: int, keys: int | None = None) -> Tiled:
        recipe = bundle.variants[0].recipe(own.tile)
        mine = {name: params[name] for name, _ in bundle.params if name in params}
        data = sequence_arrays(recipe, arrays(), 0, 0) if bundle.data else {}
        return Tiled(recipe, mine, data, stride, keys)

    parts = []
    for part in whole.parts:
        own = part.bundle.unit(unit.target, unit.directions[0])
        if own is None:
            return False
        parts.append(tiled(part.bundle, own, part.stride, part.keys))
    rest = ("cuda" if unit.modes else "c", sizes.n_q, sizes.n_kv)
    return time_in_pairs(parts, *rest) < time_in_pairs((tiled(whole, unit, 1),), *rest)
