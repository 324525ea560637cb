"""Attention over pages of a pool, against its definition: on the CPU, and Hopper's kernels in the
emulator. Slots that no sequence owns are NaN, keys and values alike."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import BadPageTable, DataMissing, MaskcError, NotPaged
from maskc.testing.emulator import machine
from tests.support.paged import Pool, exact

LENGTHS, COUNTS = [75, 0, 1, 40, 9, 33], [1, 0, 1, 40, 3, 10]


def causal(p, k):
    return k <= p


MASKS = {
    "causal": (mc.causal(), causal),
    "full": (mc.full(), lambda p, k: k >= 0),
    "window": (mc.window(5), lambda p, k: (k <= p) & (p - k <= 5)),
    "sinks": (mc.window(5) | (mc.sinks(2) & mc.causal()),
              lambda p, k: (k <= p) & ((p - k <= 5) | (k < 2))),
    "chunks": (mc.chunked(8), lambda p, k: (k <= p) & (k // 8 == p // 8)),
    "prefix": (mc.prefix(6) | mc.causal(), lambda p, k: (k < 6) | (k <= p)),
    "dilated": (mc.dilated(3, stride=2), lambda p, k: (k <= p) & (p - k <= 6) & ((p - k) % 2 == 0)),
    "formula": (mc.where(lambda q, k: (q + k) % 3 == 0), None),
}  # fmt: skip


def keeps_of(name, counts=COUNTS, lengths=LENGTHS):
    rule = MASKS[name][1]
    if rule is not None:
        return lambda sequence, head: rule

    def first_query(sequence, head):  # q counts the call's queries of a sequence
        before = lengths[sequence] - counts[sequence]
        return lambda p, k: (p - before + k) % 3 == 0

    return first_query


def on_cpu(mask, page, heads=4, dim=16, **options):
    given = {"n_kv_heads": 2, "dtype": "float32", "target": "cpu", **options}
    return mc.paged(mask, page_size=page, head_dim=dim, n_heads=heads, **given)


def close(found, wanted, bound=1e-5):
    (out, lse), (want, want_lse) = found, wanted
    out, lse = (np.asarray(x.float() if hasattr(x, "float") else x) for x in (out, lse))
    np.testing.assert_allclose(out, want, atol=bound, rtol=bound)
    np.testing.assert_allclose(lse, want_lse, atol=bound, rtol=bound)


@pytest.mark.parametrize("name", list(MASKS))
@pytest.mark.parametrize(("page", "layout"), [(16, "NHD"), (1, "HND"), (24, "HND"), (128, "NHD")])
def test_masks_on_the_cpu(name, page, layout):
    pool = Pool(LENGTHS, page, 2, 16, layout=layout)
    q = pool.queries(COUNTS, 4)
    attn = on_cpu(MASKS[name][0], page, layout=layout)
    plan = attn.plan(pool.table, COUNTS, LENGTHS)
    found = attn.run(q, pool.k_pool, pool.v_pool, plan)
    close(found, exact(pool, q, COUNTS, keeps_of(name)))


@pytest.mark.parametrize("heads", [2, 6])
@pytest.mark.parametrize("lens_q", [1, 3])
def test_as_many_queries_of_each(heads, lens_q):
    lengths = [20, 3, 41]
    pool = Pool(lengths, 8, 2, 16, dim_v=24)
    counts = [lens_q] * 3
    q = pool.queries(counts, heads)
    attn = on_cpu(mc.causal(), 8, heads, head_dim_v=24)
    plan = attn.plan((pool.indptr, pool.indices), lens_q, lengths)
    found = attn.run(q, pool.k_pool, pool.v_pool, plan)
    close(found, exact(pool, q, counts, lambda s, h: causal))


def test_rows_of_nobody_are_empty():
    """As of batches that are padded to one size."""
    pool = Pool(LENGTHS, 16, 2, 16)
    q = pool.queries(COUNTS, 4, more=5)
    starts = np.concatenate([[0], np.cumsum(COUNTS)])
    attn = on_cpu(mc.causal(), 16)
    plan = attn.plan(pool.table, None, LENGTHS, cu_seqlens_q=starts, total_q=len(q))
    found = attn.run(q, pool.k_pool, pool.v_pool, plan)
    assert not found[0][-5:].any()
    close(found, exact(pool, q, COUNTS, lambda s, h: causal))


def test_updates_keep_their_places():
    """A plan takes the tables of further steps in the arrays that it has."""
    first = Pool([20, 7], 8, 2, 16, seed=1)
    second = Pool([3, 24], 8, 2, 16, seed=2)
    attn = on_cpu(mc.window(9), 8)
    plan = attn.plan(first.table, 2, first.lengths, max_seqlen_kv=24)
    held = plan.data
    for pool in (second, first):
        plan.update(pool.table, 2, pool.lengths)
        assert all(plan.data[name] is x for name, x in held.items())
        q = pool.queries([2, 2], 4)
        found = attn.run(q, pool.k_pool, pool.v_pool, plan)
        rule = lambda p, k: (k <= p) & (p - k <= 9)  # noqa: E731
        close(found, exact(pool, q, [2, 2], lambda s, h, rule=rule: rule))


def test_data_of_tokens():
    """Data have an entry per token of each sequence, whichever page the token lies in."""
    rng = np.random.default_rng(0)
    most = max(LENGTHS)
    pool = Pool(LENGTHS, 16, 2, 16)
    q = pool.queries(COUNTS, 4)
    docs = rng.integers(0, 3, (len(LENGTHS), most))
    real = rng.integers(0, 2, most).astype(bool)
    low = rng.integers(0, 20, (len(LENGTHS), most))
    high = low + rng.integers(0, 30, low.shape)
    parent = np.array([[-1, *(rng.integers(0, i) for i in range(1, most))] for _ in LENGTHS])
    times = np.array([_walk(row) for row in parent])
    cases = [
        (mc.documents("d") & mc.causal(), {"d": docs},
         lambda s: lambda p, k: (k <= p) & (docs[s][k] == docs[s][p[0, 0]])),
        (mc.causal() & mc.flags("r"), {"r": real}, lambda s: lambda p, k: (k <= p) & real[k]),
        (mc.causal() & mc.flags("r", on="q"), {"r": real},
         lambda s: lambda p, k: (k <= p) & real[p[0, 0]]),
        (mc.intervals("i"), {"i": (low, high)},
         lambda s: lambda p, k: (k >= low[s][p[0, 0]]) & (k < high[s][p[0, 0]])),
        (mc.tree("t"), {"t": (times[:, 0], times[:, 1])},
         lambda s: lambda p, k: np.isin(k, _ancestors(parent[s], p[0, 0]))),
    ]  # fmt: skip
    for mask, data, rule in cases:
        attn = on_cpu(mask, 16)
        plan = attn.plan(pool.table, COUNTS, LENGTHS, max_seqlen_kv=most, **data)
        found = attn.run(q, pool.k_pool, pool.v_pool, plan)
        close(found, exact(pool, q, COUNTS, lambda s, h, rule=rule: rule(s)))


def _walk(parent):
    """Entry and exit times of a depth-first walk."""
    children = {i: np.flatnonzero(parent == i).tolist() for i in range(-1, len(parent))}
    tin, tout, clock = np.zeros(len(parent), int), np.zeros(len(parent), int), [0]

    def visit(node):
        tin[node] = clock[0]
        clock[0] += 1
        for child in children[node]:
            visit(child)
        tout[node] = clock[0]

    for root in children[-1]:
        visit(root)
    return tin, tout


def _ancestors(parent, node):
    found = []
    while node >= 0:
        found.append(node)
        node = parent[node]
    return found


def test_heads_parameters_and_options():
    pool = Pool(LENGTHS, 16, 2, 16)
    q = pool.queries(COUNTS, 4)
    mask = mc.per_head([mc.causal(), mc.window(mc.param("w", 3)), mc.causal(), mc.full()])
    sinks = np.array([0, 1, -2, 3], np.float32)
    attn = on_cpu(mask, 16)
    plan = attn.plan(pool.table, COUNTS, LENGTHS, w=7)
    found = attn.run(q, pool.k_pool, pool.v_pool, plan, scale=0.5, softcap=2.0, sink_logits=sinks)

    def keeps(_sequence, head):
        return [causal, lambda p, k: (k <= p) & (p - k <= 7), causal, lambda p, k: k >= 0][head]

    cap = lambda s, **_: 2 * np.tanh(s / 2)  # noqa: E731
    close(found, exact(pool, q, COUNTS, keeps, cap, sinks, scale=0.5))


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_distances_are_those_of_each_sequence(mask):
    pool = Pool(LENGTHS, 16, 2, 16)
    q = pool.queries(COUNTS, 4)
    slopes = np.array([0.5, 0.1, 0.01, 1], np.float32)
    far = lambda s, p, k, head: s - slopes[head] * np.abs(p - k)  # noqa: E731
    for score, options in (
        (None, {"alibi_slopes": slopes}),
        (mc.score(lambda s, q, k, h: s - mc.table("m")[h] * abs(q - k)), {"m": slopes}),
    ):
        attn = on_cpu(MASKS[mask][0], 16, score=score)
        plan = attn.plan(pool.table, COUNTS, LENGTHS)
        found = attn.run(q, pool.k_pool, pool.v_pool, plan, **options)
        close(found, exact(pool, q, COUNTS, keeps_of(mask), far))


def test_what_is_refused():
    table = np.zeros((1, 2), np.int32)
    entries = np.arange(50)
    for mask, why in (
        (mc.topk(2, of=mc.causal(), block=16), "chooses keys at run time"),
        (mc.block_table("blocks", block=16), "no entry per token"),
        (mc.where(lambda q, k: entries[q] > k), "captures arrays"),
    ):
        with pytest.raises(NotPaged, match=why):
            on_cpu(mask, 16)
    with pytest.raises(NotPaged, match="reads n_kv"):
        on_cpu(mc.causal(), 16, score=mc.score(lambda s, q, k: s * mc.n_kv))
    with pytest.raises(DataMissing):
        on_cpu(mc.documents("d"), 16).plan(table, 1, [3])
    with pytest.raises(MaskcError, match="MC302"):
        on_cpu(mc.causal(), 16).plan(table, 1, [3], d=[1])


def test_tables_are_checked_where_asked(monkeypatch):
    pool = Pool([20, 7], 8, 2, 16)
    q = pool.queries([1, 1], 4)
    attn = on_cpu(mc.causal(), 8)
    for table, lengths, why in (
        (np.array([[0, 1, 9], [3, -1, -1]]), [20, 7], "page 9 is none of the 7 pages"),
        (np.array([[0, 1, 0], [3, -1, -1]]), [20, 7], "one page holds two runs"),
        (np.array([[0, 1, 2], [3, -1, -1]]), [20, 70], "70 keys, and max_seqlen_kv is 24"),
    ):
        plan = attn.plan(table, 1, lengths)
        out, _ = attn.run(q, pool.k_pool, pool.v_pool, plan)  # what is no page has zeros
        assert out.shape == q.shape
        monkeypatch.setenv("MASKC_CHECK", "1")
        with pytest.raises(BadPageTable, match=why):
            attn.run(q, pool.k_pool, pool.v_pool, plan)
        monkeypatch.delenv("MASKC_CHECK")


# ------------------------------------------------------------------ Hopper's kernels


@pytest.fixture
def hopper(monkeypatch):
    pytest.importorskip("torch")
    return machine.install(monkeypatch)


def on_hopper(mask, page, dim=64, **options):
    given = {"n_heads": 4, "n_kv_heads": 2, "target": "sm_90a", **options}
    return mc.paged(mask, page_size=page, head_dim=dim, **given)


def ran(attn, pool, q, counts, **options):
    import torch

    given = counts[0] if len(set(counts)) == 1 else torch.tensor(counts)
    plan = attn.plan(torch.from_numpy(pool.table), given, torch.tensor(pool.lengths))
    tensors = (torch.from_numpy(x).bfloat16() for x in (q, pool.k_pool, pool.v_pool))
    return attn.run(*tensors, plan, **options)


@pytest.mark.parametrize(
    ("page", "layout"), [(16, "NHD"), (64, "HND"), (256, "NHD"), (24, "HND"), (1, "NHD")]
)
@pytest.mark.parametrize("counts", [[1] * 5, [20, 0, 1, 1, 5]])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_kernels_load_pages(hopper, page, layout, counts, target):
    lengths = [300, 0, 1, 130, 70]
    pool = Pool(lengths, page, 2, 64, layout=layout)
    q = pool.queries(counts, 4)
    mask = mc.window(200) | (mc.sinks(3) & mc.causal())
    attn = on_hopper(mask, page, layout=layout, target=target)
    found = ran(attn, pool, q, counts)
    rule = lambda p, k: (k <= p) & ((p - k <= 200) | (k < 3))  # noqa: E731
    close(found, exact(pool, q, counts, lambda s, h: rule), 2e-2)
    assert f"{target}_data usual" in attn.attn.serving(found[0]).last_sources
    assert attn.loads_pages


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_entries_that_are_no_pages_read_zeros(hopper, target):
    """Neither memory outside of the pool is read, nor NaN."""
    pool = Pool([100], 16, 2, 64)
    q = pool.queries([1], 4)
    pool.table[0, :7] = [2**31 - 1, -5, 10**6, len(pool.k_pool), -(2**31), -1, 7777]
    attn = on_hopper(mc.causal(), 16, target=target)
    out, lse = ran(attn, pool, q, [1])
    assert not out.any()
    np.testing.assert_allclose(np.asarray(lse), np.log(100), atol=1e-4)


def test_distances_and_formulas_in_pages(hopper):
    pool = Pool([90, 33], 16, 2, 64)
    counts = [3, 1]
    q = pool.queries(counts, 4)
    score = mc.score(lambda s, q, k, h: s - mc.table("m")[h] * abs(q - k))
    import torch

    slopes = np.array([0.5, 0.1, 0.01, 0.2], np.float32)
    far = lambda s, p, k, head: s - slopes[head] * np.abs(p - k)  # noqa: E731
    want = exact(pool, q, counts, lambda s, h: causal, far)
    given = torch.from_numpy(slopes)
    for attn, options in (
        (on_hopper(mc.causal(), 16), {"alibi_slopes": given}),
        (on_hopper(mc.causal(), 16, score=score), {"m": given}),
    ):
        close(ran(attn, pool, q, counts, **options), want, 2e-2)


def test_places_decide_no_bit(hopper):
    """The same tokens in other pages, beside other sequences."""
    pool = Pool([150, 40], 16, 2, 64)
    q = pool.queries([1, 1], 4)
    attn = on_hopper(mc.causal(), 16)
    first, _ = ran(attn, pool, q, [1, 1])
    order = np.random.default_rng(1).permutation(len(pool.k_pool))
    moved = Pool([150, 40], 16, 2, 64)
    moved.k_pool, moved.v_pool = pool.k_pool[order], pool.v_pool[order]
    places = np.argsort(order)
    inside = (pool.table >= 0) & (pool.table < len(order))
    moved.table = np.where(inside, places[np.where(inside, pool.table, 0)], -1).astype(np.int32)
    again, _ = ran(attn, moved, q, [1, 1])
    assert (first == again).all()


def test_pickles():
    """A copy computes the same; plans are of their own process."""
    attn = on_cpu(mc.window(9), 8)
    pool = Pool([20, 7], 8, 2, 16)
    q = pool.queries([1, 1], 4)
    copy = pickle.loads(pickle.dumps(attn))
    results = [
        each.run(q, pool.k_pool, pool.v_pool, each.plan(pool.table, 1, pool.lengths))
        for each in (attn, copy)
    ]
    assert (results[0][0] == results[1][0]).all()
