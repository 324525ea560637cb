"""Invariants of plans: every token has one owner, and what travels is what is seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.distributed import plan
from maskc.distributed.layouts import LAYOUTS
from maskc.distributed.token_ranges import union
from maskc.distributed.work import RankCall
from tests.support.thorough import examples

MASKS = {
    "causal": mc.causal(),
    "full": mc.full(),
    "window": mc.causal() & mc.window(37),
    "bidirectional": mc.window(20, 33),
    "sinks": mc.causal() & (mc.window(30) | mc.sinks(5)),
    "chunked": mc.chunked(48),
    "dilated": mc.dilated(9, stride=4),
    "strided": mc.causal() & (mc.window(15) | mc.strided(16, 15)),
    "longformer": mc.window(16, 16) | mc.global_tokens([3, 70]),
    "bigbird": mc.random_blocks(16, 2, 1) | mc.window(16, 16) | mc.sinks(16),
    "prefix": mc.causal() | mc.prefix(40),
    "natten": mc.where(lambda q, k: abs(k - min(max(q, 8), mc.n_q - 9)) <= 8),
    "heads": mc.per_head([mc.causal() & mc.window(8), mc.full()]),
}


def tokens(ranges: list[tuple[int, int]]) -> set[int]:
    return {token for start, stop in ranges for token in range(start, stop)}


def brought(data: st.DataObject, n: int, ranks: int, label: str = "layout") -> list[np.ndarray]:
    """Tokens in the slots of each rank, as something else may have placed them."""
    kind = data.draw(st.sampled_from(("any", "chunks", "documents")), label=label)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    if kind == "documents":
        inner = np.sort(rng.integers(0, n + 1, 3))
        return mc.distributed.zigzag([0, *inner.tolist(), n], ranks)
    size = 1 if kind == "any" else data.draw(st.integers(1, 100))
    chunks = [np.arange(x, min(x + size, n)) for x in range(0, n, size)]
    rng.shuffle(chunks) if kind == "chunks" else None
    tokens = np.concatenate([np.zeros(0, np.int64), *chunks])
    tokens = rng.permutation(tokens) if kind == "any" else tokens
    return np.split(tokens, np.sort(rng.integers(0, n + 1, ranks - 1)))


@settings(max_examples=examples(60))
@given(st.data())
def test_what_travels_is_what_is_seen(data: st.DataObject):
    name = data.draw(st.sampled_from(sorted(MASKS)))
    ranks = data.draw(st.integers(1, 9))
    n = data.draw(st.integers(0, 400))
    layout: Any = data.draw(st.sampled_from(("auto", *LAYOUTS, "brought")))
    layout = brought(data, n, ranks) if layout == "brought" else layout
    rows = data.draw(st.sampled_from((None, False, True)))
    made = plan(MASKS[name], n, ranks, heads=(2, 1, 64), layout=layout, move_rows=rows)
    layer = made.layer()
    assert not (layer.moved and rows is False)
    dense = MASKS[name].dense(n, n_heads=2) if n else np.zeros((0, 0), bool)
    seen = dense.any(axis=0) if dense.ndim == 3 else dense
    owners = [made.indices(rank) for rank in range(ranks)]
    assert np.array_equal(np.sort(np.concatenate(owners)), np.arange(n))
    sent: dict[tuple[int, int], set[int]] = {}
    for rank in range(ranks):
        own = set(owners[rank].tolist())
        stay = [t for t in owners[rank].tolist() if layer.stays[t // layer.block]]
        wanted = set(np.flatnonzero(seen[stay].any(axis=0)).tolist())
        granule = layer.reach.granule
        if granule > 1:  # what is found are whole granules of which something is seen
            wanted = {t for t in range(n) if t // granule in {x // granule for x in wanted}}
            assert tokens(layer.needs.of(rank)) <= wanted
        else:
            assert tokens(layer.needs.of(rank)) == wanted
        assert tokens(layer.halo.of(rank)) == tokens(layer.needs.of(rank)) - own
        for each in layer.receives(rank):
            assert each.receiver == rank
            sent.setdefault((each.sender, rank), set()).update(range(each.start, each.stop))
        got = set().union(*(sent.get((s, rank), set()) for s in range(ranks)))
        assert got == tokens(layer.halo.of(rank))
    assert all(pair[0] != pair[1] for pair in sent)
    for rank in range(ranks):
        away: dict[tuple[int, int], set[int]] = {}
        for each in layer.sends(rank):
            assert each.sender == rank
            away.setdefault((rank, each.receiver), set()).update(range(each.start, each.stop))
        assert away == {pair: found for pair, found in sent.items() if pair[0] == rank}
        assert layer.sent[rank] == sum(map(len, away.values()))
        rows_sent = layer.visiting((2 * 64 * 2, 2 * 65 * 4))[0]
        assert made.sent_bytes(rank) == layer.sent[rank] * 2 * 64 * 2 + rows_sent[rank]
    assert layer.received.sum() == layer.sent.sum()


@settings(max_examples=examples(40))
@given(st.data())
def test_every_pair_is_computed_once(data: st.DataObject):
    """By a call of the queries' rank, or where the queries move by one of the key's rank."""
    some = data.draw(st.lists(st.integers(0, 399), min_size=1, max_size=4, unique=True))
    width = data.draw(st.integers(1, 40))
    mask = mc.window(width, width) | mc.global_tokens(some)
    ranks, n = data.draw(st.integers(2, 8)), data.draw(st.integers(100, 400))
    layout = data.draw(st.sampled_from(LAYOUTS))
    made = plan(mask, n, ranks, heads=(2, 1, 64), layout=layout, move_rows=True)
    layer, count = made.layer(), np.zeros((n, n), np.int64)
    for rank in range(ranks):
        work, own = made.work(rank), made.indices(rank)
        buffer = np.full(work.size, -1)
        for copy in work.copies:
            buffer[copy.place : copy.place + copy.count] = own[copy.start : copy.start + copy.count]
        came = [x for receive in layer.receives(rank) for x in range(receive.start, receive.stop)]
        places = [x for first, count in work.came.stretches for x in range(first, first + count)]
        buffer[places] = came
        for call in work.calls:
            keys = (own if call.own_keys else buffer)[call.key : call.key + call.keys]
            _counted(count, own[call.row : call.row + call.rows], keys, call)
        for guest in work.guests:
            leaving = made.work(guest.home).leaving
            rows = np.concatenate([made.indices(guest.home)[x] for _, x in leaving.slices()])
            assert len(rows) == guest.rows
            for call in guest.calls:
                keys = own[call.key : call.key + call.keys]
                _counted(count, rows[call.row : call.row + call.rows], keys, call)
        hosts = {r for r in range(ranks) if any(g.home == rank for g in made.work(r).guests)}
        assert set(work.hosts) == hosts - {rank}
    assert np.array_equal(count, mask.dense(n).astype(np.int64))


def _counted(count: np.ndarray, rows: np.ndarray, keys: np.ndarray, call: RankCall) -> None:
    live = call.local.mask.dense(len(rows), len(keys), **call.local.data)
    there = np.flatnonzero(keys >= 0)
    assert not live[:, keys < 0].any()
    count[np.ix_(rows, keys[there])] += live[:, there]


@settings(max_examples=examples(60))
@given(st.data())
def test_every_pair_is_computed_once_wherever_tokens_lie(data: st.DataObject):
    """Rows in any slots, keys of their mine in other ones, and blocks that ranks share."""
    name = data.draw(st.sampled_from(sorted(MASKS)))
    ranks, n = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 300))
    crosses = data.draw(st.booleans())
    n_kv = data.draw(st.integers(1, 300)) if crosses else n
    keys = brought(data, n_kv, ranks, "key_layout") if crosses else None
    layout = brought(data, n, ranks)
    block = data.draw(st.sampled_from((None, 16)))
    made = plan(MASKS[name], n, ranks, heads=(2, 1, 64), layout=layout, n_kv=n_kv,
                key_layout=keys, block=block)  # fmt: skip
    layer, heads = made.layer(), 2 if name == "heads" else 1
    count = np.zeros((heads, n, n_kv), np.int64)
    stretch = data.draw(st.booleans())
    for rank in range(ranks):
        assert made.indices(rank).tolist() == layout[rank].tolist()
        mine = made.indices(rank, "k")
        assert mine.tolist() == (keys or layout)[rank].tolist()
        work = made.work(rank, one_stretch=stretch)
        assert len(work.calls) <= 8 * 3 or stretch
        buffer = np.full(work.size, -1)
        for copy in work.copies:
            there = mine[copy.start : copy.start + copy.count]
            buffer[copy.place : copy.place + copy.count] = there
        for sender, pieces in work.incoming:
            (sent,) = (x for peer, x in made.work(sender, one_stretch=stretch).outgoing
                       if peer == rank)  # fmt: skip
            theirs = made.indices(sender, "k")
            into, taken = ([x for first, size in some.stretches for x in range(first, first + size)]
                           for some in (pieces, sent))  # fmt: skip
            assert len(into) == len(taken)
            buffer[into] = theirs[taken]
        gaps = [x for first, stop in work.gaps for x in range(first, stop)]
        assert gaps == np.flatnonzero(buffer < 0).tolist()
        for call in work.calls:
            seen = (mine if call.own_keys else buffer)[call.key : call.key + call.keys]
            rows = layout[rank][call.row : call.row + call.rows]
            live = np.zeros((heads, len(rows), len(seen)), bool)
            if live.size:
                local = call.local
                live[:] = local.mask.dense(len(rows), len(seen), n_heads=heads, **local.data)
            assert not live[..., seen < 0].any()
            there = np.flatnonzero(seen >= 0)
            for head in range(heads):
                count[head][np.ix_(rows, seen[there])] += live[head][:, there]
    dense = np.broadcast_to(MASKS[name].dense(n, n_kv, n_heads=heads), count.shape)
    assert np.array_equal(count, dense.astype(np.int64))
    assert not layer.moved or not layer.by_tables


@settings(max_examples=examples(100))
@given(st.data())
def test_sets_of_ranges_are_sets(data: st.DataObject):
    n, owners = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 4))

    def drawn() -> tuple[object, list[set[int]]]:
        some = data.draw(
            st.lists(st.tuples(st.integers(0, owners - 1), st.integers(0, n), st.integers(0, n)))
        )
        owner, start, stop = (np.array([x[i] for x in some], np.int64) for i in range(3))
        sets = [tokens([x[1:] for x in some if x[0] == i]) for i in range(owners)]
        return union(n, owners, owner, start, stop), sets

    (a, of_a), (b, of_b) = drawn(), drawn()
    every = set(range(n))
    for i in range(owners):
        assert tokens(a.of(i)) == of_a[i]
        assert tokens(a.intersect(b).of(i)) == of_a[i] & of_b[i]
        assert tokens(a.complement().of(i)) == every - of_a[i]
        assert tokens(a.without(b).of(i)) == of_a[i] - of_b[i]
        assert a.tokens[i] == len(of_a[i])


@pytest.mark.parametrize("ids", ["sorted", "mixed"])
def test_data_make_it_exact(ids: str):
    n, ranks = 300, 4
    rng = np.random.default_rng(0)
    doc = rng.integers(0, 7, n)
    doc = np.sort(doc) if ids == "sorted" else doc
    mask = mc.causal() & mc.documents("doc")
    made = plan(mask, n, ranks, heads=(4, 2, 64), layout="contiguous")
    assert made.layer().reach.hull == ("doc",)
    exact = made.given(doc=doc)
    assert exact.layer().reach.hull == ()
    seen = mask.dense(n, doc=doc)
    for rank in range(ranks):
        wanted = set(np.flatnonzero(seen[exact.indices(rank)].any(axis=0)).tolist())
        assert tokens(exact.layer().needs.of(rank)) == wanted
        assert wanted <= tokens(made.layer().needs.of(rank))
    assert exact.digest != made.digest
    assert exact.layout is made.layout
