"""Plans of passes whose tile lists are made on the device: sizes, memory and launches.

What the mask asks besides its documents is laid out on the host, once per lengths; the device
leaves out the tiles where no document has both queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from maskc.core import expr as E
from maskc.core.bundle import DETERMINISTIC, Bundle, Grid, Launch, SourceUnit
from maskc.core.layout import MAX_TILES
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.core.tensors import Output
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.tables import Tables, make_tables
from maskc.layout import MAX_ITEMS, beside_documents, longest_promised, most_runs, room_of
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import Asked, Unlisted, unknown_work
from maskc.runtime.device_lists.data_given import WIDE_CODES, Reader
from maskc.runtime.device_lists.lists_launch import DOCUMENTS, ListsPlan
from maskc.runtime.device_lists.making import ListsMaker, Making
from maskc.runtime.launch.built import BuiltBundle


@dataclass(frozen=True, eq=False, kw_only=True)
class DocumentMaking(Making):
    """The lists that a pass reads, from documents: `given` has the ids of queries and of keys."""

    order: tuple[int, ...]
    """Which of the two each of the kernel's arrays is."""

    @property
    def capacity(self) -> int:
        rows, columns = self.tiles
        return room_of(self.kept, rows, columns) if self.unit.by_documents else self.kept

    def entries(self) -> dict[str, int]:
        """Ids and bounds of tiles, and where documents begin and end."""
        lists, (rows, columns) = self.lists, self.tiles
        counts = {
            "ids_q": lists * self.sizes.n_q, "bounds_q": 4 * lists * rows,
            "ids_k": lists * self.sizes.n_kv, "bounds_k": 4 * lists * columns,
        }  # fmt: skip
        if self.unit.by_documents:
            bits, stops = 4 * lists * columns, lists * self.sizes.n_kv
            counts |= {"runs": bits, "starts": bits, "stops": stops, "packed": lists}
        return counts

    def fill(self, block: Any) -> None:
        """Set the rest of `struct Listed`."""
        for side, source in enumerate(self.given.sources):
            block.source_list[side], *_, block.source_step[side] = source.strides
            block.source_bytes[side], block.ends[side] = source.element_bytes, source.ends
        block.room, block.most_runs = self.capacity, most_runs(self.tiles[1])

    def fill_pass(self, block: Any) -> None:
        """Set the distance between the ids of two sequences."""
        lengths = self.sizes.n_q, self.sizes.n_kv
        for place, side in enumerate((*self.order, 1)):
            block.array_batch[place] = lengths[side] if self.lists > 1 else 0

    def blocks(self, launch: Launch, multiprocessors: int) -> int:
        if launch.grid is Grid.columns:
            return self.lists * self.tiles[1] if self.unit.by_documents else 0
        if launch.grid is Grid.tiles:
            return self.lists * sum(self.tiles)
        return super().blocks(launch, multiprocessors)


class DocumentLists(ListsMaker):
    """Makes such plans for a mask of documents and something that reads no data."""

    def __init__(self, built: BuiltBundle, binder: Binder) -> None:
        super().__init__(built, binder)
        bundle = built.bundle
        self._reader = Reader(bundle.data, bundle.data[0].arrays if self.active else (), WIDE_CODES)

    def bind(self, asked: Asked) -> Bound | None:
        """Parameters and documents of a call; None where the host is to read them.

        Raises:
            DataMissing, DataUnknown, DataType, DataRange, NotAnArray.
        """
        given = self._reader.read(asked) if self.active else None
        if given is None:
            return None
        (decl,) = self._built.bundle.data
        params = self._binder.parameters(asked.keywords)
        longest = longest_promised(decl.name, asked.keywords[decl.name])
        of_q, of_k = given.sources
        key = tuple(params.values()), (of_q.key, of_k.key), longest, of_q is of_k
        return Bound(params, {}, key, given, longest)

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
        source, bundle = self._source_of_lists(), self._built.bundle
        program = self._built.selector.choose(unit, wanted, bound, place)
        unit, mode = program.unit, program.mode
        kept = self._kept(unit, place.sizes, bound, wanted.direction)
        placed = mode == DETERMINISTIC
        order = tuple(map(bundle.data[0].arrays.index, bundle.arrays))
        making = DocumentMaking(
            block=DOCUMENTS, unit=unit, sizes=place.sizes, given=bound.given, order=order,
            backward=wanted.direction is Direction.backward, placed=placed, by_rows=placed,
            kept=dict(kept.parts)["row_tiles"].size,
        )  # fmt: skip
        if making.lists * making.capacity > MAX_TILES or making.items > MAX_ITEMS:
            raise Unlisted
        arrays = itemgetter(*order, DOCUMENTS.parts.index("stops"))
        return self._plan(source, making, mode, kept, wanted, bound, place, outputs, arrays)

    def _kept(
        self, unit: SourceUnit, sizes: Sizes, bound: Bound, direction: Direction
    ) -> Tables:  # fmt: skip
        """The mask but for its documents at these lengths."""
        reach, params = _reach(unit, bound), bound.params
        key = (unit.key, direction, sizes.n_q, sizes.n_kv, tuple(params.values()), reach)

        def make() -> Tables:
            bundle = _without_documents(self._built.bundle, reach)
            own = replace(unit, work=None, costs=(), by_documents=False)
            tables = make_tables(bundle, own, sizes, params, {}, direction, True)
            return replace(tables, work=unknown_work(0))

        return self._remembered(unit, sizes, key, make)


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
