"""The order of a deterministic backward pass: everything once, nobody waits for what is later."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from maskc.core.bundle import WorkList
from maskc.layout import Spans, ordered_work, turns
from maskc.layout.ordered import COLUMNS


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
    rule = WorkList(1, draw(st.sampled_from([0, 1, 5])), 0, draw(st.sampled_from([0, 2])), True)
    return live, of_head, kv, rule


@settings(max_examples=150, deadline=None)
@given(calls())
def test_everything_once_and_in_turn(call):
    live, of_head, kv, rule = call
    count = live.sum(axis=2)
    nothing = np.zeros_like(count)
    work = ordered_work(Spans(nothing, count, nothing, nothing), of_head, kv, rule)
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
    in_turn = {}
    for h, tile, row in seen:
        in_turn.setdefault((h, row), []).append((tile // COLUMNS, -tile))
    assert all(found == sorted(found) for found in in_turn.values())

    whole = {(t, h // size) for t, h, *_, shared in work.items.tolist() if not shared}
    every = {(t, h) for t in range(live.shape[1]) for h in range(of_head.size // size)}
    assert whole | shares.keys() == every
    assert not whole & shares.keys()
    merged = {(t, h // size): range(f, f + n) for t, h, f, n, *_ in work.merges.tolist()}
    assert {key: list(found) for key, found in merged.items()} == shares
    assert work.parts == sum(map(len, shares.values()))


@settings(max_examples=100, deadline=None)
@given(calls())
def test_turns_of_a_row_follow_the_items(call):
    live = call[0]
    lists, columns, _ = live.shape
    ends = np.concatenate([[0], live.sum(axis=2).ravel().cumsum()])
    ptr = ends[np.arange(lists)[:, None] * columns + np.arange(columns + 1)]
    number, column, row = np.nonzero(live)
    found = turns(ptr.astype(np.int32), 2 * row.astype(np.int32) + 1)
    assert found.dtype == np.int32
    for each in zip(number.tolist(), column.tolist(), row.tolist(), found.tolist(), strict=True):
        which, own, line, turn = each
        others = np.flatnonzero(live[which, :, line]).tolist()
        assert sorted(others, key=lambda x: (x // COLUMNS, -x))[turn] == own
