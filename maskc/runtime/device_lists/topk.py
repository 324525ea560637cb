"""Plan passes with blocks chosen on the device: arguments of a call, tables, launches.

The host lays out the rest of the mask once per lengths, for every combination of chosen and not
chosen; see maskc/layout/topk/tile_codes.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from maskc.core.abi import ATTENTION, WORK_FIELDS
from maskc.core.bundle import SourceUnit
from maskc.core.dtypes import E4M3
from maskc.core.expr import arrays
from maskc.core.layout import MAX_TILES
from maskc.core.problem import Direction, TileShape
from maskc.core.selection import FACTORS, SCORING, Score, Selection, with_factors
from maskc.core.sizes import Sizes
from maskc.core.tensors import Array, Device, Output
from maskc.core.widths import INT32
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.constants import constants, reached
from maskc.dispatch.launch_plan import launch_plan
from maskc.dispatch.tables import Tables
from maskc.layout import (
    MAX_ITEMS,
    Hull,
    Spans,
    Work,
    allowed_classes,
    backward_work,
    forward_work,
    hull_of,
    tile_codes,
)
from maskc.runtime.arrays.known import library_of
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import Asked, Unlisted, with_room
from maskc.runtime.device_lists.topk_launch import Given, Ranked, SelectedPlan
from maskc.runtime.device_lists.topk_sizes import TYPES, Choosing, Vote, cases_of
from maskc.runtime.launch.built import BuiltBundle
from maskc.runtime.launch.prepared import PreparedLaunch

_NAMES = ("scores", "index_q", "index_k", "index_w", FACTORS)
_MAX_TILES = 1 << 24
"""Tiles of all masks of a call, and cells that are classed: a word each."""


def _one(_: str) -> int:
    """The largest entry of a run-time selection: they are bits."""
    return 1


class TopKLists:
    """Makes such plans for one bundle; safe to use from several threads."""

    def __init__(self, built: BuiltBundle, binder: Binder) -> None:
        self._built, self._binder, self._target = built, binder, built.target.name
        self._unit = built.bundle.list_source(self._target)
        self.active = self._unit is not None and built.selector.chooses(self._target)
        """Whether the device can choose for this mask."""
        shapes = [(unit.tile.q, unit.tile.k) for unit in built.bundle.units
                  if unit.target == self._target and unit.directions]  # fmt: skip
        self._least_tile = TileShape(*map(min, zip(*shapes, strict=True)))

    def bind(self, asked: Asked) -> Bound | None:
        """Parameters of a call and what it ranks by; None if the host is to choose.

        Raises:
            DataMissing, DataUnknown, DataType, DataRange, NotAnArray.
        """
        if not self.active or asked.empty:
            return None
        sizes, keywords = asked.sizes, asked.keywords
        tiles = -(-sizes.n_q // self._least_tile.q) * -(-sizes.n_kv // self._least_tile.k)
        if tiles * len(self._built.bundle.variants) > _MAX_TILES:
            return None  # for both passes alike, whose choices must not differ by a rounding
        params = self._binder.parameters(keywords)
        given = _given_on(asked.device, keywords, self._built.bundle.selections, sizes)
        if given is None or not all(vote.turn for vote in self._votes(sizes, given)):
            return None
        key = tuple(params.values()), tuple(x.key if x else None for x in given)
        return Bound(params, {}, key, given)

    def _votes(self, sizes: Sizes, given: Given) -> tuple[Vote, ...]:
        bundle = self._built.bundle
        dim = bundle.problem.head_dim
        launches = () if self._unit is None else self._unit.mode().launches
        room = max(launch.shared_bytes for launch in launches)
        return tuple(Vote(selection, sizes, given, dim, room) for selection in bundle.selections)

    def plan(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...],
    ) -> SelectedPlan:  # fmt: skip
        """Plan a pass of `unit` over some tokens; arguments as in SourceSelector.plan.

        Raises:
            Unlisted: there are too many tiles, or lists must be checked.
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """
        known = unit.target == self._target and not unit.distances and unit.boxes is None
        if os.environ.get("MASKC_CHECK") == "1" or not known or self._unit is None:
            raise Unlisted
        program = self._built.selector.choose(unit, wanted, bound, place)
        unit, mode = program.unit, program.mode
        bundle, kernels, index = self._built.bundle, self._built.kernels, wanted.device[1]
        votes = self._votes(place.sizes, bound.given)
        tables, choosing, classes = self._static(unit, wanted, bound, place, votes)
        features = tables.features(wanted.features)
        kernel = kernels.on_device(unit, mode, features, index)
        plan = launch_plan(bundle, unit, mode, wanted, place, bound.params, tables, outputs)
        prepared, room = with_room(kernel.prepare(plan), choosing.backward, choosing.places)
        lists = kernels.on_device(self._unit, "default", frozenset(), index)
        names = [selection.name for selection in bundle.selections]
        order = tuple(map(names.index, bundle.arrays))
        *choices, make = choosing.steps(lists.steps(choosing.blocks))
        return SelectedPlan(
            _with_arrays(prepared, choosing, order), lists, tuple(choices), (make,),
            choosing.numbers(), room, classes, order,
        )  # fmt: skip

    def _static(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place, votes: tuple[Vote, ...]
    ) -> tuple[Tables, Choosing, tuple[int, ...]]:
        """(tables, sizes, where each selection's classes start) before anything is chosen."""
        bundle, sizes = self._built.bundle, place.sizes
        backward = wanted.direction is Direction.backward
        n, params, chosen = (sizes.n_q, sizes.n_kv), bound.params, bundle.selections
        codes = np.stack([tile_codes(v.keep, chosen, unit.tile, *n, params)
                          for v in bundle.variants])  # fmt: skip
        classes = [allowed_classes(selection, *n, params).ravel() for selection in chosen]
        starts = np.cumsum([0, *map(len, classes)])
        if starts[-1] > _MAX_TILES:
            raise Unlisted
        reads = [[i for i, selection in enumerate(chosen) if selection.name in arrays(variant.keep)]
                 for variant in bundle.variants]  # fmt: skip
        cases, of_head = cases_of(bundle.head_variant, reads, votes, sizes.heads_q)
        lists = max(vote.batches for vote in votes)
        hull = hull_of(np.tile(codes[cases[:, 0]], (lists, 1, 1)), chosen, unit.tile)
        ordered = unit.work is None or (wanted.deterministic and backward)
        work = _planned(unit, hull, len(cases), of_head, lists > 1, sizes, backward)
        if ordered:  # its items come from the index of a block; there are as many
            work = Work(work.items, work.filled, False)
        if lists * len(cases) * hull.room > MAX_TILES or len(work.items) > MAX_ITEMS:
            raise Unlisted
        values = {**params, "n_q": sizes.n_q, "n_kv": sizes.n_kv}
        told = [bundle.variants[variant] for variant, _ in cases.tolist()]
        reach = () if self._unit is None else self._unit.reach
        if reached(reach, values, [params[name] for name, _ in bundle.params]) > INT32:
            raise Unlisted
        words = constants(bundle, unit, told, values, _one)
        args = np.array([params[name] for name, _ in bundle.params], np.int32)
        parts = (
            ("mask_args", words.words), ("head_variant", of_head),
            ("row_ptr", cases), ("row_tiles", codes), ("col_ptr", args),
            ("col_tiles", np.concatenate(classes)), ("work", _rows_of(work)),
        )  # fmt: skip
        choosing = Choosing(
            unit, votes, sizes, bound.given, backward, ordered,
            (place.strides["q"][:3], place.strides["k"][:3]), bundle.problem.head_dim, len(cases),
            hull.room, len(work.items), len(work.merges),
        )  # fmt: skip
        tables = Tables(parts, (), len(cases) if lists > 1 else 0, {}, work, wide=words.wide)
        first = tuple(map(int, starts[:-1])) + (0,) * (3 - len(classes))
        return tables, choosing, first


def _planned(
    unit: SourceUnit, hull: Hull, cases: int, of_head: np.ndarray, batched: bool, sizes: Sizes,
    backward: bool,
) -> Work:  # fmt: skip
    """Return worst-case work items, assuming that every tile is live.

    `first` is the index of a tile row or column among those of all lists. No item is ever split.
    """
    count = hull.columns if backward else hull.rows
    number = np.arange(count.size).reshape(count.shape)
    spans = Spans(number, count, number, number)
    step = cases if batched else 0
    lists = step * np.arange(sizes.batch)[:, None] + of_head.astype(np.int64)
    if unit.work is None:
        return Work(np.zeros((0, len(WORK_FIELDS)), np.int32), 0, False)
    rule = replace(unit.work, most_tiles=0, uneven_tiles=0)
    if backward:
        work = backward_work(spans, lists, sizes.heads_kv, sizes.n_q, rule)
    else:
        work = forward_work(spans, lists, sizes.heads_kv, sizes.n_q, sizes.n_kv, rule)
    return replace(work, filled=len(work.items), shared=bool(len(work.merges)))


def _rows_of(work: Work) -> np.ndarray:
    return np.concatenate([work.items, work.merges])


def _with_arrays(
    plan: PreparedLaunch, choosing: Choosing, order: tuple[int, ...]
) -> PreparedLaunch:
    """The launch with the distances between the bits of heads and sequences."""
    block = ATTENTION.from_buffer_copy(plan.numbers)
    for place, number in enumerate(order):
        steps = choosing.array_strides(number)
        block.array_batch[place], block.array_head[place], block.array_row[place] = steps
    return replace(plan, numbers=bytes(block))


# ------------------------------------------------------------------ what a call gives


def _given_on(
    device: Device, keywords: Mapping[str, Any], selections: tuple[Selection, ...], sizes: Sizes
) -> Given | None:
    """Return the ranking tensors of a call if kernels can read them directly.

    Returns:
        None if a tensor is on another device, of another dtype or shape, or of an unknown library.
        The host then reads it, and reports mistakes.
    """
    names = {name for selection in selections for name in SCORING[selection.score]}
    if "index_k" in names:
        keywords = with_factors(keywords)
        names |= {FACTORS} & keywords.keys()
    views = {name: _ranked(device, name, keywords.get(name), sizes) for name in sorted(names)}
    if None in views.values():
        return None
    scores, index_q = views.get("scores"), views.get("index_q")
    whole = sizes.n_q, sizes.n_kv
    for selection in selections:
        blocks = -(-sizes.n_q // selection.q_block), -(-sizes.n_kv // selection.block)
        if selection.score is not Score.given:
            continue
        if scores is None or scores.array.shape[-2:] not in (whole, blocks):
            return None
    index_k, index_w = views.get("index_k"), views.get("index_w")
    if index_q is not None and index_k is not None and index_w is not None:
        heads, _, dim = index_q.array.shape[1:]
        if index_w.array.shape[1] != heads or index_k.array.shape[2] != dim:
            return None
    return tuple(views.get(name) for name in _NAMES)


def _ranked(device: Device, name: str, value: Any, sizes: Sizes) -> Ranked | None:
    library = library_of(type(value))
    if library is None:
        return None
    array = library.view(value, name)
    if array.device != device or array.dtype not in TYPES or 0 in array.shape:
        return None
    if array.dtype == E4M3 and name not in ("index_q", "index_k"):
        return None
    return _as_scores(array, sizes) if name == "scores" else _as_index(array, name, sizes)


def _as_scores(array: Array, sizes: Sizes) -> Ranked | None:
    if len(array.shape) not in (2, 3, 4):
        return None
    batch, heads = (1, 1, *array.shape[:-2])[-2:]
    if batch not in (1, sizes.batch) or heads not in (1, sizes.heads_q):
        return None
    of_batch, of_heads = (0, 0, *array.strides[:-2])[-2:]
    rows, columns = array.strides[-2:]
    return Ranked(
        array, (of_batch if batch > 1 else 0, of_heads if heads > 1 else 0, rows, columns)
    )


def _as_index(array: Array, name: str, sizes: Sizes) -> Ranked | None:
    """index_q [batch, heads, n_q, dim], index_k [batch, n_kv, dim] and its factors [batch, n_kv],
    index_w [batch, heads, n_q]."""
    of_keys = name in ("index_k", FACTORS)
    tokens = 1 if of_keys else 2
    rank = {"index_q": 4, FACTORS: 2}.get(name, 3)
    length = sizes.n_kv if of_keys else sizes.n_q
    shape, steps = array.shape, array.strides
    if len(shape) != rank or shape[0] not in (1, sizes.batch) or shape[tokens] != length:
        return None
    batch = steps[0] if shape[0] > 1 else 0
    if of_keys:
        return Ranked(array, (batch, 0, steps[1], steps[2] if rank == 3 else 0))
    return Ranked(array, (batch, steps[1], steps[2], steps[3] if rank == 4 else 0))
