"""Two cards of one host with NCCL: results, gradients and bits beside one process."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.slow]

from tests.support import ranks, shared_cards  # noqa: E402

if torch.cuda.device_count() < 2:
    pytest.skip("fewer than two CUDA devices", allow_module_level=True)


def test_two_cards():
    found = ranks.run(shared_cards.everything, 2, backend="nccl")
    wrong = [x if isinstance(x, str) else "\n".join(x[1]) for x in found]
    assert not any(wrong), "\n".join(wrong)
