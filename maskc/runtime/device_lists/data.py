"""Plans of passes whose tile lists are made on the device from data there: sizes, memory and
launches.

The host lays out all tiles that some data could make live, once per lengths. The device drops the
tiles that the data rule out. Tiles of documents may begin at the first token of a document, see
maskc/layout/tiles/document_tiles.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache

import numpy as np

from maskc.core import expr as E
from maskc.core.abi import ATTENTION
from maskc.core.bundle import (
    BY_QUERIES,
    DEFAULT,
    DETERMINISTIC,
    DOCUMENT_ROWS,
    PACK_GQA,
    Bundle,
    SourceUnit,
)
from maskc.core.forks import new_lock
from maskc.core.forms import DOCUMENTS
from maskc.core.layout import MAX_TILES
from maskc.core.problem import Direction, Feature
from maskc.core.sizes import Sizes
from maskc.core.tensors import Output
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.launch_plan import launch_plan
from maskc.dispatch.packing import interleaved_heads, narrowed, packed
from maskc.dispatch.programs import Emitted
from maskc.dispatch.recent import Recent
from maskc.dispatch.tables import Tables, make_tables
from maskc.layout import MAX_ITEMS, band_of, longest_promised, without_documents
from maskc.layout.tiles.data_tiles import has_pairs, readings_of, split
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import Asked, Unlisted, unknown_work
from maskc.runtime.device_lists.data_given import Reader
from maskc.runtime.device_lists.lists_check import ListsCheck
from maskc.runtime.device_lists.lists_launch import ListsPlan
from maskc.runtime.device_lists.making import Making
from maskc.runtime.device_lists.reports import Reports
from maskc.runtime.launch.built import BuiltBundle

_MAX_TILES = 1 << 26
"""The largest number of tiles; for longer sequences the host lists the few live ones."""
_MAX_ENTRIES = 1 << 28
"""The most entries of the memory of lists, of four bytes."""


class DataLists:
    """Makes such plans for one bundle; safe to use from several threads."""

    def __init__(self, built: BuiltBundle, binder: Binder) -> None:
        self._built, self._binder, bundle = built, binder, built.bundle
        self._unit = bundle.list_source(built.target.name)
        self._names = ", ".join(decl.name for decl in bundle.data)
        self._tables: Recent[Tables] = Recent()
        self._reports = cache(Reports)  # of a device
        self._lock = new_lock()
        keeps = [one.keep for one in bundle.variants]
        pairs = any(has_pairs(load) for keep in keeps for load in E.loads(keep))
        self._reader = Reader(bundle.data, bundle.arrays, pairs)
        self._readings = readings_of(keeps, bundle.arrays)
        self.active = self._unit is not None
        """Whether a source makes the lists of this mask."""
        self._by_documents = self._unit is not None and self._unit.form == DOCUMENTS

    def bind(self, asked: Asked) -> Bound | None:
        """Parameters and data of a call; None if the host is to read them.

        Raises:
            DataMissing, DataUnknown, DataType, DataRange, NotAnArray.
        """
        given = self._reader.read(asked) if self.active else None
        if given is None:
            return None
        params = self._binder.parameters(asked.keywords)
        sources = given.sources
        key = tuple(params.values()), tuple(source.key for source in sources)
        if not self._by_documents:
            return Bound(params, {}, key, given)
        (decl,) = self._built.bundle.data
        longest = longest_promised(decl.name, asked.keywords.get(decl.name))
        return Bound(params, {}, (*key, longest, sources[0] is sources[1]), given, longest)

    def plan(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...],
    ) -> ListsPlan:  # fmt: skip
        """Plan a pass over some tokens, with the best source if `unit` is the first of several;
        arguments as in SourceSelector.plan.

        Raises:
            Unlisted: sequences are too long or too many.
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """
        *better, fallback = self._programs(unit, wanted, bound, place)
        for program, tokens in better:  # lists of the fallback's larger tiles are shorter
            with suppress(Unlisted):
                return self._plan_of(program, tokens, wanted, bound, outputs)
        return self._plan_of(*fallback, wanted, bound, outputs)

    def _plan_of(
        self, program: Emitted, place: Place, wanted: Pass, bound: Bound,
        outputs: tuple[Output, ...],
    ) -> ListsPlan:  # fmt: skip
        """Plan a pass that runs one program; errors as of `plan`."""
        if self._unit is None:
            raise Unlisted
        bundle, given, mode = self._built.bundle, bound.given, program.mode
        unit = narrowed(program.unit, interleaved_heads(mode, place))
        by_head = bool(bundle.head_variant) or any(x.shape[1] > 1 for x in given.sources)
        kept = self._kept(unit, place.sizes, bound, wanted.direction, by_head)
        placed = unit.work is None or mode == DETERMINISTIC
        ptr = np.atleast_2d(dict(kept.parts)["row_ptr"])
        band = None
        by_rows = unit.by_documents or (
            mode == DEFAULT and DOCUMENT_ROWS in dict(unit.modes) and not place.accumulates
        )
        if by_rows and Feature.entmax not in wanted.features:
            band = _band(bundle, place.sizes, bound.params)
        making = Making(
            unit=unit, sizes=place.sizes, given=given, readings=self._readings,
            backward=wanted.direction is Direction.backward, placed=placed, by_head=by_head,
            by_rows=placed or Feature.entmax in wanted.features,
            kept=int((ptr[:, -1] - ptr[:, 0]).max()),
            band=band, one_interval=BY_QUERIES in dict(self._unit.modes),
            longest=bound.longest, wide=kept.wide,
            packed=place.packed if mode == PACK_GQA else 0,
        )  # fmt: skip
        too_many = making.lists * making.capacity > MAX_TILES or making.items > MAX_ITEMS
        if too_many or making.room()[1] > _MAX_ENTRIES:
            raise Unlisted
        rest = (program, kept, wanted, bound, place, outputs)
        return self._planned(self._unit, making, *rest)

    def _programs(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place
    ) -> list[tuple[Emitted, Place]]:
        """List the best programs with their tokens, the best one first: a second one has larger
        tiles.

        Query heads are rows of one tile if they fit, or if that takes less time.
        """
        bundle, selector = self._built.bundle, self._built.selector
        shapes = {
            name: np.broadcast_to(np.int32(0), source.shape)
            for name, source in zip(bundle.arrays, bound.given.sources, strict=True)
        }
        bound = replace(bound, arrays=shapes)
        if not self._by_documents:
            fit = packed(bundle, unit, wanted, bound, place)
            if fit is not None and fit[0].unit.work is not None:
                return [fit]
        whole = selector.choose(unit, wanted, bound, place), place
        best = selector.interleave(unit, wanted, bound, place, whole[0])
        return [whole] if best[0] is whole[0] else [best, whole]

    def _kept(
        self, unit: SourceUnit, sizes: Sizes, bound: Bound, direction: Direction, by_head: bool
    ) -> Tables:
        """Return tables of the tiles that the masks could keep at these lengths: for each head, or
        once for all.

        Raises:
            Unlisted: sequences are too long.
        """
        rows, columns = -(-sizes.n_q // unit.tile.q), -(-sizes.n_kv // unit.tile.k)
        if rows * columns > _MAX_TILES:
            raise Unlisted
        params, reach = bound.params, _reach(unit, bound)
        heads = sizes.heads_q if by_head else 0
        lengths = unit.tile, sizes.n_q, sizes.n_kv
        key = (unit.key, direction, *lengths, tuple(params.values()), heads, reach)
        tables = self._tables.get(key)
        if tables is None:
            kept_unit = replace(unit, work=None)
            if self._by_documents:
                kept_unit = replace(kept_unit, costs=(), by_documents=False)
            bundle = _without_data(self._built.bundle, reach)
            tables = make_tables(bundle, kept_unit, sizes, params, {}, direction, True)
            tables = replace(tables, work=unknown_work(0), adders=None)
            tables = _of_heads(tables, bundle, kept_unit, sizes, params) if by_head else tables
            with self._lock:
                self._tables.put(key, tables)
        return tables

    def _planned(
        self, source: SourceUnit, making: Making, program: Emitted, kept: Tables, wanted: Pass,
        bound: Bound, place: Place, outputs: tuple[Output, ...],
    ) -> ListsPlan:  # fmt: skip
        """The plan of a pass.

        Args:
            source: makes the lists.
            making: the lists that it reads.
            program: what runs.
            kept: what the masks could keep.

        Raises:
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """
        built, index, unit, mode = self._built, wanted.device[1], program.unit, program.mode
        batches, heads = making.extents
        rows = making.tiles[0] if making.backward and making.by_lengths else 0
        if rows:
            mode = DOCUMENT_ROWS
        work = None
        if unit.work is not None:
            parts = making.items if making.cutting.least else making.shared
            work = unknown_work(making.items, making.shared, parts)
        tables = replace(kept, work=work, list_batch=heads if batches > 1 else 0, rows=rows)
        kernel = built.kernels.on_device(unit, mode, kept.features(wanted.features), index)
        plan = launch_plan(built.bundle, unit, mode, wanted, place, bound.params, tables, outputs)
        prepared = kernel.prepare(plan)
        block = ATTENTION.from_buffer_copy(prepared.numbers)
        making.fill_pass(block)
        lists = built.kernels.on_device(source, making.mode, frozenset(), index)
        make, *spoil = lists.steps(making.blocks)
        room, entries = making.room()
        return ListsPlan(
            replace(prepared, numbers=bytes(block)), lists, entries, making.state, (make,),
            tuple(spoil) if making.doubtful else (), making.doubtful,
            making.numbers(outputs, built.bundle.problem.dtype.itemsize), room,
            self._reports(index), self._names,
            ListsCheck(built.bundle, self._binder, making).compare,
        )  # fmt: skip


def _band(bundle: Bundle, sizes: Sizes, params: Mapping[str, int]) -> tuple[int, int] | None:
    """The keys of its document that a query sees, see `band_of`."""
    alongside = without_documents(bundle.variants[0].keep, bundle.data)
    if alongside is None:
        return None
    return band_of(alongside, sizes.n_q, sizes.n_kv, tuple(params.items()))


def _reach(unit: SourceUnit, bound: Bound) -> int | None:
    """Return the largest distance between a query and a key that documents and tiles allow; None
    without a bound, or if queries and keys have separate documents.

    The keys of a tile may all belong to one document although its tile columns reach beyond the
    document. Such a tile is full only if those columns are.
    """
    if bound.longest is None or bound.given.sources[0] is not bound.given.sources[1]:
        return None
    return bound.longest - 1 + unit.tile.k


def _without_data(bundle: Bundle, reach: int | None) -> Bundle:
    """Return the mask without its data terms, with the constants of the whole formula.

    Args:
        reach: largest distance between a query and its keys; None: unknown.
    """
    ahead = E.sub(E.K, E.Q)
    near = () if reach is None else (E.le(ahead, E.const(reach)), E.le(E.const(-reach), ahead))
    variants = tuple(
        replace(variant, keep=E.conj(split(variant.keep).hull, *near), recipes=())
        for variant in bundle.variants
    )
    return replace(bundle, variants=variants, arrays=(), data=())


def _of_heads(
    tables: Tables, bundle: Bundle, unit: SourceUnit, sizes: Sizes, params: Mapping[str, int]
) -> Tables:
    """The tables with constants for every head, and where its lists begin."""
    of_head = list(bundle.head_variant or (0,) * sizes.heads_q)
    of_heads = replace(
        bundle, variants=tuple(bundle.variants[number] for number in of_head),
        head_variant=tuple(range(len(of_head))),
    )  # fmt: skip
    alone = replace(unit, costs=(), distances=False)
    words = make_tables(of_heads, alone, sizes, params, {}, Direction.forward, False).parts
    lists = [
        (name, values[of_head] if name.endswith("_ptr") else values)
        for name, values in tables.parts
        if name not in dict(words)
    ]
    return replace(tables, parts=(*words, *lists))
