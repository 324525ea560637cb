"""Sample points of a formula. A counterexample among them saves a question to isl, which takes
milliseconds."""

from __future__ import annotations

import numpy as np

from maskc.core import expr as E
from maskc.core.expr import Expr
from maskc.core.widths import widest

_SIDE = 13
"""Neighbouring queries and keys of a square of points: small residues all occur."""
_MAX_NUMBERS = 8
"""Numbers of a formula around which squares lie."""
_LENGTHS = (24, 24), (24, 40), (40, 24), (5001, 9003), (1 << 16, 1 << 16)
"""Lengths (n_q, n_kv) of the squares."""

_MAX_STEPS = 3
"""Divisors of a formula, the largest ones, that are the distance of points in some squares."""

_WIDEST = 1 << 20
"""The largest number of a formula that is looked at: products of a few such ones fit 64 bits."""


def sampled_points(keep: Expr) -> dict[str, np.ndarray]:
    """int64 [points] of q, k, n_q, n_kv and each parameter; some points lie outside the lengths.

    There are none for formulas whose values might leave 64 bits.
    """
    if any(abs(widest(node)) > _WIDEST for node in E.walk(keep)):
        return dict.fromkeys(("q", "k", "n_q", "n_kv", *E.params(keep)), np.zeros(0, np.int64))
    numbers, steps = set(E.params(keep).values()), set[int]()
    for node in E.walk(keep):
        if isinstance(node, E.Sum) and node.const:
            numbers.add(abs(node.const))
        elif isinstance(node, (E.FloorDiv, E.Mod)):
            numbers.add(node.den)
            steps.add(node.den)
    numbers = {number for number in numbers if number < _LENGTHS[-1][0]}
    near = [0, *sorted(numbers, reverse=True)[:: max(1, -(-len(numbers) // _MAX_NUMBERS))]]
    squares: list[tuple[int, int, int, int, int]] = []
    for place, (of_q, of_kv) in enumerate(_LENGTHS):
        for index, number in enumerate(near):
            row = (place + 7 * index) * 2654435761 % of_q
            far = index * 40503 % of_kv
            squares += ((first, last, of_q, of_kv, 1) for first, last in (
                (number - _SIDE // 2, far), (far, number - _SIDE // 2),
                (row, row + of_kv - of_q - number - _SIDE // 2), (row, row + number - _SIDE // 2),
            ))  # fmt: skip
        for step in sorted(steps)[-_MAX_STEPS:]:  # neighbours on the outer axes of a grid
            squares += ((far, far, of_q, of_kv, step) for far in (0, of_q // 2))
    at = np.array(squares, dtype=np.int64)[:, :, None, None]
    side = at[:, 4] * np.arange(_SIDE)
    coordinates = at[:, 0] + np.swapaxes(side, 1, 2), at[:, 1] + side, at[:, 2], at[:, 3]
    points = dict(zip(("q", "k", "n_q", "n_kv"), np.broadcast_arrays(*coordinates), strict=True))
    which = np.broadcast_to(np.arange(len(at))[:, None, None], points["q"].shape)
    for name, default in E.params(keep).items():
        points[name] = np.where(which % 3 == 1, which, default)
    return {name: np.ascontiguousarray(x).reshape(-1) for name, x in points.items()}
