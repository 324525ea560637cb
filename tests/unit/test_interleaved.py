"""Interleaved heads: tiles whose rows are all query heads of each query; in emulation, by fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.bundle import INTERLEAVED
from maskc.core.problem import Direction
from maskc.dispatch.selector import tuning_key
from maskc.runtime.device_lists.lists_launch import ListsPlan
from tests.support.documents import neighbours_change_no_bit
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import called, exact_and_rough, live_pairs, vectors, wrong
from tests.support.hopper import BAND, compiled, given, modes, same_bits, way
from tests.support.judged_lists import on_device
from tests.support.thorough import more

PAIRS = mc.causal() & (mc.strided(7) | mc.window(20))
BITS = mc.window(5, 5) | mc.dilated(5, stride=3) | mc.dilated(5, stride=9)
LATE = mc.where(lambda q, k: (q >= 130) & (k % 3 > 0))
"""Tile rows without a pair, and rows whose pairs are tested one by one."""


def check(attn, made, live, data=None, **features):
    """Check out and lse."""
    q, k, v, dout = made
    computed = called(attn, q, k, v, data=data, **features)
    sides = exact_and_rough(q, k, v, dout, live, backward=False, **features)
    faults = wrong(computed, *sides)
    assert not faults, (tuple(q.shape), tuple(k.shape), sorted(features), faults)


def forward_modes(attn):
    return {mode for source, mode in modes(attn) if source.startswith("sm_90a")}


@pytest.mark.parametrize(
    ("mask", "dim", "sizes", "heads", "options"),
    [
        (BAND, 256, (130, 200), (8, 2), {"batch": 2}),
        (BAND, 64, (130, 70), (16, 2), {"batch": 2, "row_tiles": 1}),
        (BAND, 248, (75, 300), (2, 1), {"dtype": "float16", "row_tiles": 2}),
        (PAIRS, 64, (201, 201), (4, 1), {"dtype": "float16"}),
        (BITS, 64, (100, 160), (8, 1), {"axes": (0, 2, 1, 3)}),
        (LATE, 256, (190, 90), (4, 1), {"axes": (2, 0, 1, 3), "batch": 2}),
        more(LATE, 64, (190, 90), (32, 2), {}),
        more(mc.causal(), 64, (33, 400), (64, 1), {"row_tiles": 1}),
        more(mc.causal() | mc.prefix(40), 256, (150, 150), (16, 1), {"dtype": "float16"}),
    ],
)
def test_against_fp64(mask, dim, sizes, heads, options):
    """Powers of two of heads, rows in parts, rows without keys, and tokens before heads."""
    dtype = options.get("dtype", "bfloat16")
    attn = compiled(mask, dim, dtype, mode=INTERLEAVED, row_tiles=options.get("row_tiles"))
    shape = {"batch": options.get("batch", 1), "heads": heads[0], "kv_heads": heads[1]}
    made = given(*sizes, dim, dtype, **shape)
    axes = options.get("axes", (0, 1, 2, 3))
    made = [x.permute(axes).contiguous().permute(*np.argsort(axes)) for x in made]
    live = live_pairs(mask, *sizes)
    check(attn, made, live)
    check(attn, made, live, softcap=3.0, scale=-0.2, **vectors(["sink_logits"], heads[0]))
    assert forward_modes(attn) == {INTERLEAVED}


N = 150


def flags(rng):
    return rng.random((2, N)) < 0.6


def prefixes(rng):
    last = np.broadcast_to(rng.integers(20, N, (2, 1)), (2, N))
    return np.zeros_like(last), last


def images(rng):
    first = np.arange(N) // 40 * 40
    return np.stack([first, first + 7]), np.stack([first + 25, first + 45])


def documents(rng):
    return np.sort(rng.integers(0, 6, (2, N)))


def tables(rng):
    return rng.random((2, 1, 3, 3)) < 0.4


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize(
    ("mask", "draw", "dim", "heads", "mode"),
    [
        (mc.flags("x") & BAND, flags, 64, (8, 2), INTERLEAVED),
        (mc.causal() & mc.window(40) | mc.intervals("x"), prefixes, 256, (4, 1), INTERLEAVED),
        more(mc.window(30, 0) | mc.intervals("x") & mc.window(30, 30), images, 256, (8, 4),
             INTERLEAVED),
        more(mc.documents("x") & mc.causal(), documents, 64, (16, 2), INTERLEAVED),
        (mc.documents("x") & mc.causal(), documents, 128, (8, 2), INTERLEAVED),
        (mc.documents("x") & mc.causal(), documents, 64, (16, 2), f"small {INTERLEAVED}"),
        more(mc.documents("x") & mc.causal(), documents, 128, (4, 1), f"small {INTERLEAVED}"),
        more(mc.documents("x"), documents, 256, (4, 1), INTERLEAVED),
        more(mc.block_table("x", 64) & mc.causal(), tables, 64, (2, 1), INTERLEAVED),
    ],
)  # fmt: skip
def test_data_of_sequences(mask, draw, dim, heads, mode, where, monkeypatch):
    """Lists of both, those that a device makes checked against the host's."""
    monkeypatch.setenv("MASKC_CHECK", "1")
    data = draw(np.random.default_rng(0))
    live = torch.from_numpy(mask.dense(N, N, x=data)).reshape(2, 1, N, N)
    attn = compiled(mask, dim, mode=mode)
    x = on_device(data) if where == "device" else data
    made = given(N, N, dim, batch=2, heads=heads[0], kv_heads=heads[1])
    check(attn, made, live, data={"x": x})
    assert isinstance(attn._last[1], ListsPlan) == (where == "device")
    assert attn.last_sources[-1] == " ".join(way(mode))


