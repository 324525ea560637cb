"""Terminal drawings, letter by letter, and what they say of the mask."""

from __future__ import annotations

import re

import numpy as np
import pytest

import maskc as mc
from maskc.viz.picture import picture
from maskc.viz.terminal import draw, render


def test_elements_of_a_small_mask(golden):
    mask = mc.causal() & (mc.sinks(1) | mc.window(3))
    golden("terminal/pairs.txt", draw(mask, 16, width=32))


def test_tiles_of_a_larger_mask(golden):
    mask = mc.window(512, 512) | mc.global_tokens(64)
    golden("terminal/tiles.txt", draw(mask, 4096, width=32))


def test_a_panel_per_distinct_head(golden):
    mask = mc.per_head([mc.causal(), mc.block_diagonal(4)])
    golden("terminal/heads.txt", draw(mask, 8, n_heads=2, width=16))


def cells(text: str) -> list[str]:
    return re.findall(r"[│┤](.*?)│", text)


@pytest.mark.parametrize("n", [1, 5, 31, 64])
def test_elements_that_fit_are_all_there(n: int):
    mask = mc.where(lambda q, k: (q * 3 + k * 5) % 7 < 3)
    rows = cells(draw(mask, n, width=64))
    scale = 64 // n
    halves = np.array([[{" ": 0, "▄": 1, "▀": 2, "█": 3}[c] for c in row] for row in rows])
    pixels = np.empty((2 * len(rows), halves.shape[1]), dtype=bool)
    pixels[0::2], pixels[1::2] = halves & 2, halves & 1
    np.testing.assert_array_equal(
        pixels[: n * scale : scale, ::scale], mask.dense(n), err_msg=f"{n}"
    )


def test_no_line_is_wider_than_asked():
    for shape in ((4096, 4096), (64, 4096), (4096, 64), (1000, 700), (3, 200)):
        for width in (16, 33, 64):
            rows = cells(draw(mc.causal(), *shape, width=width))
            assert rows
            assert all(len(row) <= width for row in rows), (shape, width)
            assert len({len(row) for row in rows}) == 1
            assert len(rows) <= width


def test_colour_adds_colour_and_nothing_else():
    mask = mc.causal() & mc.window(700)
    plain = draw(mask, 4096, width=40)
    colored = draw(mask, 4096, width=40, color=True)
    assert "\x1b[" not in plain
    assert "\x1b[38;5;33m█\x1b[0m full" in colored
    bare = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    numbers = r"(?:live|pairs|full|partial|empty|computed|forward|traffic)  .*\d.*$"
    beside = [re.findall(numbers, text, re.M) for text in (plain, bare)]
    assert len(beside[0]) == 8
    assert beside[0] == beside[1]
    for line in colored.splitlines():
        assert line.count("\x1b[") == 0 or "\x1b[0m" in line


def test_coloured_halves_are_the_cells():
    shown = picture(mc.causal(), 64, tile=(16, 16))
    rows = cells(re.sub(r"\x1b\[[0-9;]*m", "", render(shown, 16, color=True)))
    staircase = [f"{'█' * 4 * tiles:<16}" for tiles in (1, 2, 3, 4)]
    assert rows == [row for row in staircase for _ in range(2)]


def test_a_range_is_labelled_with_its_tokens():
    text = draw(mc.causal(), 100_000, span=(50_000, 50_064, 49_984, 50_048))
    assert "queries 50000:50064, keys 49984:50048 of 100000 queries x 100000 keys" in text
    assert "49984           50000           50016           50032" in text
    assert "50016 ┤" in text


def test_nothing_to_draw():
    assert "nothing to draw: there are no pairs" in draw(mc.causal(), 0)
    assert "0 %" in draw(mc.causal() & ~mc.causal(), 32)
