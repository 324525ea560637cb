"""Predicted times: of which sources they speak, and how near they are to what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from benchmarks.anchors import ANCHORS
from benchmarks.report import table
from maskc import driver
from maskc.core.coefficients import card_of
from maskc.core.cost import Card
from maskc.core.dtypes import DType
from maskc.core.problem import Direction, TileShape
from maskc.core.sizes import Sizes
from maskc.core.target import Target
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.selector import SourceSelector
from maskc.dispatch.stand_ins import expected, expected_tally
from maskc.layout import tile_codes
from maskc.plan.cost import costs_of, layout_at
from maskc.plan.explain import explain
from maskc.plan.predict import milliseconds

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "anchors-h200.json"
FORWARD, BACKWARD = Direction.forward, Direction.backward


def planned(mask, dim=128, heads=16, target="sm_90a"):
    return driver.plan_kernel(
        mask, driver.problem(dim, None, heads, "bfloat16"), Target.named(target)
    )


def measured() -> dict[str, float]:
    """Milliseconds of forward passes on the card that coefficients are of."""
    report = json.loads(RESULTS.read_text())
    return {
        row["case"]: row["ms"] for row in report["rows"]
        if row["impl"] == "maskc" and row["direction"] == "fwd" and row["ok"]
    }  # fmt: skip


def test_against_what_was_measured():
    """Masks without data; the farthest runs in parts."""
    shares, known = {}, measured()
    for anchor in ANCHORS:
        if anchor.name in known and anchor.data is dict:
            case = anchor.case(DType.bfloat16)
            plan = planned(case.mask, case.head_dim, case.heads)
            time_ms = milliseconds(plan, FORWARD, case.n_q, case.n_kv, case.batch * case.heads)
            shares[anchor.name] = time_ms / known[anchor.name]
    assert len(shares) == 16
    assert all(0.74 < share < 1.15 for share in shares.values()), shares
    assert sum(abs(share - 1) <= 0.15 for share in shares.values()) >= 14, shares


def test_a_pass_in_numbers():
    """D 192 has one source, in blocks of 128 x 96: five rows run side by side, and 132,000 rows
    keep all of 132 multiprocessors busy. A persistent block does not hide its last row."""
    plan = planned(mc.full(), 192)
    default, persistent = costs_of(plan)
    card = card_of("sm_90a")
    row = persistent.row + 2 * persistent.tile
    for heads, rows in ((5, 1), (132_000, 1000)):
        cycles = 132 * (rows * row + default.row - persistent.row)
        time_ms = milliseconds(plan, FORWARD, 128, 192, heads)
        assert time_ms == pytest.approx(card.milliseconds(cycles))
    assert Card("any", 10, 2.0, 5.0).milliseconds(4e6, 3) == pytest.approx(0.2 + 0.015)


def test_more_work_takes_longer():
    plan = planned(mc.causal())
    for direction in Direction:
        found = [milliseconds(plan, direction, n, n, 16) for n in (1000, 2000, 4000)]
        assert found == sorted(found)
        both = milliseconds(plan, direction, 4000, 4000, 32)
        assert both < 2 * found[-1] < 1.1 * both
    assert milliseconds(plan, BACKWARD, 4000, 4000, 16) > found[-1] / 1.01


def test_heads_with_masks_of_their_own():
    wide, narrow = mc.causal(), mc.window(100)
    mixed = planned(mc.per_head([wide, wide, wide, narrow]), heads=4)
    time_ms = milliseconds(mixed, FORWARD, 4096, 4096, 80)
    shares = ((wide, 60), (narrow, 20))
    each = [milliseconds(planned(mask), FORWARD, 4096, 4096, n) for mask, n in shares]
    want = sum(each) - card_of("sm_90a").launch_us / 1e3  # one launch for both
    assert want * 0.99 < time_ms < want * 1.2


def test_nothing_is_said_of_what_is_not_known():
    assert milliseconds(planned(mc.causal(), target="cpu"), FORWARD, 100, 100, 1) is None
    assert milliseconds(planned(mc.documents("doc")), FORWARD, 100, 100, 1) is None
    assert milliseconds(planned(mc.causal()), FORWARD, 0, 100, 1) is None
    known = milliseconds(
        planned(mc.documents("doc")), FORWARD, 100, 100, 1,
        lambda plan, mask, n_q, n_kv: layout_at(planned(mc.full()), planned(mc.full()).masks[0],
                                                n_q, n_kv),
    )  # fmt: skip
    assert known is not None


def test_explain_says_it():
    (line,) = [x for x in explain(planned(mc.causal()), 16384).splitlines() if x[:4] == "time"]
    assert line.startswith("time     16384 x 16384, 16 heads, predicted for an NVIDIA H200: 1.")
    assert line.endswith(" ms backward")
    assert "time  " not in explain(planned(mc.causal(), target="cpu"), 16384)


def test_tables_show_predicted_beside_measured():
    row = {"case": "a", "impl": "maskc", "direction": "fwd", "ms": 2.0, "live_tflops": 1.0,
           "error": 0.0, "ok": True, "predicted_ms": 1.8,
           "sources": ["sm_90a default"]}  # fmt: skip
    rows = [row, {**row, "direction": "bwd", "predicted_ms": 1.0, "sources": ["sm_90a_backward"]}]
    text = table({"environment": {}, "rows": rows})
    head, first, *rest = text.splitlines()
    assert head.split()[3:5] == ["ms", "predicted"]
    assert first.split()[3:5] == ["2", "1.8"]
    assert "a fwd ran sm_90a default" in rest
    assert (
        "predicted within 15% of measured: 1 of 2; the farthest is a bwd, predicted 0.50 times "
        "what it took"
    ) in rest


def test_landmarks_count_with_all_queries():
    """A window and every 64th key: the part of landmarks has all rows, and a 64th of the keys."""
    plan = planned(mc.causal() & (mc.window(511) | mc.strided(64, 63)))
    assert any(part.keys is not None for part in plan.parts)
    time_ms = milliseconds(plan, FORWARD, 32768, 32768, 16)
    window = milliseconds(planned(mc.causal() & mc.window(511)), FORWARD, 32768, 32768, 16)
    whole = milliseconds(planned(mc.causal()), FORWARD, 32768, 32768, 16)
    assert window < time_ms < window + whole / 16


def test_nothing_is_predicted_of_keys_chosen_one_by_one():
    assert "time  " in explain(planned(mc.causal()), 4096, 4096)
    assert "time  " not in explain(planned(mc.topk(9, mc.causal())), 4096, 4096)


# ------------------------ tiles of data that the host has not read


N = 512
FULL = mc.full()


def bundle_of(mask, dim=64):
    return mask.compile(dim, n_heads=2, target="sm_90a").bundle


def tally(mask, tile, n=N):
    bundle = bundle_of(mask)
    (variant,) = bundle.variants
    return expected(tile_codes(variant.keep, bundle.selections, tile, n, n, {}),
                    bundle.selections, tile)  # fmt: skip


def program(bundle, direction, n):
    """Choose the program of a call with data on a device."""
    selector = SourceSelector(bundle, Target.named("sm_90a"), lambda device: 132)
    wanted = Pass(direction, frozenset(), False, ("cuda", 0))
    place = Place(Sizes(1, 2, 2, n, n), {})
    given = Bound({}, {}, (), given="on the device")
    return selector.choose(selector.source(direction), wanted, given, place)


def chosen(k, block, q_block, of=FULL):
    return mc.topk(k, of, score="given", block=block, q_block=q_block)


@pytest.mark.parametrize("tile", [TileShape(64, 64), TileShape(128, 128)])
def test_all_or_nothing_is_certain(tile):
    """Where everything is chosen, tiles are those of the mask that limits the choice."""
    rows = N // tile.q
    counts = tally(chosen(N, 64, 64, mc.causal()), tile)
    assert (counts.rows, counts.tiles) == (rows, rows * (rows + 1) // 2)
    counts = tally(chosen(0, 64, 64) | mc.window(0), tile)
    assert (counts.rows, counts.tiles, counts.masked) == (rows, rows, rows)


@pytest.mark.parametrize(("block", "q_block"), [(16, 1), (64, 64), (128, 16), (32, 128)])
@pytest.mark.parametrize("tile", [TileShape(64, 64), TileShape(128, 128)])
def test_choices_at_random(tile, block, q_block):
    """Predict as many tiles as drawing the blocks gives, on average of many draws."""
    k, rng, counts = 2, np.random.default_rng(0), []
    found = tally(chosen(k, block, q_block), tile)
    for _ in range(200):
        scores = rng.random((N // q_block, N // block))
        best = np.argsort(scores, axis=1)[:, :k]
        live = np.zeros(scores.shape, bool)
        np.put_along_axis(live, best, True, axis=1)
        live = live.repeat(q_block, axis=0).repeat(block, axis=1)
        tiles = live.reshape(N // tile.q, tile.q, N // tile.k, tile.k).any(axis=(1, 3))
        counts.append(tiles.sum())
    assert abs(found.tiles / np.mean(counts) - 1) < 0.1
    fits = block % tile.k == 0 and q_block % tile.q == 0
    assert found.masked == (0 if fits else found.tiles)


@pytest.mark.parametrize(
    ("block", "q_block", "small"), [(64, 64, True), (128, 128, False), (64, 1, False)]
)
def test_the_source(block, q_block, small):
    """Small tiles where blocks are as small; large ones where either holds all that there is."""
    taken = program(bundle_of(chosen(16, block, q_block), 128), Direction.forward, 8192)
    assert (taken.unit.tile.q == 64) == small


# ------------------------------------------------------------------ tables


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize(("block", "side"), [(64, 64), (128, 128)])
def test_tables_run_in_tiles_of_their_blocks(block, side, direction):
    """A table's own blocks as tiles skip every dead block; larger tiles hold live and dead ones."""
    bundle = bundle_of(mc.block_table("live", block), 128)
    taken = program(bundle, direction, 8192)
    assert taken.unit.tile.k == side


