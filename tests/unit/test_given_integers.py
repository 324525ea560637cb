"""Integers that callers give: every way to ask refuses the same ones, and none of them wraps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import DataRange, DataShape, DataType

N = 4
WAYS: dict[str, Callable[..., Any]] = {
    "dense": lambda mask, **data: mask.dense(N, **data),
    "count": lambda mask, **data: mask.count(N, **data),
    "layout": lambda mask, **data: mask.layout(N, **data),
    "call": lambda mask, **data: _attend(mask, **data),
}


def _attend(mask: mc.Mask, **data: object) -> np.ndarray:
    q = np.ones((1, 1, N, 16), np.float32)
    return mc.attention(q, q, q, mask, **data)


ways = pytest.mark.parametrize("way", WAYS)


# ------------------------------------------------------------------ parameters

WIDTHS = [
    mc.window(mc.param("w", 2)), mc.sinks(mc.param("w", 2)), mc.prefix(mc.param("w", 2) + 1),
    mc.dilated(mc.param("w", 2), stride=2), mc.global_tokens(mc.param("w", 2)),
    mc.where(lambda q, k: q - k < mc.param("w", 2)), mc.window.hf(mc.param("w", 2)),
]  # fmt: skip


@ways
@pytest.mark.parametrize("value", [-1, -(2**31), 2**31, 2**63, 2**64, 10**30, np.uint64(2**64 - 1)])
def test_a_parameter_is_no_negative_and_no_huge_number(way: str, value: object):
    for mask in WIDTHS:
        with pytest.raises(DataRange, match=rf"MC305 w  'w': {value} is outside 0\.\."):
            WAYS[way](mask, w=value)


@ways
@pytest.mark.parametrize("value", [True, np.bool_(False), 1.0, float("nan"), "3", np.array([2])])
def test_a_parameter_is_an_integer(way: str, value: object):
    with pytest.raises(DataType, match=r"MC304 w  'w' has dtype .*, expected an integer"):
        WAYS[way](WIDTHS[0], w=value)


@ways
@pytest.mark.parametrize("value", [0, 1, 2**30, np.int8(1), np.uint64(3), np.array(2)])
def test_what_is_an_integer_in_the_range(way: str, value: object):
    WAYS[way](WIDTHS[0], w=value)
    expected = np.tri(N, dtype=bool) & ~np.tri(N, k=-1 - min(int(value), N), dtype=bool)
    assert np.array_equal(WIDTHS[0].dense(N, w=value), expected)
    assert WIDTHS[0].count(N, w=value) == expected.sum()


# ------------------------------------------------------------------ arrays

BEYOND = [
    np.array([2**64 - 1, 0, 1, 2], np.uint64), np.array([0, 0, 2**63, 2], np.uint64),
]  # fmt: skip


@ways
@pytest.mark.parametrize("array", [*BEYOND, np.array([-(2**63), 0, 1, 2]), [-2, 0, 1, 2], [4] * 4])
def test_a_parent_is_a_token_or_a_root(way: str, array: object):
    """2^64 - 1 in 64 signed bits is -1, the mark of a root."""
    with pytest.raises(DataRange, match="MC305 t  't': "):
        WAYS[way](mc.tree("t"), t=mc.parents(array))


@ways
@pytest.mark.parametrize("array", BEYOND)
def test_ids_and_times_fit_64_signed_bits(way: str, array: np.ndarray):
    with pytest.raises(DataRange, match="MC305"):
        WAYS[way](mc.tree("t"), t=(array, array))
    with pytest.raises(DataRange, match="MC305"):
        WAYS[way](mc.documents("d"), d=array)
    with pytest.raises(DataRange, match="MC305"):  # -1 and 2^64 - 1 are two documents
        WAYS[way](mc.documents("d"), d=(np.array([-1, 0, 1, 2]), array))


@pytest.mark.parametrize("array", BEYOND)
def test_intervals_may_end_anywhere_beyond_the_keys(array: np.ndarray):
    mask, low = mc.intervals("i"), np.zeros(N, np.int64)
    expected = np.arange(N)[None, :] < np.array([min(int(end), N) for end in array])[:, None]
    assert np.array_equal(mask.dense(N, i=(low, array)), expected)
    assert mask.count(N, i=(low, array)) == expected.sum()
    assert np.array_equal(_attend(mask, i=(low, array))[0, 0, :, 0] == 1, expected.any(axis=1))


def test_flags_are_what_is_not_zero():
    for array in (*BEYOND, np.array([2**32, 0, -(2**63), 2**31])):
        expected = np.array([value != 0 for value in array.tolist()])
        assert np.array_equal(mc.flags("f").dense(N, f=array), np.tile(expected, (N, 1)))
        assert mc.flags("f").count(N, f=array) == N * expected.sum()


@ways
@pytest.mark.parametrize("ends", [
    np.array([0, 2**64 - 1, 4], np.uint64), [0, -1, 4], [0, 5, 4], [0, 3, 2, 4], [1, 4],
    np.array([0, 2**63 - 1, -(2**63), -1, 4]), np.array([[0, 4, 4], [0, 9, 4]]),
    np.array([0, 2**63 - 1, 2**63, 2**64 - 1, 4], np.uint64),
])  # fmt: skip
def test_cumulative_lengths_rise_and_end_at_the_length(way: str, ends: object):
    """Differences of the largest and the smallest numbers wrap to small positive ones."""
    with pytest.raises(DataRange, match="MC305 d  'd': "):
        WAYS[way](mc.documents("d"), d=mc.cu_seqlens(ends))


@ways
@pytest.mark.parametrize("ends", [4, np.zeros((1, 1, 1, 2), int)])
def test_cumulative_lengths_are_a_vector(way: str, ends: object):
    with pytest.raises(DataShape, match="MC303 d"):
        WAYS[way](mc.documents("d"), d=mc.cu_seqlens(ends))


@ways
@pytest.mark.parametrize(
    "array",
    [[-1.0, 0, 1, 2], [True, False, True, True], ["a"] * 4, [None, 0, 1, 2], [2**64, 0, 1, 2]],
)
def test_what_is_no_integer_is_refused_everywhere(way: str, array: list[object]):
    for mask, data in (
        (mc.tree("t"), {"t": mc.parents(array)}), (mc.tree("t"), {"t": (array, array)}),
        (mc.documents("d"), {"d": array}), (mc.intervals("i"), {"i": (array, array)}),
    ):  # fmt: skip
        with pytest.raises(mc.MaskcError, match=r"MC304|MC406"):
            WAYS[way](mask, **data)
