"""The explorer's colours: told apart with any kind of colour vision, and text that can be read."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from maskc.lab.explorer.page import source

# Vienot, Brettel, Mollon 1999 (red and green) and a projection for blue, on linear RGB.
VISION = {
    "all": np.eye(3),
    "no red": np.array([[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]]),
    "no green": np.array([[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]]),
    "no blue": np.array([[1, 0.1462, -0.1462], [0, 0.8592, 0.1408], [0, 0.8592, 0.1408]]),
    "none": np.tile([0.2126, 0.7152, 0.0722], (3, 1)),
}
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
TOGETHER = [
    ("full", "partial", "empty"), ("full", "second", "waste", "empty"),
    ("only-a", "only-b", "both", "empty"),
]  # fmt: skip


def palettes():
    """{theme: {name: linear RGB}}; the dark one stands there twice, alike."""
    style = source("style.css")
    blocks = re.findall(r"\{[^{}]*--paper:[^{}]*\}", style)
    light, dark, again = [dict(re.findall(r"--([a-z-]+): (#\w{6})", block)) for block in blocks]
    assert dark == again
    return {"light": light, "dark": dark}


def linear(color):
    share = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / (TO_XYZ @ np.ones(3))
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_colours_of_one_map_are_told_apart(theme, vision):
    """A difference of 10 in CIELAB is seen at a glance."""
    known = palettes()[theme]
    for names in TOGETHER:
        seen = {name: lab(VISION[vision] @ linear(known[name])) for name in names}
        for one, other in combinations(names, 2):
            assert np.linalg.norm(seen[one] - seen[other]) >= 10, (one, other)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_contrast(theme):
    """WCAG AA: 4.5 for text, 3 for what marks the focus."""
    known = {name: linear(color) @ TO_XYZ[1] for name, color in palettes()[theme].items()}

    def contrast(one, other):
        low, high = sorted((known[one], known[other]))
        return (high + 0.05) / (low + 0.05)

    for ground in ("paper", "panel"):
        for ink in ("ink", "quiet", "yes", "no"):
            assert contrast(ink, ground) >= 4.5, (ink, ground)
        assert contrast("focus", ground) >= 3
    assert contrast("ink", "mark") >= 4.5
    assert contrast("paper", "full") >= 4.5  # a pressed button
