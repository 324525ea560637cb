"""Masks as cuDNN's flex attention takes them: intervals of keys for each query."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks.rivals import make_rival
from maskc import causal
from maskc.core.dtypes import DType
from maskc.lab.case_pairs import CasePairs
from maskc.lab.rivals import Missing, Unavailable, intervals
from maskc.verify.case import Case
from maskc.verify.case_tensors import make_tensors


def seen(ends: np.ndarray, n_kv: int) -> np.ndarray:
    """Return what a query of these ends sees: keys before F0, from F1 to F2, ..."""
    k = np.arange(n_kv)
    found = k < ends[0]
    for first, last in zip(ends[1::2], ends[2::2], strict=True):
        found |= (first <= k) & (k < last)
    return found


@pytest.mark.parametrize("density", [0.0, 0.1, 0.9, 1.0])
def test_every_pair_of_random_masks(density):
    rng = np.random.default_rng(int(10 * density))
    live = rng.random((2, 3, 7, 11)) < density  # sequences, heads, queries, keys
    table = torch.tensor(live)
    ranges = intervals(lambda b, h, q, k: table[b, h, q, k], 2, 3, 7, 11, "cpu").numpy()
    assert ranges.shape[1] % 2 == 1
    for sequence, head, query in np.ndindex(2, 3, 7):
        ends = ranges[head, :, 7 * sequence + query]
        np.testing.assert_array_equal(seen(ends, 11), live[sequence, head, query])


def test_causal_needs_one_end():
    ranges = intervals(lambda b, h, q, k: k <= q, 1, 1, 5, 5, "cpu")
    assert ranges.tolist() == [[[1, 2, 3, 4, 5]]]


def test_too_many_intervals():
    with pytest.raises(Unavailable, match="more than 16 intervals"):
        intervals(lambda b, h, q, k: k % 2 == 1 + 0 * q, 1, 1, 2, 100, "cpu")


def test_missing():
    case = Case("causal", causal(), 1, 1, 1, 8, 8, 16, DType.float32)
    with pytest.raises(Missing, match="nvidia-cudnn-frontend"):
        make_rival("cudnn_flex", case, make_tensors(case, "cpu"), CasePairs(case), False)


def test_ends_never_fall():
    """Not even behind the last interval of a query that has fewer than others."""
    live = torch.tensor([[0, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]).bool()
    ranges = intervals(lambda b, h, q, k: live[q, k], 1, 1, 3, 6, "cpu")
    assert ranges[0].T.tolist() == [[0, 1, 3, 4, 5], [2, 2, 2, 2, 2], [0, 0, 0, 0, 0]]
