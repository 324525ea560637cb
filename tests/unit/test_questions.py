"""Answers of masks about heads and sequences: all of them, or the one that is named."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import (
    DataRange,
    DataShape,
    HeadsUnknown,
    NoSuchHead,
    OneOfSeveral,
    WrongHeads,
)

IDS = np.array([[0, 0, 1, 1, 1, 2, 2], [0, 0, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5, 6]])
"""Three sequences of documents."""
TABLE = np.random.default_rng(0).random((2, 3, 4, 4)) < 0.5
"""Two sequences, three heads, blocks of two tokens."""


def tiles(layout) -> np.ndarray:
    return layout.to_dense()


def by_hand(dense: np.ndarray, size: int) -> np.ndarray:
    rows, columns = (-(-n // size) for n in dense.shape)
    array = np.zeros((rows, columns), np.uint8)
    for row, column in np.ndindex(rows, columns):
        part = dense[row * size : (row + 1) * size, column * size : (column + 1) * size]
        array[row, column] = 2 if part.all() else int(part.any())
    return array


def test_sequences_are_summed_shown_and_named():
    mask, right = mc.documents("doc") & mc.causal(), np.zeros((3, 7, 7), bool)
    for b, q, k in np.ndindex(3, 7, 7):
        right[b, q, k] = IDS[b, q] == IDS[b, k] and k <= q
    assert np.array_equal(mask.dense(7, doc=IDS), right)
    assert mask.count(7, doc=IDS) == right.sum()
    for batch in range(3):
        assert np.array_equal(mask.dense(7, doc=IDS, batch=batch), right[batch])
        assert mask.count(7, doc=IDS, batch=batch) == right[batch].sum()
        layout = mask.layout(7, block=(2, 2), doc=IDS, batch=batch)
        assert np.array_equal(tiles(layout), by_hand(right[batch], 2))
    with pytest.raises(OneOfSeveral, match=r"the 3 sequences of this mask .*\n.*batch="):
        mask.layout(7, doc=IDS)
    with pytest.raises(DataRange, match="no sequence 3 among 3"):
        mask.layout(7, doc=IDS, batch=3)
    assert mask.layout(7, doc=IDS[:1]).nnz == 1
    assert mask.dense(7, doc=IDS[:1]).shape == (1, 7, 7)
    assert mask.count(7, doc=IDS[0]) == right[0].sum()


def test_heads_of_tables_are_summed_shown_and_named():
    mask = mc.block_table("live", 2) & mc.causal()
    right = TABLE.repeat(2, 2).repeat(2, 3)[..., :7, :7] & np.tri(7, dtype=bool)
    assert np.array_equal(mask.dense(7, live=TABLE), right)
    assert mask.count(7, live=TABLE) == right.sum()
    assert mask.count(7, live=TABLE, head=1) == right[:, 1].sum()
    assert mask.count(7, live=TABLE, batch=1) == right[1].sum()
    assert np.array_equal(mask.dense(7, live=TABLE, head=2), right[:, 2])
    for batch, head in np.ndindex(2, 3):
        assert np.array_equal(mask.dense(7, live=TABLE, head=head, batch=batch), right[batch, head])
        layout = mask.layout(7, block=(2, 2), live=TABLE, head=head, batch=batch)
        assert np.array_equal(tiles(layout), by_hand(right[batch, head], 2))
    with pytest.raises(OneOfSeveral, match=r"the 3 heads of this mask .*\n.*head="):
        mask.layout(7, live=TABLE, batch=0)
    with pytest.raises(OneOfSeveral, match="the 2 sequences"):
        mask.layout(7, live=TABLE, head=0)
    with pytest.raises(NoSuchHead, match="refers to head 3, but there are 3 heads"):
        mask.layout(7, live=TABLE, head=3, batch=0)
    for ask in (mask.count, mask.dense):
        with pytest.raises(DataShape, match="has shape 3 heads, expected 4 heads"):
            ask(7, live=TABLE, n_heads=4)


def test_masks_per_head_know_how_many_heads_there_are():
    mask = mc.per_head([mc.causal(), mc.window(1), mc.full()])
    right = np.stack([np.tri(5), np.tri(5) - np.tri(5, k=-2), np.ones((5, 5))]) > 0
    assert np.array_equal(mask.dense(5), right)
    assert mask.count(5) == right.sum() == mask.count(5, n_heads=3)
    assert mask.count(5, head=1) == 9
    with pytest.raises(OneOfSeveral, match="the 3 heads"):
        mask.layout(5)
    assert mask.layout(5, block=(1, 1), head=1).nnz == 9
    attn = mask.compile(head_dim=8, dtype="float32", target="cpu")
    q = np.zeros((1, 3, 5, 8), np.float32)
    v = np.eye(5, 8, dtype=np.float32)[None, None].repeat(3, 1)
    assert np.array_equal(attn(q, q, v)[0, ..., :5] > 0, right)
    for ask in (mask.dense, mask.count):
        with pytest.raises(WrongHeads, match="written for 3 query heads, but n_heads is 4"):
            ask(5, n_heads=4)
    with pytest.raises(WrongHeads, match="written for 3 query heads, but n_heads is 2"):
        mask.compile(head_dim=8, n_heads=2, dtype="float32", target="cpu")
    several = mask | mc.per_head([mc.causal(), mc.full()])
    for ask in (several.dense, several.count):
        with pytest.raises(WrongHeads, match="a part of it for"):
            ask(5)
    shared = mc.per_head([mc.causal()] * 4)
    assert shared.count(5) == 15
    assert shared.layout(5).nnz == 1


def test_no_heads_are_no_difference_between_heads():
    mask = mc.full() & (mc.full() | mc.heads())
    assert mask.dense(2, 3, n_heads=4).shape == (2, 3)
    assert mask.count(2, 3, n_heads=4) == 6


def test_heads_that_nobody_counts():
    mask = mc.heads(1) & mc.causal()
    for ask in (mask.count, mask.dense):
        with pytest.raises(HeadsUnknown):
            ask(5)
    assert mask.count(5, n_heads=4) == 15
    assert mask.count(5, head=1) == 15
    assert mask.count(5, head=0) == 0
    with pytest.raises(OneOfSeveral, match="the heads of this mask"):
        mask.layout(5)


def test_compiled_masks_name_heads_and_sequences_too():
    mask = mc.documents("doc") & mc.per_head([mc.causal(), mc.full()])
    attn = mask.compile(head_dim=8, dtype="float32", target="cpu")
    for given, message in (({}, "2 heads"), ({"head": 0}, "3 sequences")):
        with pytest.raises(OneOfSeveral, match=message):
            attn.layout(7, doc=IDS, **given)
    layout = attn.layout(7, block=(1, 1), doc=IDS, head=1, batch=0)
    assert layout.nnz == mask.count(7, doc=IDS, head=1, batch=0) == 4 + 9 + 4
    with pytest.raises(DataRange, match="no sequence 3 among 3"):
        attn.layout(7, doc=IDS, head=1, batch=3)


def test_sets_that_heads_and_sequences_share_are_counted_once_a_set(monkeypatch):
    from maskc.questions import mask_at_lengths as asked

    made = []
    honest = asked.pairs_of
    monkeypatch.setattr(asked, "pairs_of", lambda *given: made.append(1) or honest(*given))
    mask = mc.per_head([mc.causal(), mc.documents("doc")] * 4)
    assert mask.count(7, doc=IDS) == 3 * 4 * 28 + 4 * (4 + 9 + 4 + 49 + 7)
    assert len(made) == 1 + 3


WIDTHS = np.array([1, 2, 3])
NOTHING = ~mc.full()
BY_HEAD = mc.from_mask_mod(lambda b, h, q, k: q - k <= WIDTHS[h])
ROWS = np.arange(16).reshape(2, 8)
BY_SEQUENCE = mc.from_mask_mod(lambda b, h, q, k: ROWS[b, q] >= ROWS[b, k])
UNREAD = {
    "a table beside everything": (
        mc.block_table("t", 8) | mc.full(), {"t": np.ones((3, 1, 1), bool)}, (3, 8, 8)
    ),
    "a table beside nothing": (
        mc.block_table("t", 8) & NOTHING | mc.causal(), {"t": np.ones((2, 3, 1, 1), int)},
        (2, 3, 8, 8),
    ),
    "a captured array by head": (BY_HEAD & NOTHING | mc.causal(), {}, (3, 8, 8)),
    "a captured array by sequence": (BY_SEQUENCE | mc.full(), {}, (2, 8, 8)),
    "scores by head": (
        mc.topk(3, of=mc.causal(), score="given") | mc.full(), {"scores": np.zeros((3, 8, 8))},
        (3, 8, 8),
    ),
    "scores by sequence and head": (
        mc.topk(3, of=mc.causal(), score="given", share="all") | mc.full(),
        {"scores": np.zeros((2, 3, 8, 8))}, (2, 8, 8),
    ),
    "the head itself": (
        mc.where(lambda h, q, k: q - k <= h) & NOTHING | mc.causal(), {"n_heads": 5}, (5, 8, 8)
    ),
    "heads by name": (mc.heads(1) & NOTHING | mc.causal(), {"n_heads": 5}, (5, 8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", UNREAD)
def test_heads_and_sequences_that_have_no_say_are_counted_as_they_are_shown(name):
    mask, given, shape = UNREAD[name]
    shown = mask.dense(8, **given)
    assert shown.shape == shape
    assert mask.count(8, **given) == shown.sum()


def test_fewer_heads_than_a_captured_array_has_rows():
    table = np.arange(24).reshape(1, 3, 8)
    by_head = mc.from_mask_mod(lambda b, h, q, k: table[0, h, q] >= k)
    for mask in (by_head, by_head & NOTHING | mc.causal()):
        shown = mask.dense(8, n_heads=2)
        assert shown.shape == (2, 8, 8)
        assert mask.count(8, n_heads=2) == shown.sum()
        assert mask.count(8, n_heads=2, head=1) == shown[1].sum()


def test_equal_masks_per_head_are_one():
    mask = mc.per_head([mc.causal()] * 3) & mc.window(3)
    assert mask.dense(8).shape == (8, 8)
    assert mask.count(8) == mask.dense(8).sum()
