"""Attention over pages on a card: pages of every kind of granule, masks, mixed batches, graphs."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import maskc as mc
from tests.support.paged import Pool, exact

LENGTHS, COUNTS = [1300, 0, 1, 700, 77, 260], [1, 0, 1, 200, 3, 33]
MASKS = {
    "causal": (mc.causal(), lambda p, k: k <= p),
    "full": (mc.full(), lambda p, k: k >= 0),
    "window and sinks": (mc.window(300) | (mc.sinks(4) & mc.causal()),
                         lambda p, k: (k <= p) & ((p - k <= 300) | (k < 4))),
    "chunks": (mc.chunked(256), lambda p, k: (k <= p) & (k // 256 == p // 256)),
    "prefix": (mc.prefix(50) | mc.causal(), lambda p, k: (k < 50) | (k <= p)),
}  # fmt: skip


def on_gpu(x):
    return torch.from_numpy(np.ascontiguousarray(x)).cuda()


def close(found, wanted):
    (out, lse), (want, want_lse) = found, wanted
    assert not out.isnan().any()
    np.testing.assert_allclose(out.float().cpu().numpy(), want, atol=2e-2, rtol=2e-2)
    np.testing.assert_allclose(lse.cpu().numpy(), want_lse, atol=2e-3, rtol=1e-3)


def ran(attn, pool, q, plan, dtype=torch.bfloat16, **options):
    tensors = (on_gpu(x).to(dtype) for x in (q, pool.k_pool, pool.v_pool))
    return attn.run(*tensors, plan, **options)


@pytest.mark.parametrize("target", ["sm_90a", "sm_80"])
@pytest.mark.parametrize(
    ("page", "dim", "layout", "heads"),
    [(16, 128, "NHD", 8), (64, 128, "HND", 8), (256, 128, "NHD", 8), (128, 64, "NHD", 8),
     (16, 64, "HND", 4), (8, 96, "NHD", 2), (16, 256, "NHD", 8), (24, 128, "HND", 6),
     (4, 128, "NHD", 8), (1, 128, "NHD", 8), (1, 64, "HND", 2), (16, 128, "NHD", 2),
     (32, 192, "NHD", 8), (48, 80, "NHD", 8)],
)  # fmt: skip
@pytest.mark.parametrize("decodes", [True, False])
def test_pages(page, dim, layout, heads, decodes, target):
    if target == "sm_80" and page not in (16, 1):
        pytest.skip("one page size is enough where pages are copied")
    counts = [1] * len(LENGTHS) if decodes else COUNTS
    pool = Pool(LENGTHS, page, 2, dim, layout=layout)
    q = pool.queries(counts, heads)
    attn = mc.paged(
        mc.causal(), page_size=page, head_dim=dim, n_heads=heads, n_kv_heads=2, layout=layout,
        target=target,
    )  # fmt: skip
    lens = on_gpu(np.array(LENGTHS))
    given = 1 if decodes else on_gpu(np.array(counts))
    known = {} if decodes else {"total_q": len(q), "max_seqlen_q": 200}
    plan = attn.plan(on_gpu(pool.table), given, lens, **known)
    want = exact(pool, q, counts, lambda s, h: lambda p, k: k <= p)
    found = ran(attn, pool, q, plan)
    close(found, want)
    if decodes:  # other places in memory, the same bits
        other = Pool(LENGTHS, page, 2, dim, layout=layout, seed=0, spare=9)
        pages = np.random.default_rng(5).permutation(len(other.k_pool))
        for name in ("k_pool", "v_pool"):
            setattr(other, name, getattr(other, name)[np.argsort(pages)])
        inside = (other.table >= 0) & (other.table < len(pages))
        moved = np.where(inside, pages[np.where(inside, other.table, 0)], -1)
        plan = attn.plan(on_gpu(moved), given, lens)
        again = ran(attn, other, q, plan)
        if all((x == y).all() for x, y in zip(pool.k, other.k, strict=True)):
            assert torch.equal(found[0], again[0])


@pytest.mark.parametrize("name", list(MASKS))
def test_masks(name):
    mask, keeps = MASKS[name]
    pool = Pool(LENGTHS, 16, 2, 128)
    q = pool.queries(COUNTS, 8)
    attn = mc.paged(mask, page_size=16, head_dim=128, n_heads=8, n_kv_heads=2)
    indices = on_gpu(pool.indptr), on_gpu(pool.indices)
    starts = on_gpu(np.concatenate([[0], np.cumsum(COUNTS)]))
    plan = attn.plan(
        indices, None, on_gpu(np.array(LENGTHS)), cu_seqlens_q=starts, total_q=len(q),
        max_seqlen_q=200, max_seqlen_kv=1312,
    )  # fmt: skip
    close(ran(attn, pool, q, plan), exact(pool, q, COUNTS, lambda s, h: keeps))


def test_heads_that_differ():
    pool = Pool(LENGTHS, 16, 2, 128)
    q = pool.queries(COUNTS, 4)
    mask = mc.per_head([mc.causal(), mc.window(40), mc.causal(), mc.window(500)])
    widths = [None, 40, None, 500]
    attn = mc.paged(mask, page_size=16, head_dim=128, n_heads=4, n_kv_heads=2)
    plan = attn.plan(
        on_gpu(pool.table), on_gpu(np.array(COUNTS)), on_gpu(np.array(LENGTHS)),
        total_q=len(q), max_seqlen_q=200,
    )  # fmt: skip

    def keeps(_sequence, head):
        width = widths[head]
        return lambda p, k: (k <= p) & (width is None or p - k <= width)

    close(ran(attn, pool, q, plan), exact(pool, q, COUNTS, keeps))


@pytest.mark.parametrize("decodes", [True, False])
@pytest.mark.parametrize("kind", ["sinks", "softcap", "alibi", "score"])
def test_options(kind, decodes):
    counts = [1] * len(LENGTHS) if decodes else COUNTS
    pool = Pool(LENGTHS, 16, 2, 128)
    q = pool.queries(counts, 8)
    score, options, logit, sinks = None, {}, lambda s, **_: s, None
    slopes = np.linspace(0.01, 0.1, 8).astype(np.float32)
    if kind == "sinks":
        sinks = np.linspace(-1, 3, 8).astype(np.float32)
        options = {"sink_logits": on_gpu(sinks)}
    elif kind == "softcap":
        options, logit = {"softcap": 3.0}, lambda s, **_: 3 * np.tanh(s / 3)
    elif kind == "alibi":
        options = {"alibi_slopes": on_gpu(slopes)}
        logit = lambda s, p, k, head: s - slopes[head] * np.abs(p - k)  # noqa: E731
    else:
        score = mc.score(lambda s, q, k: s + 0.001 * q - 0.002 * k)
        logit = lambda s, p, k, head: s + 0.001 * p - 0.002 * k  # noqa: E731
    attn = mc.paged(mc.causal(), page_size=16, head_dim=128, n_heads=8, n_kv_heads=2, score=score)
    plan = attn.plan(
        on_gpu(pool.table), 1 if decodes else on_gpu(np.array(counts)),
        on_gpu(np.array(LENGTHS)), total_q=len(q), max_seqlen_q=max(counts),
    )  # fmt: skip
    want = exact(pool, q, counts, lambda s, h: lambda p, k: k <= p, logit, sinks)
    close(ran(attn, pool, q, plan, **options), want)


@pytest.mark.parametrize("decodes", [True, False])
def test_graphs_read_replaced_tables(decodes):
    counts = [1] * len(LENGTHS) if decodes else COUNTS
    pools = [Pool(LENGTHS, 16, 2, 128, seed=3)]
    pools.append(Pool([900, 5, 0, 1200, 300, 260], 16, 2, 128, seed=4))
    q = pools[0].queries(counts, 8)
    attn = mc.paged(mc.causal(), page_size=16, head_dim=128, n_heads=8, n_kv_heads=2)
    width = 90
    tables, lens = [], []
    for pool in pools:
        table = np.full((len(LENGTHS), width), -1, np.int32)
        table[:, : pool.table.shape[1]] = pool.table
        tables.append(on_gpu(table))
        lens.append(on_gpu(np.array(pool.lengths)))
    rows = max(len(pool.k_pool) for pool in pools)
    empty = np.full((rows, 16, 2, 128), np.nan, np.float32)
    k_pool, v_pool = (on_gpu(empty).bfloat16() for _ in range(2))
    queries = on_gpu(q).bfloat16()
    table, length = tables[0].clone(), lens[0].clone()
    given = 1 if decodes else on_gpu(np.array(counts))
    plan = attn.plan(table, given, length, total_q=len(q), max_seqlen_q=max(counts))

    def fill(number):
        for x, y in ((k_pool, pools[number].k_pool), (v_pool, pools[number].v_pool)):
            x.fill_(torch.nan)
            x[: len(y)] = on_gpu(y).bfloat16()
        table.copy_(tables[number])
        length.copy_(lens[number])

    def step():
        plan.update(table, given, length)
        return attn.run(queries, k_pool, v_pool, plan)

    fill(0)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    for number in (1, 0):
        fill(number)
        graph.replay()
        own = [min(a, b) for a, b in zip(counts, pools[number].lengths, strict=True)]
        if own == counts:
            close(found, exact(pools[number], q, counts, lambda s, h: lambda p, k: k <= p))
        elif decodes:
            want = exact(pools[number], q, counts, lambda s, h: lambda p, k: k <= p)
            close(found, want)


def test_nothing_waits():
    """Neither a plan nor a run asks a GPU for anything."""
    pool = Pool(LENGTHS, 16, 2, 128)
    q = pool.queries(COUNTS, 8)
    attn = mc.paged(mc.causal(), page_size=16, head_dim=128, n_heads=8, n_kv_heads=2)
    given = on_gpu(pool.table), on_gpu(np.array(COUNTS)), on_gpu(np.array(LENGTHS))
    tensors = [on_gpu(x).bfloat16() for x in (q, pool.k_pool, pool.v_pool)]
    run = lambda: attn.run(  # noqa: E731
        *tensors, attn.plan(*given, total_q=len(q), max_seqlen_q=200)
    )
    run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prototype, it says
        torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
