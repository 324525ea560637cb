"""Every combinator against its definition, one pair at a time, at equal and unequal lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import (
    BadShape,
    DataRange,
    MaskArithmetic,
    MissingParentheses,
    NotAMask,
    WrongHeads,
)
from maskc.reference.dense import dense
from tests.support.drawn_masks import drawn_columns, split_mix

SIZES = [(0, 0), (0, 3), (3, 0), (1, 1), (9, 9), (16, 16), (3, 14), (14, 5)]

Keep = Callable[[int, int, int, int, int], bool]
"""keep(q, k, p, n_q, n_kv): whether query q at position p sees key k."""


def matrix(keep: Keep, n_q: int, n_kv: int, align: str = "end") -> np.ndarray:
    offset = n_kv - n_q if align == "end" else 0
    array = np.zeros((n_q, n_kv), dtype=bool)
    for q, k in np.ndindex(n_q, n_kv):
        array[q, k] = keep(q, k, q + offset, n_q, n_kv)
    return array


ALIGNED: list[tuple[Callable[[str], mc.Mask], Keep]] = [
    (lambda a: mc.causal(align=a), lambda q, k, p, m, n: k <= p),
    (lambda a: mc.window(3, align=a), lambda q, k, p, m, n: k in (p - 3, p - 2, p - 1, p)),
    (lambda a: mc.window(1, 2, align=a), lambda q, k, p, m, n: k in (p - 1, p, p + 1, p + 2)),
    (lambda a: mc.window(None, 1, align=a), lambda q, k, p, m, n: k < p + 2),
    (lambda a: mc.window(2, None, align=a), lambda q, k, p, m, n: k > p - 3),
    (lambda a: mc.window(None, None, align=a), lambda q, k, p, m, n: True),
    (lambda a: mc.window(0, align=a), lambda q, k, p, m, n: k == p),
    (
        lambda a: mc.dilated(2, 1, stride=3, align=a),
        lambda q, k, p, m, n: k in (p - 6, p - 3, p, p + 3),
    ),
    (lambda a: mc.dilated(2, stride=1, align=a), lambda q, k, p, m, n: k in (p - 2, p - 1, p)),
    (lambda a: mc.offsets([0, 4, -2, 4], align=a), lambda q, k, p, m, n: k in (p, p - 4, p + 2)),
    (lambda a: mc.offsets([], align=a), lambda q, k, p, m, n: False),
    (lambda a: mc.global_tokens(2, align=a), lambda q, k, p, m, n: p in (0, 1) or k in (0, 1)),
    (
        lambda a: mc.global_tokens([1, 7, 99], align=a),
        lambda q, k, p, m, n: p in (1, 7, 99) or k in (1, 7, 99),
    ),
    (lambda a: mc.global_tokens([1, 7], align=a).rows, lambda q, k, p, m, n: p in (1, 7)),
    (lambda a: mc.global_tokens(2, align=a).rows, lambda q, k, p, m, n: p in (0, 1)),
    (lambda a: mc.global_tokens([1, 7], align=a).columns, lambda q, k, p, m, n: k in (1, 7)),
    (lambda a: mc.block_diagonal(4, align=a), lambda q, k, p, m, n: p // 4 == k // 4),
    (lambda a: mc.chunked(4, align=a), lambda q, k, p, m, n: p // 4 == k // 4 and k <= p),
]

PLAIN: list[tuple[mc.Mask, Keep]] = [
    (mc.full(), lambda q, k, p, m, n: True),
    (~mc.full(), lambda q, k, p, m, n: False),
    (mc.strided(4), lambda q, k, p, m, n: k in (0, 4, 8, 12)),
    (mc.strided(4, 3), lambda q, k, p, m, n: k in (3, 7, 11, 15)),
    (mc.strided(1), lambda q, k, p, m, n: True),
    (mc.sinks(3), lambda q, k, p, m, n: k in (0, 1, 2)),
    (mc.sinks(0), lambda q, k, p, m, n: False),
    (mc.prefix(99), lambda q, k, p, m, n: True),
    (mc.prefix(mc.n_kv // 2), lambda q, k, p, m, n: k < n // 2),
    (mc.window(mc.n_q - 4), lambda q, k, p, m, n: p - (m - 4) <= k <= p),
    (mc.causal() & mc.sinks(2), lambda q, k, p, m, n: k <= p and k < 2),
    (mc.causal() | mc.prefix(2), lambda q, k, p, m, n: k <= p or k < 2),
    (mc.causal() - mc.sinks(2), lambda q, k, p, m, n: k <= p and k >= 2),
    (mc.causal() ^ mc.sinks(2), lambda q, k, p, m, n: (k <= p) != (k < 2)),
    (~mc.causal(), lambda q, k, p, m, n: k > p),
    (mc.where(lambda q, k: q - k < 2), lambda q, k, p, m, n: q - k < 2),
    (mc.where(lambda q, k: q + mc.n_kv - mc.n_q >= k), lambda q, k, p, m, n: k <= p),
]


@pytest.mark.parametrize("align", ["end", "start"])
@pytest.mark.parametrize(("build", "keep"), ALIGNED, ids=[str(b("end")) for b, _ in ALIGNED])
def test_aligned(build: Callable[[str], mc.Mask], keep: Keep, align: str) -> None:
    for n_q, n_kv in SIZES:
        assert np.array_equal(dense(build(align), n_q, n_kv), matrix(keep, n_q, n_kv, align))


@pytest.mark.parametrize(("mask", "keep"), PLAIN, ids=[str(m) for m, _ in PLAIN])
def test_plain(mask: mc.Mask, keep: Keep) -> None:
    for n_q, n_kv in SIZES:
        assert np.array_equal(dense(mask, n_q, n_kv), matrix(keep, n_q, n_kv))


CONVENTIONS = {
    "hf": (mc.window.hf(4), 4, 0),
    "hf_one": (mc.window.hf(1), 1, 0),
    "hf_bidirectional": (mc.window.hf_bidirectional(4), 5, 4),
    "longformer": (mc.window.longformer(8), 5, 4),
    "longformer_odd": (mc.window.longformer(7), 4, 3),
    "jax": (mc.window.jax(3, 2), 4, 2),
    "jax_open": (mc.window.jax(3, None), 4, 99),
    "flash": (mc.window.flash(3, 2), 4, 2),
    "flash_open": (mc.window.flash(-1, 0), 99, 0),
    "gym": (mc.window.gym(4), 5, 0),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_window_conventions(name: str) -> None:
    """Keys up to the query, itself counted, and keys after it."""
    mask, until, after = CONVENTIONS[name]
    seen = np.flatnonzero(dense(mask, 41)[20])
    assert (seen <= 20).sum() == min(until, 21)
    assert (seen > 20).sum() == min(after, 20)


def test_conventions_take_parameters() -> None:
    mask = mc.causal() & mc.window.hf(mc.param("w", 3))
    assert dense(mask, 9)[8].sum() == 3
    assert dense(mask, 9, w=5)[8].sum() == 5
    assert dense(mc.window.longformer(mc.param("w", 6)), 9, w=2)[4].sum() == 3


def test_random_blocks_draw_the_least_hashes_also_before_the_first_key() -> None:
    assert split_mix(0) == 0xE220A8397B1DCDAF  # the first output of SplitMix64 from state 0
    mask = mc.random_blocks(3, 2, 5)
    for n_q, n_kv in [(20, 20), (4, 17), (17, 4), (2, 5)]:
        dense_mask = dense(mask, n_q, n_kv)
        for q in range(n_q):
            row = drawn_columns(5, (q + n_kv - n_q) // 3, -(-n_kv // 3), 2)
            assert [k // 3 in row for k in range(n_kv)] == dense_mask[q].tolist()
    assert dense(mc.random_blocks(4, 99, 0), 9).all()
    assert not dense(mc.random_blocks(4, 0, 0), 9).any()


# ------------------------------------------------------------------ data


def test_documents_by_ids_by_lengths_and_by_pairs() -> None:
    ids = np.array([3, 3, 1, 3, -1, -1])
    assert np.array_equal(dense(mc.documents("doc"), 6, doc=ids), ids[:, None] == ids)
    ends = mc.cu_seqlens([0, 2, 2, 6])
    lengths = np.array([0, 0, 2, 2, 2, 2])
    assert np.array_equal(dense(mc.documents("doc"), 6, doc=ends), lengths[:, None] == lengths)
    pair = np.array([1, 2]), np.array([2, 2, 1])
    dense_mask = dense(mc.documents("doc"), 2, 3, doc=pair)
    assert np.array_equal(dense_mask, [[False, False, True], [True, True, False]])
    mixed = mc.cu_seqlens([0, 1, 2]), mc.cu_seqlens([0, 2, 3])
    dense_mask = dense(mc.documents("doc"), 2, 3, doc=mixed)
    assert np.array_equal(dense_mask, [[True, True, False], [False, False, True]])


def test_flags_intervals_and_tables() -> None:
    flag = np.array([1, 0, 1, 1], dtype=bool)
    assert np.array_equal(dense(mc.flags("seen"), 2, 4, seen=flag), [flag, flag])
    assert np.array_equal(dense(mc.flags("f", on="q"), 4, 2, f=flag), np.array([flag, flag]).T)
    low, high = np.array([0, -3, 2, 4]), np.array([2, 9, 2, 1])
    dense_mask = dense(mc.intervals("span"), 4, 5, span=(low, high))
    assert [np.flatnonzero(row).tolist() for row in dense_mask] == [[0, 1], [0, 1, 2, 3, 4], [], []]
    table = np.array([[1, 0], [0, 1]])
    expected = np.kron(table, np.ones((3, 3)))[:5, :4] > 0
    assert np.array_equal(dense(mc.block_table("t", 3), 5, 4, t=table), expected)
    assert np.array_equal(dense(mc.block_table(table, 3), 5, 4), expected)


def test_lists_of_keys() -> None:
    lists = np.array([[2, -1, 2], [-1, -1, -1], [0, 3, 1]])
    dense_mask = dense(mc.key_lists("keys"), 3, 4, keys=lists)
    assert [np.flatnonzero(row).tolist() for row in dense_mask] == [[2], [], [0, 1, 3]]
    several = np.stack([lists, lists[::-1]])
    assert np.array_equal(
        dense(mc.key_lists("keys"), 3, 4, keys=several), [dense_mask, dense_mask[::-1]]
    )
    with pytest.raises(DataRange):
        dense(mc.key_lists("keys"), 3, 3, keys=lists)


def test_a_tree_sees_ancestors_whichever_way_it_is_given() -> None:
    parent = np.array([2, -1, 1, 2, 1, -1])
    above = [{0, 2, 1}, {1}, {2, 1}, {3, 2, 1}, {4, 1}, {5}]
    tin, tout = np.array([2, 0, 1, 3, 4, 5]), np.array([3, 5, 4, 4, 5, 6])
    for given in (mc.parents(parent), (tin, tout)):
        dense_mask = dense(mc.tree("walk"), 6, walk=given)
        assert [set(np.flatnonzero(row)) for row in dense_mask] == above
    with pytest.raises(DataRange):
        dense(mc.tree("walk"), 2, walk=mc.parents([1, 0]))


def test_a_leading_batch_dimension_of_data_leads_the_result() -> None:
    ids = np.array([[0, 0, 1], [0, 1, 1]])
    mask = mc.causal() & mc.documents("doc")
    dense_mask = dense(mask, 3, doc=ids)
    assert dense_mask.shape == (2, 3, 3)
    for b in range(2):
        assert np.array_equal(dense_mask[b], dense(mask, 3, doc=ids[b]))
    table = np.zeros((2, 3, 1, 1), dtype=bool)
    table[1, 2] = True
    both = mc.documents("doc") & mc.block_table("t", 4)
    dense_mask = dense(both, 3, doc=ids, t=table)
    assert dense_mask.shape == (2, 3, 3, 3)
    assert np.array_equal(dense_mask[1, 2], dense(mc.documents("doc"), 3, doc=ids[1]))
    assert not dense_mask[0].any()
    shared = dense(both, 3, doc=ids, t=table[:, :1])
    assert shared.shape == (2, 3, 3)


def test_data_of_other_libraries() -> None:
    torch = pytest.importorskip("torch")
    ids = torch.tensor([0, 0, 1], dtype=torch.int32)
    assert np.array_equal(dense(mc.documents("doc"), 3, doc=ids), (ids[:, None] == ids).numpy())
    ends = mc.cu_seqlens(torch.tensor([0, 2, 3]))
    assert np.array_equal(dense(mc.documents("doc"), 3, doc=ends), (ids[:, None] == ids).numpy())
    span = [torch.tensor([0, 1]), [1, 2]]
    assert np.array_equal(dense(mc.intervals("span"), 2, span=span), np.eye(2))
    walk = mc.parents(torch.tensor([-1, 0]))
    assert np.array_equal(dense(mc.tree("walk"), 2, walk=walk), [[True, False], [True, True]])


# ------------------------------------------------------------------ heads


def test_heads() -> None:
    assert mc.heads([0, 2]) == mc.heads(range(0, 3, 2)) == mc.heads(0, 2)
    mask = (mc.heads(1) & mc.causal()) | (mc.heads(0, 2) & mc.sinks(1))
    dense_mask = dense(mask, 4, n_heads=4)
    causal, sink = dense(mc.causal(), 4), dense(mc.sinks(1), 4)
    assert np.array_equal(dense_mask, [sink, causal, sink, np.zeros((4, 4))])


def test_per_head() -> None:
    dense_mask = dense(mc.per_head([mc.causal(), mc.full()]) - mc.sinks(1), 3, n_heads=2)
    sink = dense(mc.sinks(1), 3)
    assert np.array_equal(dense_mask, [dense(mc.causal(), 3) & ~sink, ~sink])
    assert dense(mc.per_head([mc.causal(), mc.causal()]), 3).shape == (3, 3)


def test_formulas_of_the_head() -> None:
    dense_mask = dense(mc.where(lambda h, q, k: (q + k) % 3 == h), 3, n_heads=2)
    total = np.add.outer(np.arange(3), np.arange(3)) % 3
    assert np.array_equal(dense_mask, [total == 0, total == 1])


def test_tables_by_head() -> None:
    table = np.array([[[True, False]], [[False, True]]])
    expected = [[[True, True, False]] * 2, [[False, False, True]] * 2]
    assert np.array_equal(dense(mc.block_table("t", 2), 2, 3, t=table), expected)
    assert np.array_equal(dense(mc.block_table(table, 2), 2, 3), expected)


# ------------------------------------------------------------------ what people type


def test_masks_are_joined_by_the_operators_of_sets() -> None:
    with pytest.raises(MaskArithmetic, match=r"masks have no \+(.|\n)*\| keeps the pairs"):
        mc.causal() + mc.window(3)
    with pytest.raises(MaskArithmetic, match=r"masks have no \*(.|\n)*& keeps the pairs"):
        mc.causal() * mc.window(3)
    with pytest.raises(MaskArithmetic):
        sum([mc.causal(), mc.window(3)])
    with pytest.raises(NotAMask, match="from_bool"):
        mc.causal() + np.ones((3, 3), bool)
    with pytest.raises(NotAMask):
        np.ones((3, 3), bool) * mc.causal()


@pytest.mark.parametrize(
    "function",
    [
        lambda q, k: q >= k & q - k < 3,
        lambda q, k: q >= k | k < 3,
        lambda q, k: q == k ^ q - 1 == k,
    ],
)
def test_comparisons_need_parentheses(function: Any) -> None:
    with pytest.raises(MissingParentheses, match="put each comparison in parentheses"):
        mc.where(function)


def test_a_row_of_one_is_every_head_s() -> None:
    row, one, table = np.array([[1, 0, 1, 0]]), np.array([2]), np.tri(4, dtype=int)[None, None]
    mods = (
        (lambda b, h, q, k: row[h, q] == row[h, k], row[0][:, None] == row[0]),
        (lambda b, h, q, k: q - k < one[h], np.arange(4)[:, None] - np.arange(4) < 2),
        (lambda b, h, q, k: table[b, h, q, k] > 0, np.tri(4, dtype=bool)),
    )
    x = np.zeros((1, 3, 4, 16), np.float32)
    v = np.broadcast_to(np.eye(4, 16, dtype=np.float32), x.shape)
    for mod, live in mods:
        mask = mc.from_mask_mod(mod)
        assert np.array_equal(mask.dense(4), live)
        assert mask.count(4, n_heads=3) == live.sum()
        out = mc.attention(x, x, v, mask)
        assert np.array_equal(out[..., :4] > 0, np.broadcast_to(live, (1, 3, 4, 4)))


def test_masks_per_head_are_for_so_many_heads() -> None:
    """Also where they are equal: three masks do not serve two heads."""
    mask, x = mc.per_head([mc.causal()] * 3), np.zeros((1, 2, 4, 16), np.float32)
    with pytest.raises(WrongHeads, match="for 3 query heads"):
        mc.attention(x, x, x, mask)
    with pytest.raises(BadShape, match="expected 3 heads"):
        mask.compile(16, dtype="float32", target="cpu")(x, x, x)
    x = np.zeros((1, 3, 4, 16), np.float32)
    assert mc.attention(x, x, x, mask).shape == x.shape
    assert mc.causal().compile(16, n_heads=2, dtype="float32", target="cpu")(x, x, x).shape


BOOLEANS: dict[str, Callable[[Any], object]] = {
    "ids": lambda true: mc.global_tokens([true]),
    "a count": lambda true: mc.window(true),
    "a constant": lambda true: mc.strided(true),
    "a head": lambda true: mc.heads(true),
    "a default": lambda true: mc.param("w", true),
    "a parameter": lambda true: mc.window(mc.param("w", 2)).count(4, w=true),
    "a length": lambda true: mc.causal().count(true),
    "a head of a layout": lambda true: mc.per_head([mc.full()] * 2).layout(4, head=true),
    "a head dimension": lambda true: mc.causal().compile(true),
    "max_seqlen": lambda true: mc.documents("doc").count(
        4, doc=mc.cu_seqlens([0, 4], max_seqlen=true)
    ),
}


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("library", ["Python", "numpy", "torch", "jax"])
def test_booleans_are_no_integers(name: str, library: str) -> None:
    """Flags in place of ids would otherwise be the ids 0 and 1."""
    true: Any = True
    if library != "Python":
        module = pytest.importorskip("jax.numpy" if library == "jax" else library)
        true = module.asarray(True)
    with pytest.raises(mc.MaskcError):
        BOOLEANS[name](true)
