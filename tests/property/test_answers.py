"""Answers of random masks: every head and sequence, and what tells two masks apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.core.errors import OneOfSeveral, Undecided
from maskc.ir.names import declared_names
from maskc.testing.strategies import HEADS, data_for, lengths, masks
from tests.support.thorough import examples

SLOW = settings(max_examples=examples(30))
QUICK = settings(SLOW, max_examples=examples(20))


def own(mask: mc.Mask, data: dict[str, object]) -> dict[str, object]:
    return {name: x for name, x in data.items() if name in declared_names(mask)}


@SLOW
@given(st.data(), masks(max_depth=2, with_heads=True), lengths(16), st.sampled_from([None, 1, 3]))
def test_every_head_and_sequence_is_counted(data, mask, sizes, batch):
    given_data = data.draw(data_for(mask, *sizes, batch=batch))
    every = mask.dense(*sizes, n_heads=HEADS, **given_data)
    assert mask.count(*sizes, n_heads=HEADS, **given_data) == every.sum()
    for head in range(HEADS):
        for sequence in range(batch or 1):
            one = {"n_heads": HEADS, "head": head, "batch": sequence, **given_data}
            dense = mask.dense(*sizes, **one)
            assert dense.shape == sizes
            assert mask.count(*sizes, **one) == dense.sum()
            if min(sizes):
                tiles = mask.layout(*sizes, block=(1, 1), **one).to_dense()
                assert np.array_equal(tiles > 0, dense)
    try:
        alone = mask.layout(*sizes, block=(1, 1), n_heads=HEADS, **given_data)
    except OneOfSeveral:
        return
    if min(sizes):
        sets = every.reshape(-1, *sizes)
        assert (sets == (alone.to_dense() > 0)).all(), "one layout stands for all"


@SLOW
@given(st.data(), masks(max_depth=1), masks(max_depth=1), lengths(16))
def test_the_first_difference_with_given_data(data, a, b, sizes):
    given_data = data.draw(data_for(a | b, *sizes))
    one, other = (mask.dense(*sizes, **own(mask, given_data)) for mask in (a, b))
    difference = mc.diff(a, b, n_q=sizes[0], n_kv=sizes[1], **given_data)
    apart = np.argwhere(one != other)
    assert (difference is None) == (len(apart) == 0)
    if difference is not None:
        assert (difference.q, difference.k, difference.pairs) == (*apart[0], len(apart))
        assert difference.kept_by == ("a" if one[difference.q, difference.k] else "b")


@QUICK
@given(st.data(), masks(max_depth=1), masks(max_depth=1), lengths(16))
def test_answers_agree_with_each_other_and_with_data(data, a, b, sizes):
    answer = a.equals(b)
    try:
        difference = mc.diff(a, b)
    except Undecided:
        assert answer is None
    else:
        assert answer is (difference is None)
        if difference is not None:
            sides = [
                mask.dense(difference.n_q, difference.n_kv, **own(mask, difference.data))
                for mask in (a, b)
            ]  # fmt: skip
            assert [side[difference.q, difference.k] for side in sides] == [
                difference.kept_by == "a", difference.kept_by == "b",
            ]  # fmt: skip
    if answer is True:
        given_data = data.draw(data_for(a | b, *sizes))
        one, other = (mask.dense(*sizes, **own(mask, given_data)) for mask in (a, b))
        assert np.array_equal(one, other)
    if a.subset_of(b) is True:
        given_data = data.draw(data_for(a | b, *sizes))
        one, other = (mask.dense(*sizes, **own(mask, given_data)) for mask in (a, b))
        assert (one <= other).all()
