"""A cache of binaries for the tests alone, shared by all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def binaries(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point MASKC_CACHE_DIR at one folder for the whole session."""
    folder = tmp_path_factory.getbasetemp() / "binaries"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASKC_CACHE_DIR", str(folder))
        yield
