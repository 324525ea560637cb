"""The suite of short documents: what its cases promise."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import anchors
from maskc.core.dtypes import DType


@pytest.mark.parametrize("longest", [80, 200, 500])
def test_short_documents(longest: int):
    """They keep what they promise, and those with and without a promise are the same."""
    ends = anchors.packed_ends(4096, longest)
    sizes = np.diff(ends)
    assert (ends[0], ends[-1]) == (0, 4096)
    assert 0 < sizes.min() <= sizes.max() <= longest
    assert (sizes[:-1] >= longest // 2).all()
    plain, promised = (
        next(a for a in anchors.DOCUMENTS if a.name == f"documents{longest}_4k_d64{end}")
        for end in ("", "_promised")
    )
    cases = [anchor.case(DType.bfloat16) for anchor in (plain, promised)]
    counts = {case.mask.count(4096, **case.data) for case in cases}
    assert counts == {int((sizes * (sizes + 1) // 2).sum())}
    assert [case.data["doc"].max_seqlen for case in cases] == [None, longest]
