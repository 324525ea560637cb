"""The full text of every refusal of heatmaps of attention weights (MC751 to MC754)."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import BadWeightTensors, NoSuchWeights, TooManyWeights, WeightsNotFinite

ONES = np.ones((2, 4, 3))


def test_tensors_that_do_not_fit_each_other():
    with pytest.raises(BadWeightTensors) as caught:
        mc.causal().weights(q=ONES, k=ONES[:, :, :2])
    assert str(caught.value) == (
        "MC751 k  weights need q and k: q has shape (1, 2, 4, 3), k (1, 2, 4, 2)\n"
        "    hint: give q [n_q, D], [heads, n_q, D] or [sequences, heads, n_q, D], and k alike "
        "with a number of heads that divides that of q; without both, q and k are synthetic"
    )


def test_a_score_that_is_no_number():
    with pytest.raises(WeightsNotFinite) as caught:
        mc.causal().weights(q=ONES * np.inf, k=ONES)
    assert str(caught.value) == (
        "MC752 q  query 0 has a score that is not finite: softmax has no weights for it\n"
        "    hint: look for inf and NaN in q and k"
    )


def test_a_head_that_does_not_exist():
    with pytest.raises(NoSuchWeights) as caught:
        mc.causal().weights(q=ONES, k=ONES, head=2)
    assert str(caught.value) == (
        "MC753 head  there is no head 2 among 2\n    hint: heads and sequences count from 0"
    )


def test_more_pairs_than_are_computed():
    with pytest.raises(TooManyWeights) as caught:
        mc.causal().weights(1_000_000)
    assert str(caught.value) == (
        "MC754 n  weights of 1000000 x 1000000 pairs: a heatmap computes at most 268,435,456\n"
        "    hint: give a shorter sequence, or a part of q and k"
    )
