"""Interleaved heads: tiles whose rows are all query heads of each query; in emulation, by fp64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.core.bundle import INTERLEAVED
from maskc.core.problem import Direction
from maskc.dispatch.selector import tuning_key
from tests.support.emulated import emulated_card  # noqa: F401
from tests.support.exact_attention import called, live_pairs, results, vectors, wrong
from tests.support.hopper import BAND, compiled, given, modes, same_bits
from tests.support.thorough import more

PAIRS = mc.causal() & (mc.strided(7) | mc.window(20))
BITS = mc.window(5, 5) | mc.dilated(5, stride=3) | mc.dilated(5, stride=9)
LATE = mc.where(lambda q, k: (q >= 130) & (k % 3 > 0))
"""Tile rows without a pair, and rows whose pairs are tested one by one."""


def check(attn, made, live, data=None, **features):
    """Check out and lse."""
    q, k, v, dout = made
    computed = called(attn, q, k, v, data=data, **features)
    kinds = torch.float64, q.dtype
    sides = [results(q, k, v, dout, live, x, backward=False, **features) for x in kinds]
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


def test_data_of_sequences_on_the_host():
    mask = mc.flags("x") & BAND
    flags = np.random.default_rng(0).random((2, 150)) < 0.6
    attn = compiled(mask, 64, mode=INTERLEAVED)
    live = torch.from_numpy(mask.dense(150, 150, x=flags)).reshape(2, 1, 150, 150)
    check(attn, given(150, 150, 64, batch=2, heads=8, kv_heads=2), live, data={"x": flags})
    assert forward_modes(attn) == {INTERLEAVED}


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


def test_data_on_the_device_is_without_the_mode():
    mask = mc.flags("x") & BAND
    flags = np.random.default_rng(0).random((2, 150)) < 0.6
    attn = compiled(mask, 64, mode=INTERLEAVED)
    live = torch.from_numpy(mask.dense(150, 150, x=flags)).reshape(2, 1, 150, 150)
    made = given(150, 150, 64, batch=2, heads=8, kv_heads=2)
    check(attn, made, live, data={"x": torch.from_numpy(flags)})
    assert INTERLEAVED not in forward_modes(attn)


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
