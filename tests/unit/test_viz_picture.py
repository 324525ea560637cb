"""The data of pictures against the dense mask, element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.core import expr as E
from maskc.core.errors import DataRange, HeadsUnknown
from maskc.core.evaluator import evaluate
from maskc.core.layout import FULL
from maskc.core.problem import TileShape
from maskc.testing.strategies import data_for as data_for_mask
from maskc.testing.strategies import lengths, masks, tiles
from maskc.viz import picture as module
from maskc.viz import words
from maskc.viz.made_scores import made_up
from maskc.viz.picture import KernelTiles, Raster, live_pairs, picture, suitable_tile
from maskc.viz.view import ViewSpan, views
from tests.support.thorough import examples

MASKS = {
    "full": mc.full(),
    "streaming": mc.causal() & (mc.sinks(3) | mc.window(20)),
    "strided": mc.causal() & (mc.window(7) | mc.strided(8, 7)),
    "start": mc.window(5, 9, align="start"),
    "global": mc.window(4, 4) | mc.global_tokens([0, 17]),
    "checkers": mc.where(lambda q, k: (q // 5 + k // 7) % 2 == 0),
    "random": mc.random_blocks(8, 2, seed=3) | mc.window(3),
    "documents": mc.documents("doc") & mc.causal(),
    "flags": mc.flags("seen") | mc.flags("asks", on="q"),
    "parameter": mc.window(mc.param("w", 4)),
}
LENGTHS = (96, 96), (50, 83), (70, 31)


def data_for(name: str, n_q: int, n_kv: int) -> dict[str, object]:
    ids = np.arange(n_q) // 9, np.arange(n_kv) // 11
    given_data = {
        "documents": {"doc": ids},
        "flags": {"seen": np.arange(n_kv) % 3 == 0, "asks": np.arange(n_q) % 5 == 0},
        "parameter": {"w": 13},
    }
    return given_data.get(name, {})


def tile_sums(dense: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    rows, columns = (np.arange(0, n, side) for n, side in zip(dense.shape, tile, strict=True))
    return np.add.reduceat(np.add.reduceat(dense, rows, 0, int), columns, 1)


def tile_classes(dense: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    live = tile_sums(dense, tile)
    return np.where(live == tile_sums(np.ones_like(dense), tile), 2, live > 0).astype(np.uint8)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(("n_q", "n_kv"), LENGTHS)
def test_a_window_is_the_same_part_of_the_dense_mask(name: str, n_q: int, n_kv: int):
    data = data_for(name, n_q, n_kv)
    dense = MASKS[name].dense(n_q, n_kv, **data)
    span = n_q // 3, n_q - 2, 4, n_kv - n_kv // 4
    part = dense[span[0] : span[1], span[2] : span[3]]

    shown = picture(MASKS[name], n_q, n_kv, span=span, data=data).panels[0]
    assert shown.raster.elements
    np.testing.assert_array_equal(shown.raster.classes, part * np.uint8(FULL))

    tiled = picture(MASKS[name], n_q, n_kv, span=span, tile=(8, 5), data=data).panels[0]
    classes = tile_classes(part, (8, 5))
    np.testing.assert_array_equal(tiled.raster.classes, classes)
    numbers = tiled.numbers
    assert (numbers.live, numbers.pairs) == (part.sum(), part.size)
    assert numbers.full == (classes == 2).sum()
    assert numbers.partial == (classes == 1).sum()
    assert numbers.empty == (classes == 0).sum()
    np.testing.assert_array_equal(tiled.raster.live, tile_sums(part, (8, 5)))
    np.testing.assert_array_equal(tiled.raster.pairs, tile_sums(np.ones_like(part), (8, 5)))
    alive = np.repeat(np.repeat(classes > 0, 8, axis=0), 5, axis=1)
    assert numbers.executed == alive[: part.shape[0], : part.shape[1]].sum()
    assert numbers.flops == 4 * 128 * part.sum()


@given(st.data(), masks(with_heads=False), lengths(60), tiles())
@settings(max_examples=examples(60))
def test_shares_are_those_of_the_dense_mask(data, mask, sizes, tile):
    """Of random masks and data, every tile's live pairs, and every cell's of several tiles."""
    n_q, n_kv = sizes
    given_data = data.draw(data_for_mask(mask, n_q, n_kv))
    dense = mask.dense(n_q, n_kv, **given_data)
    (panel,) = picture(mask, n_q, n_kv, tile=tile, data=given_data).panels
    live, pairs = tile_sums(dense, tile), tile_sums(np.ones_like(dense), tile)
    assert (panel.raster.live == live).all()
    assert (panel.raster.pairs == pairs).all()
    assert panel.raster.step == 1
    assert panel.numbers.live == live.sum()
    cells = panel.raster.fit(3, 4)
    step = tuple(n * side for n, side in zip(cells.covers, tile, strict=True))
    expected = tile_sums(dense, step) / tile_sums(np.ones_like(dense), step)
    np.testing.assert_allclose(cells.share, expected, rtol=1e-12)


@pytest.mark.parametrize("name", MASKS)
def test_shares_by_some_queries_are_near(name: str):
    """Where there are too many pairs to look at them all; full and empty tiles are exact."""
    data, mask = data_for(name, 700, 900), MASKS[name]
    dense = mask.dense(700, 900, **data)
    (panel,) = picture(mask, 700, 900, tile=(64, 64), data=data).panels
    (view,) = views(mask, 700, 900, ViewSpan(0, 700, 0, 900), data=data).by_heads.values()
    layout = view.layout(TileShape(64, 64))
    found, step = live_pairs(view.keep, view.arrays, layout, most=100_000)
    partial = panel.raster.classes == 1
    assert step == max(1, -(-int(partial.sum()) * 4096 // 100_000))
    right = tile_sums(dense, (64, 64))
    np.testing.assert_array_equal(found[~partial], right[~partial])
    off = abs(found - right)[partial] / panel.raster.pairs[partial]
    assert off.sum() <= 0.04 * partial.sum()


def test_selections_choose_by_made_up_scores():
    mask = mc.causal() & mc.window(3) | mc.topk(5, of=mc.causal())
    shown = picture(mask, 200, seed=7)
    assert shown.formula == f"{mask} (random scores, seed 7)"
    scores = made_up(np.arange(200), np.arange(200), 7)
    right = mask.dense(200, scores=scores)
    np.testing.assert_array_equal(shown.panels[0].raster.classes > 0, right)
    tiled = picture(mask, 200, seed=7, tile=(16, 32)).panels[0].raster
    np.testing.assert_array_equal(tiled.live, tile_sums(right, (16, 32)))
    given_scores = picture(mask, 200, data={"scores": -scores})
    assert given_scores.formula == str(mask)
    assert ((given_scores.panels[0].raster.classes > 0) != right).any()
    assert picture(mask, 1 << 13).formula == f"{mask} (all candidates of topk)"


def test_tiles_of_a_kernel():
    kernel = KernelTiles("cpu", TileShape(64, 64))
    shown = picture(mc.causal(), 1000, kernel=kernel)
    assert shown.panels[0].raster.unit == (64, 64)
    assert words.tiles(shown, shown.panels[0].numbers) == "tiles of 64 x 64, cpu"
    small = picture(mc.causal(), 200, kernel=kernel)
    assert small.panels[0].raster.elements
    assert small.panels[0].numbers.tile == (64, 64)
    other = picture(mc.causal(), 1000, kernel=kernel, tile=(32, 16))
    assert words.tiles(other, other.panels[0].numbers) == "tiles of 32 x 16 tokens"


@given(
    st.integers(0, 40), st.integers(0, 40), st.integers(1, 12), st.integers(1, 12),
    st.integers(0, 2**31),
)  # fmt: skip
@settings(max_examples=examples(60))
def test_a_cell_says_exactly_what_its_tiles_say(rows, columns, most_rows, most_columns, seed):
    classes = np.random.default_rng(seed).integers(0, 3, (rows, columns)).astype(np.uint8)
    pairs = np.full(classes.shape, 16)
    live = np.random.default_rng(seed + 1).integers(0, 17, classes.shape)
    cells = Raster(classes, (4, 4), live, pairs).fit(most_rows, most_columns)
    down, right = cells.covers
    assert cells.classes.shape == (-(-rows // down), -(-columns // right))
    assert cells.classes.shape[0] <= most_rows
    assert cells.classes.shape[1] <= most_columns
    for i, j in np.ndindex(cells.classes.shape):
        part = classes[i * down : (i + 1) * down, j * right : (j + 1) * right]
        expected = 2 if (part == 2).all() else int((part > 0).any())
        assert cells.classes[i, j] == expected
        inside = live[i * down : (i + 1) * down, j * right : (j + 1) * right]
        assert cells.share[i, j] == pytest.approx(inside.mean() / 16)


def test_heads_with_equal_sets_share_a_panel():
    mask = mc.per_head([mc.causal(), mc.full(), mc.window(None), mc.full()])
    shown = picture(mask, 40, n_heads=4)
    assert [panel.heads for panel in shown.panels] == [(0, 2), (1, 3)]
    assert [panel.numbers.live for panel in shown.panels] == [820, 1600]
    assert [words.heads(panel.heads) for panel in shown.panels] == ["heads 0, 2", "heads 1, 3"]


def test_heads_may_read_data_of_their_own():
    mask = mc.per_head([mc.flags("one"), mc.flags("two")])
    flags = np.arange(20) < 5, np.arange(20) < 7
    shown = picture(mask, 20, n_heads=2, data={"one": flags[0], "two": flags[1]})
    assert [panel.numbers.live for panel in shown.panels] == [100, 140]


def test_a_table_tells_heads_apart():
    table = np.zeros((2, 4, 4), dtype=bool)
    table[0, :, 0] = table[1, 2] = True
    shown = picture(mc.block_table("live", 8), 32, data={"live": table})
    assert [panel.heads for panel in shown.panels] == [(0,), (1,)]
    np.testing.assert_array_equal(shown.panels[1].raster.classes[::8, ::8] > 0, table[1])


def test_the_number_of_heads_is_asked_for():
    with pytest.raises(HeadsUnknown):
        picture(mc.heads(1) | mc.causal(), 40)
    shown = picture(mc.per_head([mc.causal(), mc.full()]), 40)
    assert [panel.heads for panel in shown.panels] == [(0,), (1,)]


def test_a_picture_names_the_sequence_that_it_shows():
    flags = np.array([[1, 0, 0, 0], [1, 1, 1, 0]])
    first = picture(mc.flags("on"), 4, data={"on": flags})
    assert first.formula == "flags('on') (sequence 0 of 2)"
    second = picture(mc.flags("on"), 4, data={"on": flags}, batch=1)
    assert second.formula == "flags('on') (sequence 1 of 2)"
    assert [shown.panels[0].numbers.live for shown in (first, second)] == [4, 12]
    assert picture(mc.flags("on"), 4, data={"on": flags[:1]}).formula == "flags('on')"
    with pytest.raises(DataRange, match="no sequence 2 among 2"):
        picture(mc.flags("on"), 4, data={"on": flags}, batch=2)


def test_a_range_must_lie_inside():
    with pytest.raises(DataRange) as caught:
        picture(mc.causal(), 40, span=(0, 41, 0, 40))
    assert str(caught.value) == (
        "MC305 range  'range': 0:41,0:40 is not inside 40 queries and 40 keys\n"
        "    hint: a range is Q0:Q1,K0:K1 with ends not included, for example 0:256,768:1024"
    )


def test_a_million_tokens_cost_no_matrix(monkeypatch: pytest.MonkeyPatch):
    mask, looked_at = mc.causal() & (mc.sinks(4) | mc.window(1023)), []

    def counted(keep: E.Expr, env: dict[str, np.ndarray]) -> np.ndarray:
        looked_at.append(env["q"].size * env["k"].shape[-1])
        return evaluate(keep, env)

    monkeypatch.setattr(module, "evaluate", counted)
    shown = picture(mask, 1_000_000)
    zoomed = picture(mask, 1_000_000, span=(500_000, 500_100, 499_000, 499_256))
    assert sum(looked_at) <= 1.1 * module.MAX_PAIRS
    assert max(looked_at) <= 1 << 20
    assert shown.panels[0].raster.step > 1
    assert max(shown.panels[0].raster.classes.shape) <= 2048
    n, w = 1_000_000, 1024
    in_window, sinks_left_of_it = w * (w + 1) // 2 + (n - w) * w, 4 * (n - w) - (3 + 2 + 1)
    assert shown.panels[0].numbers.live == in_window + sinks_left_of_it
    q, k = np.ogrid[500_000:500_100, 499_000:499_256]
    expected = (k <= q) & (q - k <= 1023)
    np.testing.assert_array_equal(zoomed.panels[0].raster.classes > 0, expected)


@pytest.mark.parametrize("n", [0, 1, 16, 17, 1000, 4096, 65537, 1 << 20, 1 << 27])
def test_suitable_tiles(n: int):
    side = suitable_tile(n, n).q
    assert side >= 16
    assert side & (side - 1) == 0
    assert n / side <= 2048


def test_the_longest_masks_have_the_largest_tiles():
    assert suitable_tile(1 << 30, 1 << 30) == TileShape(1 << 16, 1 << 16)


def test_small_tiles_grow():
    numbers = picture(mc.causal(), 10_000, tile=(1, 3)).panels[0].numbers
    assert numbers.tile == (8, 6)


def test_empty_lengths():
    for shape in ((0, 0), (0, 7), (7, 0)):
        numbers = picture(mc.causal(), *shape).panels[0].numbers
        assert (numbers.live, numbers.pairs, numbers.full) == (0, 0, 0)
        assert (numbers.live_share, numbers.waste) == (0, 0)


@pytest.mark.parametrize(
    ("first", "stop", "most", "expected"),
    [
        (0, 4096, 4, [0, 1024, 2048, 3072]),
        (0, 1_000_000, 5, [0, 200_000, 400_000, 600_000, 800_000]),
        (0, 16, 4, [0, 4, 8, 12]),
        (0, 10, 3, [0, 5]),
        (499_000, 499_256, 4, [499_000, 499_064, 499_128, 499_192]),
        (0, 1, 4, [0]),
        (5, 5, 4, []),
    ],
)
def test_ticks(first, stop, most, expected):
    assert words.ticks(first, stop, most) == expected


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0 %"), (1.0, "100 %"), (0.5, "50.0 %"), (0.99999, "99.9 %"), (0.0123, "1.23 %"),
        (0.00012345, "0.0123 %"), (1e-9, "under 0.0001 %"),
    ],
)  # fmt: skip
def test_percent_never_rounds_to_nothing_or_everything(share, text):
    assert words.percent(share) == text
