"""Work lists against a slow definition: every live tile of every head once, in the right kind."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskc.core.abi import WORK_FIELDS
from maskc.core.bundle import LayoutRecipe, WorkList
from maskc.core.errors import TooMuchWork
from maskc.core.expr_text import parse_expr
from maskc.core.layout import BlockLayout
from maskc.core.problem import TileShape
from maskc.layout import (
    Spans,
    backward_work,
    build,
    forward_work,
    kernel_lists,
    list_spans,
    packed_work,
)
from maskc.layout.work import work_list as work
from tests.support.thorough import examples

NAMES = [name for name, _ in WORK_FIELDS]
TILE = TileShape(2, 3)


def layout_from(kinds: np.ndarray) -> BlockLayout:
    """uint8 [rows, columns] of 0, 1, 2 as a layout."""
    rows, columns = kinds.shape
    row, col = np.nonzero(kinds)
    ptr = np.searchsorted(row, np.arange(rows + 1)).astype(np.int32)
    return BlockLayout(rows * 2, columns * 3, TILE, ptr, col.astype(np.int32), kinds[row, col])


def spans_of(*layouts: BlockLayout) -> Spans:
    return list_spans(kernel_lists(list(layouts))[0])


def items_of(made: work.Work) -> list[dict[str, int]]:
    return [dict(zip(NAMES, row, strict=True)) for row in made.items.tolist()]


def covered(item: dict[str, int], entries: np.ndarray | None) -> list[tuple[int, bool]]:
    """(tile, full) of an item, from the list in memory or from its range."""
    span = range(item["first"], item["first"] + item["count"])
    if entries is not None:
        return [(int(entries[i]) >> 1, bool(entries[i] & 1)) for i in span]
    assert span.start <= item["full_first"] <= item["full_last"] <= span.stop
    return [(i, item["full_first"] <= i < item["full_last"]) for i in span]


def check_cover(made, entries, kinds_of, size: int, certain: bool) -> None:
    """Every live tile of every query head once; every head and row has an item that is written.

    `kinds_of[h]` uint8 [tiles, others] are the classes a query head sees; `size` query heads make
    one owner of results; `certain`: full tiles need not be known as such.
    """
    found = [np.zeros_like(kinds) for kinds in kinds_of]
    writers: dict[tuple[int, int], list[int]] = {}
    for number, item in enumerate(items_of(made)):
        assert (item["count"] > 0) == (number < made.filled)
        for head in range(item["head"], item["head"] + item["heads"]):
            for tile, full in covered(item, entries):
                assert found[head][item["tile"], tile] == 0
                found[head][item["tile"], tile] = 1 + full
        assert item["head"] // size == (item["head"] + item["heads"] - 1) // size
        writers.setdefault((item["head"] // size, item["tile"]), []).append(item["shared"])
    for kinds, got in zip(kinds_of, found, strict=True):
        np.testing.assert_array_equal(kinds > 0, got > 0)
        assert not np.any((got == 2) & (kinds != 2))
        if not certain:
            np.testing.assert_array_equal(kinds, got)
    assert set(writers) == set(np.ndindex(len(kinds_of) // size, len(kinds_of[0])))
    for shared in writers.values():
        assert len(shared) == 1 or all(shared)
    assert made.shared == any(any(shared) for shared in writers.values())


def cut_by(counts: list[int], rule: WorkList, n_q: int = 0) -> list[int]:
    """For each row of a list the most tiles of an item, 0 where there is no limit; `n_q` of a
    forward pass."""
    part = rule.uneven_tiles * (min(4, -(-n_q // 16)) if n_q else 2) if len(counts) <= 8 else 0
    rest = [4 * (sum(counts) - n) if n_q else 0 for n in counts]
    few = [n >= 2 * part and n * (len(counts) - 1) >= more
           for n, more in zip(counts, rest, strict=True)]  # fmt: skip
    live = [n for n in counts if n]
    long = [n for n in live if n * len(live) > 4 * sum(live)] if rule.uneven_tiles else []
    size = rule.uneven_tiles
    while long and sum(-(-n // size) for n in long) > len(counts):
        size *= 2
    limits = [[rule.most_tiles, size if n in long else 0, part * own]
              for n, own in zip(counts, few, strict=True)]  # fmt: skip
    return [min(filter(None, limit), default=0) for limit in limits]


def check_sizes(made, kinds_of, rule: WorkList, n_q: int = 0) -> None:
    """Every row's items: as long as they may be, but the last."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for item in items_of(made):
        for head in range(item["head"], item["head"] + item["heads"]):
            sizes = found.setdefault((head, item["tile"]), [])
            sizes.append((item["first"], item["count"]))
    for head, kinds in enumerate(kinds_of):
        counts = [int(n) for n in (kinds > 0).sum(axis=1)]
        for tile, (count, most) in enumerate(zip(counts, cut_by(counts, rule, n_q), strict=True)):
            sizes = [size for _, size in sorted(found.get((head, tile), []))]
            step = most or count
            if count:
                assert sizes == [min(step, count - i) for i in range(0, count, step)]


