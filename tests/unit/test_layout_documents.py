"""Tiles that begin with documents: every live pair in one of them, and the same tiles for a
document wherever it lies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.errors import BadLength, CheckFailed
from maskc.core.evaluator import evaluate
from maskc.core.layout import BlockLayout
from maskc.core.problem import TileShape
from maskc.layout import (
    band_of,
    build,
    check_documents,
    document_lists,
    most_runs,
    room_of,
    without_documents,
)
from maskc.layout.tiles.document_tiles import MAX_KEYS, DocumentTileLists, tiles_of
from tests.support.thorough import examples

DOCUMENTS = mc.documents("doc")
MASKS = [
    DOCUMENTS,
    DOCUMENTS & mc.causal(),
    DOCUMENTS & mc.window(9, 4),
    DOCUMENTS & (mc.window(5) | mc.sinks(3)),
    DOCUMENTS & mc.strided(7) & mc.causal(),
    DOCUMENTS - mc.prefix(11),
]


def variant(mask):
    bundle = mask.compile(head_dim=64, target="cpu").bundle
    return bundle.variants[0].keep, bundle.data


def laid_out(mask, n_q, n_kv, tile) -> BlockLayout:
    return build(LayoutRecipe(tile, without_documents(*variant(mask)), None), n_q, n_kv, {}, {})


def checked(mask, lists, layout, of_q, of_k):
    keep, (decl,) = variant(mask)
    env = dict(zip(decl.arrays, (of_q, of_k), strict=True))
    check_documents(lists, layout, keep, {**env, "n_q": layout.n_q, "n_kv": layout.n_kv})


@st.composite
def ids(draw, n: int):
    """Packed, or in any order."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    match draw(st.sampled_from(["packed", "runs", "any"])):
        case "packed":
            lengths = rng.integers(1, draw(st.integers(2, 80)), n)
            return np.repeat(np.arange(n), lengths)[:n].astype(np.int32) - 3
        case "runs":
            return np.repeat(rng.integers(-2, 4, n), rng.integers(1, 40, n))[:n].astype(np.int32)
    return rng.integers(-(2**31), 2**31, 3)[rng.integers(0, 3, n)].astype(np.int32)


# ------------------------------------------------------------------ lists


@settings(max_examples=examples(150))
@given(st.data(), st.sampled_from(range(len(MASKS))), st.integers(1, 200), st.integers(1, 200))
def test_every_pair_is_in_one_tile(data, number, n_q, n_kv):
    tile = TileShape(data.draw(st.sampled_from([8, 16, 48])), data.draw(st.sampled_from([8, 16])))
    of_q, of_k = data.draw(ids(n_q)), data.draw(ids(n_kv))
    layout = laid_out(MASKS[number], n_q, n_kv, tile)
    lists = document_lists(layout, of_q, of_k)
    checked(MASKS[number], lists, layout, of_q, of_k)
    assert lists.row_ptr[0] == 0
    assert lists.row_ptr[-1] == len(lists.words)
    assert len(lists.words) <= room_of(layout.nnz, *layout.shape)
    for begin, end in zip(lists.row_ptr, lists.row_ptr[1:], strict=False):
        assert (np.diff(lists.words[begin:end] >> 1) > 0).all()


def packed(lengths: list[int]) -> np.ndarray:
    return np.repeat(np.arange(len(lengths)), lengths).astype(np.int32)


LENGTHS = st.lists(st.integers(2, 40), max_size=6)


