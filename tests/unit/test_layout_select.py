"""Run-time selection against a full sort, and what is chosen as a table of pairs."""

from __future__ import annotations

import ctypes
import math
import subprocess

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.core import expr as E
from maskc.core.bundle import LayoutRecipe
from maskc.core.problem import TileShape
from maskc.emit.c_printer import CPrinter
from maskc.layout import best, build
from maskc.layout.tiles.chosen_blocks import NONE, Chosen
from tests.support.thorough import examples

SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, -math.nan, 1e-45, -1e-45, 3e38]


@st.composite
def rows_of_scores(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    """(float32 scores, which are live, k): few values, many ties."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 150))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(["normal", "few", "special", "constant", "rising", "falling"]))
    shape = (rows, columns)
    scores = {
        "normal": rng.standard_normal(shape),
        "few": rng.integers(-2, 3, shape),
        "special": rng.choice(SPECIAL, shape),
        "constant": np.full(shape, rng.choice(SPECIAL)),
        "rising": np.sort(rng.standard_normal(shape), axis=1),
        "falling": -np.sort(rng.standard_normal(shape), axis=1),
    }[kind].astype(np.float32)
    live = rng.random(shape) < draw(st.sampled_from([0.0, 0.03, 0.5, 1.0]))
    k = draw(st.sampled_from([0, 1, 2, 7, columns - 1, columns, columns + 3]))
    return scores, live, k


def by_sorting(scores: np.ndarray, live: np.ndarray, k: int) -> list[int]:
    """The columns of one row, by comparing them one with another."""

    def rank(column: int) -> tuple[bool, float, int]:
        score = float(scores[column])
        return math.isnan(score), 0.0 if math.isnan(score) else -score, column

    return sorted(sorted(np.flatnonzero(live).tolist(), key=rank)[:k])


@pytest.fixture(scope="module")
def kernel() -> object:
    """A function that ranks in C."""
    attn = mc.topk(1, mc.full()).compile(16, dtype="float32", target="cpu")
    rng = np.random.default_rng(0)
    attn(*(rng.standard_normal((1, 1, 3, 16), dtype=np.float32) for _ in range(3)))
    (made,) = attn._planner.whole.kernels._made.values()
    return made


@settings(max_examples=examples(300))
@given(rows_of_scores())
def test_the_best_are_those_of_a_full_sort(kernel, case):
    scores, live, k = case
    width = min(k, scores.shape[1])
    for ranked in (best(scores, live, k), kernel.best(scores, live, k)):
        assert ranked.shape == (len(scores), width)
        assert ranked.dtype == np.int32
        for row, own, alive in zip(ranked, scores, live, strict=True):
            wanted = by_sorting(own, alive, k)
            assert row.tolist() == wanted + [NONE] * (width - len(wanted))


def test_many_columns_and_many_kept(kernel):
    rng = np.random.default_rng(3)
    scores = rng.integers(-500, 500, (6, 5000)).astype(np.float32)
    live = rng.random(scores.shape) < 0.8
    for k in (1, 64, 1000, 4999):
        found = kernel.best(scores, live, k)
        for row, own, alive in zip(found, scores, live, strict=True):
            wanted = by_sorting(own, alive, k)
            assert row[: len(wanted)].tolist() == wanted
            assert (row[len(wanted) :] == NONE).all()


# ------------------------------------------------------------------ as a table


@st.composite
def chosen_blocks(draw: st.DrawFn) -> tuple[Chosen, np.ndarray]:
    """(lists of blocks, bool [n_q, n_kv] the pairs in them)."""
    n_q, n_kv = draw(st.integers(1, 200)), draw(st.integers(1, 200))
    block, q_block = (draw(st.sampled_from([1, 3, 16, 64, 80, 300])) for _ in range(2))
    rows, columns = -(-n_q // q_block), -(-n_kv // block)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    share = draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
    lists = np.full((rows, columns + draw(st.integers(0, 2))), NONE)
    pairs = np.zeros((n_q, n_kv), bool)
    for row in range(rows):
        taken = np.flatnonzero(rng.random(columns) < share)
        lists[row, : len(taken)] = taken
        for column in taken:
            tall, wide = (
                slice(row * q_block, (row + 1) * q_block),
                slice(column * block, (column + 1) * block),
            )
            pairs[tall, wide] = True
    return Chosen(lists, columns, block, q_block), pairs


@settings(max_examples=examples(200))
@given(chosen_blocks())
def test_lists_read_like_a_table(case):
    table, pairs = case
    q, k = (np.arange(n) // size for n, size in zip(pairs.shape, sides(table), strict=True))
    assert (table[q[:, None], k[None, :]] == pairs).all()


def sides(table: Chosen) -> tuple[int, int]:
    return table.q_block, table.block


@settings(max_examples=examples(200))
@given(chosen_blocks(), st.integers(0, 2**32))
def test_bounds_hold_and_are_exact_on_cells(case, seed):
    table, _ = case
    every = table[np.arange(table.shape[0])[:, None], np.arange(table.shape[1])[None, :]]
    rng = np.random.default_rng(seed)
    for aligned in (False, True):
        ends = [np.sort(rng.integers(0, n, 2)) for n in every.shape]
        if aligned:
            cells = [max(1, 64 // side) for side in sides(table)]
            ends = [
                (low // cell * cell, min(high // cell * cell + cell - 1, n - 1))
                for (low, high), cell, n in zip(ends, cells, every.shape, strict=True)
            ]
        box = every[ends[0][0] : ends[0][1] + 1, ends[1][0] : ends[1][1] + 1]
        low, high = table.bounds([(np.int64(a), np.int64(b)) for a, b in ends])
        assert low <= box.min()
        assert box.max() <= high
        if aligned:
            assert (low, high) == (box.min(), box.max())


@settings(max_examples=examples(60))
@given(chosen_blocks())
def test_layouts_of_chosen_pairs(case):
    table, pairs = case
    q_side, k_side = 64, 64
    index = E.floordiv(E.Q, table.q_block), E.floordiv(E.K, table.block)
    keep = E.ne(E.Load("chosen", index), E.ZERO)
    recipe = LayoutRecipe(TileShape(q_side, k_side), keep, None)
    for exact in (True, False):
        tiles = build(recipe, *pairs.shape, {}, {"chosen": table}, exact).to_dense()
        certain = exact or all(64 % side == 0 for side in sides(table))
        for row, column in np.ndindex(tiles.shape):
            tile = pairs[row * q_side :, column * k_side :][:q_side, :k_side]
            right = 2 if tile.all() else int(tile.any())
            assert tiles[row, column] == right or (not certain and tiles[row, column] == 1)


@settings(max_examples=examples(100))
@given(chosen_blocks())
def test_bits_say_the_same(case):
    table, _ = case
    rows, columns = table.shape
    column = np.arange(columns)
    words = table.bits().view(np.uint32)
    assert words.shape == (rows, -(-columns // 32))
    every = table[np.arange(rows)[:, None], column[None, :]]
    assert ((words[:, column // 32] >> (column % 32).astype(np.uint32) & 1) == every).all()
    assert sum(int(word).bit_count() for word in words.ravel()) == every.sum()


def test_kernels_of_gpus_read_the_bits(tmp_path):
    """The text of the predicate, compiled here."""
    keep = E.ne(E.Load("chosen", (E.floordiv(E.Q, 5), E.floordiv(E.K, 16))), E.ZERO)
    text = CPrinter(("chosen",), frozenset(("chosen",)))(keep)
    source = tmp_path / "keep.c"
    source.write_text(
        "int keep(const int *a0, int row0, int q, int k)\n"
        "{ struct { const int *a0; int row0; } m = {a0, row0}; return " + text + "; }\n"
    )
    library = tmp_path / "keep.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    test = ctypes.CDLL(str(library)).keep
    rng = np.random.default_rng(0)
    n_q, n_kv = 23, 16 * 70
    lists = np.full((5, 71), NONE)
    for row in lists:
        taken = np.flatnonzero(rng.random(70) < 0.4)
        row[: len(taken)] = taken
    table = Chosen(lists, 70, 16, 5)
    bits = table.bits()
    for q, k in rng.integers(0, (n_q, n_kv), (2000, 2)).tolist():
        found = test(ctypes.c_void_p(bits.ctypes.data), bits.shape[1], q, k)
        assert found == int(table[np.array(q // 5), np.array(k // 16)])


@pytest.mark.parametrize(
    "mask",
    [
        mc.per_head([mc.topk(3, of=mc.causal(), score="given"), mc.causal()]),
        mc.full() | mc.topk(3, of=mc.causal(), score="given"),
    ],
)
def test_questions_about_heads_that_choose_nothing(mask: mc.Mask):
    scores = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
    dense_mask = mask.dense(40, n_heads=2, scores=scores)
    dense = np.broadcast_to(dense_mask, (2, 40, 40))
    assert mask.count(40, n_heads=2, scores=scores) == dense_mask.sum()
    for head in range(2):
        live = mask.layout(40, block=(8, 8), head=head, scores=scores).to_dense() > 0
        assert np.array_equal(live, dense[head].reshape(5, 8, 5, 8).any(axis=(1, 3)))
    with pytest.raises(mc.MaskcError, match="or parameter named 'scores'"):
        mc.causal().count(40, scores=scores)


def test_no_heads_choose_nothing():
    attn = mc.topk(3, of=mc.causal()).compile(16, dtype="float32", target="cpu")
    nothing = np.zeros((2, 0, 70, 16), np.float32)
    assert attn(nothing, nothing, nothing).shape == nothing.shape
