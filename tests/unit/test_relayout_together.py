"""Strides that run with a lesser one: what the planner chooses, and what may not be chosen."""

from __future__ import annotations

import maskc as mc
from maskc.analysis.head_groups import strides_together
from maskc.ir.relayout import parts
from tests.unit.test_relayout import W, check, decomposed, published, same


def test_strides_run_together():
    """Data are read as plainly as each alone; extents are given to whoever chooses."""
    ir = published("exponential_dilation", window=64, levels=5)
    asked = []
    rest, four = parts(ir, lambda e: asked.append(e) or {1: 1, 2: 1, 4: 4, 8: 4, 16: 4})
    assert asked == [{1: None, 2: 31, 4: 31, 8: 31, 16: 31}]
    assert same(rest.ir, mc.window(63) | mc.dilated(63, stride=2))
    inner = [mc.dilated(63, stride=2**i) - mc.dilated(31, stride=2**i) for i in range(3)]
    assert same(four.ir, inner[0] | inner[1] | inner[2])
    assert not parts(decomposed(mc.dilated(W, stride=4)), lambda e: {4: 4})[0].aligned
    (whole,) = parts(ir, lambda e: dict.fromkeys(e, 1))
    assert whole.ir is ir


def test_what_holds_at_aligned_lengths_keeps_its_stride():
    """A multiple of 4 between the lengths is enough for one piece, not for the other."""
    eight = mc.window(40) & mc.where(lambda q, k: (q - k) % 8 == 0)
    mask = eight | mc.dilated(7, stride=4)
    ir = decomposed(mask)
    pieces = parts(ir, lambda extents: {1: 1, 4: 4, 8: 4})
    assert [(part.stride, part.aligned) for part in pieces] == [(4, False), (8, True)]
    for n_q, n_kv in ((23, 27), (23, 31), (31, 23), (24, 28)):
        check(mask, pieces, n_q, n_kv, {})


def test_passes_are_saved_where_tiles_cost_less():
    """The planner's choice: a pass costs as much as a few tiles."""
    assert strides_together({1: None, 2: 127, 4: 127, 8: 127, 16: 127, 32: 127}) == {
        1: 1, 2: 1, 4: 1, 8: 8, 16: 8, 32: 8,
    }  # fmt: skip
    assert strides_together({4: 511}) == {4: 4}
    assert strides_together({1: None, 128: None}) == {1: 1, 128: 128}
    assert strides_together({4: 100, 6: 10, 12: 10}) == {4: 4, 6: 6, 12: 6}
    assert strides_together({1: None, 64: 500}) == {1: 1, 64: 64}