@settings(max_examples=examples(60))
@given(LENGTHS, st.integers(2, 90), LENGTHS, st.sampled_from([0, 1, 2]))
def test_a_document_has_the_same_tiles_everywhere(before, own, behind, number):
    """It has those tiles that have live keys of a query, counted from the document's first key."""
    tile, keep = TileShape(16, 8), variant(MASKS[number])[0]

    def tiles(before: list[int], behind: list[int]) -> list[list[tuple[int, int]]]:
        of, start = packed([*before, own, *behind]), sum(before)
        lists = document_lists(laid_out(MASKS[number], len(of), len(of), tile), of, of)
        keys, found = np.arange(len(of)), []
        env = {"doc.q": of, "doc.k": of, "n_q": len(of), "n_kv": len(of), "k": keys}
        for query in range(start, start + own):
            begin, end = lists.row_ptr[query // tile.q : query // tile.q + 2]
            first = lists.words[begin:end] >> 1
            spans = zip(first, np.minimum(first + tile.k, lists.stops[first]), strict=True)
            live = evaluate(keep, {**env, "q": query})
            found.append([(a - start, b - start) for a, b in spans if live[a:b].any()])
        return found

    alone, among = tiles([], []), tiles(before, behind)
    assert alone == among
    assert all(spans for spans in alone)


def test_tiles_begin_with_documents():
    of = packed([5, 9, 1, 3])
    tiles = tiles_of(of, of, 4)
    assert tiles.first.tolist() == [0, 4, 5, 9, 13, 14, 15]
    assert tiles.stop.tolist() == [5, 5, 14, 14, 14, 15, 18]
    assert (tiles.least == tiles.greatest).all()


@pytest.mark.parametrize("where", ["queries", "keys"])
def test_other_orders_keep_the_columns(where):
    of, other = packed([5, 9, 4]), packed([5, 9, 4])
    (of if where == "queries" else other)[[0, 17]] = 2, 0
    tiles = tiles_of(of, other, 4)
    assert tiles.first.tolist() == [0, 4, 8, 12, 16]
    assert (tiles.stop == -18).all()


def test_very_short_documents_keep_the_columns():
    most = most_runs(4)
    for runs, first in ((most, most), (most + 1, 4)):
        of = packed([1] * (runs - 1) + [32 - runs + 1])
        tiles = tiles_of(of, of, 8)
        assert (len(tiles.first) > 4) == (first > 4)


def test_full_tiles():
    """Inside of one document, and of what else the mask keeps."""
    of = packed([40, 24])
    layout = laid_out(DOCUMENTS & mc.causal(), 64, 64, TileShape(8, 8))
    lists = document_lists(layout, of, of)
    rows = [lists.words[a:b].tolist() for a, b in zip(lists.row_ptr, lists.row_ptr[1:],
                                                       strict=False)]  # fmt: skip
    assert rows[3] == [1, 17, 33, 48]  # keys 0, 8, 16 full; 24 on the diagonal
    assert rows[5:7] == [[80], [81, 96]]


def test_a_list_has_an_end():
    layout = replace(laid_out(DOCUMENTS, 8, 8, TileShape(8, 8)), n_kv=MAX_KEYS + 1)
    with pytest.raises(BadLength):
        document_lists(layout, np.zeros(8, np.int32), np.zeros(8, np.int32))


@pytest.mark.parametrize("wrong", ["missing", "twice", "full"])
def test_the_check_sees_what_is_wrong(wrong):
    of = packed([20, 12])
    layout = laid_out(DOCUMENTS, 32, 32, TileShape(8, 8))
    lists = document_lists(layout, of, of)
    checked(DOCUMENTS, lists, layout, of, of)
    words, ptr, stops = lists.words.copy(), lists.row_ptr.copy(), lists.stops.copy()
    match wrong:
        case "missing":
            words, ptr = words[1:], np.maximum(ptr - 1, 0)
        case "twice":
            stops[16], words[2] = 32, words[2] - 16
        case "full":
            words[2] |= 1
            stops[16] = 24
    with pytest.raises(CheckFailed):
        checked(DOCUMENTS, DocumentTileLists(ptr, words, stops), layout, of, of)


# ------------------------------------------------------------------ masks


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_what_else_a_mask_keeps(mask):
    found = without_documents(*variant(mask))
    assert found is not None
    assert not E.arrays(found)
    dense = mask.dense(9, doc=np.zeros(9, int))
    grid = {"q": np.arange(9)[:, None], "k": np.arange(9), "n_q": 9, "n_kv": 9}
    np.testing.assert_array_equal(np.broadcast_to(evaluate(found, grid), (9, 9)), dense)


@pytest.mark.parametrize("mask", [
    ~DOCUMENTS, DOCUMENTS | mc.causal(), mc.causal(), DOCUMENTS & mc.flags("f"),
    DOCUMENTS & mc.documents("other"), mc.causal() - DOCUMENTS,
])  # fmt: skip
def test_other_masks(mask):
    assert without_documents(*variant(mask)) is None


@pytest.mark.parametrize("lengths", [(1, 1), (37, 37), (30, 45), (45, 30)])
@pytest.mark.parametrize(
    ("mask", "is_band"),
    [
        (mc.documents("doc"), True), (mc.documents("doc") & mc.causal(), True),
        (mc.documents("doc") & mc.window(9, 2), True),
        (mc.documents("doc") & mc.causal() & (mc.window(3) | mc.sinks(2)), False),
        (mc.documents("doc") & mc.prefix(20), False), (mc.documents("doc") & mc.strided(7), False),
    ],
    ids=str,
)  # fmt: skip
def test_bands(mask, is_band, lengths):
    bundle = mask.compile(head_dim=64, target="cpu").bundle
    keep = without_documents(bundle.variants[0].keep, bundle.data)
    band, (q, k) = band_of(keep, *lengths), np.ogrid[: lengths[0], : lengths[1]]
    if lengths != (1, 1):
        assert (band is not None) is is_band
    if band is not None:
        live = mask.dense(*lengths, doc=tuple(np.zeros(n, np.int32) for n in lengths))
        assert np.array_equal((k >= q + band[0]) & (k < q + band[1]), live)
