"""Masks of the whole language mean what they say, and their kernels compute it.

`python -m tests.support.fuzz_language` draws more of them.
"""

from __future__ import annotations

import pytest

import maskc as mc

pytest.importorskip("torch")

from tests.support.drawn_masks import Drawer, Drawn
from tests.support.fuzz_language import fuzz
from tests.support.thorough import THOROUGH

MASKS, COMPARED = 3000 if THOROUGH else 204, 0.15
"""Masks that are asked, and the share that is compared with others."""
COMPILED, CALLS = 8, 12
LONG = {(1, 15)}
"""Seed and number of masks about which questions take as long as about a hundred others."""


@pytest.mark.parametrize("seed", [1, 2])
def test_questions(seed: int) -> None:
    numbers = [number for number in range(MASKS // 2) if THOROUGH or (seed, number) not in LONG]
    run = fuzz(seed, numbers, relations=COMPARED)
    assert run.faults == []
    assert run.asked["dense"] == len(numbers)
    assert run.asked["equals"] > 0


def test_kernels() -> None:
    run = fuzz(3, range(COMPILED), CALLS)
    assert run.faults == []
    assert run.asked["call"] == COMPILED * CALLS


def test_a_wrong_meaning_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzer sees a mask that keeps too few pairs, and says how to see it again."""
    monkeypatch.setattr(Drawer, "draw", lambda *_: Drawn(mc.window(3), lambda p: p.k <= p.q))
    run = fuzz(1, range(2), relations=0)
    assert {fault.what for fault in run.faults} >= {"dense: wrong", "count: wrong"}
    assert run.faults[-1].again == "--seed 1 --only 1"
    assert {fault.what for fault in fuzz(1, [1], calls=3).faults} == {"call: wrong"}
