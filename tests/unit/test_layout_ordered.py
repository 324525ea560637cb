"""The order of a deterministic backward pass: everything once, nobody waits for what is later."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core.bundle import DETERMINISTIC, WorkList
from maskc.core.package import template_folder
from maskc.core.problem import Direction
from maskc.core.sizes import Sizes
from maskc.core.target import TARGETS
from maskc.dispatch.tables import make_tables
from maskc.layout import (
    Spans,
    heads_together,
    in_turn,
    list_spans,
    longest_chain,
    ordered_work,
    runs_side_by_side,
)
from maskc.layout.work import deterministic_order as ordered
from maskc.layout.work.deterministic_order import BLOCKS, HELD, HOP, MAX_SUMS, sums_of, turns
from tests.support.probe import Block, Probe
from tests.support.thorough import examples


@st.composite
def calls(draw):
    """Lists of tile rows by list and column, which list each head has, heads, a rule."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    lists, rows = draw(st.integers(1, 3)), draw(st.integers(1, 30))
    columns = draw(st.integers(0, 20))
    live = rng.random((lists, columns, rows)) < draw(st.sampled_from([0.1, 0.5, 1.0]))
    if columns and draw(st.booleans()):
        live[:, 0] = True
    batch, kv, size = (draw(st.integers(1, 3)) for _ in range(3))
    of_head = rng.integers(0, lists, (batch, kv * size))
    rule = WorkList(
        draw(st.integers(1, 100)),
        draw(st.sampled_from([0, 1, 5])),
        0,
        draw(st.sampled_from([0, 2])),
        True,
    )
    return live, of_head, kv, rule