@pytest.mark.parametrize("dim", [64, 256])
def test_bits_depend_on_no_order_and_no_batch(hopper, dim):
    attn, made = compiled(BAND, dim, mode=INTERLEAVED), given(200, 200, dim, batch=3, heads=4)
    want = same_bits(attn, made[:3], 2, hopper, deterministic=True)
    alone = called(attn, *(x[1:2] for x in made[:3]), deterministic=True)
    assert all(torch.equal(alone[name], x[1:2]) for name, x in want.items())
    assert forward_modes(attn) == {INTERLEAVED}


FORCED = {"mode": INTERLEAVED}
BY_HEAD = mc.per_head([mc.causal()] * 4 + [BAND] * 4)


@pytest.mark.parametrize(
    ("mask", "dim", "heads", "made", "options"),
    [
        pytest.param(BAND, 64, (6, 2), FORCED, {}, id="three heads share keys"),
        pytest.param(BAND, 64, (2, 2), FORCED, {}, id="every head has keys of its own"),
        pytest.param(BAND, 128, (4, 1), {}, {}, id="128"),
        pytest.param(BY_HEAD, 64, (8, 2), {"heads": 8, **FORCED}, {}, id="masks of heads"),
        pytest.param(BAND, 64, (8, 2), FORCED, vectors(["alibi_slopes"], 8), id="alibi"),
        pytest.param(mc.full(), 64, (4, 1), {}, {}, id="no fewer tiles"),
    ],
)
def test_calls_without_the_mode(mask, dim, heads, made, options):
    n_heads = made.get("heads")
    attn = compiled(mask, dim, **made)
    tensors = given(150, 150, dim, heads=heads[0], kv_heads=heads[1])
    live = live_pairs(mask, 150, 150, **({"heads": n_heads} if n_heads else {}))
    check(attn, tensors, live, **options)
    assert INTERLEAVED not in forward_modes(attn)


def test_data_of_heads_on_the_device_are_without_the_mode():
    mask = mc.block_table("x", 64) & mc.causal()
    table = np.random.default_rng(0).random((1, 8, 3, 3)) < 0.6
    attn = compiled(mask, 64, mode=INTERLEAVED)
    live = torch.from_numpy(mask.dense(N, N, x=table)).reshape(1, 8, N, N)
    check(attn, given(N, N, 64, heads=8), live, data={"x": on_device(table)})
    assert isinstance(attn._last[1], ListsPlan)
    assert INTERLEAVED not in forward_modes(attn)


