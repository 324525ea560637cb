"""Partial tiles where a row's keys are a few intervals, below Hopper and on CPUs: both passes
against fp64, with masks that are written once more in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskc as mc
from maskc.testing.emulator import machine
from tests.support.exact_attention import called, exact_and_rough, tensors, vectors, wrong
from tests.support.hopper import nan_memory
from tests.support.thorough import alternating

N, BATCH, HEADS, KV_HEADS = 150, 2, 4, 2
CAUSAL = mc.causal()
RNG = np.random.default_rng(7)


def runs(mean):
    """Ids that rise, other ones in each sequence."""
    lengths = RNG.integers(1, 2 * mean, (BATCH, N))
    return np.stack([np.repeat(np.arange(N), length)[:N] for length in lengths]).astype(np.int32)


LO = np.stack([np.maximum(np.arange(N) - 40, 0), np.full(N, 9)]).astype(np.int32)
HI = np.stack([np.minimum(np.arange(N) + 33, N), np.full(N, 131)]).astype(np.int32)
LONG, SHORT = runs(40), runs(3)
"""Runs: one or two in a tile, and so many that pairs are tested."""
MIXED = RNG.permutation(8)[LONG % 8].astype(np.int32)
FLAGS, TABLE = RNG.random((BATCH, N)) < 0.7, RNG.random((5, 5)) < 0.5

# name: (mask, data, the same over q and k [N, 1] and [1, N], and over x and y, a sequence's data)
CASES = {
    "intervals": (mc.intervals("x"), {"x": (LO, HI)}, lambda q, k, x: (x[0] <= k) & (k < x[1])),
    "padding": (
        mc.intervals("x") & CAUSAL,
        {"x": (LO, HI)}, lambda q, k, x: (x[0] <= k) & (k < x[1]) & (k <= q),
    ),
    "prefix": (
        mc.intervals("x") | CAUSAL,
        {"x": (LO, HI)}, lambda q, k, x: (x[0] <= k) & (k < x[1]) | (k <= q),
    ),
    "documents": (
        mc.documents("x") & CAUSAL, {"x": LONG}, lambda q, k, x: (x[0] == x[1]) & (k <= q),
    ),
    "short documents": (mc.documents("x"), {"x": SHORT}, lambda q, k, x: x[0] == x[1]),
    "ids that fall": (
        mc.documents("x") & mc.window(60, 20),
        {"x": MIXED}, lambda q, k, x: (x[0] == x[1]) & (q - k <= 60) & (k - q <= 20),
    ),
    "flags": (mc.flags("x") & CAUSAL, {"x": FLAGS}, lambda q, k, x: x[1] & (k <= q)),
    "a window or flags": (
        mc.window(30, 9) | mc.flags("x") & mc.window(90, 90),
        {"x": FLAGS},
        lambda q, k, x: (q - k <= 30) & (k - q <= 9) | x[1] & (abs(q - k) <= 90),
    ),
    "documents, flags and a window": (
        mc.documents("x") & mc.flags("y") & mc.window(70),
        {"x": LONG, "y": FLAGS},
        lambda q, k, x, y: (x[0] == x[1]) & y[1] & (q - k >= 0) & (q - k <= 70),
    ),
    "sinks and a window": (
        CAUSAL & (mc.sinks(5) | mc.window(40)),
        {}, lambda q, k: (k <= q) & ((k < 5) | (q - k <= 40)),
    ),
    "heads": (
        mc.per_head([CAUSAL, mc.window(20, 7), mc.full(), CAUSAL & mc.window(65)]),
        {},
        lambda q, k: np.stack([
            k <= q, (q - k <= 20) & (k - q <= 7), q + k >= 0, (k <= q) & (q - k <= 65),
        ]),
    ),
    "a table": (
        mc.block_table("x", 32), {"x": TABLE}, lambda q, k: TABLE[q // 32, k // 32],
    ),
    "pairs": (
        mc.dilated(30, stride=3),
        {}, lambda q, k: (q >= k) & (q - k <= 90) & ((q - k) % 3 == 0),
    ),
}  # fmt: skip
FROM_FORMULAS, PAIRS = {"sinks and a window", "heads"}, {"a table", "pairs"}
"""Cases whose ends follow from formulas alone, and those that no interval solves."""
FEATURES = {"softcap": 2.0, **vectors(["alibi_slopes", "sink_logits"], HEADS, device="cpu")}


def live_pairs(name):
    """bool [batch, heads or 1, n, n] by the definition."""
    _, data, sees = CASES[name]
    q, k = np.arange(N)[:, None], np.arange(N)[None]

    def given(value, sequence):
        if isinstance(value, tuple):  # of a query
            return tuple(each[sequence][:, None] for each in value)
        return value[sequence][:, None], value[sequence][None]

    found = []
    for sequence in range(BATCH):
        values = () if name == "a table" else (given(x, sequence) for x in data.values())
        found.append(np.broadcast_to(sees(q, k, *values), (HEADS, N, N)))
    return torch.tensor(np.stack(found))


@pytest.fixture(scope="module")
def device():
    with pytest.MonkeyPatch.context() as patch, nan_memory():
        yield machine.install(patch)


def check(name, target, dim, dtype, *, deterministic=False, **features):
    mask, data, _ = CASES[name]
    there = {key: tuple(map(torch.tensor, x)) if isinstance(x, tuple) else torch.tensor(x)
             for key, x in data.items()}  # fmt: skip
    made = tensors(N, N, dim, dtype, batch=BATCH, heads=HEADS, kv_heads=KV_HEADS, device="cpu")
    attn = mask.compile(head_dim=dim, n_heads=HEADS, dtype=dtype, target=target)
    live = live_pairs(name)
    exact, rough = exact_and_rough(*made, live, **features)
    computed = called(attn, *made, there, deterministic=deterministic, **features)
    if dtype != torch.float32:
        assert not wrong(computed, exact, rough)
    for key, x in computed.items() if dtype == torch.float32 else ():
        largest = exact[key][exact[key].isfinite()].abs().max()
        size = torch.maximum(largest, exact.get(f"size of {key}", largest))
        error = torch.where(x == exact[key], 0.0, x.double() - exact[key])  # of infinities, too
        assert error.abs().max() <= 1e-5 * size, key
    return attn


@pytest.mark.parametrize("name", CASES)
def test_cpu(name):
    attn = check(name, "cpu", 40, torch.float32, **FEATURES)
    assert ("live_run(" in attn.bundle.units[0].source) == (name not in PAIRS)


@pytest.mark.parametrize("target", ["cpu", "simt", "sm_80", "sm_90a"])
def test_plans_say_what_partial_tiles_do(target):
    said = {
        name: next(line for line in mask.compile(head_dim=64, n_heads=HEADS, target=target)
                   .explain().splitlines() if "partial tiles" in line)
        for name, (mask, *_) in CASES.items() if name in ("padding", "documents", "heads")
    }  # fmt: skip
    assert "bits of 1 interval per row, from the data; no test per pair" in said["padding"]
    assert "bits of 1 interval per row, no test per pair" in said["heads"]
    assert "bits of 1 interval per row" in said["documents"]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("name", "target", "features"), alternating(list(CASES), ["sm_80", "simt"], [{}, FEATURES])
)
def test_both_passes(name, target, features):
    attn = check(name, target, 64, torch.bfloat16, **features)
    for unit in attn.bundle.units:
        if unit.target == target and unit.directions and not unit.form:
            by_data, by_formulas = "add_data(" in unit.source, "add_intervals(" in unit.source
            assert by_formulas == (name in FROM_FORMULAS)
            assert by_data == (name not in FROM_FORMULAS | PAIRS)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("name", "dim"), alternating(["padding", "documents", "a window or flags", "heads"], [128, 256])
)
def test_tile_rows_have_a_launch_of_their_own(name, dim):
    """In deterministic mode queries are rows of backward tiles, too."""
    check(name, "sm_80", dim, torch.float16, deterministic=True)
