"""The work list of a pass: the tiles that each block takes, and their order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from maskc.core.abi import WORK_FIELDS
from maskc.core.bundle import WorkList
from maskc.core.cost import Items
from maskc.core.errors import TooMuchWork
from maskc.core.layout import BlockLayout
from maskc.core.problem import Direction
from maskc.layout.tiles.expand import numbered
from maskc.layout.tiles.spans import Spans, list_spans

MAX_ITEMS = (1 << 31) // len(WORK_FIELDS) - 1
"""The most items: their fields are indexed with 32 bits."""
UNEVEN = 4
"""A tile row (or column) is long if it has more than this many times the mean number of tiles in
its list, without empty rows. In a causal mask the longest row has twice the mean."""
_FEW = 16
"""Number of queries up to which writing and reading the rows of a part takes little time."""
_FEW_LISTED = 8
"""Largest number of tile rows, or columns, of a short list."""
_FIXED = 4
"""Times `few_tiles` that a part of an `invariant` row has: 2048 keys."""
MAX_PARTS = 64
"""Limit on the parts of a packed row: one block merges them, while others may be idle."""
PIECES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)
"""Candidates for the number of parts of the longest row."""
_ITEM_COST, _PART_COST, _ROWS_OF_TILE = 2, 2, 32
"""Cost of starting an item, and of finishing a part, in tiles of 64 keys; rows of a part that are
stored and read in the time of one tile."""
_ENOUGH = 3
"""Quarters of the blocks of a launch that read as fast as all. 192 whole rows of 6000 keys (D 64,
264 blocks, one H200) take 8 % less time than 768 parts. Any number from 2.4 to 3.2 takes the best
of 11 shapes (benchmarks/results/decoding-64-trial-h200.json)."""
_TURNS = 4
"""Limit on the number of waves of parts: rows are not split further beyond it."""
_MULTIPROCESSORS = 132
"""About the multiprocessors of a card, for which items are made. Nothing else depends on it."""


def fields(count: int) -> np.ndarray:
    """int32 [count, WORK_FIELDS] of zeros."""
    return np.zeros((count, len(WORK_FIELDS)), np.int32)


def merged_rows(
    tile: np.ndarray, head: np.ndarray, first: np.ndarray, count: np.ndarray
) -> np.ndarray:
    """int32 [rows, WORK_FIELDS]: rows in parts, or columns that are shared, of int64 [rows] each.

    Args:
        tile: tile rows or columns.
        head: their first query heads.
        first, count: the numbers of their parts.
    """
    rows = fields(len(tile))
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = tile, head, first, count
    return rows


@dataclass(frozen=True, eq=False)
class Work:
    """A work list."""

    items: np.ndarray
    """int32 [filled + empty, WORK_FIELDS]; those without tiles are the last."""
    filled: int
    """Items that have tiles."""
    shared: bool
    """Whether some items add to the same column, or compute parts of the same row."""
    merges: np.ndarray = field(default_factory=lambda: fields(0))
    """int32 [rows, WORK_FIELDS]: the rows in parts or the columns shared, see maskc/core/abi.py."""

    @property
    def empty(self) -> int:
        """Items without tiles."""
        return len(self.items) - self.filled

    @property
    def parts(self) -> int:
        """Parts of rows to be merged, or places where items add to or leave shares of columns."""
        return int(self.merges[:, 3].sum())

    @property
    def load(self) -> Items:
        """Counts of the items that have tiles, each with those of all its heads."""
        filled = self.items[: self.filled]
        tiles = filled[:, 3] * np.maximum(filled[:, 6], 1)
        return Items(self.filled, int(tiles.sum(dtype=np.int64)), int(tiles.max(initial=0)))

    @property
    def mean(self) -> float:
        """Tiles per item that has any."""
        return float(self.items[: self.filled, 3].mean()) if self.filled else 0.0


@dataclass(frozen=True, eq=False)
class _Owners:
    """Heads that own work: one, or several that take the same tiles together; int64 [owners]."""

    head: np.ndarray
    """batch * heads_q + query head, the first one."""
    list: np.ndarray
    """Which list."""
    heads: np.ndarray
    """The number of consecutive query heads."""
    shared: np.ndarray
    """1 where others write the same rows or columns."""
    group: np.ndarray
    """Groups run one after another."""


@dataclass(frozen=True, eq=False)
class _Pieces:
    """The tiles of all lists, cut to size; int64 [pieces], by list, tile and position."""

    start: np.ndarray
    """int64 [lists + 1]: where each list's pieces begin."""
    tile: np.ndarray
    first: np.ndarray
    count: np.ndarray
    full_first: np.ndarray
    full_last: np.ndarray
    place: np.ndarray
    """Tiles of the row or column before it."""
    cut: np.ndarray
    """1 where others have the rest of a tile row or column."""

    def fields(self) -> np.ndarray:
        """int32 [pieces, WORK_FIELDS]: work items; sequence and head are filled in later."""
        nobody = np.zeros_like(self.tile)
        columns = (
            self.tile, nobody, self.first, self.count, self.full_first, self.full_last, nobody,
            self.cut,
        )  # fmt: skip
        return np.stack(columns, axis=1).astype(np.int32)


