"""The work list of a deterministic backward pass: an order without forward dependencies.

Columns of a head are taken from the last to the first, and add to a tile of dq in that order too. A
block that waits for its turn then waits for an earlier item, which is already running. In most
masks a later column begins at a later row, so it is ahead of the columns that follow it. Items that
share a column write separate shares of dk and dv, which are added in the order of the items.

With random tiles, blocks would wait a third of the time that way. If the card runs at least BLOCKS
blocks at once, columns that run at the same time may wait for each other in both directions. They
add to tiles in the order in which they would reach them if all steps took equally long. This cannot
deadlock. Consider the first turn in that order that is still to come. It is either the next turn of
a running block, or it belongs to a column that no block has taken. In the second case, fewer than
BLOCKS columns of each such head wait for a turn. A block has at most one of them (`HELD`), so some
block is free to take the next column.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from maskc.core.bundle import WorkList
from maskc.core.errors import TooMuchWork
from maskc.layout.tiles.spans import Spans, list_spans
from maskc.layout.work.dq_order_simulation import in_any_turn, in_given_turn
from maskc.layout.work.work_list import MAX_ITEMS, Work, divided, fields, merged_rows, most_tiles

BLOCKS = 128
"""Columns of all heads that run at a time on a full card, with one block per multiprocessor."""
FEWEST = 8
"""The least number of these columns that belong to one head."""
HOP = 1.5
"""Steps from one addition to a tile of dq to the next, if somebody waits for it."""
MAX_SUMS = 32
"""Most tiles of dq that a tile row's additions are spread over, which are added up at the end."""
HELD = 1 << 30
"""The flag of a column's last addition: its block takes no other column before this addition is
allowed."""
WORTH = 1 / 50
"""The share of all steps that blocks of one head may wait: if they wait for more, columns may wait
for each other both ways."""
MAX_TRIED = 1 << 16
"""Tiles of all lists up to which it is tried out in which order they keep blocks at work."""


def runs_side_by_side(multiprocessors: int) -> bool:
    """Whether a device runs as many blocks as are reckoned with here; other work may keep them off
    for a while, but not for good."""
    return multiprocessors >= BLOCKS


