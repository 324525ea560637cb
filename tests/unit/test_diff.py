"""Two masks and the pair that tells them apart, as `diff` finds it and `equals` knows it."""

from __future__ import annotations

import warnings
from itertools import combinations

import islpy as isl
import numpy as np
import pytest

import maskc as mc
from maskc.analysis.witness import _first
from maskc.core.errors import (
    BadLength,
    DataMissing,
    DataShape,
    DataUnknown,
    NotAMask,
    Undecided,
    WrongHeads,
)

W = 1024
IMAGE = mc.documents("image") & mc.flags("shown")
"""Tokens of one image; 0 in `shown` where there is none."""
READINGS = {
    "google": (mc.causal() | IMAGE) & mc.window(W - 1, W - 1),
    "transformers": (mc.causal() | IMAGE) & mc.window(W - 1, None),
    "others": (mc.causal() & mc.window(W - 1)) | IMAGE,
}
"""Return what Gemma 4's code, transformers and others say that its layers with a window see."""


def shown(a: mc.Mask, b: mc.Mask, found: mc.Difference, n_heads: int | None = None) -> None:
    """The pair is in the mask that is said to keep it, and in that one alone; counts are right."""
    sides = []
    for mask in (a, b):
        names = {name: x for name, x in found.data.items() if f"{name!r}" in str(mask) or (
            name == "scores" and "topk" in str(mask)) or f'"{name}"' in str(mask)}  # fmt: skip
        every = mask.dense(found.n_q, found.n_kv, n_heads=found.n_heads or n_heads, **names)
        sides.append(every)
    one, other = (
        np.broadcast_to(each, np.broadcast_shapes(*(side.shape for side in sides)))
        for each in sides
    )
    place = [found.q, found.k]
    if found.n_heads is not None:
        place = [found.head, *place]
    if one.ndim > len(place):
        place = [found.batch, *place]
    kept = bool(one[tuple(place)]), bool(other[tuple(place)])
    assert kept == (found.kept_by == "a", found.kept_by == "b")
    assert found.pairs == np.count_nonzero(one != other)
    if found.pairs:
        assert place == np.argwhere(one != other)[0].tolist() or found.pairs > 1


# ------------------------------------------------------------------ Gemma 4


@pytest.mark.parametrize(("a", "b"), list(combinations(READINGS, 2)))
def test_readings_of_gemma_4_differ(a, b):
    one, other = READINGS[a], READINGS[b]
    assert one.equals(other) is False
    assert other.equals(one) is False
    difference = mc.diff(one, other)
    assert (difference.n_q, difference.n_kv) == (W + 1, W + 1)
    shown(one, other, difference)


def test_a_reading_in_other_words_is_the_same():
    words = mc.causal() & mc.window(W - 1) | IMAGE & mc.window(W - 1, None)
    assert words.equals(READINGS["transformers"]) is True
    assert mc.diff(words, READINGS["transformers"]) is None


@pytest.mark.parametrize(
    ("a", "b", "pair", "kept_by", "pairs"),
    [
        ("google", "transformers", (40, 1064), "b", 4656),
        ("google", "others", (40, 1064), "b", 9312),
        ("transformers", "others", (1064, 40), "b", 4656),
    ],
)
def test_an_image_of_1120_tokens(a, b, pair, kept_by, pairs):
    n = 1300
    image = np.zeros(n, int)
    image[40:1160] = 1
    data = {"image": image, "shown": image > 0}
    difference = mc.diff(READINGS[a], READINGS[b], n=n, **data)
    assert (difference.q, difference.k) == pair
    assert (difference.kept_by, difference.pairs) == (kept_by, pairs)
    assert difference.data["image"] is image
    shown(READINGS[a], READINGS[b], difference)
    small = {name: given[:1060] for name, given in data.items()}
    assert mc.diff(READINGS[a], READINGS[b], n=1060, **small) is None
    batch = {name: np.stack([0 * given, given]) for name, given in data.items()}
    difference = mc.diff(READINGS[a], READINGS[b], n=n, **batch)
    assert (difference.batch, difference.q, difference.k, difference.pairs) == (1, *pair, pairs)


# ------------------------------------------------------------------ every kind of data

