"""The data of pictures against the dense mask, element by element."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.core.errors import DataRange, HeadsUnknown
from maskc.core.layout import FULL
from maskc.core.problem import TileShape
from maskc.viz import words
from maskc.viz.picture import Raster, picture, suitable_tile

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


def tile_classes(dense: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    rows, columns = (-(-n // side) for n, side in zip(dense.shape, tile, strict=True))
    classes = np.zeros((rows, columns), dtype=np.uint8)
    for i, j in np.ndindex(rows, columns):
        part = dense[i * tile[0] : (i + 1) * tile[0], j * tile[1] : (j + 1) * tile[1]]
        classes[i, j] = 2 if part.all() else int(part.any())
    return classes


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
    alive = np.repeat(np.repeat(classes > 0, 8, axis=0), 5, axis=1)
    assert numbers.executed == alive[: part.shape[0], : part.shape[1]].sum()
    assert numbers.flops == 4 * 128 * part.sum()


@given(
    st.integers(0, 40), st.integers(0, 40), st.integers(1, 12), st.integers(1, 12),
    st.integers(0, 2**31),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_cell_says_exactly_what_its_tiles_say(rows, columns, most_rows, most_columns, seed):
    classes = np.random.default_rng(seed).integers(0, 3, (rows, columns)).astype(np.uint8)
    cells = Raster(classes, (4, 4)).fit(most_rows, most_columns)
    down, right = cells.covers
    assert cells.classes.shape == (-(-rows // down), -(-columns // right))
    assert cells.classes.shape[0] <= most_rows
    assert cells.classes.shape[1] <= most_columns
    for i, j in np.ndindex(cells.classes.shape):
        part = classes[i * down : (i + 1) * down, j * right : (j + 1) * right]
        expected = 2 if (part == 2).all() else int((part > 0).any())
        assert cells.classes[i, j] == expected
        assert cells.share[i, j] == pytest.approx((part > 0).mean())


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


def test_a_million_tokens_cost_seconds_and_no_matrix():
    mask = mc.causal() & (mc.sinks(4) | mc.window(1023))
    start = time.perf_counter()
    shown = picture(mask, 1_000_000)
    zoomed = picture(mask, 1_000_000, span=(500_000, 500_100, 499_000, 499_256))
    assert time.perf_counter() - start < 5
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
