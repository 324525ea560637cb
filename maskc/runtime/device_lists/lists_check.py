"""Checks, with MASKC_CHECK=1, tile lists and work items that a device made from data: against the
lists that the host makes of the same data.

The device classifies tiles by bounds. It may list a tile without live pairs, or classify a full
tile as partial; kernels then only test more pairs than necessary. It must not omit a live tile or
classify a partial tile as full. Tiles that begin at documents must equal those of the host exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from maskc.core import expr as E
from maskc.core.abi import WORK_FIELDS
from maskc.core.bundle import Bundle, LayoutRecipe
from maskc.core.errors import CheckFailed, ListsNotRead, WrongDeviceLists
from maskc.core.problem import Direction
from maskc.dispatch.call import Bound
from maskc.dispatch.tables import Tables, make_tables
from maskc.layout import sequence_arrays
from maskc.layout.tiles.document_tiles import DocumentTileLists, check_rows
from maskc.runtime.binding import Binder
from maskc.runtime.device_lists.call import Asked
from maskc.runtime.device_lists.lists_launch import ARRAYS, Read
from maskc.runtime.device_lists.making import Making

_LINES = "row", "col"
_NAMES = "row", "column"
_UNUSED = -1
"""The tile of an item that no block computes."""


@dataclass(frozen=True, eq=False)
class _OneList:
    """The tiles of one list, by device and host; a key is line * `across` + tile."""

    where: str
    keys: np.ndarray
    """int64 [tiles], as the device has them."""
    full: np.ndarray
    host_keys: np.ndarray
    host_full: np.ndarray


@dataclass(frozen=True, eq=False)
class ListsCheck:
    """Compares the lists of one plan with the host's."""

    bundle: Bundle
    binder: Binder
    making: Making

    def compare(self, asked: Asked, places: Mapping[str, int], read: Read) -> None:
        """Compare the lists of a call.

        Args:
            asked: the call.
            places: addresses of the parts of the lists' memory.
            read: copies from the device.

        Raises:
            WrongDeviceLists: a live tile is missing, a partial tile is listed as full, or a work
                item has other tiles than its list.
            ListsNotRead: the lists are not made now.
            DataShape, DataType, DataRange: the data are invalid.
        """
        making, sizes = self.making, self.making.sizes
        counts = making.counts()

        def part(name: str, *shape: int) -> np.ndarray:
            words = read(places[name], counts[name])
            if words is None:
                raise ListsNotRead(at="MASKC_CHECK")
            return words[: int(np.prod(shape))].reshape(shape)

        bound = self.binder.bind(asked.keywords_of_call, sizes.n_q, sizes.n_kv)
        if making.by_lengths:
            self._check_rows(bound, part)
            return
        unit = replace(making.unit, work=None, costs=())
        direction = Direction.backward if making.backward else Direction.forward
        host = make_tables(
            self.bundle, unit, sizes, bound.params, bound.arrays, direction, lists=True
        )
        by_documents = making.unit.by_documents
        for side in making.sides:
            line = _LINES[side]
            ptr = part(f"{line}_ptr", making.lists, making.tiles[side] + 1).astype(np.int64)
            self._check_ptr(side, ptr)
            words = part(f"{line}_tiles", making.lists * making.capacity)
            for one in self._lists(side, ptr, words, host):
                _check_tiles(one, _NAMES[side], self._across(side), by_documents)
            if by_documents:
                stops = part(ARRAYS[len(making.given.sources)], making.lists, sizes.n_kv)
                self._check_stops(stops, words, ptr, host)
            if side == int(making.backward) and not making.placed:
                items = part("work", making.items, len(WORK_FIELDS))
                self._check_items(side, ptr, items.astype(np.int64))

    def _check_rows(self, bound: Bound, part: Callable[..., np.ndarray]) -> None:
        """Check lists whose lines begin with documents, which the host's do not: against the mask,
        pair by pair. In a backward pass lines are tile columns."""
        making, sizes = self.making, self.making.sizes
        side, line = int(making.backward), _LINES[making.backward]
        lines, n = making.tiles[side], (sizes.n_q, sizes.n_kv)[side]
        ptr = part(f"{line}_ptr", making.lists, lines + 1).astype(np.int64)
        self._check_ptr(side, ptr)
        words = part(f"{line}_tiles", making.lists * making.capacity)
        items = part("work", making.items, len(WORK_FIELDS)).astype(np.int64)
        used = items[:, 0] != _UNUSED
        number = items[:, 1] // sizes.heads_q if making.lists > 1 else 0 * items[:, 1]
        if side:
            words, stops = self._of_queries(part, ptr, words, items, used, number)
            begin = items[:, 0].copy()
            for which in range(making.lists):
                of_list = used & (number == which)
                items[of_list, 0] = np.unique(begin[of_list], return_inverse=True)[1]
        else:
            stops = part(ARRAYS[len(making.given.sources)], making.lists, sizes.n_kv)
            begin = items[:, 4]
        bounds = np.zeros((making.lists, lines, 2), np.int64)
        bounds[number[used], items[used, 0]] = np.stack([begin, items[:, 5]], 1)[used]
        self._check_items(side, ptr, items, bounds[..., 1] > 0)
        recipe = LayoutRecipe(making.unit.tile, self.bundle.variants[0].keep, None)
        env = {**E.params(recipe.keep), **bound.params, "n_q": sizes.n_q, "n_kv": sizes.n_kv}
        size = making.unit.tile.q if side else making.unit.tile.k
        for number_of_list, of_list in enumerate(bounds):
            first, end = of_list[of_list[:, 1] > 0].T
            where = self._where(number_of_list)
            if not np.array_equal(np.append(first, n), np.append(0, end)):
                what = f"tile {_NAMES[side]}s begin at {first.tolist()} and end at {end.tolist()}"
                raise WrongDeviceLists(where, what, "one follows another")
            lists = DocumentTileLists(ptr[number_of_list], words, stops[number_of_list])
            data = sequence_arrays(recipe, bound.arrays, number_of_list, 0)
            try:
                check_rows(of_list.tolist(), lists, size, recipe.keep, {**env, **data}, bool(side))
            except CheckFailed as error:
                raise WrongDeviceLists(
                    f"{where}, {error}", "the device's tiles", "one tile"
                ) from error

    def _of_queries(
        self, part: Callable[..., np.ndarray], ptr: np.ndarray, words: np.ndarray,
        items: np.ndarray, used: np.ndarray, number: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Return the words of columns with the first query of a tile row in place of its number,
        and where these rows end, by their first query: [lists, n_q].

        Args:
            part: reads a part of the lists' memory.
            ptr, words: of columns.
            items: all items; `used`: which some block computes; `number`: of their lists.
        """
        making, n = self.making, self.making.sizes.n_q
        begins = part("row_ptr", making.lists, making.tiles[0] + 1).astype(np.int64)
        stops, words = np.zeros((making.lists, n), np.int64), words.astype(np.int64)
        rows = words >> 1
        for which, (of_list, begin) in enumerate(zip(ptr, begins, strict=True)):
            real = begin[:-1] < begin[1:]
            stops[which, begin[:-1][real]] = begin[1:][real]
            mine = slice(of_list[0], of_list[-1])
            words[mine] = 2 * begin[rows[mine]] + (words[mine] & 1)
        some = np.flatnonzero(used & (items[:, 3] > 0))
        row = rows[items[some, 2]]
        first, by_item = begins[number[some], row], row * making.unit.tile.q + items[some, 4]
        for at in np.flatnonzero(first != by_item)[:1]:
            place = f"{self._where(int(number[some[at]]))}, tile row {row[at]}"
            raise WrongDeviceLists(place, f"query {by_item[at]} is its first", f"query {first[at]}")
        return words, stops

    def _across(self, side: int) -> int:
        """Numbers that a tile of a line can have: tiles, or first keys of documents."""
        making = self.making
        return making.sizes.n_kv if making.unit.by_documents else making.tiles[1 - side]

    def _of_host(self, number: int, host: Tables) -> int:
        """The host's number of a list of the device."""
        batch, head = divmod(number, self.making.extents[1])
        of_head = dict(host.parts).get("head_variant")
        return host.list_batch * batch + (0 if of_head is None else int(of_head[head]))

    def _where(self, number: int) -> str:
        batch, head = divmod(number, self.making.extents[1])
        batches, heads = self.making.extents
        names = [f"sequence {batch}"] if batches > 1 else []
        return ", ".join([*names, *([f"head {head}"] if heads > 1 else [])]) or "all sequences"

    def _check_ptr(self, side: int, ptr: np.ndarray) -> None:
        """Check that the offsets of a list ascend and stay within its memory."""
        room = self.making.capacity
        for number, offsets in enumerate(ptr):
            start = number * room
            wrong = np.flatnonzero((np.diff(offsets, prepend=start) < 0) | (offsets > start + room))
            if offsets[0] != start or wrong.size:
                line = int(wrong[0]) if wrong.size else 0
                raise WrongDeviceLists(
                    f"{self._where(number)}, tile {_NAMES[side]} {line}",
                    f"its tiles begin at entry {offsets[line]}",
                    f"they lie in order in entries {start} to {start + room}",
                )

    def _lists(
        self, side: int, ptr: np.ndarray, words: np.ndarray, host: Tables
    ) -> Iterator[_OneList]:
        parts, line, across = dict(host.parts), _LINES[side], self._across(side)
        host_ptr = parts[f"{line}_ptr"].reshape(-1, ptr.shape[1])
        for number, offsets in enumerate(ptr):
            on_host = host_ptr[self._of_host(number, host)]
            of_host = _keys(on_host, parts[f"{line}_tiles"], across)
            yield _OneList(self._where(number), *_keys(offsets, words, across), *of_host)

    def _check_stops(
        self, stops: np.ndarray, words: np.ndarray, ptr: np.ndarray, host: Tables
    ) -> None:
        """Compare the ends of the documents at which tiles begin."""
        host_stops = host.slots[-1].values.reshape(-1, self.making.sizes.n_kv)
        for number, ends in enumerate(stops):
            host_ends = host_stops[self._of_host(number, host) if len(host_stops) > 1 else 0]
            first = np.unique(words[ptr[number, 0] : ptr[number, -1]] >> 1)
            wrong = first[ends[first] != host_ends[first]]
            if wrong.size:
                key = int(wrong[0])
                raise WrongDeviceLists(
                    f"{self._where(number)}, the tile that begins with key {key}",
                    f"its document ends before key {abs(int(ends[key]))}",
                    f"it ends before key {abs(int(host_ends[key]))}",
                )

    def _check_items(
        self, side: int, ptr: np.ndarray, items: np.ndarray, exists: np.ndarray | None = None
    ) -> None:
        """Compare work items with the lists: the items of a head and line take each tile of its
        list once, and a line without tiles has one item.

        Args:
            exists: bool [lists, lines], lines that have items; all if None.
        """
        making = self.making
        (_, heads), lines = making.extents, making.tiles[side]
        shape = making.lists, making.owners, lines
        number, owner, line = (index.ravel() for index in np.indices(shape))
        if exists is not None:
            number, owner, line = (x[exists[number, line]] for x in (number, owner, line))
        head = (number // heads * making.owners + owner) * making.owner_heads + number % heads
        wanted = _stretches(head, line, ptr[number, line], np.diff(ptr)[number, line])
        items = items[items[:, 0] != _UNUSED]
        taken = _stretches(items[:, 1], items[:, 0], items[:, 2], items[:, 3])
        for head_and_line in sorted(wanted.keys() | taken.keys()):
            of_items, of_list = taken.get(head_and_line), wanted.get(head_and_line)
            if of_items != of_list:
                where, at = head_and_line
                place = f"the work of query head {where} of all, tile {_NAMES[side]} {at}"
                raise WrongDeviceLists(place, _spelled(of_items), _spelled(of_list))


def _stretches(
    head: np.ndarray, line: np.ndarray, first: np.ndarray, count: np.ndarray
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The stretches of entries (first, past the last) by head and line, joined where one begins
    where the one before ends."""
    joined: dict[tuple[int, int], list[tuple[int, int]]] = {}
    order = np.lexsort((first, line, head))
    columns = (x[order].tolist() for x in (head, line, first, first + count))
    for head_at, line_at, begin, end in zip(*columns, strict=True):
        stretches = joined.setdefault((head_at, line_at), [])
        if stretches and begin < end and stretches[-1][1] == begin:
            stretches[-1] = stretches[-1][0], end
        else:
            stretches.append((begin, end))
    return joined


def _spelled(stretches: list[tuple[int, int]] | None) -> str:
    if stretches is None:
        return "no item"
    return "entries " + ", ".join(f"{begin} to {end}" for begin, end in stretches)


def _keys(ptr: np.ndarray, words: np.ndarray, across: int) -> tuple[np.ndarray, np.ndarray]:
    """(line * across + tile, whether it is full) of the tiles of one list."""
    entries = words[ptr[0] : ptr[-1]].astype(np.int64)
    line = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    return line * across + (entries >> 1), (entries & 1).astype(bool)


def _check_tiles(one: _OneList, line: str, across: int, same: bool) -> None:
    """Compare the tiles of a list.

    Args:
        same: whether both must have the same tiles; else the device's may be more.
    """
    keys, repeats = one.keys, np.flatnonzero(np.diff(one.keys, prepend=-1) <= 0)
    missing = np.setdiff1d(one.host_keys, keys)
    full = np.setdiff1d(keys[one.full], one.host_keys[one.host_full])
    more = np.setdiff1d(keys, one.host_keys) if same else keys[:0]
    less = np.setdiff1d(one.host_keys[one.host_full], keys[one.full]) if same else keys[:0]
    wrong = np.concatenate([missing, full, more, less, keys[repeats]])
    if not wrong.size:
        return
    at = int(wrong.min())
    row, tile = divmod(at, across)
    what = f"{line} {row}, " + (f"the tile that begins with key {tile}" if same else f"tile {tile}")
    device = _kind(at, keys, one.full)
    if at in keys[repeats]:
        device += ", out of order"
    raise WrongDeviceLists(f"{one.where}, tile {what}", device, _kind(at, one.host_keys,
                                                                     one.host_full))  # fmt: skip


def _kind(at: int, keys: np.ndarray, full: np.ndarray) -> str:
    """Whether a tile is empty, partial or full in a list."""
    places = np.flatnonzero(keys == at)
    return "empty" if not places.size else "full" if full[places[-1]] else "partial"
