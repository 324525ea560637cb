"""sm_90a kernels on a Hopper: tile rows computed in parts and merged, and columns cut unevenly.

Run with `make test-gpu`.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from tests.support.cases import FEATURES
from tests.support.exact_attention import DEVICE, called, live_pairs, tensors, vectors
from tests.support.hopper import (
    BAND,
    DIMS,
    SIZES,
    check,
    compiled,
    half,
    nan_memory,
    needs_backward,
    parts_of,
    with_rules,
)

LONGFORMER = mc.window(20, 20) | mc.global_tokens([0, 3])
MASKS = {
    "global tokens": LONGFORMER,
    "causal, global": mc.causal() & LONGFORMER,
    "empty rows beside a global one": mc.global_tokens([5]).rows
    | (mc.window(20) & mc.where(lambda q, k: (q >= 300) & (k >= 100))),
    "per head": mc.per_head([mc.causal(), LONGFORMER, mc.window(9), BAND | mc.sinks(70)]),
}
MODES = ("default", "persistent")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("dim", DIMS)
def test_every_row_in_parts(dim, dtype, mode):
    """Parts have one tile, or two; some rows and parts see nothing."""
    for mask, row_tiles in ((BAND, 1), (mc.causal() | mc.prefix(77), 2)):
        attn = compiled(mask, dim, dtype, mode=mode, row_tiles=row_tiles)
        for n_q, n_kv in SIZES[1::2]:
            check(attn, tensors(n_q, n_kv, dim, half(dtype), n_q), live_pairs(mask, n_q, n_kv))
        assert parts_of(attn)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", DIMS)
def test_long_rows_among_short_ones(dim, mode, name):
    """Rows run as planned, and in shorter parts."""
    mask, heads = MASKS[name], 4 if name == "per head" else None
    attn = compiled(mask, dim, heads=heads, mode=mode)
    short = with_rules(attn, {"uneven_tiles": 3}, {"uneven_tiles": 2})
    for n_q, n_kv in ((3000, 3000), (3001, 2700)):
        made = tensors(n_q, n_kv, dim, torch.bfloat16)
        live = live_pairs(mask, n_q, n_kv, heads=heads)
        for each in (attn, short) if n_q == n_kv else (short,):
            check(each, made, live)
    assert name == "causal, global" or 0 < parts_of(attn) < parts_of(short)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", [64, 128])
def test_a_block_table_with_full_rows(dim, mode):
    table = np.random.default_rng(1).random((4, 47, 47)) < 0.02
    table[1:, 0], table[1:, :, 0], table[3, 20] = True, True, True
    attn = compiled(mc.block_table("t", 64), dim, mode=mode)
    side = torch.arange(3000, device=DEVICE) // 64
    live = torch.tensor(table, device=DEVICE)[:, side[:, None], side[None]]
    check(attn, tensors(3000, 3000, dim, torch.bfloat16), live, {"t": table})
    assert parts_of(attn)


@pytest.mark.parametrize("name", list(FEATURES)[:6])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_features(dim, mode, name):
    """Sinks are added once, and to rows that see nothing."""
    heads, options = FEATURES[name]
    features = {**vectors(heads, 4), **options}
    for mask in (mc.causal() & LONGFORMER, MASKS["empty rows beside a global one"]):
        attn = compiled(mask, dim, mode=mode, row_tiles=2)
        for n_q, n_kv in ((1100, 1100), (700, 1234)):
            made = tensors(n_q, n_kv, dim, torch.bfloat16)
            check(attn, made, live_pairs(mask, n_q, n_kv), **features)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (8, 8), (6, 2), (8, 1)])
def test_shared_heads(heads, kv_heads):
    attn = compiled(LONGFORMER, 128)
    made = tensors(3000, 3000, 128, torch.bfloat16, heads=heads, kv_heads=kv_heads, batch=3)
    check(attn, made, live_pairs(LONGFORMER, 3000, 3000))
    assert parts_of(attn)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dim", DIMS)
def test_bits_repeat_whatever_the_batch_and_heads(dim, mode):
    attn = compiled(LONGFORMER, dim, mode=mode)
    made = tensors(3000, 3000, dim, torch.bfloat16, heads=4, kv_heads=4, batch=3)
    whole = called(attn, *made[:3])
    for _ in range(20):
        with nan_memory():
            again = called(attn, *made[:3])
        assert all(torch.equal(again[name], x) for name, x in whole.items())
    for some in ((slice(1), slice(None)), (slice(1, 3), slice(1, 2))):
        alone = called(attn, *(x[some] for x in made[:3]))
        assert all(torch.equal(alone[name], x[some]) for name, x in whole.items())
    assert parts_of(attn)


@pytest.mark.parametrize("mode", MODES)
def test_tokens_before_heads(mode):
    attn = compiled(LONGFORMER, 64, mode=mode)
    made = tensors(3000, 3000, 64, torch.bfloat16)[:3]
    whole = called(attn, *made)
    turned = called(attn, *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in made))
    assert turned["out"].transpose(1, 2).is_contiguous()
    assert all(torch.equal(turned[name], x) for name, x in whole.items())


@pytest.mark.parametrize("mode", MODES)
def test_streams_and_graphs(mode):
    """Workspaces are each launch's own."""
    attn = compiled(LONGFORMER, 128, mode=mode)
    made = [tensors(3000, 3000, 128, torch.bfloat16, i)[:3] for i in range(3)]
    want = [attn(*each) for each in made]
    graphs = []
    for each in made:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = attn(*each)
        graphs.append((graph, out))
    streams = [torch.cuda.Stream() for _ in made]
    torch.cuda.synchronize()
    for _ in range(10):
        found = []
        for stream, each, (graph, _) in zip(streams, made, graphs, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()
                found.append(attn(*each))
        torch.cuda.synchronize()
        for out, (_, replayed), exact in zip(found, graphs, want, strict=True):
            assert torch.equal(out, exact)
            assert torch.equal(replayed, exact)


@pytest.mark.parametrize("dim", DIMS)
@needs_backward
def test_columns_cut_into_items(dim):
    """Long ones only, smaller than others are cut."""
    attn = with_rules(compiled(LONGFORMER, dim), {}, {"most_tiles": 9, "uneven_tiles": 2})
    made, live = tensors(3000, 3000, dim, torch.bfloat16), live_pairs(LONGFORMER, 3000, 3000)
    for deterministic in (False, True):
        check(attn, made, live, deterministic=deterministic)
