"""Ends of integer sets, compared with their points."""

from __future__ import annotations

import random

import islpy as isl
import pytest

from maskc.ir.sets import greatest, least


def drawn(rng: random.Random) -> isl.Set:
    """A union of bands and residue classes at one length; some parts have no point there."""
    parts = []
    for _ in range(rng.randint(1, 8)):
        apart, stride = rng.randint(0, 12), rng.randint(2, 5)
        band = f"k = q - {apart}"
        lattice = f"q - k >= {apart} and (q - k) mod {stride} = {rng.randint(0, 1)}"
        parts.append(f"({band if rng.random() < 0.5 else lattice})")
    text = f"{{ [n, q, k] : 0 <= k and 0 <= q < n <= 14 and ({' or '.join(parts)}) }}"
    length = isl.Val.int_from_si(isl.DEFAULT_CONTEXT, rng.randint(1, 14))
    return isl.Set(text).fix_val(isl.dim_type.set, 0, length)


def test_ends_of_unions_with_empty_parts():
    """isl's dim_min_val says 0 for some of these, where the least q is 3."""
    rng, wrong_in_isl = random.Random(1), 0
    for _ in range(400):
        points = drawn(rng)
        values: list[int] = []
        points.foreach_point(
            lambda p, values=values: values.append(
                p.get_coordinate_val(isl.dim_type.set, 1).to_python()
            )
        )
        if values:
            assert least(points, 1).to_str() == str(min(values))
            assert greatest(points, 1).to_str() == str(max(values))
            wrong_in_isl += points.dim_min_val(1).to_str() != str(min(values))
    assert wrong_in_isl  # or `least` is not needed any more


@pytest.mark.parametrize(("text", "ends"), [
    ("{ [x] : x >= 3 }", ("3", "infty")), ("{ [x] : x <= 3 }", ("-infty", "3")),
    ("{ [x] : x = 1 or x >= 5 }", ("1", "infty")),
    ("{ [x] : x < 2 and x > 3 }", ("infty", "-infty")),
])  # fmt: skip
def test_sets_without_ends(text: str, ends: tuple[str, str]):
    points = isl.Set(text)
    assert (least(points, 0).to_str(), greatest(points, 0).to_str()) == ends
