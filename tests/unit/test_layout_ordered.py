"""The order of a deterministic backward pass: everything once, nobody waits for what is later."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskc.core.bundle import WorkList
from maskc.core.package import template_folder
from maskc.layout import Spans, heads_together, longest_chain, ordered_work
from maskc.layout.ordered import BLOCKS, HOP, MOST_SUMS, sums_of, turns


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


@settings(max_examples=150, deadline=None)
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


@settings(max_examples=100, deadline=None)
@given(calls(), st.integers(1, 16), st.booleans(), st.integers(1, MOST_SUMS))
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
            assert divmod(found, MOST_SUMS) == (before // number, before % number)


@settings(max_examples=100, deadline=None)
@given(calls(), st.integers(0, 300))
def test_sums_keep_chains_short(call, n_q):
    live, rule = call[0], call[3]
    adders = live.sum(axis=1)
    row_ptr = np.pad(adders.cumsum(axis=1), ((0, 0), (1, 0)))
    found = sums_of(row_ptr, n_q, rule)
    assert found.shape == adders.shape
    assert (found <= np.maximum(adders, 1)).all()
    assert ((found >= 1) & (found <= MOST_SUMS)).all()
    at_once = BLOCKS / max(1, rule.group_tokens // max(1, n_q))
    steps = max(1, adders.sum() / len(adders))
    late = adders * HOP * at_once / steps
    assert (found[late <= 1] == 1).all()
    enough = (found == MOST_SUMS) | (found == adders) | (late / found <= 0.5)
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
    assert found.tolist() == [[MOST_SUMS] + 255 * [1]]


def test_kernels_read_turns_as_they_are_written():
    text = (template_folder() / "sm90a" / "backward_order.cuh.j2").read_text()
    assert f"MOST_SUMS = {MOST_SUMS};" in text


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
    """Of random tiles far less than if rows kept their order."""
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