def heads_together(count: np.ndarray, chain: int, n_q: int, rule: WorkList) -> int:
    """Return the number of key/value heads that run side by side: as many as have
    `rule.group_tokens` queries together, which then stay in the L2 cache. More run if the chain
    of additions to one tile of dq would take longer than all steps of so few heads.

    Args:
        count: int64 [lists, columns] live tiles.
        chain: most additions to one tile of dq, see `longest_chain`.
        n_q: queries per sequence.
    """
    at_once = BLOCKS * rule.resident
    wanted = chain * HOP * at_once / _steps(count)
    return int(np.clip(max(_cached(n_q, rule), wanted), 1, at_once // FEWEST))


def sums_of(row_ptr: np.ndarray, n_q: int, rule: WorkList) -> np.ndarray:
    """Return over how many tiles of dq the additions of every tile row are spread.

    Several tiles are used if a chain of additions, as for global queries, would take longer than
    all steps of the heads that share the L2 cache. Then there are so many tiles that the chain
    takes half as long.

    Args:
        row_ptr: int [lists, rows + 1], the start of each list by rows.
        n_q: queries per sequence.

    Returns:
        int32 [lists, rows], each from 1 to MAX_SUMS.
    """
    adders = np.diff(row_ptr)
    at_once = BLOCKS * rule.resident / _cached(n_q, rule)
    late = adders * HOP * at_once / _steps(adders)
    wanted = np.where(late > 1, np.minimum(np.ceil(2 * late), adders), 1)
    return wanted.clip(1, MAX_SUMS).astype(np.int32)


def _cached(n_q: int, rule: WorkList) -> int:
    """Heads whose queries stay in the L2 cache."""
    return max(1, rule.group_tokens // max(1, n_q))


def _steps(count: np.ndarray) -> float:
    """Tiles of a list, of several on average; at least one."""
    return max(1.0, float(count.sum()) / max(1, len(count)))


def longest_chain(parts: Mapping[str, np.ndarray]) -> int:
    """Return the largest number of additions to one tile of dq; 0 if rows have no lists.

    Args:
        parts: int32 tables [elements] by name; see `in_turn`.
    """
    ptr, before = parts.get("row_ptr"), parts.get("row_sums")
    if ptr is None:
        return 0
    sums = 1 if before is None else 1 + np.diff(before)
    return int((-(-np.diff(ptr) // sums)).max(initial=0))


def multiprocessors_needed(parts: Mapping[str, np.ndarray]) -> int:
    """Count the multiprocessors that must run blocks at a time; 0 where any number will do.

    Columns that wait for each other both ways need several.

    Args:
        parts: int32 tables [elements] by name; see `in_turn`.
    """
    turns_needed = parts.get("col_turns")
    return BLOCKS if turns_needed is not None and (turns_needed >= HELD).any() else 0


def ordered_work(
    spans: Spans, of_head: np.ndarray, heads_kv: int, together: int, rule: WorkList
) -> Work:
    """Items of a deterministic backward pass: tile columns of key/value heads.

    An item has all query heads of its key/value head and all their tiles, `count` in all; or,
    `shared`, from `first` on `count` tiles of one head's own list, counted inside of that list.

    Args:
        spans: the live tiles of every tile column.
        of_head: int [batch, heads_q] which list a head of a sequence has.
        heads_kv: key/value heads.
        together: of these that run side by side.

    Raises:
        TooMuchWork: more items than 32 bits index.
    """
    batch, heads_q = of_head.shape
    number, columns, size = batch * heads_kv, spans.count.shape[1], heads_q // heads_kv
    lists = of_head.reshape(number, size).astype(np.int64)
    most = size * most_tiles(spans, rule)  # parts of a column in memory are as many for any size
    head, column = _order(number, columns, together)
    head_lists = lists[head]
    long = (spans.count > most)[head_lists, column[:, None]].any(axis=1)
    whole = fields(len(head))
    whole[:, 0], whole[:, 1], whole[:, 6] = column, head * size, size
    for step in range(size):
        whole[:, 3] += spans.count[head_lists[:, step], column]
    if not long.any():
        return _checked(Work(whole, len(whole), False))
    parts, place = _parts(spans, most, head_lists[long], column[long], head[long] * size)
    parts[:, 7] = np.arange(1, len(parts) + 1)
    rank = np.flatnonzero(long)[place]
    items = np.concatenate([whole[~long], parts])
    items = items[np.argsort(np.concatenate([np.flatnonzero(~long), rank]), kind="stable")]
    counts = np.bincount(place, minlength=int(long.sum()))
    cut = whole[long]
    merges = merged_rows(cut[:, 0], cut[:, 1], np.cumsum(counts) - counts, counts)
    return _checked(Work(items, len(items), True, merges))


def in_turn(
    parts: list[tuple[str, np.ndarray]], n_q: int, size: int, rule: WorkList | None
) -> list[tuple[str, np.ndarray]]:
    """Make the tables of a deterministic pass; other passes keep theirs.

    Lists by columns get another order. `col_turns` accompanies lists by columns and by rows, and
    `row_sums` is added if a row has several tiles of dq.

    Args:
        parts: int32 tables [elements] by name.
        n_q: queries per sequence.
        size: query heads of a key/value head.
    """
    if rule is None or not rule.ordered:
        return parts
    named = dict(parts)
    ptr, tiles = named["col_ptr"], named["col_tiles"]
    sums = sums_of(named["row_ptr"], n_q, rule)
    if rule.plain:
        sums[:] = 1
    if sums.max(initial=1) > 1:
        named["row_sums"] = np.cumsum(np.pad(sums - 1, ((0, 0), (1, 0))), axis=1, dtype=np.int32)
    together = heads_together(np.diff(ptr), longest_chain(named), n_q, rule)
    at_once = BLOCKS * rule.resident // together
    both_ways = rule.both_ways and size == 1 and not _cuts(list_spans(ptr), rule)
    named["col_tiles"], named["col_turns"] = turns(ptr, tiles, sums, at_once, rule.plain, both_ways)
    return [*named.items()]


def _cuts(spans: Spans, rule: WorkList) -> bool:
    """Whether some column has several items."""
    return bool((spans.count > most_tiles(spans, rule)).any())


def turns(
    ptr: np.ndarray, tiles: np.ndarray, sums: np.ndarray, at_once: int, plain: bool,
    both_ways: bool = False,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return lists by columns in the order in which their tiles should be taken, and their turns.

    Tiles are taken in their order, except tiles that would have to wait for their turn if all steps
    took equally long.

    Args:
        ptr, tiles: lists by columns, as `kernel_lists` gives them.
        sums: int32 [lists, rows] as `sums_of` gives them; columns take these in turn.
        at_once: columns of a list under way at a time, see `BLOCKS`.
        plain: whether tiles stay in their order.
        both_ways: whether columns that run at the same time may wait for each other both ways, if
            that pays; a column is then one item, of one query head.

    Returns:
        int32 tiles, and int32 turns of the same shape. A turn is the number of columns that add to
        the same tile of dq before, times MAX_SUMS, plus the index of the row's tile of dq. It may
        have the bit HELD.
    """
    columns = ptr.shape[1] - 1
    owner = np.repeat(np.arange(ptr.shape[0] * columns), np.diff(ptr).ravel())
    row = (tiles >> 1).astype(np.int64)
    line = owner // max(columns, 1) * sums.shape[1] + row
    rank, _ = _ranks(line, owner)
    share = sums.ravel()[line]
    if plain or not 0 < len(tiles) <= MAX_TRIED:
        return tiles, _coded(rank, share)
    turn, following = _ranks(line * MAX_SUMS + rank % share, owner)
    orders = [in_given_turn(row_ptr, following, turn, at_once) for row_ptr in ptr.tolist()]
    taken = np.concatenate([order for order, _ in orders])
    if not both_ways or sum(steps for _, steps in orders) <= WORTH * len(tiles):
        return tiles[taken], _coded(rank, share)[taken]
    pairs = [
        in_any_turn(*sequence, row, at_once) for sequence in zip(ptr.tolist(), sums, strict=True)
    ]
    taken, rank = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    code = _coded(rank, share[taken])
    code[ptr[:, 1:][np.diff(ptr) > 0] - 1] |= HELD
    return tiles[taken], code


def _coded(rank: np.ndarray, share: np.ndarray) -> np.ndarray:
    code: np.ndarray = (rank // share * MAX_SUMS + rank % share).astype(np.int32)
    return code


def _ranks(line: np.ndarray, owner: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each element the number of earlier ones of its line, from the last owner to the
    first, and the index of the next one; -1 for none."""
    order = np.lexsort((-owner, line))
    begins = np.diff(line[order], prepend=-1) > 0
    first = np.flatnonzero(begins)
    rank, following = np.empty(len(line), np.int64), np.full(len(line), -1)
    rank[order] = np.arange(len(line)) - np.repeat(first, np.diff(first, append=len(line)))
    following[order[:-1]] = np.where(begins[1:], -1, order[1:])
    return rank, following


def _checked(work: Work) -> Work:
    if len(work.items) > MAX_ITEMS:
        raise TooMuchWork(len(work.items), MAX_ITEMS)
    return work


def _order(heads: int, columns: int, together: int) -> tuple[np.ndarray, np.ndarray]:
    """(key/value head, column) of all, in the order in which they are taken."""
    head, column = (x.ravel() for x in np.indices((heads, columns)))
    order = np.lexsort((head, -column, head // together))
    return head[order], column[order]


def _parts(
    spans: Spans, most: np.ndarray, lists: np.ndarray, column: np.ndarray, head: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Items of some columns, cut to size, and which of these columns each belongs to.

    Args:
        most: int64 [lists, columns] tiles of an item.
        lists: int64 [some, heads] of the heads of each.
        column, head: int64 [some], and its first query head.
    """
    entries = np.arange(lists.shape[1])
    count, size = spans.count[lists, column[:, None]], most[lists, column[:, None]]
    source, position, tiles = divided(count.ravel(), size.ravel())
    source, position, tiles = source[tiles > 0], position[tiles > 0], tiles[tiles > 0]
    place = source // lists.shape[1]
    items = fields(len(source))
    items[:, 0], items[:, 1] = column[place], (head[:, None] + entries).ravel()[source]
    items[:, 2], items[:, 3], items[:, 6] = position, tiles, 1
    return items, place