@settings(max_examples=examples(150))
@given(calls(), st.integers(1, 16))
def test_everything_once_and_in_turn(call, together):
    live, of_head, kv, rule = call
    count = live.sum(axis=2)
    nothing = np.zeros_like(count)
    work = ordered_work(Spans(nothing, count, nothing, nothing), of_head, kv, together, rule)
    size = of_head.shape[1] // kv
    seen, shares = [], {}
    for tile, head, first, steps, _, _, heads, shared in work.items.tolist():
        own = range(head, head + heads)
        rows = {h: np.flatnonzero(live[of_head.ravel()[h], tile]) for h in own}
        if shared:
            assert heads == 1
            rows = {head: rows[head][first : first + steps]}
            shares.setdefault((tile, head // size), []).append(shared - 1)
        assert steps == sum(map(len, rows.values()))
        assert steps or not shared
        seen += [(h, tile, row) for h, found in rows.items() for row in found.tolist()]
    wanted = {
        (h, tile, row)
        for h, number in enumerate(of_head.ravel().tolist())
        for tile, row in np.argwhere(live[number]).tolist()
    }
    assert len(seen) == len(wanted)
    assert set(seen) == wanted
    adding = {}
    for h, tile, row in seen:
        adding.setdefault((h, row), []).append(-tile)
    assert all(found == sorted(found) for found in adding.values())

    whole = {(t, h // size) for t, h, *_, shared in work.items.tolist() if not shared}
    every = {(t, h) for t in range(live.shape[1]) for h in range(of_head.size // size)}
    assert whole | shares.keys() == every
    assert not whole & shares.keys()
    merged = {(t, h // size): range(f, f + n) for t, h, f, n, *_ in work.merges.tolist()}
    assert {key: list(found) for key, found in merged.items()} == shares
    assert work.parts == sum(map(len, shares.values()))


def by_columns(live):
    """Pointers and words of lists by columns, of which tiles are live [lists, columns, rows]."""
    lists, columns, _ = live.shape
    ends = np.concatenate([[0], live.sum(axis=2).ravel().cumsum()])
    ptr = ends[np.arange(lists)[:, None] * columns + np.arange(columns + 1)]
    return ptr.astype(np.int32), 2 * np.nonzero(live)[2].astype(np.int32) + 1


@settings(max_examples=examples(100))
@given(calls(), st.integers(1, 16), st.booleans(), st.integers(1, MAX_SUMS))
def test_turns_of_a_row_follow_the_items(call, together, plain, most):
    live = call[0]
    lists, columns, rows = live.shape
    ptr, words = by_columns(live)
    sums = np.random.default_rng(most).integers(1, most + 1, (lists, rows)).astype(np.int32)
    tiles, code = turns(ptr, words, sums, BLOCKS // together, plain)
    assert tiles.dtype == code.dtype == np.int32
    assert not plain or np.array_equal(tiles, words)
    for which, own in np.ndindex(lists, columns):
        part = slice(ptr[which, own], ptr[which, own + 1])
        assert sorted(tiles[part]) == words[part].tolist()
        for word, found in zip(tiles[part].tolist(), code[part].tolist(), strict=True):
            before = live[which, own + 1 :, word >> 1].sum()
            number = sums[which, word >> 1]
            assert divmod(found, MAX_SUMS) == (before // number, before % number)


@settings(max_examples=examples(100))
@given(calls(), st.integers(0, 300))
def test_sums_keep_chains_short(call, n_q):
    live, rule = call[0], call[3]
    adders = live.sum(axis=1)
    row_ptr = np.pad(adders.cumsum(axis=1), ((0, 0), (1, 0)))
    found = sums_of(row_ptr, n_q, rule)
    assert found.shape == adders.shape
    assert (found <= np.maximum(adders, 1)).all()
    assert ((found >= 1) & (found <= MAX_SUMS)).all()
    at_once = BLOCKS / max(1, rule.group_tokens // max(1, n_q))
    steps = max(1, adders.sum() / len(adders))
    late = adders * HOP * at_once / steps
    assert (found[late <= 1] == 1).all()
    enough = (found == MAX_SUMS) | (found == adders) | (late / found <= 0.5)
    assert enough[late > 1].all()
    chains = -(-adders // found)
    before = np.pad((found - 1).cumsum(axis=1), ((0, 0), (1, 0)))
    assert longest_chain({"row_ptr": row_ptr, "row_sums": before}) == chains.max(initial=0)
    assert longest_chain({"row_ptr": row_ptr}) == adders.max(initial=0)
    assert longest_chain({}) == 0


def test_a_window_has_one_sum_and_global_queries_several():
    rule, far = WorkList(4096), np.arange(256) - np.arange(256)[:, None]
    adders = ((far >= 0) & (far < 8)).sum(axis=0)
    assert (sums_of(np.cumsum([[0, *adders]], axis=1), 16384, rule) == 1).all()
    adders[0] = 256
    found = sums_of(np.cumsum([[0, *adders]], axis=1), 16384, rule)
    assert found.tolist() == [[MAX_SUMS] + 255 * [1]]


def test_kernels_read_turns_as_they_are_written():
    text = (template_folder() / "sm90a" / "lib" / "backward_order.cuh").read_text()
    assert f"MAX_SUMS = {MAX_SUMS};" in text
    assert f"HELD = 1 << {HELD.bit_length() - 1};" in text


# ------------------------------------------------------------------ waiting both ways


@st.composite
def random_tables(draw):
    """Lists of random tiles, so many that blocks would wait: bool [lists, columns, rows]."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 16)))
    shape = (draw(st.integers(1, 3)), draw(st.integers(4, 24)), draw(st.integers(4, 24)))
    live = rng.random(shape) < draw(st.sampled_from([0.15, 0.4, 0.9]))
    live[:, rng.integers(0, shape[1])] = False
    return live


def both_ways(live, at_once, sums=1, may=True):
    """Lists by columns of what is live, with so many tiles of dq a row: by list and column [(tile
    of dq, rank, held)]; and whether their columns wait both ways, which they `may`."""
    ptr, words = by_columns(live)
    own = np.full((live.shape[0], live.shape[2]), sums, np.int32)
    tiles, code = turns(ptr, words, own, at_once, False, may)
    steps = [
        ((word >> 1) * sums + found % MAX_SUMS, found % HELD // MAX_SUMS, found >= HELD)
        for word, found in zip(tiles.tolist(), code.tolist(), strict=True)
    ]
    lists = [[steps[a:b] for a, b in pairwise(each)] for each in ptr.tolist()]
    return lists, any(held for _, _, held in steps)


@settings(max_examples=examples(100))
@given(random_tables(), st.integers(1, 12), st.integers(1, 3))
def test_columns_that_wait_both_ways_have_every_turn_once(live, at_once, sums):
    lists, joint = both_ways(live, at_once, sums)
    for own, columns in zip(live, lists, strict=True):
        for tiles, steps in zip(own, columns, strict=True):
            assert sorted(to // sums for to, _, _ in steps) == np.flatnonzero(tiles).tolist()
            assert [held for _, _, held in steps[-1:]] == [joint] * len(steps[-1:])
            assert not any(held for _, _, held in steps[:-1])
        for to in range(live.shape[2] * sums):
            ranks = [rank for steps in columns for other, rank, _ in steps if other == to]
            adders = own[:, to // sums].sum()
            assert sorted(ranks) == list(range((adders + sums - 1 - to % sums) // sums))


@settings(max_examples=examples(200))
@given(random_tables(), st.integers(1, 12), st.integers(1, 3), st.sampled_from([0, 1, 3]),
       st.randoms(use_true_random=False))  # fmt: skip
def test_nobody_waits_for_ever(live, blocks, heads, most, random):
    """However long steps take, if as many blocks run as are reckoned with: heads with lists of
    their own, whose items are taken in the order of the work list, by whoever is through with his
    last one, or as soon as its last turn came."""
    lists, _, rows = live.shape
    ptr, words = by_columns(live)
    row_ptr, _ = by_columns(live.transpose(0, 2, 1))
    parts = [("row_ptr", row_ptr), ("col_ptr", ptr), ("col_tiles", words)]
    rule = WorkList(10 * rows, most, ordered=True, both_ways=True)
    of_head = np.array([[random.randrange(lists) for _ in range(4 * heads)]])
    with mock.patch.object(ordered, "BLOCKS", blocks), mock.patch.object(ordered, "FEWEST", 1):
        made = dict(in_turn(parts, 64 * rows, 1, rule))
        together = heads_together(np.diff(ptr), longest_chain(made), 64 * rows, rule)
    work = ordered_work(list_spans(ptr), of_head, 4 * heads, together, rule)
    which, rank = made["col_turns"] % MAX_SUMS, made["col_turns"] % HELD // MAX_SUMS
    to = made["col_tiles"] >> 1
    todo = []
    for column, head, first, count, *_, shared in work.items.tolist():
        begin = ptr[of_head[0, head], column] + (first if shared else 0)
        todo.append([((head, to[i], which[i]), rank[i]) for i in range(begin, begin + count)])
    came = dict.fromkeys((turn[0] for item in todo for turn in item), 0)
    under_way, hurry = [[] for _ in range(blocks)], random.random()
    while todo or any(under_way):
        can = [own for own in under_way if own and came[own[0][0]] == own[0][1]]
        idle = [own for own in under_way if not own] if todo else []
        assert can or idle, "everybody waits"
        if idle and (not can or random.random() < hurry):
            random.choice(idle).extend(todo.pop(0))
        else:
            came[random.choice(can).pop(0)[0]] += 1


def waited_by_heads(live, at_once, may):
    """Steps that blocks wait of ten heads one after another, if all steps take as long as each
    other; each takes the next column as it ends one."""
    (columns,), _ = both_ways(live[None], at_once, 1, may)
    todo = [[(head, *step) for step in own] for head in range(10) for own in columns[::-1] if own]
    running, came, idle = [], np.zeros((10, live.shape[1]), int), 0
    while todo or running:
        while todo and len(running) < at_once:
            running.append(todo.pop(0))
        ready = [left for left in running if came[left[0][:2]] == left[0][2]]
        idle += len(running) - len(ready)
        for left in ready:
            came[left.pop(0)[:2]] += 1
        running = [left for left in running if left]
    return idle


@pytest.mark.parametrize(("share", "size"), [(0.1, 128), (0.25, 64), (0.5, 32)])
def test_blocks_hardly_wait_both_ways(share, size):
    """Check random blocks, which keep them waiting where later columns never go first; half of all
    columns are under way."""
    live = np.repeat(np.random.default_rng(0).random((size, size)) < share, 2, axis=1)
    assert both_ways(live[None], size // 2)[1]
    found, before = (waited_by_heads(live, size // 2, may) for may in (True, False))
    assert found < min(0.06 * 10 * live.sum(), before / 3)


@pytest.mark.parametrize("reach", [4, 64])
def test_nothing_else_waits_both_ways(reach):
    far = np.arange(128) // 2 - np.arange(64)[:, None]
    assert not both_ways(((far >= 0) & (far < reach))[None], 16)[1]


def test_where_columns_may_wait_both_ways():
    """On cards with enough multiprocessors, of whole columns of one query head."""
    live = np.random.default_rng(0).random((1, 64, 128)) < 0.1
    ptr, words = by_columns(live)
    row_ptr, _ = by_columns(live.transpose(0, 2, 1))
    parts = [("row_ptr", row_ptr), ("col_ptr", ptr), ("col_tiles", words)]

    def joint(size=1, **rule):
        made = WorkList(1 << 14, ordered=True, **{"both_ways": True, **rule})
        return bool((dict(in_turn(parts, 1 << 13, size, made))["col_turns"] >= HELD).any())

    assert joint()
    assert not joint(both_ways=False)
    assert not joint(size=2)
    assert not joint(most_tiles=5)
    assert not joint(plain=True)
    assert [runs_side_by_side(n) for n in (BLOCKS - 1, BLOCKS)] == [False, True]


def waited(live, orders):
    """Steps that blocks of one head wait in all, if eight start together and each takes the next
    column, from the last on, as it ends one; and the tiles that they take."""
    todo, running, added, idle = list(range(len(live)))[::-1], [], set(), 0
    while todo or running:
        while todo and len(running) < 8:
            own = todo.pop(0)
            running.append((own, list(orders[own])))
        moved = []
        for own, left in running:
            before = {(c, left[0]) for c in range(own + 1, len(live)) if live[c, left[0]]}
            if before <= added:
                moved.append((own, left.pop(0)))
            else:
                idle += 1
        added.update(moved)
        running = [(own, left) for own, left in running if left]
    return idle, len(added)


def taken(live):
    """The rows of every column as they are taken."""
    ptr, words = by_columns(live[None])
    tiles, _ = turns(ptr, words, np.ones((1, live.shape[1]), np.int32), BLOCKS // 16, False)
    return [tiles[a:b] >> 1 for a, b in pairwise(ptr[0])]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
def test_blocks_seldom_wait(share):
    """Blocks of random tiles wait far less than if rows kept their order."""
    live = np.random.default_rng(0).random((128, 128)) < share
    before, steps = waited(live, [np.flatnonzero(column) for column in live])
    assert waited(live, taken(live))[0] < min(0.1 * steps, 0.6 * before)


@pytest.mark.parametrize("reach", [4, 64])
def test_what_needs_no_order_keeps_its_own(reach):
    """A window, and a causal mask: rows ascend and nobody waits."""
    far = np.arange(128) // 2 - np.arange(64)[:, None]
    live = (far >= 0) & (far < reach)
    found = taken(live)
    assert all(np.array_equal(a, np.flatnonzero(b)) for a, b in zip(found, live, strict=True))
    assert waited(live, found)[0] == 0


def test_heads_side_by_side():
    """Two where their queries fill the cache; more where one row has to be added to by all columns,
    but for each of them there is little else to do; never so many that few columns are left."""
    rule, causal = WorkList(32768), 2 * np.arange(1, 129)[None]
    assert heads_together(causal, 128, 16384, rule) == 2
    assert heads_together(causal, 128, 1 << 20, rule) == 1
    few = np.full((1, 128), 10)
    assert heads_together(few, 3, 16384, rule) == 2
    assert heads_together(few, 128, 16384, rule) == 16
    assert heads_together(np.full((3, 4), 10), 4, 100, rule) == 16
    assert heads_together(np.zeros((1, 0), np.int64), 0, 0, rule) == 16


# ------------------------------------------------------------------ the kernel's own text


SM_90A = TARGETS["sm_90a"]
_RANKS = """
extern "C" __global__ void __launch_bounds__(32)
probe(const __grid_constant__ struct Attention p, const int *tiles, int count, int *ranks) {
    for (int i = threadIdx.x; i < count; i += 32)
        ranks[i] = rank_of(p, 0, tiles[2 * i], tiles[2 * i + 1]);
}
"""


@pytest.mark.parametrize("name", ["random", "prefix", "causal", "window"])
def test_all_columns_of_a_row_take_turns(name):
    """From the last to the first: nobody is left out, none comes twice."""
    rng = np.random.default_rng(0)
    mask, n_q, n_kv, data = {
        "random": (mc.block_table("t", 128), 900, 9000, {"t": rng.random((8, 71)) < 0.4}),
        "prefix": (mc.causal() | mc.where(lambda q, k: k < 700), 3000, 3000, {}),
        "causal": (mc.causal(), 2000, 2300, {}),
        "window": (mc.window(100, 300), 900, 3000, {}),
    }[name]
    bundle = driver.emit_bundle(
        driver.plan_kernel(mask, driver.problem(128, None, 1, "bfloat16"), SM_90A)
    )
    unit = bundle.unit("sm_90a", Direction.backward)
    probe = Probe(unit.source, _RANKS, (unit.mode(DETERMINISTIC).macro,))
    arrays = {key: value.astype(np.int32)[None] for key, value in data.items()}
    tables = make_tables(
        bundle, unit, Sizes(1, 1, 1, n_q, n_kv), dict(bundle.params), arrays, Direction.backward,
        not unit.ranges,
    )  # fmt: skip
    rows, columns = unit.tiles(n_q, n_kv)
    block = Block(tables)
    block.set(n_q=n_q, n_kv=n_kv, batch=1, heads_q=1, tile_rows=rows, tile_cols=columns)
    layout = mask.layout(n_q, n_kv, block=(unit.tile.q, unit.tile.k), **data)
    tiles = np.stack([np.repeat(np.arange(rows), np.diff(layout.row_ptr)), layout.col], 1)
    tiles, ranks = np.ascontiguousarray(tiles, np.int32), np.full(len(tiles), -1, np.int32)
    probe.launch(1, 32, block.structure, tiles, len(tiles), ranks)
    for row in range(rows):
        own = tiles[:, 0] == row
        last_first = ranks[own][np.argsort(-tiles[own, 1])]
        assert last_first.tolist() == list(range(own.sum()))