def forward_work(
    spans: Spans, of_head: np.ndarray, heads_kv: int, n_q: int, n_kv: int, rule: WorkList
) -> Work:
    """Items of a forward pass: one per tile row and query head, the longest first.

    Heads run in groups whose keys and values are `rule.group_tokens` tokens. A row that is cut (see
    `most_tiles`) has several items, its parts; these are numbered by head, row and position.

    Args:
        spans: the live tiles of every tile row.
        of_head: int [batch, heads_q] which list a head of a sequence has.
        heads_kv: key/value heads.
        n_q, n_kv: queries and keys per sequence.

    Raises:
        TooMuchWork: more items than 32 bits index.
    """
    batch, heads_q = of_head.shape
    head = np.arange(batch * heads_q)
    ones = np.ones_like(head)
    size = heads_q // max(heads_kv, 1) or 1
    group = head // size // heads_per_group(rule, n_kv, batch * heads_kv, False)
    if rule.heads_first:
        head = head.reshape(batch, heads_q // size, size).swapaxes(0, 1).ravel()
    owners = _Owners(head, of_head.ravel().astype(np.int64)[head], ones, 0 * ones, group)
    pieces = _pieces(spans, _most_alone(spans, n_q, rule))
    owner, piece = _expanded(owners, pieces)
    return _in_parts(_listed(owners, pieces, owner, piece), owners, pieces, owner, piece)


def packed_work(spans: Spans, of_head: np.ndarray, n_q: int, rule: WorkList) -> Work:
    """Items of a forward pass of packed heads with one tile row each: the parts of their rows, the
    longest first.

    Rows are cut to one size, by the time that all items are expected to take; where the rule is
    `invariant`, the row's own tiles alone decide.

    Args:
        spans: the live tiles of the only tile row of every list.
        of_head: int [batch, heads] which list the packed heads of a sequence have.
        n_q: queries per sequence, of one head.
        rule: `heads` of it are packed.

    Raises:
        TooMuchWork: more items than 32 bits index.
    """
    lists = of_head.ravel().astype(np.int64)
    count, first = spans.count[lists, 0].astype(np.int64), spans.first[lists, 0]
    cutting = cutting_of(n_q * rule.heads, rule)
    pieces = np.maximum(-(-count // cutting.sizes(count)), 1)
    if (total := int(pieces.sum())) > MAX_ITEMS:
        raise TooMuchWork(total, MAX_ITEMS)
    size = np.maximum(-(-count // pieces), 1)
    is_cut = pieces > 1
    parts, merge = np.where(is_cut, pieces, 0), _running(is_cut)
    row, place = numbered(pieces)
    begin = place * size[row]
    tiles, start = np.minimum(count[row] - begin, size[row]), first[row] + begin
    number = _running(parts)
    columns = (
        np.zeros_like(row), row, start, tiles,
        np.clip(spans.full_first[lists, 0][row], start, start + tiles),
        np.clip(spans.full_last[lists, 0][row], start, start + tiles),
        np.where(is_cut[row], merge[row], 1), np.where(is_cut[row], 1 + number[row] + place, 0),
    )  # fmt: skip
    items = np.stack(columns, axis=1)[np.argsort(-tiles, kind="stable")]
    whose = np.flatnonzero(is_cut)
    merges = merged_rows(np.zeros_like(whose), whose, number[whose], parts[whose])
    filled = int(np.count_nonzero(tiles))
    return Work(items.astype(np.int32), filled, bool(len(whose)), merges)


@dataclass(frozen=True)
class Cutting:
    """The rule that cuts rows of packed heads into parts, on the host and on the device."""

    least: int
    """The least tiles of a part; 0: no row is cut."""
    fixed: int = 0
    """The tiles of a part if splits depend on the row only; 0 if they depend on the batch."""
    blocks: int = 1
    """Blocks that run at once."""
    item_cost: int = 0
    """Tiles that take as long as starting an item."""
    part_cost: int = 0
    """Tiles that take as long as storing a part and adding it to the others of its row."""

    def sizes(self, count: np.ndarray) -> np.ndarray:
        """Return the most tiles of a part for every row: int64 [rows], at least 1.

        Args:
            count: int64 [rows], tiles of each.
        """
        if not self.least:
            whole: np.ndarray = np.maximum(count, 1)
            return whole
        if self.fixed:
            return self._of_rows(count)
        return np.full(count.shape, self._of_all(count), np.int64)

    def room(self, rows: int, longest: int) -> int:
        """Return the number of items that rows of at most `longest` tiles never exceed."""
        if not self.least:
            return rows
        parts = min(MAX_PARTS, -(-longest // (self.fixed or self.least)))
        room = rows * max(1, parts)
        return room if self.fixed else min(room, rows + _TURNS * self.blocks)

    def _of_rows(self, count: np.ndarray) -> np.ndarray:
        """The fixed size, doubled for rows that would have too many parts."""
        size = np.full(count.shape, self.fixed, np.int64)
        while (many := count > MAX_PARTS * size).any():
            size[many] *= 2
        return size

    def _of_all(self, count: np.ndarray) -> int:
        """Return the size with the lowest expected time, the largest of equal ones.

        The longest items come first, so blocks finish about half a short row apart. The rows that
        are longer than that must not take more time by themselves.
        """
        live = count[count > 0]
        longest = int(live.max(initial=0))
        room = self.room(len(count), longest) - (len(count) - len(live))
        sizes = [max(self.least, -(-longest // pieces)) for pieces in PIECES]
        enough = (size for size in sizes if np.count_nonzero(live <= size) >= self.blocks)
        short = min(enough, default=longest)
        times: dict[int, int] = {}
        for size in sizes:
            if times and int((-(-live // size)).sum()) > room:
                break
            cost = self.item_cost + (self.part_cost if size < longest else 0)
            groups = (live, min(size, short)), (live[live > short], size)
            times.setdefault(size, max(self._time(*group, size, cost) for group in groups))
        return min(times, key=times.__getitem__)

    def _time(self, count: np.ndarray, last: int, size: int, cost: int) -> int:
        """Return twice the expected time of rows, summed over all blocks. If all items are equal,
        blocks run in waves. A last wave with fewer blocks takes less time, as each gets a larger
        share of the memory bandwidth, up to a limit.

        Args:
            count: int64 [rows], tiles of each.
            last: tiles of the items that finish last.
            size: most tiles of an item.
            cost: of an item, in tiles.
        """
        items, total = int((-(-count // size)).sum()), int(count.sum())
        waves = -(-items // self.blocks) * self.blocks
        rest = items % self.blocks
        spared = self.blocks - max(rest, _ENOUGH * self.blocks // 4) if rest else 0
        turns = 2 * (waves * (size + cost) - spared * size)
        return min(turns, 2 * (total + items * cost) + self.blocks * (last + cost))


def cutting_of(rows: int, rule: WorkList) -> Cutting:
    """Return the rule for splitting tile rows with this number of queries.

    Storing and reading a row of a part takes as long as loading 1 / 32 of a tile of 64 keys.
    """
    least = rule.few_tiles
    if least and rule.invariant:
        return Cutting(least, _FIXED * least)
    part_cost = _PART_COST + rows // _ROWS_OF_TILE
    return Cutting(least, 0, blocks_at_once(rule.resident), _ITEM_COST, part_cost)


def blocks_at_once(resident: int) -> int:
    """About the blocks of a launch that run at once: each is to have an item.

    Args:
        resident: blocks that a multiprocessor runs at once.
    """
    return _MULTIPROCESSORS * resident


def backward_work(
    spans: Spans, of_head: np.ndarray, heads_kv: int, n_q: int, rule: WorkList
) -> Work:
    """Items of a backward pass: tile columns of key/value heads, the longest first.

    The query heads of a key/value head are one item where they have the same list; otherwise, and
    where a column is cut (see `most_tiles`), its items are `shared`.

    Args:
        spans: the live tiles of every tile column.
        of_head: int [batch, heads_q] which list a head of a sequence has.
        heads_kv: key/value heads.
        n_q: queries per sequence.

    Raises:
        TooMuchWork: more items than 32 bits index.
    """
    batch, heads_q = of_head.shape
    size = heads_q // heads_kv
    lists = of_head.reshape(batch * heads_kv, size).astype(np.int64)
    together = (lists == lists[:, :1]).all(axis=1)
    alone = np.repeat(~together, size)
    head = np.flatnonzero(alone | (np.arange(batch * heads_q) % size == 0))
    owners = _Owners(
        head, lists.ravel()[head], np.where(alone[head], 1, size), alone[head].astype(np.int64),
        head // size // heads_per_group(rule, n_q, batch * heads_kv, True),
    )  # fmt: skip
    pieces = _pieces(spans, _most_of_few(spans, rule))
    owner, piece = _expanded(owners, pieces)
    written = None
    if not together.all():  # one head owns a column that none of its siblings sees
        dead = spans.count[lists].sum(axis=1) == 0
        heads = owners.head[owner]
        speaks = (heads % size == 0) & dead[heads // size, pieces.tile[piece]]
        written = (owners.shared[owner] == 0) | speaks
    work = _listed(owners, pieces, owner, piece, written)
    work.items[work.filled :, 6] = size
    return _in_columns(work, spans.count.shape[1], batch * heads_kv, size, rule.apart)


def load_of(
    layouts: Sequence[BlockLayout], direction: Direction, rule: WorkList, heads: int, n_q: int,
    n_kv: int,
) -> Items:  # fmt: skip
    """Count the items of a pass in which every head has keys and values of its own.

    Args:
        layouts: the distinct lists of tiles, by tile rows.
        direction: the pass.
        rule: of the source.
        heads: of all sequences; the lists have equal shares of them.
        n_q, n_kv: queries and keys.

    Raises:
        TooMuchWork: more items than 32 bits index.
    """
    lists, backward = len(layouts), direction is Direction.backward
    by_lines = [layout.transpose() if backward else layout for layout in layouts]
    spans, of_head = list_spans(np.stack([one.row_ptr for one in by_lines])), np.arange(lists)[None]
    load = (
        backward_work(spans, of_head, lists, n_q, rule) if backward
        else forward_work(spans, of_head, lists, n_q, n_kv, rule)
    ).load  # fmt: skip
    return Items(round(load.count * heads / lists), round(load.tiles * heads / lists), load.longest)


MAX_HEADS = {False: 64, True: 32}
"""Most key/value heads of a group in forward and backward passes. With many short heads, the data
of the first items have left the L2 cache when late items run (512 causal rows forward, 512
heads, D 64, H100: 65 us with 64 heads, 73 us with 256; all keys of 1024 backward, 256 heads: 422
us with 32, 485 us with 64)."""

_MAX_HEADS_FIRST = 384
"""Likewise where the same head of all sequences runs together."""


def heads_per_group(rule: WorkList, tokens: int, heads: int, backward: bool) -> int:
    """Key/value heads per group: as many as fit, all groups alike.

    A last group much smaller than the others would have too few items to end on evenly. 16 heads in
    groups of 3 leave one. The backward pass of documents at 16k tokens then takes 0.576 ms, and
    0.548 ms in groups of 2 (D 72, H200).
    """
    most = _MAX_HEADS_FIRST if rule.heads_first else MAX_HEADS[backward]
    fit = min(most, max(1, rule.group_tokens // max(1, tokens)))
    groups = -(-max(1, heads) // fit)
    alike = -(-max(1, heads) // groups)
    while 0 < 2 * (heads % alike) < alike:
        alike -= 1
    return alike


def most_tiles(spans: Spans, rule: WorkList) -> np.ndarray:
    """Return the most tiles of an item for every row or column: int64 [lists, rows], as the counts
    are.

    All are cut by `most_tiles` if that is above 0. Long ones are split by `uneven_tiles`, twice as
    many, and so on until their list has at most as many parts as rows. The parts of a forward pass
    then need no more memory than its result in fp32. Only the list decides, not the number of heads
    or sequences that share it: results must not depend on those.
    """
    count = spans.count
    most = np.full(count.shape, rule.most_tiles or max(1, count.max(initial=1)), np.int64)
    if not rule.uneven_tiles:
        return most
    live, total = np.count_nonzero(count, axis=1), count.sum(axis=1)
    long = count * live[:, None] > UNEVEN * total[:, None]
    for number in np.flatnonzero(long.any(axis=1)):
        tile_counts, size = count[number, long[number]], rule.uneven_tiles
        while np.sum(-(-tile_counts // size)) > count.shape[1]:
            size *= 2
        most[number, long[number]] = np.minimum(most[number, long[number]], size)
    return most


def _most_alone(spans: Spans, n_q: int, rule: WorkList) -> np.ndarray:
    """Likewise, but also split the long rows of a list with few rows: by `uneven_tiles` if it has
    few queries, whose parts are small, and four times as many if it has some more.

    The only row of a list may be long. Of a few it is, if it has more than `UNEVEN` times the mean
    of the others: it could not have that of all.
    """
    most, count = most_tiles(spans, rule), spans.count
    rows = count.shape[1]
    if rows <= _FEW_LISTED and rule.uneven_tiles:
        size = rule.uneven_tiles * min(4, -(-n_q // _FEW))
        others = count.sum(axis=1, keepdims=True) - count
        long = (count >= 2 * size) & (count * (rows - 1) >= UNEVEN * others)
        most[long] = np.minimum(most[long], size)
    return most


def _most_of_few(spans: Spans, rule: WorkList) -> np.ndarray:
    """Likewise, but also split long columns of a list with few columns: they alone would not fill a
    card."""
    most, count = most_tiles(spans, rule), spans.count
    if count.shape[1] <= _FEW_LISTED and rule.uneven_tiles:
        size = 2 * rule.uneven_tiles
        long = count >= 2 * size
        most[long] = np.minimum(most[long], size)
    return most


def divided(count: np.ndarray, most: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(which row, the tiles before it, its own) of the pieces of rows of `count` tiles, of at most
    `most` each; one piece of a row without tiles."""
    source, place = numbered(np.maximum(-(-count // most), 1))
    position = place * most[source]
    return source, position, np.minimum(count[source] - position, most[source])


def _pieces(spans: Spans, most: np.ndarray) -> _Pieces:
    """Every list's rows or columns, in pieces of at most `most` tiles."""
    lists, tiles = spans.count.shape
    count, most = spans.count.ravel(), most.ravel()
    cuts = np.maximum(-(-count // most), 1)
    source, position, size = divided(count, most)
    first = spans.first.ravel()[source] + position
    start = _running(cuts.reshape(lists, tiles).sum(axis=1))
    return _Pieces(
        start=start,
        tile=source % max(tiles, 1),
        first=first,
        count=size,
        full_first=np.clip(spans.full_first.ravel()[source], first, first + size),
        full_last=np.clip(spans.full_last.ravel()[source], first, first + size),
        place=position,
        cut=(cuts > 1)[source].astype(np.int64),
    )


def _expanded(owners: _Owners, pieces: _Pieces) -> tuple[np.ndarray, np.ndarray]:
    """(owner, piece) of all items: by group, longest first, then by tile, position and head."""
    total = int((pieces.start[owners.list + 1] - pieces.start[owners.list]).sum())
    if total > MAX_ITEMS:
        raise TooMuchWork(total, MAX_ITEMS)
    if not total:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    if (owners.list == owners.list[0]).all():
        return _of_one_list(owners, pieces)
    return _of_lists(owners, pieces)


def _of_one_list(owners: _Owners, pieces: _Pieces) -> tuple[np.ndarray, np.ndarray]:
    """One order of pieces serves every group."""
    begin, end = pieces.start[owners.list[0]], pieces.start[owners.list[0] + 1]
    order = begin + np.argsort(-pieces.count[begin:end], kind="stable")
    number, size = len(owners.list), int(np.count_nonzero(owners.group == owners.group[0]))
    whole = number // size
    shape = (whole, len(order), size)
    heads = np.arange(whole * size).reshape(whole, 1, size)
    rest = np.arange(whole * size, number)
    owner = [np.broadcast_to(heads, shape).ravel(), np.tile(rest, len(order))]
    piece = [np.broadcast_to(order[:, None], shape).ravel(), np.repeat(order, len(rest))]
    return np.concatenate(owner), np.concatenate(piece)


def _of_lists(owners: _Owners, pieces: _Pieces) -> tuple[np.ndarray, np.ndarray]:
    """Every owner has the pieces of its own list."""
    owner, place = numbered(np.diff(pieces.start)[owners.list])
    piece = pieces.start[owners.list][owner] + place
    cost = pieces.count[piece] * owners.heads[owner]
    major = owners.group[owner] * (cost.max() + 1) + cost.max() - cost
    order = np.lexsort((owner, pieces.place[piece], pieces.tile[piece], major))
    return owner[order], piece[order]


def _listed(
    owners: _Owners, pieces: _Pieces, owner: np.ndarray, piece: np.ndarray,
    written: np.ndarray | None = None,
) -> Work:  # fmt: skip
    """Items in this order, those without tiles behind; of these only the `written` ones."""
    filled = len(piece)
    if len(piece) and not pieces.count.all():
        live = pieces.count[piece] > 0
        filled = int(np.count_nonzero(live))
        gone = ~live if written is None else ~live & written
        chosen = np.concatenate([np.flatnonzero(live), np.flatnonzero(gone)])
        owner, piece = owner[chosen], piece[chosen]
    items = np.take(pieces.fields(), piece, axis=0)  # whole rows: columns would take thrice as long
    items[:, 1] = owners.head.astype(np.int32)[owner]
    items[:, 6] = owners.heads.astype(np.int32)[owner]
    if owners.shared.any():
        items[:, 7] |= owners.shared.astype(np.int32)[owner]
    items[filled:, 7] = 0
    return Work(items, filled, bool(items[:filled, 7].any()))


def _in_parts(
    work: Work, owners: _Owners, pieces: _Pieces, owner: np.ndarray, piece: np.ndarray
) -> Work:
    """The items with numbered parts and the rows they make up; `owner` and `piece` of all items."""
    if not work.shared:
        return work
    starts = pieces.start[owners.list]
    parts, rows = _running(pieces.cut), _running(pieces.cut * (pieces.place == 0))
    part_counts = parts[pieces.start[owners.list + 1]] - parts[starts]
    # Of an owner, less the parts of earlier lists.
    base = np.cumsum(part_counts) - part_counts - parts[starts]
    live = pieces.count[piece] > 0
    owner, piece = owner[live], piece[live]
    number = 1 + base[owner] + parts[piece]
    work.items[: work.filled, 7] = np.where(pieces.cut[piece] > 0, number, 0)

    begins = np.flatnonzero(np.diff(rows))
    sizes = np.diff(np.append(parts[begins], parts[-1]))
    some = rows[pieces.start[owners.list + 1]] - rows[starts]
    whose, place = numbered(some)
    row = rows[starts][whose] + place
    first = base[whose] + parts[begins[row]]
    merges = merged_rows(pieces.tile[begins[row]], owners.head[whose], first, sizes[row])
    return replace(work, merges=merges)


def _running(values: np.ndarray) -> np.ndarray:
    """Sums of all values before each one, and of all."""
    return np.concatenate([[0], np.cumsum(values)])


def _in_columns(work: Work, tiles: int, heads: int, size: int, apart: bool) -> Work:
    """Return the items with indices of the columns that they share, or of their shares, by column,
    head and position.

    Args:
        tiles, heads: tile columns, and key/value heads of all sequences.
        size: query heads of each.
        apart: whether shares are numbered.
    """
    if not work.shared:
        return work
    items = work.items[: work.filled]
    has_parts = items[:, 7] > 0
    column = items[has_parts, 1].astype(np.int64) // size * tiles + items[has_parts, 0]
    shares = np.bincount(column, minlength=heads * tiles)
    places = shares if apart else shares.clip(max=1)
    before = np.cumsum(places) - places
    items[has_parts, 7] = 1 + before[column]
    if apart:
        order = np.lexsort((items[has_parts, 2], items[has_parts, 1], column))
        items[np.flatnonzero(has_parts)[order], 7] = 1 + np.arange(len(order))
    shared = np.flatnonzero(shares)
    merges = merged_rows(shared % tiles, shared // tiles * size, before[shared], places[shared])
    return replace(work, merges=merges)
