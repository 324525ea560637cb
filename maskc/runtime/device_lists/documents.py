"""Plans of passes whose tile lists are made on the device: sizes, memory and launches.

What the mask asks besides its documents is laid out on the host, once per lengths; the device
leaves out the tiles where no document has both queries and keys.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from functools import cache
from operator import itemgetter

from maskc.core import expr as E
from maskc.core.abi import ATTENTION, WORK_FIELDS
from maskc.core.bundle import Bundle, Grid, Launch, SourceUnit
from maskc.core.layout import MAX_TILES
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.core.tensors import Output
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.launch_plan import launch_plan, mode_of
from maskc.dispatch.recent import Recent
from maskc.dispatch.tables import Tables, make_tables
from maskc.layout import (
    MAX_ITEMS,
    beside_documents,
    heads_per_group,
    longest_promised,
    most_runs,
    room_of,
)
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import (
    Asked,
    Unlisted,
    pack_parts,
    unknown_work,
    words_of_results,
)
from maskc.runtime.device_lists.documents_given import Documents, Given, given_on, lists_of
from maskc.runtime.device_lists.lists_launch import DOCUMENTS, ListsPlan
from maskc.runtime.device_lists.reports import Reports
from maskc.runtime.device_lists.watched import Watched
from maskc.runtime.launch.built import BuiltBundle
from maskc.runtime.launch.prepared import PreparedLaunch, prepare

_MOST_TILES = 1 << 26
"""Tiles of a grid; of longer sequences the host lists the few that are live."""


@dataclass(frozen=True, eq=False)
class Making:
    """The lists that a pass reads."""

    unit: SourceUnit
    """The unit of the pass."""
    sizes: Sizes
    given: Given
    backward: bool
    ordered: bool
    """Whether blocks of a backward pass find their work from their index: then there is no work
    list, and lists by rows and by columns; else those by one of them."""
    kept: int
    """Tiles of the mask but for its documents, in one list."""

    @property
    def capacity(self) -> int:
        """Tiles for which a list has room."""
        rows, columns = self.tiles
        return room_of(self.kept, rows, columns) if self.unit.by_documents else self.kept

    @property
    def lists(self) -> int:
        """Sequences with documents of their own, or 1."""
        return lists_of(self.given)

    @property
    def doubtful(self) -> bool:
        """Whether something given may turn out to be wrong."""
        return any(source.doubtful for source in self.given)

    @property
    def tiles(self) -> tuple[int, int]:
        """Tile rows and columns."""
        tile, sizes = self.unit.tile, self.sizes
        return -(-sizes.n_q // tile.q), -(-sizes.n_kv // tile.k)

    @property
    def sides(self) -> tuple[int, ...]:
        """The sides of which lists are made: 0 rows, 1 columns."""
        return (0, 1) if self.ordered else (int(self.backward),)

    @property
    def owner_heads(self) -> int:
        """Query heads that own a row or a column together."""
        return self.sizes.heads_q // self.sizes.heads_kv if self.backward else 1

    @property
    def owners(self) -> int:
        """The owners of every row or column of a list."""
        return self.sizes.batch // self.lists * self.sizes.heads_q // self.owner_heads

    @property
    def items(self) -> int:
        """The items of the work list: a row is never cut."""
        return self.lists * self.owners * self.tiles[self.backward]

    @property
    def groups(self) -> tuple[int, int]:
        """(owners of a list, lists) whose work runs at the same time; all owners where there are
        several lists."""
        sizes = self.sizes
        tokens = sizes.n_q if self.backward else sizes.n_kv
        heads = 1
        if self.unit.work is not None:
            kv_heads = sizes.batch * sizes.heads_kv
            heads = heads_per_group(self.unit.work, tokens, kv_heads, self.backward)
        owners = heads * (1 if self.backward else sizes.heads_q // sizes.heads_kv)
        return min(owners, self.owners), max(1, owners // self.owners)

    def room(self) -> tuple[tuple[int, ...], int]:
        """(bytes to each part, -1 for those that are not made; int32 entries in all)."""
        n, tiles, lists = (self.sizes.n_q, self.sizes.n_kv), self.tiles, self.lists
        counts: dict[str, int] = {"counter": 2}
        for side, (token, line) in enumerate((("q", "row"), ("k", "col"))):
            counts |= {f"ids_{token}": lists * n[side], f"bounds_{token}": 4 * lists * tiles[side]}
            if side in self.sides:
                counts |= {
                    f"counts_{token}": lists * tiles[side],
                    f"{line}_ptr": lists * (tiles[side] + 1),
                    f"{line}_tiles": lists * self.capacity,
                }
        if self.unit.by_documents:
            bits = 4 * lists * tiles[1]
            counts |= {"runs": bits, "starts": bits, "stops": lists * n[1], "packed": lists}
        if self.doubtful:
            counts["verdict"] = 1
        if not self.ordered:
            counts["work"] = self.items * len(WORK_FIELDS)
        return pack_parts(DOCUMENTS.parts, counts, 0)

    def numbers(self, outputs: tuple[Output, ...], itemsize: int) -> bytes:
        """`struct Listed` without its pointers.

        Args:
            outputs: of the pass.
            itemsize: bytes of an element of its tensors.
        """
        block, sizes, tile = DOCUMENTS.structure(), self.sizes, self.unit.tile
        block.n[:], block.tile[:], block.tile_count[:] = (
            (sizes.n_q, sizes.n_kv), (tile.q, tile.k), self.tiles,
        )  # fmt: skip
        for side, source in enumerate(self.given):
            block.source_list[side] = source.list_stride
            block.source_step[side] = source.array.strides[-1]
            block.source_bytes[side] = source.element_bytes
            block.ends[side] = source.ends
        block.room, block.most_runs = self.capacity, most_runs(self.tiles[1])
        block.lists, block.first_side = self.lists, self.sides[0]
        block.owners, block.owner_heads = self.owners, self.owner_heads
        block.item_heads = self.owner_heads
        block.group_owners, block.group_lists = self.groups
        block.result_words[:] = words_of_results(
            outputs, self.backward, itemsize, len(block.result_words)
        )
        return bytes(block)

    def blocks(self, launch: Launch, multiprocessors: int) -> int:
        """How many a launch has."""
        if launch.grid is Grid.results:
            return launch.resident * multiprocessors
        if launch.grid is Grid.columns:
            return self.lists * self.tiles[1] if self.unit.by_documents else 0
        sides = (0, 1) if launch.grid is Grid.tiles else self.sides
        return self.lists * sum(self.tiles[side] for side in sides)


# ------------------------------------------------------------------ plans


class DocumentLists:
    """Makes such plans for one bundle; safe to use from several threads."""

    def __init__(self, built: BuiltBundle, binder: Binder) -> None:
        self._built, self._binder = built, binder
        self._unit = built.bundle.list_source(built.target.name)
        self._tables: Recent[Tables] = Recent()
        self._reports = cache(Reports)  # of a device
        self._lock = threading.Lock()
        self.active = self._unit is not None
        """Whether the mask is documents and something that reads no data."""

    def bind(self, asked: Asked) -> Bound | None:
        """Parameters and documents of a call; None where the host is to read them.

        Raises:
            DataMissing, DataUnknown, DataType, DataRange, NotAnArray.
        """
        if not self.active or asked.empty:
            return None
        (decl,) = self._built.bundle.data
        keywords = asked.keywords
        given = given_on(asked.device, keywords.get(decl.name), asked.sizes, decl)
        if given is None:
            return None
        params = self._binder.parameters(keywords)
        longest = longest_promised(decl.name, keywords[decl.name])
        shared = given[0] is given[1]
        key = tuple(params.values()), tuple(source.key for source in given), longest, shared
        watched = Watched.of(asked.data, asked.held)
        return Bound(params, None, key, Documents(given, watched), longest)

    def plan(
        self, unit: SourceUnit, wanted: Pass, bound: Bound, place: Place,
        outputs: tuple[Output, ...],
    ) -> ListsPlan:  # fmt: skip
        """How a pass runs over some tokens, by the best source where `unit` is the first of
        several; arguments as in SourceSelector.plan.

        Raises:
            Unlisted: sequences are too long or too many, or lists are to be checked.
            NotAddressable, ExtraMissing: tensor maps cannot be made.
        """
        if os.environ.get("MASKC_CHECK") == "1" or self._unit is None:
            raise Unlisted
        bundle, kernels, index = self._built.bundle, self._built.kernels, wanted.device[1]
        unit = self._built.selector.suited(unit, wanted, place.sizes, bound)
        backward, given = wanted.direction is Direction.backward, bound.given.sources
        kept = self._kept(unit, place.sizes, bound, wanted.direction)
        mode = mode_of(unit, wanted, kept)
        making = Making(
            unit, place.sizes, given, backward, mode == "deterministic",
            dict(kept.parts)["row_tiles"].size,
        )  # fmt: skip
        if making.lists * making.capacity > MAX_TILES or making.items > MAX_ITEMS:
            raise Unlisted
        kernel = kernels.on_device(unit, mode, kept.features(wanted.features), index)
        tables = replace(kept, work=unknown_work(making.items), list_batch=int(making.lists > 1))
        plan = launch_plan(bundle, unit, mode, wanted, place, bound.params, tables, outputs)
        own = prepare(plan, kernel, self._built.dtype)
        room, entries = making.room()
        names = bundle.data[0].arrays
        order = tuple(names.index(name) for name in bundle.arrays)
        arrays = itemgetter(*order, DOCUMENTS.parts.index("stops"))
        lists = kernels.on_device(self._unit, "usual", frozenset(), index)
        *before, spoil = lists.steps(making.blocks)
        return ListsPlan(
            _with_arrays(own, making, order), lists, entries, DOCUMENTS, tuple(before),
            (spoil,) if making.doubtful else (),
            making.numbers(outputs, bundle.problem.dtype.itemsize), room, arrays,
            self._reports(index), bundle.data[0].name,
        )  # fmt: skip

    def _kept(
        self, unit: SourceUnit, sizes: Sizes, bound: Bound, direction: Direction
    ) -> Tables:  # fmt: skip
        """The mask but for its documents at these lengths, as tables of its own."""
        rows, columns = -(-sizes.n_q // unit.tile.q), -(-sizes.n_kv // unit.tile.k)
        if rows * columns > _MOST_TILES:
            raise Unlisted
        reach, params = _reach(unit, bound), bound.params
        key = (unit.key, direction, sizes.n_q, sizes.n_kv, tuple(params.values()), reach)
        tables = self._tables.get(key)
        if tables is None:
            bundle = _without_documents(self._built.bundle, reach)
            own = replace(unit, work=None, costs=(), by_documents=False)
            tables = make_tables(bundle, own, sizes, params, {}, direction, True)
            tables = replace(tables, work=unknown_work(0))
            with self._lock:
                self._tables.put(key, tables)
        return tables


def _reach(unit: SourceUnit, bound: Bound) -> int | None:
    """How far apart a query and a key may be that documents and tiles bring together; None where
    nothing is promised, or queries and keys have documents of their own.

    A tile whose keys are all of one document may lie in tile columns that reach beyond it, and is
    full only where these are.
    """
    of_q, of_k = bound.given.sources
    if bound.longest is None or of_q is not of_k:
        return None
    return bound.longest - 1 + unit.tile.k


def _without_documents(bundle: Bundle, reach: int | None) -> Bundle:
    """The same mask but for its documents, and for pairs that are too far apart to be of one; its
    constants stay those of the whole formula."""
    (variant,) = bundle.variants
    beside = beside_documents(variant.keep, bundle.data)
    if beside is None:
        raise Unlisted
    keep = beside
    if reach is not None:
        ahead = E.sub(E.K, E.Q)
        keep = E.conj(keep, E.le(ahead, E.const(reach)), E.le(E.const(-reach), ahead))
    return replace(bundle, variants=(replace(variant, keep=keep, recipes=()),), arrays=(), data=())


def _with_arrays(plan: PreparedLaunch, making: Making, order: tuple[int, ...]) -> PreparedLaunch:
    """The launch with the distance between the ids of two sequences."""
    block = ATTENTION.from_buffer_copy(plan.numbers)
    lengths = making.sizes.n_q, making.sizes.n_kv
    for place, side in enumerate((*order, 1)):
        block.array_batch[place] = lengths[side] if making.lists > 1 else 0
    return replace(plan, numbers=bytes(block))