DOC, TREE, SPAN = mc.documents("doc"), mc.tree("tree"), mc.intervals("span")
CAUSAL, TABLE = mc.causal(), np.eye(3, dtype=int)
APART = {
    "documents": (DOC, DOC & CAUSAL),
    "two documents": (DOC, mc.documents("other")),
    "documents of other lengths": (DOC, DOC | mc.offsets([0])),
    "documents from the start": (DOC, mc.documents("doc", align="start")),
    "flags": (mc.flags("on"), mc.flags("off")),
    "flags far away": (mc.flags("on") & CAUSAL, mc.flags("on") & mc.window(700)),
    "flags of queries": (mc.flags("on", on="q") | mc.sinks(3), mc.flags("on", on="q")),
    "intervals": (SPAN, SPAN & mc.window(None, 3)),
    "trees": (TREE, TREE & CAUSAL),
    "trees and documents": (TREE & DOC, TREE),
    "a table": (mc.block_table("live", 16), mc.block_table("live", 16) - mc.strided(2)),
    "captured tables": (mc.block_table(TABLE, 4), mc.block_table(TABLE[::-1], 4)),
    "a parameter": (DOC & mc.window(mc.param("w", 3)), DOC & mc.window(3)),
    "draws": (mc.random_blocks(4, 2, 0) & DOC, mc.random_blocks(4, 2, 1) & DOC),
    "selections": (mc.topk(3, CAUSAL), mc.topk(4, CAUSAL)),
    "heads": (mc.per_head([DOC, CAUSAL]), mc.per_head([DOC, CAUSAL & mc.window(9)])),
    "a formula of heads": (mc.where(lambda h, q, k: (q + h) % 3 == 0), mc.strided(3)),
}
SAME = {
    "documents": (DOC & CAUSAL | DOC - CAUSAL, DOC),
    "a tree sees itself": (TREE, TREE | mc.offsets([0])),
    "flags": (~(mc.flags("on") & CAUSAL), ~mc.flags("on") | ~CAUSAL),
    "heads": (mc.per_head([CAUSAL, mc.full()]) | mc.heads(1), mc.per_head([CAUSAL, mc.full()])),
    "a selection": (mc.topk(3, CAUSAL) & CAUSAL, mc.topk(3, CAUSAL)),
    "many atoms": (
        (DOC | TREE | SPAN) & (mc.flags("a1") | mc.flags("a2")),
        (DOC | TREE | SPAN) & mc.flags("a1") | mc.flags("a2") & (DOC | TREE | SPAN),
    ),
}


@pytest.mark.parametrize("name", APART)
def test_a_witness_is_found_and_holds(name):
    a, b = APART[name]
    found = mc.diff(a, b)
    shown(a, b, found)
    assert a.equals(b) is False
    assert b.equals(a) is False
    back = mc.diff(b, a)
    shown(b, a, back)
    assert str(found).startswith(f"query {found.q} sees key {found.k}")
    assert repr(found) == f"<Difference: {found}>"


@pytest.mark.parametrize("name", SAME)
def test_no_difference_is_a_proof(name):
    a, b = SAME[name]
    assert a.equals(b) is True
    assert a.subset_of(b) is True
    assert mc.diff(a, b) is None
    assert mc.diff(b, a) is None


def test_ids_that_isl_alone_proves():
    """`equals` takes what it reads as free conditions; `diff` knows what `equals` knows."""
    ids = mc.global_tokens([4, 11, 21, 63, 65, 68]).columns
    other = mc.documents("d", align="start") | mc.tree("t")
    same = (ids & other) | (ids - other)
    assert ids.equals(same) is True
    assert mc.diff(ids, same) is None


def test_arrays_that_fall_out_of_the_formula():
    values = np.arange(90) % 7
    unread = mc.from_mask_mod(lambda b, h, q, k: values[q] == values[k]) - mc.full()
    a, b = mc.random_blocks(8, 1, 0) | unread, mc.random_blocks(8, 1, 1)
    assert a.equals(b) is False
    assert a.subset_of(b) is False
    shown(a, b, mc.diff(a, b))
    assert (unread | mc.causal()).equals(mc.causal()) is True
    assert mc.diff(unread | mc.block_table("t", 8) & ~mc.full() | mc.causal(), mc.causal()) is None


def test_heads_of_captured_arrays_are_all_that_there_are():
    widths = np.array([3, 6, 2])
    by_head = mc.from_mask_mod(lambda b, h, q, k: q - k <= widths[h])
    a, b = by_head & mc.where(lambda h, q, k: q - k <= 2 * h + 3), by_head
    assert a.subset_of(b) is True
    difference = mc.diff(a, b)
    assert (difference.kept_by, difference.head, difference.n_heads) == ("b", 1, 3)


# ------------------------------------------------------------------ masks of some lengths only