def check_parts(made) -> None:
    """Numbers of parts are of one row each, in order, and every row in parts is to be merged."""
    parts = {item["shared"] - 1: item for item in items_of(made) if item["shared"]}
    assert sorted(parts) == list(range(made.parts))
    seen = 0
    for row in made.merges.tolist():
        row = dict(zip(NAMES, row, strict=True))
        assert (row["first"], row["count"] > 1) == (seen, True)
        own = [parts[seen + i] for i in range(row["count"])]
        assert {(part["tile"], part["head"]) for part in own} == {(row["tile"], row["head"])}
        assert [part["first"] for part in own] == sorted(part["first"] for part in own)
        seen += row["count"]
    assert seen == made.parts


def alike(heads: int, rule: WorkList, tokens: int) -> int:
    """Heads per group: the fewest groups none of which is too large, then the smallest size."""
    fit = max(1, rule.group_tokens // tokens)
    groups = next(n for n in range(1, heads + 1) if n * fit >= heads)
    return next(size for size in range(1, heads + 1) if size * groups >= heads)


def check_order(made, heads_per_group: int) -> None:
    items = items_of(made)
    keys = [
        (item["head"] // heads_per_group, -item["count"] * item["heads"], item["tile"])
        for item in items[: made.filled]
    ]
    assert keys == sorted(keys)
    for one, two in pairwise(items[: made.filled]):
        same = all(one[name] == two[name] for name in ("tile", "count", "first", "heads"))
        if same and one["head"] // heads_per_group == two["head"] // heads_per_group:
            assert one["head"] < two["head"]


@st.composite
def problems(draw):
    """(kinds per list, list of each head [batch, heads_q], heads_kv, rule, tokens)."""
    rows, columns = draw(st.integers(0, 9)), draw(st.integers(0, 12))
    number = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 1 << 30))
    rng = np.random.default_rng(seed)
    dense = draw(st.sampled_from([0.0, 0.2, 0.7, 1.0]))
    live = rng.random((number, rows, columns)) < dense
    kinds = (live * rng.integers(1, 3, live.shape)).astype(np.uint8)
    batch, heads_kv, size = (draw(st.integers(1, 3)) for _ in range(3))
    of_head = rng.integers(0, draw(st.integers(1, number)), (batch, heads_kv * size))
    if draw(st.booleans()):  # one row and one column far longer than the others
        kinds[:, :, 1:] *= rng.random(kinds[:, :, 1:].shape) < 0.1
        kinds[:, rng.integers(0, max(rows, 1)) : 1] = 1
    most, uneven = draw(st.sampled_from([0, 1, 2, 4])), draw(st.sampled_from([0, 1, 2, 3]))
    rule = WorkList(draw(st.sampled_from([1, 20, 50])), most, uneven_tiles=uneven)
    return kinds, of_head, heads_kv, rule, draw(st.integers(1, 25))


@settings(max_examples=examples(150))
@given(problems())
def test_a_forward_pass_covers_every_tile_once(problem):
    kinds, of_head, heads_kv, rule, tokens = problem
    ptr, entries = kernel_lists([layout_from(one) for one in kinds])
    made = forward_work(list_spans(ptr), of_head, heads_kv, tokens, tokens, rule)
    assert made.items.dtype == np.int32
    check_cover(made, entries, [kinds[i] for i in of_head.ravel()], 1, False)
    size = of_head.shape[1] // heads_kv
    check_order(made, alike(len(of_head) * heads_kv, rule, tokens) * size)
    check_sizes(made, [kinds[i] for i in of_head.ravel()], rule, tokens)
    check_parts(made)
    assert all(item["heads"] == 1 for item in items_of(made))


