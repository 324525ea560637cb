"""Which tiles a mask has whose blocks of keys are still to be chosen, and which source suits it."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core.problem import Direction, TileShape
from maskc.core.sizes import Sizes
from maskc.dispatch.source_choice import expected, foreseen
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


def chosen(k, block, q_block, of=FULL):
    return mc.topk(k, of, score="given", block=block, q_block=q_block)


@pytest.mark.parametrize("tile", [TileShape(64, 64), TileShape(128, 128)])
def test_all_or_nothing_is_certain(tile):
    """Where everything is chosen, tiles are those of the mask that limits the choice."""
    rows = N // tile.q
    found = tally(chosen(N, 64, 64, mc.causal()), tile)
    assert (found.rows, found.tiles) == (rows, rows * (rows + 1) // 2)
    found = tally(chosen(0, 64, 64) | mc.window(0), tile)
    assert (found.rows, found.tiles, found.masked) == (rows, rows, rows)


@pytest.mark.parametrize(("block", "q_block"), [(16, 1), (64, 64), (128, 16), (32, 128)])
@pytest.mark.parametrize("tile", [TileShape(64, 64), TileShape(128, 128)])
def test_choices_at_random(tile, block, q_block):
    """As many tiles as drawing the blocks gives, on average of many draws."""
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
    bundle = bundle_of(chosen(16, block, q_block), 128)
    units = bundle.choice("sm_90a", Direction.forward)
    sizes = Sizes(1, 2, 2, 8192, 8192)
    found = foreseen(bundle, units, {}, sizes)
    assert (found.tile.q == 64) == small
