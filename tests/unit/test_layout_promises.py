"""The longest document that a call promises: what it may be, and which tiles it decides."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskc as mc
from maskc.core.cost import Cost
from maskc.core.data import DataDecl, DataKind
from maskc.core.errors import DataRange, DataType
from maskc.core.expr import ALWAYS, K, Q, conj, const, le, sub
from maskc.core.problem import Direction, TileShape
from maskc.dispatch.stand_ins import LONGEST, SAMPLE, _packed, of_documents
from maskc.layout import bind_arrays, longest_on_host, longest_promised, promised
from maskc.layout.inputs.max_seqlen import NO_PROMISE, promises, rounded

DOC = DataDecl("doc", DataKind.documents, ("doc.q", "doc.k"))
ENDS = np.array([0, 3, 3, 10])


def of(most, ends=ENDS):
    return mc.cu_seqlens(ends, max_seqlen=most)


# ------------------------------------------------------------------ what is promised


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (ENDS, None), (of(None), None), (of(7), 7), (of(np.int64(9)), 9), (of(0), 0),
        (of(np.array(8)), 8), (of(1 << 40), NO_PROMISE),
    ],
)  # fmt: skip
def test_promises(value, want):
    assert promised("doc", value) == want


@pytest.mark.parametrize(
    ("most", "error", "text"),
    [
        (7.0, DataType, "MC304 doc  'doc' has dtype float, expected an integer as max_seqlen"),
        (True, DataType, "MC304 doc  'doc' has dtype bool, expected an integer as max_seqlen"),
        ("7", DataType, "MC304 doc  'doc' has dtype str, expected an integer as max_seqlen"),
        (-1, DataRange, "MC305 doc  'doc': max_seqlen is -1"),
        (6, DataRange, "MC305 doc  'doc': document 2 has 7 tokens, and max_seqlen promises 6 at "
                       "most"),
    ],
)  # fmt: skip
def test_what_is_refused(most, error, text):
    """By the host, before anything runs; the mask alone, which a promise is no part of, does not
    care."""
    with pytest.raises(error) as caught:
        bind_arrays((DOC,), {"doc": of(most)}, 10, 10)
    assert str(caught.value).startswith(text)
    live = mc.documents("doc").dense(10, doc=of(7))
    np.testing.assert_array_equal(live, mc.documents("doc").dense(10, doc=of(None)))


def test_each_sequence_keeps_the_promise():
    both = np.array([[0, 5, 10], [0, 3, 10]])
    bind_arrays((DOC,), {"doc": of(7, both)}, 10, 10)
    with pytest.raises(DataRange, match="document 1 has 7 tokens"):
        bind_arrays((DOC,), {"doc": of(6, both)}, 10, 10)


def test_queries_and_keys_promise_together():
    assert longest_promised("doc", (of(7), of(90))) == rounded(90)
    assert longest_promised("doc", (of(7), of(None))) is None
    assert longest_promised("doc", (of(7), ENDS)) is None
    assert longest_promised("doc", of(7)) == 16


def test_the_host_counts_lengths_that_it_has():
    far = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    assert longest_on_host(of(None)) == longest_on_host(of(None, ENDS.tolist())) == 16
    assert longest_on_host((of(None), of(None, np.array([[0, 1, 90], [0, 60, 90]])))) == 96
    assert longest_on_host(ENDS) is None
    assert longest_on_host((of(None), of(None, far))) is None


@given(st.integers(0, 1 << 31))
def test_rounded_up_a_little(most):
    most_rounded = rounded(most)
    assert most <= most_rounded <= max(16, most * 1.25 + 15)
    assert rounded(most_rounded) == most_rounded


def test_few_plans_for_many_promises():
    found = {rounded(most) for most in range(1, 1 << 14)}
    assert found == set(promises(1 << 14))
    assert len(found) <= 40


# ------------------------------------------------------------------ what suits


COSTS = {128: Cost("default", 4128, 2336, 0), 64: Cost("default", 2437, 699, 0)}
"""By the side of a square tile."""


def cheapest_tile(longest, beside=ALWAYS):
    """The side of the tiles that take fewer cycles for documents of one length."""

    def cycles(side):
        tally = of_documents(TileShape(side, side), beside, {}, longest, Direction.forward)
        return COSTS[side].cycles(tally)

    return min(COSTS, key=cycles)


def test_short_documents_have_small_tiles():
    assert [cheapest_tile(n) for n in (80, 200, 1024, None)] == [64, 64, 128, 128]
    causal = le(sub(K, Q), const(0))
    assert [cheapest_tile(n, causal) for n in (80, 1024, None)] == [64, 128, 128]


def test_a_window_makes_rows_short_whatever_is_promised():
    ahead = sub(Q, K)
    near = conj(le(const(0), ahead), le(ahead, const(63)))
    assert cheapest_tile(None, near) == 64


def test_counts_of_documents():
    """Tiles of one document that is longer than the sample: those of a dense mask."""
    tile = TileShape(64, 64)
    forward = of_documents(tile, ALWAYS, {}, LONGEST, Direction.forward)
    rows = LONGEST // 64
    assert (forward.rows, forward.tiles, forward.lone, forward.queries) == (rows, rows**2, 0, 0)
    backward = of_documents(tile, ALWAYS, {}, LONGEST, Direction.backward)
    assert (backward.rows, backward.tiles, backward.queries) == (rows, rows**2, rows)


@given(st.integers(1, LONGEST))
def test_the_documents_of_the_comparison(longest):
    ids = _packed(longest)
    lengths = np.bincount(ids)
    assert lengths.max() <= longest
    assert len(ids) == max(SAMPLE, longest)
    assert (lengths[1:-1] >= longest * 3 // 4).all()
    assert lengths[0] == longest or lengths[0] < longest / 2 + 1
