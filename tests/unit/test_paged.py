"""Attention over pages of a pool, against its definition: on the CPU, and Hopper's kernels in the
emulator. Slots that no sequence owns are NaN, keys and values alike."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import BadPageTable, DataMissing, MaskcError, NotPaged, PageFreed, SlotTwice
from maskc.ir.placed import POSITION
from maskc.paging import paged_attention
from maskc.paging.step_checks import StepChecks
from maskc.runtime.compiled import CompiledMask
from maskc.testing.emulator import machine
from tests.support.ledger import build
from tests.support.paged import Pool, exact
from tests.support.thorough import chiefly

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
    """Batches that are padded to one size have such rows."""
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
        (mc.tree("t"), {"t": mc.parents(parent)},
         lambda s: lambda p, k: np.isin(k, _ancestors(parent[s], p[0, 0]))),
    ]  # fmt: skip
    for mask, data, rule in cases:
        attn = on_cpu(mask, 16)
        plan = attn.plan(pool.table, COUNTS, LENGTHS, max_seqlen_kv=most, **data)
        found = attn.run(q, pool.k_pool, pool.v_pool, plan)
        close(found, exact(pool, q, COUNTS, lambda s, h, rule=rule: rule(s)))


def test_wide_integers_of_tokens():
    """They are refused where a sequence has a token, and entries of pages are no pages."""
    attn, pool = on_cpu(mc.causal() & mc.documents("d"), 16), Pool([20, 7], 16, 2, 16)
    ids = np.zeros((2, 32), np.int64)
    ids[:, 20:], q = 1 << 40, pool.queries([1, 1], 4)
    table = np.where(np.arange(3) < [[2], [1]], pool.table.astype(np.int64), 1 << 40)
    plan = attn.plan(table[:, :2], 1, pool.lengths, d=ids)
    found = attn.run(q, pool.k_pool, pool.v_pool, plan)
    close(found, exact(pool, q, [1, 1], lambda s, h: causal))
    far = np.where(table == pool.table[0, 1], table + (1 << 32), table)  # as 32 bits it is a page
    plan = attn.plan(far[:, :2], 1, pool.lengths, d=ids)
    pool.k[0][16:], pool.v[0][16:] = 0, 0
    found = attn.run(q, pool.k_pool, pool.v_pool, plan)
    close(found, exact(pool, q, [1, 1], lambda s, h: causal))
    ids[1, 6] = -(1 << 40)
    with pytest.raises(MaskcError, match=r"MC305.*beyond 32 bits(.|\n)*renumber"):
        plan.update(far[:, :2], 1, pool.lengths, d=ids)


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


@pytest.mark.parametrize("shared", [0, 16])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_go_into_given_memory(library, shared):
    """With any strides; only this memory is written."""
    make = (lambda x: x) if library == "numpy" else pytest.importorskip("torch").from_numpy
    pool = sharing([40, 17, 33], 16, shared)
    q = make(pool.queries([1] * 3, 4))
    attn, wide = on_cpu(mc.causal(), 16), make(np.full((4, 4, 32), 7, np.float32))
    plan = attn.plan(make(pool.table), 1, make(np.array(pool.lengths)), shared_keys=shared)
    pools = make(pool.k_pool), make(pool.v_pool)
    out = wide[:3, :, :16]
    results = attn.run(q, *pools, plan, out=out)
    assert results[0] is out
    close(results, exact(pool, pool.queries([1] * 3, 4), [1] * 3, lambda s, h: causal))
    assert (wide[3] == 7).all()
    assert (wide[:, :, 16:] == 7).all()
    for memory, why in (
        (wide[:2, :, :16], r"out must be of shape \[3, 4, 16\]"),
        (make(np.zeros((3, 4, 16))), "out must be of dtype float32, as q"),
        ([1], "out must be"),
    ):
        with pytest.raises(MaskcError, match=f"MC464.*{why}"):
            attn.run(q, *pools, plan, out=memory)


def test_mistakes_of_layers():
    torch = pytest.importorskip("torch")
    attn, other = on_cpu(mc.causal(), 16), on_cpu(mc.window(3), 16)
    pool = Pool([20, 7], 16, 2, 16)
    table, lengths = torch.from_numpy(pool.table), torch.tensor([20, 7])
    plan = attn.plan(table, 1, lengths)
    q, k, v = (torch.from_numpy(x) for x in (pool.queries([1, 1], 4), pool.k_pool, pool.v_pool))
    for given, options, why in (
        ((q, k, v, other.plan(table, 1, lengths)), {}, "MC464.*plan must be what plan.. of Paged"),
        ((q, plan, k, v), {}, "MC464.*plan must be .*, found Tensor"),
        (
            (q.numpy(), k, v, plan),
            {},
            "MC464.*q must be a torch tensor, as the page table.*\n.*as_tensor",
        ),
        ((q, k.numpy(), v, plan), {}, "MC464.*k_pool must be a torch tensor"),
        ((q.double(), k.double(), v.double(), plan), {}, "MC464.*q must be of dtype float32, bf"),
        ((q, k.swapaxes(1, 2), v.swapaxes(1, 2), plan), {}, r"MC464.*head_dim\] for NHD"),
        ((q, k, v, plan), {"window": 3}, "MC302.*named 'window'"),
        ((q.clone().requires_grad_(), k, v, plan), {}, "MC503.*q requires grad, and pages have a"),
        ((q, k, v.clone().requires_grad_(), plan), {}, r"MC503.*v_pool requires(.|\n)*no_grad\(\)"),
        ((q, k, v, plan), {"sink_logits": torch.zeros(4, requires_grad=True)}, "MC503.*sink_log"),
    ):
        with pytest.raises(MaskcError, match=why):
            attn.run(*given, **options)
    with torch.no_grad():
        attn.run(q.clone().requires_grad_(), k, v, plan)
    opposite = torch.view_as_complex(torch.stack([q, -q], -1)).conj().imag  # as q, with another bit
    torch.testing.assert_close(attn.run(opposite, k, v, plan), attn.run(q, k, v, plan))
    pools = [torch.view_as_complex(torch.stack([x, -x], -1)).conj().imag for x in (k, v)]
    for name, given, options in (
        ("k_pool", (q, pools[0], v), {}),
        ("v_pool", (q, k, pools[1]), {}),
        ("out", (q, k, v), {"out": opposite}),
    ):
        with pytest.raises(MaskcError, match=f"MC464.*{name} must be a tensor without the neg"):
            attn.run(*given, plan, **options)
    with pytest.raises(MaskcError, match=r"MC464.*out must be on cpu, as q, found meta"):
        attn.run(q, k, v, plan, out=q.to("meta"))
    with pytest.raises(MaskcError, match=r"MC132.*score= expects mc\.score"):
        on_cpu(mc.causal(), 16, score=lambda s, q, k: s)
    with pytest.raises(MaskcError, match=r"page_table must be an array .*, or a tuple"):
        attn.plan([torch.from_numpy(pool.indptr), torch.from_numpy(pool.indices)], 1, lengths)
    with pytest.raises(MaskcError, match=r"MC106.*mc\.paged expects a mask(.|\n)*mc\.where"):
        on_cpu(lambda q, k: k <= q, 16)
    with pytest.raises(MaskcError, match=r"pool_dtype must be 'float8_e4m3fn', or None.*'fp8'"):
        on_cpu(mc.causal(), 16, pool_dtype="fp8")


def test_calls_without_a_graph():
    """torch.compile runs layers outside of its graph; autocast casts no pools."""
    torch = pytest.importorskip("torch")
    attn, pool = on_cpu(mc.causal(), 16, dtype=None), Pool([20, 7], 16, 2, 16)
    plan = attn.plan(torch.from_numpy(pool.table), 1, torch.tensor([20, 7]))
    q, k, v = (torch.from_numpy(x) for x in (pool.queries([1, 1], 4), pool.k_pool, pool.v_pool))
    out, lse = attn.run(q, k, v, plan)
    layer = torch.compile(
        lambda q: attn.run(q * 2, k, v, plan, scale=0.125)[0] + 1, backend="eager"
    )
    torch.testing.assert_close(layer(q), out + 1)
    with torch.autocast("cpu", torch.bfloat16):
        results = attn.run(q, k, v, plan)
    torch.testing.assert_close(results, (out, lse))


def test_explanations_say_how_pages_are_read():
    for options, why in (
        ({}, "loaded where they lie"),
        ({"pool_dtype": "float8_e4m3fn"}, "lie, E4M3 converted to float32 on load"),
        ({"target": "simt"}, "copied before each launch: target simt loads none"),
        ({"target": "sm_90a", "dtype": "float16", "dim": 72, "pool_dtype": "float8_e4m3fn"},
         "sm_90a convert no rows of 72 and 72"),
    ):  # fmt: skip
        attn = on_cpu(mc.causal(), 16, **options)
        assert attn.loads_pages == ("copied" not in attn.explain())
        assert why in attn.explain().splitlines()[-1]


def test_tables_are_checked_where_asked(monkeypatch):
    pool = Pool([20, 7], 8, 2, 16)
    q = pool.queries([1, 1], 4)
    attn = on_cpu(mc.causal(), 8)
    for table, lengths, why in (
        (
            np.array([[0, 1, 9], [3, -1, -1]]),
            [20, 7],
            "MC660.*sequence 0: entry 2 .* is 9, .*0 to 6",
        ),
        (np.array([[0, 1, 2], [-4, -1, -1]]), [20, 7], "MC660.*sequence 1: entry 0 .* is -4"),
        (np.array([[0, 1, 0], [3, -1, -1]]), [20, 7], "MC661.*sequence 0: entries 0 and 2.*page 0"),
    ):
        plan = attn.plan(table, 1, lengths)
        out, _ = attn.run(q, pool.k_pool, pool.v_pool, plan)  # what is no page has zeros
        assert out.shape == q.shape
        monkeypatch.setenv("MASKC_CHECK", "1")
        with pytest.raises(BadPageTable, match=why):
            attn.run(q, pool.k_pool, pool.v_pool, plan)
        monkeypatch.delenv("MASKC_CHECK")


def test_pages_that_are_free():
    pool = Pool([24, 7], 8, 2, 16)  # the pages of the first one are full
    plan = on_cpu(mc.causal(), 8).plan((pool.indptr, pool.indices), 1, [24, 7])
    free = sorted(set(range(len(pool.k_pool))) - set(pool.indices.tolist()))
    plan.check(len(pool.k_pool), free)
    with pytest.raises(PageFreed, match=f"sequence 1: entry 0 .* is page {pool.indices[3]}"):
        plan.check(len(pool.k_pool), [*free, pool.indices[3]])


WRONG_LENGTHS = {
    # table, queries, keys, options, what the error says
    "past the table": (None, 1, [20, 70], {}, "MC465.*sequence 1: 70 keys, and .* is 24"),
    "past the plan": (None, 1, [20, 7], {"max_seqlen_kv": 16}, "MC465.*20 keys.*_kv is 16"),
    "past its pages": (([0, 2, 3], [0, 1, 3]), 1, [17, 7], {"max_seqlen_kv": 24},
                       "MC465.*sequence 0: 17 keys, and its 2 pages hold 16"),
    "more queries": (None, [3, 8], [20, 7], {}, "MC465.*sequence 1: 8 queries and 7 keys"),
    "each more": (None, 8, [20, 7], {}, "MC465.*sequence 1: 8 queries and 7 keys"),
    "negative keys": (None, 1, [20, -1], {}, r"seq_lens_kv must be .* found \[20, -1\]"),
    "negative queries": (None, [4, -1], [20, 7], {}, r"seq_lens_q must be .* found \[4, -1\]"),
    "descending": (None, None, [20, 7], {"cu_seqlens_q": [0, 3, 2]}, "cu_seqlens_q must be ascend"),
    "late start": (None, None, [20, 7], {"cu_seqlens_q": [1, 2, 3]}, "total_q must be at least 3"),
    "few rows": (None, [3, 1], [20, 7], {"total_q": 3}, "total_q must be at least 4"),
    "long query": (None, [3, 1], [20, 7], {"max_seqlen_q": 2}, "max_seqlen_q must be at least 3"),
    "fraction": (None, [3, 1], [20, 7], {"total_q": 4.0}, "total_q must be an integer from 0 on"),
    "descending lists": (([0, 3, 2], [0, 1, 2, 3]), 1, [9, 7], {}, "kv_indptr must be ascending"),
    "lists past the end": (([0, 2, 9], [0, 1, 3]), 1, [9, 7], {}, "kv_indptr must .* to 3 at most"),
    "three lists": (([0, 2, 3], [0, 1, 3], [1, 7]), 1, [9, 7], {}, "page_table must be an array"),
    "booleans": (([0, 1, 2], [True, True]), 1, [3, 7], {}, "kv_indices must be integers"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(WRONG_LENGTHS))
def test_lengths_that_do_not_fit(case):
    """The host refuses its own arrays; a plan whose update is refused stays as it was."""
    table, lens_q, lens_kv, options, why = WRONG_LENGTHS[case]
    lists = table is not None
    table = np.array([[0, 1, 2], [3, -1, -1]]) if table is None else tuple(map(np.array, table))
    attn = on_cpu(mc.window(mc.param("w", 5)), 8)
    with pytest.raises(MaskcError, match=why):
        attn.plan(table, lens_q, lens_kv, **options)
    if lists or set(options) - {"cu_seqlens_q"} or case in ("late start", "each more"):
        return
    fitting = {"cu_seqlens_q": [0, 3, 4]} if options else {}
    first = lens_q if type(lens_q) is int else None if options else [3, 1]
    plan = attn.plan(table, first, [20, 8], **fitting)
    before = {name: np.copy(x) for name, x in plan.data.items()}
    with pytest.raises(MaskcError, match=r"MC46[45]"):
        plan.update(table, lens_q, lens_kv, w=3, **options)
    for name, x in plan.data.items():
        np.testing.assert_array_equal(x, before[name])


@pytest.mark.parametrize("shared", [0, 16])
def test_updates_take_parameters(shared):
    pool = sharing([40, 17], 16, shared)
    attn, q = on_cpu(mc.window(mc.param("w", 2)), 16), pool.queries([1, 1], 4)
    plan = attn.plan(pool.table, 1, pool.lengths, shared_keys=shared)
    for given, width in (({}, 2), ({"w": 20}, 20), ({}, 20), ({"w": 5}, 5)):
        plan.update(pool.table, 1, pool.lengths, **given)
        near = lambda p, k, width=width: (k <= p) & (p - k <= width)  # noqa: E731
        found = attn.run(q, pool.k_pool, pool.v_pool, plan)
        close(found, exact(pool, q, [1, 1], lambda s, h, near=near: near))
    with pytest.raises(MaskcError, match=r"MC302.*named 'v'"):
        plan.update(pool.table, 1, pool.lengths, v=3)


# ------------------------------------------------------------------ shared keys


def sharing(lengths, page, shared, **options):
    """Sequences whose first keys are those of the longest one, in its pages."""
    pool = Pool(lengths, page, 2, options.pop("dim", 16), **options)
    first = max(range(len(lengths)), key=lengths.__getitem__, default=0)
    for sequence, length in enumerate(lengths):
        n = min(shared, length)
        pool.k[sequence][:n], pool.v[sequence][:n] = pool.k[first][:n], pool.v[first][:n]
        count = -(-n // page)
        pool.table[sequence, :count] = pool.table[first, :count]
        pool.indices[pool.indptr[sequence] :][:count] = pool.table[first, :count]
    return pool


@pytest.mark.parametrize("name", [*MASKS, "heads"])
@pytest.mark.parametrize("counts", [[1] * 6, [3, 0, 1, 60, 30, 2]], ids=["decode", "mixed"])
@pytest.mark.parametrize("lists", [False, True])
def test_shared_keys_are_merged_with_all_others(name, counts, lists):
    """Sequences may also end among the shared keys, and begin their queries there."""
    lengths, shared = [20, 0, 75, 60, 33, 49], 32
    counts = [min(x) for x in zip(counts, lengths, strict=True)]
    pool = sharing(lengths, 16, shared, layout="HND")
    sinks = np.array([0, 1, -2, 3], np.float32)
    q = pool.queries(counts, 4, more=2)
    if name == "heads":
        mask = mc.per_head([mc.causal(), mc.window(5), mc.sinks(3), mc.full()])
        keep = [
            causal,
            lambda p, k: (k <= p) & (p - k <= 5),
            lambda p, k: k < 3,
            lambda p, k: k > -1,
        ]
        keeps = lambda s, h: keep[h]  # noqa: E731
    else:
        mask, keeps = MASKS[name][0], keeps_of(name, counts, lengths)
    attn = on_cpu(mask, 16, layout="HND")
    table = (pool.indptr, pool.indices) if lists else pool.table
    plan = attn.plan(table, counts, lengths, total_q=len(q), max_seqlen_kv=75, shared_keys=shared)
    out, lse = attn.run(q, pool.k_pool, pool.v_pool, plan, sink_logits=sinks)
    real = slice(sum(counts))
    wanted = exact(pool, q[real], counts, keeps, sinks=sinks)
    close((out[real], lse[real]), wanted)
    assert not out[-2:].any()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_shared_keys_are_found(library):
    """Pages by definition: entry by entry, of all sequences that have the entry."""
    make = (lambda x: x) if library == "numpy" else pytest.importorskip("torch").from_numpy
    attn, rng = on_cpu(mc.causal(), 16), np.random.default_rng(0)
    numbers = []
    for lengths, shared in (
        ([75, 0, 20, 60, 33, 49], 32), ([75, 0, 20, 60, 33, 49], 48), ([30, 9], 16), ([40], 32),
        ([40, 16], 16), ([0, 0], 0), ([64, 64, 64], 64), ([7, 5], 0), ([], 0),
    ):  # fmt: skip
        pool = sharing(lengths, 16, shared, seed=int(rng.integers(99)))
        counts, want = sorted(-(-n // 16) for n in lengths), 0
        for entry in range(counts[-2] if len(counts) > 1 else 0):
            if len({row[entry] for row, n in zip(pool.table, lengths, strict=True)
                    if entry * 16 < n}) > 1:  # fmt: skip
                break
            want += 16
        lens = make(np.array(lengths, int))
        for table in (make(pool.table), (make(pool.indptr), make(pool.indices))):
            assert attn.shared_keys(table, lens) == want
        numbers.append(want)
    assert numbers == [32, 48, 16, 0, 16, 0, 64, 0, 0]


def test_shared_keys_are_found_on_the_host():
    torch = pytest.importorskip("torch")
    attn, table = on_cpu(mc.causal(), 16), torch.zeros(2, 3, dtype=torch.int32)
    for arguments, why in (
        ((table.to("meta"), [9, 9]), "page_table must be on the host, .* one on meta"),
        ((table, table[:, 0].to("meta")), "seq_lens_kv must be on the host"),
        ((table[0], [9, 9]), r"page_table must be .S, W., or a pair of vectors"),
        ((table, [9]), r"seq_lens_kv must be of shape \[2\]"),
        ((table, [9, 49]), r"seq_lens_kv must be from 0 on and at most \[48, 48\]"),
        ((table, [9, -1]), "seq_lens_kv must be from 0 on"),
        ((table, [9.0, 9.0]), "seq_lens_kv must be integers"),
    ):
        with pytest.raises(MaskcError, match=why):
            attn.shared_keys(*arguments)


def test_shared_keys_change_with_updates(monkeypatch):
    monkeypatch.setenv("MASKC_CHECK", "1")
    attn = on_cpu(mc.causal(), 8)
    pools = [sharing([40, 17, 60], 8, 16, seed=s) for s in range(2)]
    plan = attn.plan(pools[0].table, 1, pools[0].lengths, shared_keys=16)
    for pool in pools:
        plan.update(pool.table, 1, pool.lengths)
        q = pool.queries([1] * 3, 4)
        results = attn.run(q, pool.k_pool, pool.v_pool, plan)
        close(results, exact(pool, q, [1] * 3, lambda s, h: causal))
    other = pools[0].table.copy()
    other[1, 1] = other[1, 2]
    with pytest.raises(
        BadPageTable, match=r"MC667.*sequence 1: entry 1 .* shared keys are in page"
    ):
        plan.update(other, 1, pools[0].lengths)
    for shared, why in (
        (12, "a multiple of page_size=8"),
        (-8, "a multiple"),
        (88, "from 0 to 72"),
    ):
        with pytest.raises(MaskcError, match=f"shared_keys must be .*{why}"):
            attn.plan(pools[0].table, 1, pools[0].lengths, shared_keys=shared)
    flagged = on_cpu(mc.causal() & mc.flags("r"), 8)
    with pytest.raises(MaskcError, match="shared_keys must be 0, as the mask reads 'r'"):
        flagged.plan(other, 1, [9, 9, 9], shared_keys=8, r=np.ones(72, bool))


@pytest.mark.parametrize("counts", [1, [1, 3, 1, 2, 1]], ids=["one each", "several"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_kernels_join_shared_keys(hopper, target, counts, monkeypatch):
    """The second launch adds to the results of the first; nothing else joins them."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(
        "maskc.paging.paged_attention.merge", lambda *args, **kw: pytest.fail("merged by torch")
    )
    lengths = [150, 140, 128, 200, 129]
    pool = sharing(lengths, 16, 128, dim=64)
    each = [1] * 5 if counts == 1 else counts
    q = pool.queries(each, 4)
    attn = on_hopper(mc.window(90) | (mc.sinks(4) & mc.causal()), 16, target=target)
    known = {"max_seqlen_kv": 208} | ({} if counts == 1 else {"total_q": len(q), "max_seqlen_q": 3})
    given = 1 if counts == 1 else torch.tensor(counts)
    plan = attn.plan(torch.from_numpy(pool.table), given, torch.tensor(lengths), shared_keys=128,
                     **known)  # fmt: skip
    tensors = [torch.from_numpy(x).bfloat16() for x in (q, pool.k_pool, pool.v_pool)]
    keep = lambda p, k: (k <= p) & ((p - k <= 90) | (k < 4))  # noqa: E731
    close(attn.run(*tensors, plan), exact(pool, q, each, lambda s, h: keep), 2e-2)
    before = len(hopper.launches)
    logits = torch.linspace(-1, 3, 4)
    out, lse = attn.run(*tensors, plan, sink_logits=logits)
    entries = [entry for entry, _ in hopper.launches[before:]]
    assert entries.count("attention_forward") == 2
    plain = attn.plan(torch.from_numpy(pool.table), given, torch.tensor(lengths), **known)
    once, level = attn.run(*tensors, plain, sink_logits=logits)
    torch.testing.assert_close(out, once, atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(lse, level, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("name", ["k_pool", "v_pool"])
def test_pools_of_another_library_are_refused(hopper, name):
    torch = pytest.importorskip("torch")
    pool = Pool([40], 16, 2, 64)
    attn = on_hopper(mc.causal(), 16)
    plan = attn.plan(torch.from_numpy(pool.table), 1, torch.tensor([40]))
    pools = {n: torch.from_numpy(getattr(pool, n)).bfloat16() for n in ("k_pool", "v_pool")}
    q = torch.from_numpy(pool.queries([1], 4)).bfloat16()
    with pytest.raises(MaskcError, match=f"{name} must be a torch tensor, as the page table"):
        attn.run(q, **(pools | {name: getattr(pool, name)}), plan=plan)


# ------------------------------------------------------------------ new tokens


E4M3_CODES = np.array([code for code in range(256) if code & 127 != 127])
_EXPONENT, _FRACTION = E4M3_CODES >> 3 & 15, E4M3_CODES & 7
E4M3_NUMBERS = np.where(E4M3_CODES & 128, -1, 1) * np.where(
    _EXPONENT == 0, _FRACTION * 2.0**-9, (8 + _FRACTION) * 2.0 ** (_EXPONENT - 10)
)


E4M3_LEVELS, _first = np.unique(E4M3_NUMBERS, return_index=True)
E4M3_IS_EVEN = E4M3_CODES[_first] % 2 == 0


def in_e4m3(x):
    """The nearest number of E4M3, of two the one with the even code."""
    x = np.clip(x, -448, 448)
    above = np.searchsorted(E4M3_LEVELS, x)
    low, high = E4M3_LEVELS[np.maximum(above - 1, 0)], E4M3_LEVELS[above]
    nearer = (high - x < x - low) | ((high - x == x - low) & E4M3_IS_EVEN[above])
    return np.where(nearer, high, low)


def turned(x, positions, width, interleaved):
    """[tokens, heads, D] in fp64, by complex numbers."""
    cos, sin = angles(width)
    pair = [(2 * i, 2 * i + 1) if interleaved else (i, i + width // 2) for i in range(width // 2)]
    first, second = map(list, zip(*pair, strict=True))
    found = x.astype(float)
    number = (x[..., first] + 1j * x[..., second]) * (cos + 1j * sin)[positions][:, None]
    found[..., first], found[..., second] = number.real, number.imag
    return found


def angles(width, most=100):
    angle = np.arange(most)[:, None] * 10.0 ** -np.arange(width // 2)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


APPENDED = [
    {}, {"width": 16}, {"width": 8, "interleaved": True}, {"in_e4m3": True},
    {"in_e4m3": True, "width": 16, "scales": True},
]  # fmt: skip


@pytest.mark.parametrize("how", APPENDED, ids=str)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("where", ["numpy", "torch", "sm_90a", "sm_80"])
def test_new_tokens_go_into_pages(how, layout, where, monkeypatch):
    """Every slot of the pools is looked at: those that no new token owns keep their NaN."""
    width, e4m3, interleaved = how.get("width", 0), "in_e4m3" in how, how.get("interleaved", False)
    more, target = 2, where if where.startswith("sm_") else "cpu"
    if where != "numpy":
        torch = pytest.importorskip("torch")
    if target != "cpu":
        machine.install(monkeypatch)
    make = (lambda x: np.ascontiguousarray(x)) if where == "numpy" else torch.from_numpy
    page, dim = 8, 16 if target == "cpu" else 64
    pool = Pool(LENGTHS, page, 2, dim, layout=layout)
    table, tokens = pool.table.copy(), sum(COUNTS) + more
    table[0, 9] = -1  # the new token of the first sequence has no page
    rng = np.random.default_rng(2)
    q, k, v = (rng.normal(size=(tokens, h, dim)).astype(np.float32) * 40 for h in (4, 2, 2))
    rounding = {"sm_90a": 2**-8, "sm_80": 2**-11}.get(where, 1e-6)
    half = {"sm_90a": "bfloat16", "sm_80": "float16"}.get(where)
    if half is not None:
        q, k, v = (torch.from_numpy(x).to(getattr(torch, half)) for x in (q, k, v))
        given, (q, k, v) = (q, k, v), (x.float().numpy() for x in (q, k, v))
    else:
        given = tuple(map(make, (q, k, v)))
    options = {"pool_dtype": "float8_e4m3fn"} if e4m3 else {}
    kind = half or "float32"
    attn = on_cpu(mc.causal(), page, dim=dim, layout=layout, target=target, dtype=kind, **options)
    starts = np.concatenate([[0], np.cumsum(COUNTS)])
    known = {"cu_seqlens_q": make(starts), "total_q": tokens, "max_seqlen_q": 40}
    plan = attn.plan(make(table), None, make(np.array(LENGTHS)), **known)
    empty = np.full(pool.k_pool.shape, np.nan, np.float32)
    if where == "numpy":
        kinds = pytest.importorskip("ml_dtypes").float8_e4m3fn if e4m3 else np.float32
        k_pool, v_pool = (empty.astype(kinds) for _ in range(2))
    else:
        kinds = torch.float8_e4m3fn if e4m3 else getattr(torch, kind)
        k_pool, v_pool = (torch.tensor(empty).to(kinds) for _ in range(2))
    scale = {"k_scale": make(np.array([0.5, 4], np.float32)), "v_scale": 2.0}
    scale = scale if "scales" in how else {}
    rotary = tuple(map(make, angles(width))) if width else None
    turn = {"rotary": rotary, "interleaved": interleaved}
    got_q = attn.append(*given[1:], k_pool, v_pool, plan, q=given[0], **turn, **scale)
    want_k, want_v = empty.astype(float), empty.astype(float)
    k_by, v_by = (np.array([0.5, 4]), 2.0) if scale else (1.0, 1.0)
    row, near = 0, {"atol": 1e-4, "rtol": rounding}
    for sequence, (length, count) in enumerate(zip(LENGTHS, COUNTS, strict=True)):
        for p in range(length - count, length):
            new_k, new_q = (turned(x[row : row + 1], [p], width, interleaved) if width
                            else x[row : row + 1] for x in (k, q))  # fmt: skip
            got = got_q[row] if half is None else got_q[row].float()
            np.testing.assert_allclose(got, new_q[0], **near)
            entry = table[sequence, p // page]
            if entry >= 0:
                place = (entry, p % page) if layout == "NHD" else (entry, slice(None), p % page)
                want_k[place], want_v[place] = (new_k[0].T / k_by).T, v[row] / v_by
            row += 1
    found = [np.asarray(x.float() if hasattr(x, "float") else x, float) for x in (k_pool, v_pool)]
    for got, want in zip(found, (want_k, want_v), strict=True):
        assert (np.isnan(got) == np.isnan(want)).all()
        if e4m3:  # fp32 may be on the other side of the middle of two
            away = np.abs(got - in_e4m3(np.nan_to_num(want)))
            assert np.nanmax(away / np.maximum(np.abs(got), 1)) <= 0.13
            assert np.nanmean(away > 0) < 1e-3
        else:
            np.testing.assert_allclose(got, want, **near)
    assert np.asarray(plan.positions)[-more:].tolist() == [-1] * more
    assert np.asarray(plan.slots)[-more:].tolist() == [-1] * more


@pytest.mark.parametrize("where", ["numpy", "torch", "sm_90a"])
def test_new_tokens_go_into_given_slots(where, monkeypatch):
    """In place of a plan; rows without a slot of the pool change nothing."""
    make = (lambda x: x) if where == "numpy" else pytest.importorskip("torch").from_numpy
    if where == "sm_90a":
        machine.install(monkeypatch)
    target, dim = (where, 64) if where == "sm_90a" else ("cpu", 16)
    attn = on_cpu(mc.causal(), 8, dim=dim, target=target, layout="HND",
                  dtype="bfloat16" if where == "sm_90a" else "float32")  # fmt: skip
    k, v = np.random.default_rng(0).integers(-9, 9, (2, 5, 2, dim)).astype(np.float32)
    pools = np.full((2, 3, 2, 8, dim), 99, np.float32)
    slots = np.array([23, -1, 8, 24, 0])
    want = pools.copy()
    for row, slot in enumerate(slots):
        if 0 <= slot < 24:
            want[:, slot // 8, :, slot % 8] = k[row], v[row]
    k, v, k_pool, v_pool = map(make, (k, v, *pools))
    if where == "sm_90a":
        k, v, k_pool, v_pool = (x.bfloat16() for x in (k, v, k_pool, v_pool))
    attn.append(k, v, k_pool, v_pool, slots=make(slots))
    for got, wanted in zip((k_pool, v_pool), want, strict=True):
        assert (np.asarray(got if where != "sm_90a" else got.float()) == wanted).all()


def test_one_slot_takes_one_token(monkeypatch):
    attn = on_cpu(mc.causal(), 8)
    plan = attn.plan(np.array([[0, 1], [2, 1]]), 1, [9, 9])
    rows, pools = np.zeros((2, 2, 16), np.float32), np.zeros((2, 3, 8, 2, 16), np.float32)
    attn.append(rows, rows, *pools, plan)
    monkeypatch.setenv("MASKC_CHECK", "1")
    for place in ({"plan": plan}, {"slots": np.array([8, 8])}):
        with pytest.raises(SlotTwice, match="rows 0 and 1 of k go to one slot: page 1, token 0"):
            attn.append(rows, rows, *pools, **place)


def test_what_append_refuses():
    attn, rows = on_cpu(mc.causal(), 8), np.zeros((2, 2, 16), np.float32)
    pools = np.zeros((2, 3, 8, 2, 16), np.float32)
    plan = attn.plan(np.array([[0], [2]]), 1, [3, 4])
    angle = np.zeros((5, 4), np.float32)
    for given, options, why in (
        ((rows[:1], rows), {}, r"k must be of shape \[2, 2, head_dim\]"),
        ((rows, rows.astype(np.float16)), {}, "v must be of dtype .* all alike"),
        ((rows, rows[..., :8]), {}, "v_pool must be of rows of 8 elements"),
        ((rows, rows), {"rotary": (angle, angle[1:])}, "rotary must be"),
        ((rows, rows), {"rotary": (angle[:3], angle[:3])}, "rotary must be tables of at least 4"),
        ((rows, rows), {"k_scale": 2.0}, "k_scale must be left out"),
        ((rows, rows), {"interleaved": True}, "interleaved must be left out without rotary"),
        ((rows, [1]), {}, "v must be an array of NumPy, as the page table"),
    ):
        with pytest.raises(MaskcError, match=why):
            attn.append(*given, *pools, plan, **options)
    slots = np.zeros(2, np.int64)
    for place, why in (
        ({}, "slots must be given where plan is not"),
        ({"plan": plan, "slots": slots}, "slots must be given where plan is not"),
        ({"slots": slots.astype(np.int32)}, "slots must be int64 of one dimension"),
        ({"slots": [1, 2]}, "slots must be an int64 array"),
        ({"slots": slots[:1]}, r"k must be of shape \[1, 2, head_dim\]"),
        ({"slots": slots, "rotary": (angle, angle)}, "rotary must be left out with slots"),
    ):
        with pytest.raises(MaskcError, match=why):
            attn.append(rows, rows, *pools, **place)
    eight = on_cpu(mc.causal(), 8, pool_dtype="float8_e4m3fn")
    with pytest.raises(MaskcError, match="k_pool must be float8_e4m3fn"):
        eight.append(rows, rows, *pools, eight.plan(np.array([[0], [2]]), 1, [3, 4]))


E4M3_MASK = mc.window(200) | (mc.sinks(3) & mc.causal())
MIXED = [20, 0, 1, 1, 5]
CAPPED = {"softcap": 2.0, "sink_logits": True, "alibi_slopes": True, "scale": -0.2}
CONVERTED = [
    # target, D, Dv, page, layout, queries, heads, dtype, factors, options
    ("cpu", 16, 16, 8, "NHD", MIXED, (4, 2), "float32", "heads", {}),
    ("cpu", 16, 24, 24, "HND", MIXED, (4, 2), "bfloat16", "sequences", CAPPED),
    ("sm_90a", 64, 64, 16, "NHD", [1], (8, 1), "bfloat16", "heads", {}),
    ("sm_90a", 64, 64, 256, "HND", [3], (2, 2), "float16", "number", CAPPED),
    ("sm_90a", 128, 128, 64, "HND", MIXED, (8, 2), "float16", "heads", {}),
    ("sm_90a", 128, 128, 16, "NHD", MIXED, (2, 2), "bfloat16", "sequences", CAPPED),
    ("sm_90a", 128, 128, 16, "HND", [1], (8, 1), "bfloat16", "sequences", {"deterministic": True}),
    ("sm_90a", 80, 48, 1, "NHD", [1], (4, 2), "bfloat16", "heads", {}),
    ("sm_90a", 32, 32, 64, "NHD", MIXED, (4, 2), "bfloat16", "heads", {}),
    ("sm_90a", 192, 192, 64, "NHD", MIXED, (4, 2), "bfloat16", "heads", {}),
    ("sm_90a", 256, 256, 16, "HND", MIXED, (2, 2), "bfloat16", "heads", {}),
    ("sm_80", 64, 64, 16, "NHD", [1], (8, 1), "bfloat16", "heads", {}),
    ("sm_80", 128, 128, 64, "HND", MIXED, (8, 2), "float16", "sequences", CAPPED),
    ("sm_80", 128, 128, 256, "NHD", [3], (2, 2), "bfloat16", "number", {}),
    ("sm_80", 80, 48, 1, "NHD", [1], (4, 2), "bfloat16", "heads", {}),
    ("sm_80", 256, 256, 24, "HND", MIXED, (4, 2), "bfloat16", "heads", CAPPED),
]  # fmt: skip


def numbers_of(pool, factors, kv_heads):
    """Round a pool's numbers to E4M3; return their factors, which the pool's keys and values
    have afterwards."""
    rng, count = np.random.default_rng(5), len(pool.lengths)
    shape = {"number": (1, 1), "heads": (1, kv_heads), "sequences": (count, kv_heads)}[factors]
    k_scale, v_scale = rng.uniform(0.3, 2, (2, *shape)).astype(np.float32)
    v_scale = v_scale[:, :1]
    for x, scale in ((pool.k, k_scale), (pool.v, v_scale)):
        wide = np.broadcast_to(scale, (count, kv_heads))
        x[:] = [in_e4m3(rows) * own[:, None] for rows, own in zip(x, wide, strict=True)]
    if factors == "number":
        return float(k_scale[0, 0]), float(v_scale[0, 0])
    return (k_scale[0], v_scale[0]) if factors == "heads" else (k_scale, v_scale)


@pytest.mark.parametrize("case", CONVERTED, ids=lambda case: "-".join(map(str, case[:4])))
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_pools_in_e4m3(case, library, monkeypatch):
    """Numbers of a pool, times the factor of their head or sequence, are the keys and values; NaN
    of slots that no sequence owns reach nobody."""
    target, dim, dim_v, page, layout, counts, (heads, kv_heads), kind, factors, options = case
    if library == "numpy" and (target != "cpu" or kind != "float32"):
        pytest.skip("calls of the CPU alone take arrays of NumPy")
    torch = pytest.importorskip("torch")
    if target != "cpu":
        machine.install(monkeypatch)
    lengths = [300, 0, 1, 130, 70]
    counts = counts * len(lengths) if len(counts) == 1 else counts
    counts = [min(x) for x in zip(counts, lengths, strict=True)] if len(set(counts)) > 1 else counts
    pool = Pool(lengths, page, kv_heads, dim, dim_v=dim_v, layout=layout)
    q = pool.queries(counts, heads)
    scales = numbers_of(pool, factors, kv_heads)
    if library == "numpy":
        make, eight = (lambda x: x), pytest.importorskip("ml_dtypes").float8_e4m3fn
        pools = [np.clip(x, -448, 448).astype(eight) for x in (pool.k_pool, pool.v_pool)]
    else:
        make, rows = torch.from_numpy, getattr(torch, kind)
        pools = [make(x).to(torch.float8_e4m3fn) for x in (pool.k_pool, pool.v_pool)]
    attn = on_cpu(
        E4M3_MASK, page, heads, dim, head_dim_v=dim_v, n_kv_heads=kv_heads, target=target,
        dtype=kind, layout=layout, pool_dtype="float8_e4m3fn",
    )  # fmt: skip
    assert attn.loads_pages
    lens_q = counts[0] if len(set(counts)) == 1 else make(np.array(counts))
    plan = attn.plan(make(pool.table), lens_q, make(np.array(lengths)))
    slopes, sinks = np.linspace(0.01, 0.2, heads), np.linspace(-1, 2, heads)
    given = dict(options)
    for name, x in (("alibi_slopes", slopes), ("sink_logits", sinks)):
        if name in options:
            given[name] = make(x.astype(np.float32))
    k_scale, v_scale = (x if isinstance(x, float) else make(x) for x in scales)
    found = attn.run(make(q) if library == "numpy" else make(q).to(rows), *pools, plan,
                     k_scale=k_scale, v_scale=v_scale, **given)  # fmt: skip
    logit = lambda s, p, k, head: s  # noqa: E731
    if options is CAPPED:
        logit = lambda s, p, k, head: 2 * np.tanh(s / 2) - slopes[head] * np.abs(p - k)  # noqa: E731
    rule = lambda p, k: (k <= p) & ((p - k <= 200) | (k < 3))  # noqa: E731
    want = exact(
        pool, q, counts, lambda s, h: rule, logit, sinks if "sink_logits" in options else None,
        options.get("scale"),
    )  # fmt: skip
    close(found, want, 1e-5 if kind == "float32" else 2e-2)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_every_number_of_e4m3(hopper, target, kind):
    """The only key of a sequence has all weight: its values come out as they are, and lse is its
    score. NaN comes out as NaN."""
    torch = pytest.importorskip("torch")
    codes = torch.arange(256, dtype=torch.uint8)
    attn = on_hopper(mc.full(), 1, 256, n_heads=1, n_kv_heads=1, dtype=kind, target=target,
                     pool_dtype="float8_e4m3fn")  # fmt: skip
    eights = (x.contiguous().view(torch.float8_e4m3fn)
              for x in (codes.reshape(-1, 1).expand(256, 256), codes.expand(256, 256)))  # fmt: skip
    pools = [x.reshape(256, 1, 1, 256) for x in eights]
    plan = attn.plan(torch.arange(256).reshape(-1, 1), 1, torch.ones(256, dtype=torch.int32))
    q = torch.ones(256, 1, 256, dtype=getattr(torch, kind))
    out, lse = attn.run(q, *pools, plan, scale=2.0**-8)
    want = np.full(256, np.nan)
    want[E4M3_CODES] = E4M3_NUMBERS
    np.testing.assert_allclose(lse.reshape(-1).numpy(), want, rtol=1e-6)
    rows = np.where(np.isnan(want)[:, None], np.nan, want)
    np.testing.assert_array_equal(out.reshape(256, 256).float().numpy(), rows)


@pytest.mark.parametrize("queries", [1, 70], ids=["packed", "tiles"])
@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_weights_of_values_in_e4m3(hopper, kind, queries):
    """Weights are in f16. Keys count whose weight is 2^-28 of the largest; and 2^8, by which
    weights may exceed 1 while the maximum of a row is stale, is no infinity."""
    torch = pytest.importorskip("torch")
    keys, eight = 2048, torch.float8_e4m3fn
    attn = on_hopper(mc.full(), 64, dtype=kind, pool_dtype="float8_e4m3fn")
    k, v = torch.zeros(2, keys, 2, 64), torch.full((2, keys, 2, 64), 448.0)
    k[0, 5, :, 0], v[0, 5] = 28, 0  # all of out is from the others
    later = k[1].view(-1, 512, 2, 64)[:, :256]  # rows, and parts of rows, begin with the last keys
    later[..., 0], later[..., 1] = 8, -1
    q = torch.zeros(2 * queries, 4, 64)
    q[..., 0], q[..., 1] = 1, 2.0**-12
    plan = attn.plan(torch.arange(64).reshape(2, 32), queries, torch.tensor([keys, keys]))
    pools = (x.reshape(64, 64, 2, 64).to(eight) for x in (k, v))
    out, lse = attn.run(q.to(getattr(torch, kind)), *pools, plan, scale=math.log(2), v_scale=0.5)
    weights = (k[:, :, 0, :2].double() @ torch.tensor([1, 2.0**-12]).double()).exp2()
    sums = weights.sum(1)
    want = 0.5 * (weights * v[:, :, 0, 0]).sum(1) / sums
    got = out.reshape(2, -1).double()
    assert torch.allclose(got, want[:, None], rtol=2.0**-8, atol=0)
    assert torch.allclose(lse.reshape(2, -1).double(), sums.log()[:, None], rtol=1e-6)


def test_scales_of_pools_that_are_refused():
    pool = sharing([20, 7], 8, 8)
    attn = on_cpu(mc.causal(), 8, pool_dtype="float8_e4m3fn")
    eight = pytest.importorskip("ml_dtypes").float8_e4m3fn
    pools = [x.astype(eight) for x in (pool.k_pool, pool.v_pool)]
    plan = attn.plan(pool.table, 1, [20, 7])
    shared = attn.plan(pool.table, 1, [20, 7], shared_keys=8)
    ones = np.ones((2, 2), np.float32)
    for scale, of, why in (
        (-1.0, plan, "a positive number or an array of 1 or 2"),
        (ones[0, :1].repeat(3), plan, "an array of 1 or 2 of them"),
        (ones.repeat(2, 0), plan, r"of shape \[2, 2\] or \[2, 1\]"),
        (ones, shared, "as sequences share keys"),
    ):
        with pytest.raises(MaskcError, match=f"k_scale must be .*{why}"):
            attn.run(pool.queries([1, 1], 4), *pools, of, k_scale=scale)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_scales_that_change_in_place(library, dtype):
    """A plan keeps no copy of them, and may be asked again."""
    pool = Pool([20, 7], 8, 2, 16)
    attn = on_cpu(mc.causal(), 8, pool_dtype="float8_e4m3fn")
    make = np.asarray if library == "numpy" else pytest.importorskip("torch").from_numpy
    plan, scale = attn.plan(make(pool.table), 1, [20, 7]), np.ones(2, dtype)
    for number in (0.5, 2.0):
        scale[:] = number
        assert plan.scales.of_layer(make(scale), 1.0).held[0].held.tolist() == [number] * 2


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
    assert f"{target}_data default" in attn.attn.serving(found[0]).last_sources
    assert attn.loads_pages


@pytest.mark.parametrize("columns", [slice(3, 67), slice(8, 72), slice(0, 128, 2)])
@pytest.mark.parametrize("counts", [[4] * 2, [9, 2]])
def test_rows_are_read_at_any_steps(hopper, columns, counts):
    """Queries move into blocks in units of 16 bytes, or of less where they lie elsewhere."""
    import torch

    pool = Pool([40, 9], 16, 2, 64)
    wide = torch.from_numpy(pool.queries([sum(counts)], 6)).bfloat16().repeat(1, 1, 2)
    q = wide[:, 1:5, columns]
    attn = on_hopper(mc.causal(), 16)
    given = counts[0] if len(set(counts)) == 1 else torch.tensor(counts)
    plan = attn.plan(torch.from_numpy(pool.table), given, torch.tensor(pool.lengths))
    pools = [torch.from_numpy(x).bfloat16() for x in (pool.k_pool, pool.v_pool)]
    result, want = (
        attn.run(x, *pools, plan) for x in (q, q.clone(memory_format=torch.contiguous_format))
    )
    for x, y in zip(result, want, strict=True):
        assert torch.equal(x, y)
    close(want, exact(pool, q.float().numpy(), counts, lambda s, h: causal), 2e-2)
    assert {"gather_rows", "return_rows"} <= {entry for entry, _ in hopper.launches}


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
    """Return the tokens in other pages, next to other sequences."""
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


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("new", [1, 40])
def test_neighbours_decide_no_bit(hopper, target, new, monkeypatch):
    """A sequence alone, and with others, though more blocks then share the card."""
    import torch

    monkeypatch.setattr("maskc.layout.work.work_list._MULTIPROCESSORS", 2)
    lengths = [2300, 700, 40, 2300, 1000]
    attn = on_hopper(mc.causal(), 16, target=target)
    pool = Pool(lengths, 16, 2, 64)
    counts = [min(new, n) for n in lengths]
    q = pool.queries(counts, 4)
    tensors = [torch.from_numpy(x).bfloat16() for x in (q, pool.k_pool, pool.v_pool)]
    ends = np.cumsum([0, *counts])

    def ran(order):
        lens = counts[0] if len(set(counts)) == 1 else torch.tensor([counts[i] for i in order])
        table = torch.from_numpy(pool.table[order])
        plan = attn.plan(table, lens, torch.tensor([lengths[i] for i in order]))
        own = torch.cat([tensors[0][ends[i] : ends[i + 1]] for i in order])
        first, again = (attn.run(own, *tensors[1:], plan, deterministic=True) for _ in range(2))
        assert all((x == y).all() for x, y in zip(first, again, strict=True))
        return again

    for results in zip(ran([0, 1, 2, 3, 4]), ran([3]), strict=True):
        assert (results[0][ends[3] : ends[4]] == results[1]).all()


@pytest.mark.parametrize("counts", [[1] * 3, [2] * 3, [1, 4, 0]], ids=["one", "two", "several"])
@pytest.mark.parametrize("in_e4m3", [False, True], ids=["halves", "e4m3"])
def test_layers_repeat_the_first_launch(hopper, monkeypatch, counts, in_e4m3):
    """Layers that share a plan only say where their tensors lie, also after an update; those of
    another kind, as with a pool of another size, are planned again."""
    import torch

    planned, copied = [], []
    first, stored = CompiledMask.run_first, paged_attention._stored

    def store(out, lse, memory):
        copied.append(memory is not out)
        return stored(out, lse, memory)

    monkeypatch.setattr(paged_attention, "_stored", store)
    monkeypatch.setattr(
        CompiledMask, "run_first", lambda attn, call: (planned.append(1), first(attn, call))[1]
    )
    kind = torch.float8_e4m3fn if in_e4m3 else torch.bfloat16
    attn = on_hopper(mc.causal(), 16, pool_dtype="float8_e4m3fn" if in_e4m3 else None)
    given = counts[0] if len(set(counts)) == 1 else torch.tensor(counts)
    long, short, sinks = [90, 17, 33], [20, 64, 5], np.linspace(-1, 2, 4).astype(np.float32)
    layers = [
        # lengths, factor of this layer's numbers, options, calls that are planned so far
        (long, 1, {}, 1), (long, -0.5, {}, 1), (long, 2, {"scale": 0.3}, 2),
        (long, 0.25, {"sink_logits": torch.from_numpy(sinks)}, 3), (long, -1, {"scale": 0.3}, 3),
        (short, 1, {}, 4), (short, 0.5, {}, 4), (long, -2, {}, 4), (short, 3, {}, 4),
    ]  # fmt: skip
    table = torch.zeros(3, 7, dtype=torch.int32)
    plan = attn.plan(table, given, torch.tensor(short), max_seqlen_kv=112)
    last = None
    for lengths, factor, options, count in layers:
        pool, scales = Pool(lengths, 16, 2, 64), {}
        for x in (*pool.k, *pool.v, pool.k_pool, pool.v_pool):
            x *= factor
        table[:, : pool.table.shape[1]] = torch.from_numpy(pool.table)
        if lengths != last:
            plan.update(table, given, torch.tensor(lengths))
        if in_e4m3:
            k_scale, v_scale = numbers_of(pool, "heads", 2)
            scales = {"k_scale": torch.from_numpy(k_scale), "v_scale": float(v_scale[0])}
        last, q = lengths, pool.queries(counts, 4)
        tensors = [torch.from_numpy(q).bfloat16()]
        tensors += [torch.from_numpy(x).to(kind) for x in (pool.k_pool, pool.v_pool)]
        memory = torch.full((len(q), 4, 64), torch.nan).bfloat16() if factor < 1 else None
        before = len(planned)
        results = attn.run(*tensors, plan, out=memory, **options, **scales)
        assert memory is None or results[0] is memory
        in_place = memory is not None and len(planned) == before
        assert copied.pop() != in_place
        want = exact(pool, q, counts, lambda s, h: causal, scale=options.get("scale"),
                     sinks=sinks if "sink_logits" in options else None)  # fmt: skip
        close(results, want, 2e-2)
        assert len(planned) == count
    odd = torch.zeros(tensors[1].numel() + 1, dtype=kind)[1:].view_as(tensors[1])
    with pytest.raises(MaskcError, match="MC408"):
        attn.run(tensors[0], odd, tensors[2], plan, **scales)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_engines_run_without_gradients(target, monkeypatch):
    """In inference mode torch counts no writes; those of a plan count all the same, as lists of
    tiles that are kept would be those of the step before."""
    torch = pytest.importorskip("torch")
    if target != "cpu":
        machine.install(monkeypatch)
    pool, dim = Pool([75, 9], 16, 2, 64), 64
    rows = pool.queries([1, 1], 4)
    attn = on_cpu(mc.window(40), 16, dim=dim, target=target, dtype="bfloat16")
    with torch.inference_mode():
        q, *pools = (torch.tensor(x).bfloat16() for x in (rows, pool.k_pool, pool.v_pool))
        table = torch.from_numpy(pool.table)
        plan = attn.plan(table, 1, torch.tensor([60, 9]))
        for lengths in ([60, 9], [75, 4], [75, 9]):
            before = plan.data[POSITION]._version
            plan.update(table, 1, torch.tensor(lengths))
            assert plan.data[POSITION]._version > before
            found = attn.run(q, *pools, plan)
            shorter = Pool([75, 9], 16, 2, 64)
            shorter.lengths = lengths
            shorter.k = [x[:n] for x, n in zip(shorter.k, lengths, strict=True)]
            shorter.v = [x[:n] for x, n in zip(shorter.v, lengths, strict=True)]
            rule = lambda p, k: (k <= p) & (p - k <= 40)  # noqa: E731
            close(found, exact(shorter, rows, [1, 1], lambda s, h, rule=rule: rule), 2e-2)


@pytest.mark.parametrize("kind", ["int32", "int64", "int16"])
@pytest.mark.parametrize("given", ["lens", "cumulative", "each"])
@pytest.mark.parametrize("lists", [False, True])
def test_one_launch_makes_a_step(hopper, kind, given, lists):
    """The kernel and NumPy make the same arrays, of tables with any strides, and of tables that
    promise more than there is; nothing outside of the arrays is written."""
    import torch

    rng = np.random.default_rng(7)
    for counts, lengths, total in (
        ([1, 0, 1, 40, 3, 10], [75, 0, 1, 40, 9, 33], 60),
        ([2, 2, 2], [2, 50, 1000], 6),
        ([5, 600, 3], [5, 700, 2], 40),  # more than total_q, more than max_seqlen_kv
        ([], [], 3),
    ):
        if given == "each" and len(set(counts)) != 1:
            continue
        sequences, page = len(lengths), 8
        entries = rng.integers(-3, 90, (sequences, 2 * 14)).astype(kind)
        starts = np.sort(rng.integers(0, 40, sequences + 1)).astype(kind)
        lens = np.repeat(np.array(lengths, kind), 2)
        docs, low = rng.integers(0, 3, (sequences, 112)), rng.integers(0, 50, 112)
        made = []
        for target in ("cpu", "sm_90a"):
            mask = mc.causal() & mc.documents("d") & mc.intervals("i") & mc.flags("f")
            attn = on_hopper(
                mask, page, target=target, dtype="bfloat16" if target != "cpu" else None
            )
            if target == "cpu":  # which cuts as the kernels do
                monkey = pytest.MonkeyPatch()
                monkey.setattr(type(attn), "cuts_queries", True)
                monkey.setattr(StepChecks, "check", lambda *_: None)
            table = torch.from_numpy(entries)[:, ::2]
            if lists:
                table = torch.from_numpy(starts), table.reshape(-1)
            how = {"total_q": total, "max_seqlen_q": 64, "max_seqlen_kv": 112}
            lens_q = torch.tensor(counts, dtype=getattr(torch, kind))
            if given == "cumulative":
                cumulative = np.concatenate([[0], np.cumsum(counts)]).astype(kind)
                lens_q, how["cu_seqlens_q"] = None, torch.from_numpy(cumulative)
            if given == "each":
                lens_q = counts[0]
            data = {"d": docs, "i": (low, low + 9), "f": low % 2 == 0}
            data = {name: tuple(map(torch.from_numpy, x)) if isinstance(x, tuple)
                    else torch.from_numpy(x) for name, x in data.items()}  # fmt: skip
            plan = attn.plan(table, lens_q, torch.from_numpy(lens)[::2], **how, **data)
            made.append({name: x.clone() for name, x in plan._state.items()})
            versions = plan.data[POSITION]._version
            plan.update(table, lens_q, torch.from_numpy(lens)[::2],
                        cu_seqlens_q=how.get("cu_seqlens_q"), **data)  # fmt: skip
            assert plan.data[POSITION]._version > versions  # or lists of tiles would be kept
            assert all((plan._state[name] == x).all() for name, x in made[-1].items())
            if target == "cpu":
                monkey.undo()
        assert made[0].keys() == made[1].keys()
        for name, want in made[0].items():
            np.testing.assert_array_equal(made[1][name], want, name)
    assert {entry for entry, _ in hopper.launches} == {"plan_pages"}


def test_pickles():
    """A copy computes the same; plans are of their own process."""
    attn = on_cpu(mc.window(9), 8)
    pool = Pool([20, 7], 8, 2, 16)
    q = pool.queries([1, 1], 4)
    copy, plan = pickle.loads(pickle.dumps(attn)), attn.plan(pool.table, 1, pool.lengths)
    results = [
        attn_or_copy.run(q, pool.k_pool, pool.v_pool, of)
        for attn_or_copy in (attn, copy) for of in (plan, copy.plan(pool.table, 1, pool.lengths))
    ]  # fmt: skip
    assert all((result[0] == results[0][0]).all() for result in results)


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a", "sm_120"])
def test_nvrtc_takes_the_source(arch):
    pytest.importorskip("cupy", reason="NVRTC comes with the cuda13 extra")
    target = {"sm_75": "simt", "sm_120": "sm_80"}.get(arch, arch)
    unit = on_hopper(mc.causal(), 16, target=target).attn.bundle.pages_source(target)
    report = build(unit, arch=arch).report
    assert {kernel.name for kernel in report.kernels} == {
        "plan_pages", "append_rows", "gather_rows", "return_rows"
    }  # fmt: skip
    for kernel in report.kernels:
        assert (kernel.stack, kernel.spill_stores, kernel.spill_loads) == (0, 0, 0)
        assert kernel.registers <= 128


@pytest.mark.parametrize("dim", chiefly([32, 64, 96, 128, 192, 256], 64, 128))
@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
def test_kernels_that_convert_pools_do_not_spill(target, dim):
    pytest.importorskip("cupy", reason="NVRTC comes with the cuda13 extra")
    attn = on_hopper(
        mc.causal(), 16, dim, target=target, dtype="bfloat16", pool_dtype="float8_e4m3fn"
    )
    for unit in attn.attn.bundle.units:
        for mode, _ in unit.modes if unit.directions else ():
            for kernel in build(unit, arch=target, mode=mode).report.kernels:
                spills = kernel.stack, kernel.spill_stores, kernel.spill_loads
                assert spills == (0, 0, 0), (unit.key, mode, kernel)