@settings(max_examples=examples(150))
@given(problems())
def test_a_backward_pass_covers_every_tile_once(problem):
    kinds, of_head, heads_kv, rule, tokens = problem
    layouts = [layout_from(one).transpose() for one in kinds]
    ptr, entries = kernel_lists(layouts)
    size = of_head.shape[1] // heads_kv
    made = backward_work(list_spans(ptr), of_head, heads_kv, tokens, rule)
    check_cover(made, entries, [kinds[i].T for i in of_head.ravel()], size, False)
    check_order(made, alike(len(of_head) * heads_kv, rule, tokens) * size)
    lists = of_head.reshape(-1, size)
    for number, item in enumerate(items_of(made)):
        own = lists[item["head"] // size]
        together = (own == own[0]).all()
        empty = number >= made.filled
        assert item["heads"] == (size if together or empty else 1)
        counts = [int(n) for n in (kinds[own[0]] > 0).sum(axis=0)]
        most = cut_by(counts, rule)[item["tile"]]
        cut = most and counts[item["tile"]] > most
        assert (item["shared"] > 0) == (not empty and (not together or bool(cut)))
        if item["shared"]:
            column = dict(zip(NAMES, made.merges[item["shared"] - 1].tolist(), strict=True))
            assert column["tile"] == item["tile"]
            assert column["head"] == item["head"] // size * size
    assert {item["shared"] for item in items_of(made)} - {0} == set(range(1, len(made.merges) + 1))
    assert made.parts == len(made.merges)
    check_sizes(made, [kinds[i].T for i in of_head.ravel()], rule)


@settings(max_examples=examples(150))
@given(problems())
def test_shares_of_columns_lie_side_by_side(problem):
    """The items keep their order, but each leaves a share: by column, head, position."""
    kinds, of_head, heads_kv, rule, tokens = problem
    spans = spans_of(*(layout_from(one).transpose() for one in kinds))
    size = of_head.shape[1] // heads_kv
    one, made = (backward_work(spans, of_head, heads_kv, tokens, replace(rule, apart=apart))
                 for apart in (False, True))  # fmt: skip
    assert (made.items[:, :7] == one.items[:, :7]).all()
    assert ((made.items[:, 7] > 0) == (one.items[:, 7] > 0)).all()
    shares = {item["shared"] - 1: item for item in items_of(made) if item["shared"]}
    assert sorted(shares) == list(range(made.parts))
    seen = 0
    for tile, head, first, count, *_ in made.merges.tolist():
        assert first == seen
        own = [shares[place] for place in range(first, first + count)]
        assert {(i["head"] // size * size, i["tile"]) for i in own} == {(head, tile)}
        places = [(i["head"], i["first"]) for i in own]
        assert places == sorted(set(places))
        seen += count
    assert seen == made.parts


def test_where_a_column_is_cut_depends_on_its_own_tiles():
    kinds = np.ones((9, 2), np.uint8)
    kinds[4:, 1] = 0
    spans = spans_of(layout_from(kinds).transpose())
    one = items_of(backward_work(spans, np.zeros((1, 2), int), 1, 9, WorkList(9, 4)))
    two = items_of(backward_work(spans, np.zeros((3, 6), int), 2, 9, WorkList(99, 4)))
    pieces = [(i["tile"], i["first"], i["count"], int(i["shared"] > 0)) for i in one]
    assert pieces == [(0, 0, 4, 1), (0, 4, 4, 1), (1, 9, 4, 0), (0, 8, 1, 1)]
    found = {(i["tile"], i["first"], i["count"], int(i["shared"] > 0)) for i in two}
    assert found == set(pieces)


GLOBAL = "(k <= 100) | (q <= 3) | ((k <= q + 9) & (k >= q - 9))"
"""The first tile row sees all, and all see the first columns."""
NEVER = {
    "full": "k >= 0",
    "causal": "k <= q + n_kv - n_q",
    "window": "(k <= q) & (k >= q - 400)",
    "prefix": "(k <= q) | (k < 900)",
    "prefix, most of all": "(k <= q) | (k < 3000)",
}


def layout_of(keep: str, n: int, n_kv: int = 0, tile: tuple[int, int] = (64, 32)) -> BlockLayout:
    return build(LayoutRecipe(TileShape(*tile), parse_expr(keep), None), n, n_kv or n, {}, {})


@pytest.mark.parametrize("name", NEVER)
@pytest.mark.parametrize(("n_q", "n_kv"), [(4000, 4000), (1000, 5000), (5000, 1000)])
def test_even_rows_are_never_cut(name, n_q, n_kv):
    spans, rule = spans_of(layout_of(NEVER[name], n_q, n_kv)), WorkList(9, uneven_tiles=2)
    made = forward_work(spans, np.zeros((2, 2), int), 2, n_q, n_kv, rule)
    assert not made.shared
    assert made.parts == len(made.merges)


def test_a_row_among_short_ones_is_cut():
    spans, rule = spans_of(layout_of(GLOBAL, 4000)), WorkList(9, uneven_tiles=16)
    made = forward_work(spans, np.zeros((1, 1), int), 1, 4000, 4000, rule)
    long = [(i["tile"], i["count"]) for i in items_of(made) if i["shared"]]
    assert long == [(0, 16)] * 7 + [(0, 13)]
    assert made.merges.tolist() == [[0, 0, 0, 8, 0, 0, 0, 0]]


def test_parts_do_not_depend_on_batch_or_heads():
    rule = WorkList(9000, uneven_tiles=3)
    spans = spans_of(layout_of(GLOBAL, 2000))
    one = forward_work(spans, np.zeros((1, 1), int), 1, 2000, 2000, rule)
    many = forward_work(spans, np.zeros((3, 8), int), 2, 2000, 2000, rule)
    assert many.parts == 24 * one.parts > 0
    for head in range(24):
        first = head * one.parts
        own = [{**i, "head": 0, "shared": i["shared"] and i["shared"] - first}
               for i in items_of(many) if i["head"] == head]  # fmt: skip
        assert own == items_of(one)


def test_many_long_rows_have_no_more_parts_than_there_are_rows():
    """And a list of its own decides for each head."""
    keep = "(q % 1000 < 100) | (k == q)"
    rule = WorkList(9, uneven_tiles=1)
    made = forward_work(spans_of(layout_of(keep, 8000)), np.zeros((1, 2), int), 2, 8000, 8000, rule)
    assert 0 < made.parts <= 2 * 125
    assert len({row[3] for row in made.merges.tolist()}) == 1
    texts = ("k <= q", "(q < 2) | (k == q)")
    both = spans_of(*(layout_of(text, 60, tile=(2, 3)) for text in texts))
    made = forward_work(both, np.array([[0, 1, 0]]), 3, 60, 60, rule)
    assert {row[1] for row in made.merges.tolist()} == {1}


def test_a_row_that_is_alone_is_cut():
    """One query is decoded; where there are two rows they are not cut."""
    rule = WorkList(9000, uneven_tiles=4)
    cases = ((1, 7, 7), (16, 8, 4), (9, 30, 4), (32, 30, 8), (20, 15, 15), (33, 30, 30))
    for n, keys, most in cases:
        spans = spans_of(layout_of("k >= 0", n, 32 * keys, (32, 32)))
        made = forward_work(spans, np.zeros((2, 3), int), 3, n, 32 * keys, rule)
        assert max(i["count"] for i in items_of(made)) == most
        assert len(made.merges) == (6 if most < keys else 0)


def test_columns_among_short_ones_are_cut():
    """Even ones keep the larger size."""
    rule = WorkList(9, most_tiles=50, uneven_tiles=8)
    for keep, most in ((GLOBAL, 8), ("k <= q", 50)):
        spans = spans_of(layout_of(keep, 4000, tile=(32, 64)).transpose())
        made = backward_work(spans, np.zeros((1, 2), int), 1, 4000, rule)
        assert max(i["count"] for i in items_of(made)) == most
        assert made.shared


def test_heads_of_a_group_stay_together():
    spans = spans_of(layout_from(np.tril(np.ones((3, 3), np.uint8))))
    made = forward_work(spans, np.zeros((1, 6), int), 3, 10, 10, WorkList(25))
    assert [(i["tile"], i["head"]) for i in items_of(made)] == [
        *((tile, head) for tile in (2, 1, 0) for head in range(4)),
        *((tile, head) for tile in (2, 1, 0) for head in (4, 5)),
    ]
    assert made.mean == 2.0


def test_groups_are_alike():
    spans = spans_of(layout_from(np.tril(np.ones((2, 2), np.uint8))))
    made = forward_work(spans, np.zeros((1, 16), int), 16, 10, 10, WorkList(50))
    assert [i["head"] for i in items_of(made)][:8] == [0, 1, 2, 3] * 2  # 4 groups of 4, not 5


def test_too_much_work(monkeypatch):
    monkeypatch.setattr(work, "MAX_ITEMS", 5)
    spans = spans_of(layout_from(np.ones((3, 1), np.uint8)))
    with pytest.raises(TooMuchWork, match="6 work items, more than the limit of 5"):
        forward_work(spans, np.zeros((1, 2), int), 2, 1, 1, WorkList(1))


# ------------------------------------------------------------------ packed heads


def row_spans(counts: list[int]) -> Spans:
    """Return lists that begin anywhere, with partial first and last tiles."""
    count = np.array([counts], np.int64).T
    first = np.arange(len(counts))[:, None] * 5000 + 3
    return Spans(first, count, first + 1, first + np.maximum(count - 1, 1))


def packed_rule(heads: int = 4, **rule) -> WorkList:
    """Make the rule of a kernel with tiles of 64 keys and two blocks on a multiprocessor."""
    return WorkList(**{"group_tokens": 9000, "uneven_tiles": 32, "few_tiles": 8, "resident": 2,
                       "heads": heads, **rule})  # fmt: skip


def sizes_of(made: work.Work) -> set[int]:
    """Tiles of items, less those that have the rest of a row."""
    return {item["count"] for item in items_of(made) if item["first"] % 5000 == 3}


@pytest.mark.parametrize(
    ("tiles", "size"),
    [(31, 31), (32, 32), (33, 17), (64, 32), (65, 22), (2048, 32), (2049, 63), (9000, 250)],
)
def test_invariant_rows_are_cut_by_their_own_tiles(tiles, size):
    """Parts of 2048 keys of 64 a tile, evened out; 64 parts at most."""
    for rows in (1, 64):
        for others in (0, 7):
            spans = row_spans([tiles, 5 * others])
            of_head = np.array([[0] * rows + [1] * others])
            made = packed_work(spans, of_head, 1, packed_rule(invariant=True))
            assert {item["count"] for item in items_of(made) if item["first"] == 3} == {size}


@pytest.mark.parametrize(
    ("rows", "tiles", "size"),
    [
        (8, 128, 8),  # a sequence of 8k keys, 8 heads: 128 blocks of 264
        (8, 2048, 64),  # of 128k keys: 256 blocks in one turn
        (128, 128, 64),  # halves fill the card once
        (256, 256, 256),  # whole rows do
        (192, 94, 94),  # enough blocks have one
        (512, 64, 64), (512, 16, 16),  # two turns of whole rows
        (300, 64, 16),  # whole rows would leave most blocks idle in a second turn
        (8, 15, 8), (8, 8, 8), (1, 0, 0),
    ],
)  # fmt: skip
def test_where_packed_rows_are_cut(rows, tiles, size):
    """Equal rows on a card that runs 264 blocks at once."""
    made = packed_work(row_spans([tiles]), np.zeros((1, rows), int), 1, packed_rule())
    assert sizes_of(made) == {size}
    assert made.parts == (len(made.items) if size < tiles else 0)


def test_rows_of_many_queries_have_fewer_parts():
    """Parts of more rows take longer to store and to add up."""
    few, many = (
        [packed_work(row_spans([112]), np.zeros((1, rows), int), 1, packed_rule(heads))
         for rows in (8, 64)]
        for heads in (4, 128)
    )  # fmt: skip
    assert sizes_of(few[0]) == sizes_of(many[0]) == {8}
    assert many[1].parts <= few[1].parts


def test_a_long_row_among_short_ones_is_cut():
    """One block would still read it when all others are done."""
    of_head = np.array([[0] * 250 + [1] * 2])
    made = packed_work(row_spans([16, 1024]), of_head, 1, packed_rule())
    longest = max(item["count"] for item in items_of(made))
    assert longest <= 64
    assert made.parts > 0


def test_rows_of_many_lengths_are_not_cut():
    """Short rows, taken last, fill the time that long ones leave."""
    lists = np.array([range(6)]).repeat(128, axis=1)
    spans = row_spans([32, 77, 122, 167, 212, 256])
    assert packed_work(spans, lists, 1, packed_rule(128, resident=1)).parts == 0
    # 200 long rows take two turns of 132 blocks, whatever else there is.
    lists = np.array([[0] * 200 + [1] * 300])
    assert packed_work(row_spans([256, 1]), lists, 1, packed_rule(4, resident=1)).parts


@settings(max_examples=examples(150))
@given(st.data())
def test_packed_rows_are_covered_once(data):
    draw = data.draw
    counts = draw(st.lists(st.integers(0, 300), min_size=1, max_size=4))
    batch, heads = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    of_head = np.array(draw(st.lists(
        st.integers(0, len(counts) - 1), min_size=batch * heads, max_size=batch * heads
    ))).reshape(batch, heads)  # fmt: skip
    rule = packed_rule(
        heads=draw(st.integers(1, 40)), few_tiles=draw(st.sampled_from([0, 1, 2, 8])),
        resident=draw(st.integers(1, 3)), invariant=draw(st.booleans()),
    )  # fmt: skip
    spans, n_q = row_spans(counts), draw(st.integers(1, 3))
    made = packed_work(spans, of_head, n_q, rule)
    items, lists = items_of(made), of_head.ravel()
    sizes = [item["count"] for item in items]
    assert sizes == sorted(sizes, reverse=True)
    assert made.filled == sum(size > 0 for size in sizes)
    cutting = work.cutting_of(n_q * rule.heads, rule)
    assert len(items) <= cutting.room(len(lists), max(counts))
    assert rule.invariant or cutting.room(10**6, 300) <= 10**6 + 4 * cutting.blocks
    seen = [np.zeros(counts[number], int) for number in lists]
    parts: dict[int, tuple[int, int, int]] = {}  # by number: head, first tile, tiles
    for item in items:
        head, first = item["head"], item["first"]
        row_first = spans.first[lists[head], 0]
        seen[head][first - row_first : first - row_first + item["count"]] += 1
        inside = range(first, first + item["count"])
        full = set(range(item["full_first"], item["full_last"]))
        number = lists[head]
        assert full == set(inside) & set(
            range(spans.full_first[number, 0], spans.full_last[number, 0])
        )
        assert item["tile"] == 0
        if not item["shared"]:
            assert item["count"] == counts[number]
            continue
        assert made.merges[item["heads"], 1] == head
        assert item["shared"] - 1 not in parts
        parts[item["shared"] - 1] = head, first, item["count"]
    assert all((times == 1).all() for times in seen)
    assert sorted(parts) == list(range(made.parts))
    for row in made.merges:
        head, first, count = row[1:4].tolist()
        row_parts = [parts[first + i] for i in range(count)]
        assert {part[0] for part in row_parts} == {head}
        assert [part[1] for part in row_parts] == sorted(part[1] for part in row_parts)
        assert sum(part[2] for part in row_parts) == counts[lists[head]]


@pytest.mark.parametrize(("backward", "most"), [(False, 64), (True, 32)])
def test_groups_of_many_short_heads(backward, most):
    """Groups have no more heads than find their keys in the cache, and are all alike."""
    rule = WorkList(1 << 20)
    assert work.heads_per_group(rule, 16, 512, backward) == most
    assert work.heads_per_group(rule, 16, most + 1, backward) == most // 2 + 1
    assert work.heads_per_group(rule, 1 << 19, 512, backward) == 2
    assert work.heads_per_group(WorkList(48), 16, 16, backward) == 2  # of 3, one would be left
