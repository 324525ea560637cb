"""Mark tests on a card, skip files whose card is missing, and free memory after each test."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.hopper import HOPPER, freed

__all__ = ["freed"]  # a fixture of every test here
HERE = Path(__file__).parent
ANY_CARD = frozenset({
    "test_engines", "test_fp8", "test_jax", "test_paged", "test_pool_of_pages", "test_ranks",
    "test_runtime_cuda", "test_scores", "test_selection", "test_simt", "test_sm80", "test_targets",
})  # fmt: skip
"""Files that run on cards other than a Hopper, too."""
SEVERAL = frozenset({"test_ranks"})
"""Files that need two cards."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True, scope="module")
def _has_card(request: pytest.FixtureRequest) -> None:
    """Skip the tests of a file whose card is missing."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if request.path.stem in SEVERAL and torch.cuda.device_count() < 2:
        pytest.skip("fewer than two CUDA devices")
    if request.path.stem not in ANY_CARD and not HOPPER:
        pytest.skip("no Hopper GPU")
