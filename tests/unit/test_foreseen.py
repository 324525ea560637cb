"""Expected tiles of masks whose data the host has not read, and the program that suits them."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core.problem import Direction, TileShape
from maskc.core.sizes import Sizes
from maskc.core.target import Target
from maskc.dispatch.call import Bound, Pass, Place
from maskc.dispatch.selector import SourceSelector
from maskc.dispatch.stand_ins import expected, expected_tally
from maskc.layout import tile_codes

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