def test_lists_without_room_have_larger_tiles(monkeypatch):
    """Narrow tiles have more entries than the default ones, which fit."""
    mask = mc.flags("x") & BAND
    attn, x = compiled(mask, 64, mode=INTERLEAVED), on_device(flags(np.random.default_rng(0)))
    made = given(N, N, 64, batch=2, heads=8, kv_heads=2)[:3]
    monkeypatch.setattr("maskc.runtime.device_lists.data._MAX_TILES", 2)
    attn(*made, x=x)
    assert isinstance(attn._last[1], ListsPlan)
    assert INTERLEAVED not in forward_modes(attn)


def test_neighbours_change_no_bit():
    attn = compiled(mc.documents("doc") & mc.causal(), mode=INTERLEAVED)
    neighbours_change_no_bit(
        attn, 64, (1, 37, 80), lambda own: on_device(np.zeros(own, np.int32)),
        [([30], [5, 60]), ([79, 64, 70], [33, 80])],
        [lambda lengths: on_device(np.repeat(np.arange(len(lengths)), lengths))],
        heads=4, kv_heads=1, device="cpu",
    )  # fmt: skip
    assert INTERLEAVED in forward_modes(attn)


@pytest.mark.parametrize(
    ("mask", "dim", "heads", "mode"),
    [
        (mc.window.hf(64) | mc.intervals("x"), 256, (4, 1), INTERLEAVED),
        (mc.window.hf(64) | mc.intervals("x"), 256, (4, 4), "persistent"),
        (mc.intervals("x"), 256, (4, 1), "persistent"),
    ],
)
def test_masks_of_data_take_the_mode_for_typical_data(mask, dim, heads, mode):
    """Spans that add keys to a window are few; by themselves they may hold all keys."""
    attn, n = mask.compile(dim, target="sm_90a"), 500
    made = given(n, n, dim, heads=heads[0], kv_heads=heads[1])[:3]
    span = np.zeros((1, n), np.int32)
    attn(*made, x=on_device((span, span + 5)))
    assert attn.last_sources[-1] == f"sm_90a {mode}"


@pytest.mark.parametrize(
    ("promise", "heads", "source"),
    [
        (None, (4, 1), "sm_90a interleaved"),
        (80, (4, 1), "sm_90a_small interleaved"),
        (80, (2, 2), "sm_90a_small persistent"),
    ],
)
def test_documents_take_it_at_128(promise, heads, source):
    """Windows do not: see test_calls_without_the_mode."""
    attn = (mc.documents("x") & mc.causal()).compile(128, target="sm_90a")
    made = given(N, N, 128, heads=heads[0], kv_heads=heads[1])[:3]
    ends = on_device(np.array([0, 70, N], np.int32))
    attn(*made, x=mc.cu_seqlens(ends, max_seqlen=promise))
    assert attn.last_sources[-1] == source


def test_windows_take_it():
    """Unless a measurement says otherwise, and in deterministic calls, too."""
    mask, made = mc.causal() & mc.window(70), given(400, 400, 256, heads=4)
    attn = mask.compile(256, target="sm_90a")
    attn(*made[:3])
    assert attn.last_sources == ("sm_90a interleaved",)
    attn(*made[:3], deterministic=True)
    assert attn.last_sources == ("sm_90a interleaved",)
    attn(*made[:3], return_lse=True, normalizer="entmax")
    assert attn.last_sources == ("sm_90a default",)
    for mode in ("persistent", "default", INTERLEAVED):
        attn.tuned[tuning_key(Direction.forward, False, 400, 400)] = f"sm_90a {mode}"
        attn.forget_plans()
        attn(*made[:3])
        assert attn.last_sources == (f"sm_90a {mode}",)