def test_counts_of_a_table():
    """An eighth of the blocks is expected to be live, each a full tile of its size."""
    bundle = bundle_of(mc.block_table("live", 64))
    sizes = Sizes(1, 2, 2, 4096, 4096)
    tile = TileShape(64, 64)
    tally = expected_tally(bundle, tile, {}, sizes, Direction.forward, None)
    assert tally.tiles == pytest.approx(64 * 64 / 8, rel=0.1)
    assert tally.masked == 0
    causal = bundle_of(mc.block_table("live", 64) & mc.causal())
    half = expected_tally(causal, tile, {}, sizes, Direction.forward, None)
    assert half.tiles < 0.6 * tally.tiles


@pytest.mark.parametrize("data", [mc.intervals("span"), mc.window(64) | mc.flags("seen")])
def test_other_data_count_as_all_that_they_could_keep(data):
    bundle = bundle_of(data & mc.causal())
    sizes = Sizes(1, 2, 2, 640, 640)
    tally = expected_tally(bundle, TileShape(64, 64), {}, sizes, Direction.backward, None)
    assert (tally.rows, tally.tiles, tally.queries) == (10, 55, 10)


def test_what_is_expected_depends_on_shapes_alone():
    """Two selectors, and two calls of one, take the same program."""
    bundle = bundle_of(mc.block_table("live", 64), 128)
    taken = [program(bundle, Direction.forward, 4096) for _ in range(2)]
    assert taken[0] == taken[1]


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("mask", [mc.flags("real"), mc.causal() & mc.flags("real")])
def test_flags_that_every_key_must_have_count_as_padding(mask, direction):
    """Tile counts are those of random lengths from a quarter to all of the keys, in the mean."""
    n, tile = 1000, TileShape(64, 128)
    sizes, rng, counts = Sizes(4, 2, 2, n, n), np.random.default_rng(0), []
    tally = expected_tally(bundle_of(mask), tile, {}, sizes, direction, None)
    for length in rng.integers(n // 4, n + 1, 200):
        real = np.arange(n) < length
        layout = mask.layout(n, n, block=(tile.q, tile.k), real=real)
        counts.append((layout.nnz, int((layout.kind == 1).sum())))
    assert (tally.tiles, tally.masked) == pytest.approx(tuple(np.mean(counts, 0)), rel=0.1)
    assert tally.queries == (16 if direction is Direction.backward else 0)
