"""Two cards of one host with NCCL: results, gradients and bits compared with one process."""

from __future__ import annotations

import pytest

from tests.support import ranks, shared_cards

pytestmark = pytest.mark.slow


def test_two_cards():
    answers = ranks.run(shared_cards.everything, 2, backend="nccl")
    wrong = [x if isinstance(x, str) else "\n".join(x[1]) for x in answers]
    assert not any(wrong), "\n".join(wrong)