def of_matrix(matrix: np.ndarray) -> mc.Mask:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mc.DenseWarning)
        return mc.from_bool(matrix)


TRIANGLE = of_matrix(np.tri(20, dtype=bool))
EVERY_OTHER = of_matrix(np.indices((20, 20)).sum(0) % 2 == 0)
TALL = of_matrix(np.ones((21, 20), bool) & (np.arange(21)[:, None] > 3))
AT_20 = EVERY_OTHER | ~EVERY_OTHER
PADDED = of_matrix(np.arange(20)[None] < 15)


def test_masks_of_fixed_lengths_are_compared_at_these():
    assert TRIANGLE.equals(CAUSAL) is True
    assert CAUSAL.equals(TRIANGLE) is True
    assert mc.diff(TRIANGLE, CAUSAL) is None
    assert TRIANGLE.equals(EVERY_OTHER) is False
    assert (TRIANGLE & EVERY_OTHER).subset_of(EVERY_OTHER) is True
    assert TRIANGLE.subset_of(mc.window(5)) is False
    assert (mc.window(30) & AT_20).equals(CAUSAL) is True, "they differ at other lengths only"
    difference = mc.diff(TRIANGLE, EVERY_OTHER)
    assert (difference.n_q, difference.n_kv, difference.q, difference.k, difference.kept_by) == (
        20,
        20,
        0,
        2,
        "b",
    )
    differ = np.tri(20, dtype=bool) != (np.indices((20, 20)).sum(0) % 2 == 0)
    assert difference.pairs == differ.sum()


def test_data_beside_fixed_lengths():
    assert (TRIANGLE & DOC).subset_of(CAUSAL) is True
    assert (TRIANGLE & DOC).equals(CAUSAL & DOC) is not False
    assert (EVERY_OTHER & DOC).equals(EVERY_OTHER) is False
    assert (EVERY_OTHER & mc.window(mc.param("w", 40))).equals(EVERY_OTHER & CAUSAL) is False
    shown(EVERY_OTHER & DOC, EVERY_OTHER, mc.diff(EVERY_OTHER & DOC, EVERY_OTHER))


def test_lengths_that_one_side_fixes():
    """A row of padding holds for 20 keys and any number of queries."""
    assert (PADDED & CAUSAL).subset_of(mc.prefix(15)) is True
    assert PADDED.equals(mc.prefix(15)) is True
    assert PADDED.equals(mc.prefix(16)) is False
    assert mc.diff(PADDED, mc.prefix(16)).n_kv == 20


def test_tables_hold_at_a_range_of_lengths():
    table = mc.block_table(np.tri(3, dtype=bool), 8)
    assert (table | mc.window(7)).equals(table | mc.causal()) is True
    assert (table & CAUSAL).equals(table) is False
    assert (table | mc.window(40)).equals(table | CAUSAL) is True, "at most 24 queries"


def test_lengths_that_contradict():
    assert TALL.equals(TRIANGLE) is False
    assert TALL.subset_of(TRIANGLE) is False
    with pytest.raises(DataShape, match=r"\(20, 20\), queries and keys, expected \(21, 20\)"):
        mc.diff(TALL, TRIANGLE)
    with pytest.raises(DataShape, match=r"\(20, 20\), queries and keys, expected \(21, 21\)"):
        mc.diff(TRIANGLE, CAUSAL, n=21)
    assert mc.diff(TRIANGLE, CAUSAL, n=20) is None


def test_subsets():
    assert (DOC & CAUSAL).subset_of(DOC) is True
    assert DOC.subset_of(DOC & CAUSAL) is False
    assert (DOC & TREE).subset_of(TREE) is True
    assert mc.flags("on").subset_of(mc.flags("off")) is False
    assert mc.topk(3, CAUSAL).subset_of(CAUSAL) is True
    assert CAUSAL.subset_of(mc.topk(3, CAUSAL)) is False


def test_a_point_at_which_another_head_has_no_data():
    """The first point has more queries than keys, where no array serves `global_tokens`."""
    above = mc.where(lambda q, k: k <= q) - CAUSAL
    heads = mc.per_head([~mc.full(), mc.global_tokens("chosen")])
    assert above.subset_of(heads) is False
    assert mc.diff(above, heads).kept_by == "b"


def test_lengths_of_the_question():
    difference = mc.diff(DOC, DOC & CAUSAL, n=5, n_kv=9)
    assert (difference.n_q, difference.n_kv) == (5, 9)
    shown(DOC, DOC & CAUSAL, difference)
    assert mc.diff(DOC, DOC | mc.offsets([0]), n=7) is None, "one array: every token sees itself"
    assert mc.diff(CAUSAL, mc.window(40), n=41) is None
    assert (mc.diff(CAUSAL, mc.window(40), n=42).pairs, mc.diff(CAUSAL, mc.window(40)).n_q) == (
        1,
        42,
    )
    far = mc.diff(CAUSAL & DOC, mc.window(300_000) & DOC)
    assert (far.q, far.k, far.pairs) == (300_001, 0, None)


def test_parameters_may_come_alone():
    a, b = DOC & mc.window(mc.param("w", 3)), DOC & mc.window(3)
    assert mc.diff(a, b, w=3) is None
    assert mc.diff(a, b, w=3, n=9) is None
    difference = mc.diff(a, b, w=5)
    assert (difference.q, difference.k, difference.kept_by, difference.data["w"]) == (4, 0, "a", 5)


def test_questions_that_cannot_be_answered():
    ids = [0, 0, 1]
    with pytest.raises(NotAMask, match="diff expects a mask, found ndarray"):
        mc.diff(DOC, np.ones((3, 3), bool))
    with pytest.raises(BadLength, match="n must be an integer"):
        mc.diff(DOC, CAUSAL, doc=ids)
    with pytest.raises(DataUnknown, match="named 'docs'; it has: doc"):
        mc.diff(DOC, CAUSAL, n=3, docs=ids)
    with pytest.raises(DataMissing, match="needs 'tree'"):
        mc.diff(DOC, TREE, n=3, doc=ids)
    with pytest.raises(WrongHeads, match="for 2 query heads, but the other mask for 3"):
        mc.diff(mc.per_head([DOC, CAUSAL]), mc.per_head([DOC, CAUSAL, CAUSAL]))
    assert mc.per_head([DOC, CAUSAL]).equals(mc.per_head([DOC, CAUSAL, CAUSAL])) is False
    with pytest.raises(Undecided):
        mc.diff(mc.where(lambda h, q, k: h >= 0), mc.full())
    assert mc.diff(mc.where(lambda h, q, k: h >= 0), mc.full(), n_heads=4) is None


def test_what_a_difference_says():
    image = np.repeat([0, 1, 0], [2, 20, 8])
    difference = mc.diff(DOC & mc.window(5, 5), DOC & mc.window(5, 6), n=30, doc=image)
    assert str(difference) == (
        "query 2 sees key 8 only in b, at n = 30; 16 pairs differ\n"
        "    doc = 2 * [0] + 20 * [1] + 8 * [0]"
    )
    heads = mc.per_head([CAUSAL, CAUSAL - mc.sinks(1)])
    assert str(mc.diff(CAUSAL, heads, n=2, n_kv=3)) == (
        "query 0 sees key 0 on head 1 of 2 only in a, at 2 x 3; 2 pairs differ"
    )
    assert str(mc.diff(TREE, DOC & TREE)).endswith("doc = [2, 1]\n    tree = mc.parents([1, -1])")


def test_a_grid_is_told_apart_from_causal():
    """isl's lexmin takes minutes for the difference of these."""
    grid = mc.patterns.sta()
    first = mc.diff(grid, mc.causal())
    assert first is not None
    n = next(n for n in range(1, 9) if (grid.dense(n) != mc.causal().dense(n)).any())
    pairs = np.argwhere(grid.dense(n) != mc.causal().dense(n))
    assert (first.n_q, first.n_kv, first.q, first.k) == (n, n, *pairs[0])


@pytest.mark.parametrize("text", [
    "{ [n, q, k] : 0 <= k < q < n and (k = q - 2 or k = q - 4 or 7 <= q - k and n < 3) }",
    "{ [n, q, k] : 0 <= k < n and 0 <= q < n and (q - k) mod 6 = 3 and q >= 5 }",
    "{ [n, q, k] : 0 <= k < n and 0 <= q < n and (3 * k = q + 1 and n > 9 or n mod 4 = 3) }",
    "{ [n, q, k] : 0 <= k < q < n and n < 1 }",
])  # fmt: skip
def test_the_first_point_is_the_least(text: str):
    points = isl.Set(text)
    least = points.lexmin()
    first = _first(points, ("n", "q", "k"))
    if least.is_empty():
        assert first is None
    else:
        inside = " and ".join(f"{name} = {value}" for name, value in first.items())
        assert least.is_equal(isl.Set(f"{{ [n, q, k] : {inside} }}"))
