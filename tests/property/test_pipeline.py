"""Every stage says the same set: pattern, formula, lifted shape, pieces, tile classes, ranges."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.captured import Held
from maskc.core.errors import OneOfSeveral, Undecided
from maskc.core.evaluator import evaluate
from maskc.core.expr_text import parse_expr, to_python
from maskc.core.gathering import Span
from maskc.core.problem import TileShape
from maskc.dsl.slots import emptied, emptied_together
from maskc.ir.decompose import decompose
from maskc.ir.lift import lift
from maskc.ir.lower import lower
from maskc.ir.names import declared_names
from maskc.ir.set_comparison import equals, fingerprint, subset
from maskc.ir.types import MaskIR
from maskc.layout import bind_arrays, build, held_arrays, split_call_data
from maskc.plan.ranges import RowRange, row_ranges
from maskc.plan.recipe import layout_recipe
from maskc.reference.dense import dense as reference
from maskc.testing.strategies import HEADS, data_for, lengths, masks, tiles
from tests.support.thorough import examples

SLOW = settings(max_examples=examples(80))


def bound(
    ir: MaskIR, n_q: int, n_kv: int, data: dict[str, object], held: Held | None = None
) -> dict[str, object]:
    """Everything a formula reads but q and k; `held`: what the mask captured."""
    params, arrays = split_call_data(ir.data, tuple(ir.params.items()), data, ir.declared)
    own = {} if held is None else held_arrays(held.of_call(1, HEADS, n_q, n_kv), params, n_q, n_kv)
    return {"n_q": n_q, "n_kv": n_kv, **params, **bind_arrays(ir.data, arrays, n_q, n_kv), **own}


def grid(keep: E.Expr, env: dict[str, object]) -> np.ndarray:
    """The formula on every pair."""
    n_q, n_kv = env["n_q"], env["n_kv"]
    q, k = np.arange(n_q)[:, None], np.arange(n_kv)[None, :]
    return np.broadcast_to(evaluate(keep, {**env, "q": q, "k": k}), (n_q, n_kv))


def classes(dense: np.ndarray, tile: TileShape) -> np.ndarray:
    """0 empty, 1 partial, 2 full, by looking at every pair."""
    rows, columns = -(-dense.shape[0] // tile.q), -(-dense.shape[1] // tile.k)
    array = np.zeros((rows, columns), dtype=np.uint8)
    for i in range(rows):
        for j in range(columns):
            block = dense[i * tile.q : (i + 1) * tile.q, j * tile.k : (j + 1) * tile.k]
            array[i, j] = 2 if block.all() else int(block.any())
    return array


@SLOW
@given(st.data(), masks(with_heads=True), lengths(24))
def test_formula_is_the_mask(data, mask, sizes):
    n_q, n_kv = sizes
    given_data = data.draw(data_for(mask, n_q, n_kv))
    expected = reference(mask, n_q, n_kv, n_heads=HEADS, **given_data)
    expected = np.broadcast_to(expected, (HEADS, n_q, n_kv))
    inner, held = emptied(mask)
    for head in range(HEADS):
        plain, simple = lower(inner, head, HEADS), driver.lowered(mask, head, HEADS)
        for ir in (plain, simple):
            env = bound(ir, n_q, n_kv, given_data, held)
            assert (grid(ir.keep, env) == expected[head]).all(), to_python(ir.keep)


@SLOW
@given(masks(with_data=True))
def test_formula_text_reads_back(mask):
    keep = driver.lowered(mask).keep
    assert parse_expr(to_python(keep)) == keep


@SLOW
@given(st.data(), masks(), lengths(24))
def test_lifted_shape_and_pieces_are_the_mask(data, mask, sizes):
    n_q, n_kv = sizes
    ir = driver.lowered(mask)
    env = bound(ir, n_q, n_kv, data.draw(data_for(mask, n_q, n_kv)), emptied(mask)[1])
    expected = grid(ir.keep, env)
    lifted = lift(ir.keep)
    args = {f"c{i}": evaluate(arg, env) for i, arg in enumerate(lifted.args)}
    reads = E.symbols(lifted.shape) - {"q", "k"}
    assert reads <= set(args), "a predicate reads q, k and its arguments only"
    assert not E.params(lifted.shape)
    assert (grid(lifted.shape, {**env, **args}) == expected).all()
    pieces = [grid(piece.keep, env) for piece in decompose(ir).pieces]
    total = sum((p.astype(int) for p in pieces), np.zeros_like(expected, dtype=int))
    assert (total == expected).all(), "pieces are disjoint and complete"


@SLOW
@given(st.data(), masks(), lengths(40), tiles())
def test_layout_is_exact(data, mask, sizes, shape):
    n_q, n_kv = sizes
    tile = TileShape(*shape)
    given_data = data.draw(data_for(mask, n_q, n_kv))
    ir = driver.lowered(mask)
    env = bound(ir, n_q, n_kv, given_data, emptied(mask)[1])
    expected = classes(grid(ir.keep, env), tile)
    layout = mask.layout(n_q, n_kv, block=shape, **given_data)
    assert (layout.to_dense() == expected).all()
    by_numbers = replace(layout_recipe(ir.keep, tile), loops=None)
    assert (build(by_numbers, n_q, n_kv, env, env).to_dense() == expected).all()


def _tiles_of(span: Span, env: dict[str, object]) -> set[int]:
    if not evaluate(span.guard, env):
        return set()
    return set(range(int(evaluate(span.first, env)), int(evaluate(span.last, env))))


@SLOW
@given(masks(with_data=False), lengths(30).filter(min), tiles())
def test_closed_form_ranges(mask, sizes, shape):
    """Live ranges are exact by row and by column; full ranges hold only full tiles."""
    n_q, n_kv = sizes
    tile = TileShape(*shape)
    ir = driver.lowered(mask)
    lifted = lift(ir.keep)
    found = row_ranges(lifted.shape, tile)
    assume(found is not None)
    env: dict[str, object] = bound(ir, n_q, n_kv, {}, emptied(mask)[1])
    env |= {f"c{i}": int(evaluate(arg, env)) for i, arg in enumerate(lifted.args)}
    expected = classes(grid(ir.keep, env), tile)
    for name, by, dense in (("ti", found[0], expected), ("tj", found[1], expected.T)):
        assert isinstance(by, RowRange)
        for line, kinds in enumerate(dense):
            here = {**env, name: line}
            assert _tiles_of(by.live, here) == set(np.flatnonzero(kinds))
            full = _tiles_of(by.full, here) & _tiles_of(by.live, here)
            assert full <= set(np.flatnonzero(kinds == 2))


@SLOW
@given(masks(with_data=False), lengths(40))
def test_count_is_exact(mask, sizes):
    ir = driver.lowered(mask)
    env = bound(ir, *sizes, {}, emptied(mask)[1])
    assert mask.count(*sizes) == int(grid(ir.keep, env).sum())


@SLOW
@given(st.data(), masks(max_depth=2), masks(max_depth=2), lengths(20))
def test_equality_and_inclusion_are_never_wrong(data, left, right, sizes):
    n_q, n_kv = sizes
    both = left & right
    given_data = data.draw(data_for(left | right, n_q, n_kv))
    assert both.subset_of(left) in (True, None)
    inner, held = emptied_together(left, right)
    irs = tuple(map(driver.lowered, inner))
    own = [{n: x for n, x in given_data.items() if n in ir.declared} for ir in irs]
    dense = [
        grid(ir.keep, bound(ir, n_q, n_kv, data_of, held))
        for ir, data_of in zip(irs, own, strict=True)
    ]
    if equals(irs[0].keep, irs[1].keep):
        assert (dense[0] == dense[1]).all()
        assert fingerprint(irs[0].keep) == fingerprint(irs[1].keep)
    elif (dense[0] != dense[1]).any():
        assert not equals(irs[0].keep, irs[1].keep)
    if subset(irs[0].keep, irs[1].keep):
        assert (dense[0] <= dense[1]).all()


def test_equal_masks_however_written():
    pairs = [
        (mc.causal() | mc.prefix(8), mc.where(lambda q, k: (k - mc.n_kv <= q - mc.n_q) | (k < 8))),
        (mc.window(255, align="start"), mc.where(lambda q, k: (q - k >= 0) & (q - k < 256))),
        (mc.window(7), mc.causal() - ~mc.window(7, None)),
        (mc.causal() & mc.window(9) & mc.window(5), mc.window(5)),
        (~(mc.sinks(4) | mc.strided(3)), ~mc.sinks(4) & ~mc.strided(3)),
        (mc.chunked(16), mc.block_diagonal(16) & mc.causal()),
        (mc.strided(4, 1), mc.where(lambda q, k: (k - 1) % 4 == 0)),
        (mc.dilated(3, stride=4), mc.window(12) & mc.where(
            lambda q, k: (k - q - mc.n_kv + mc.n_q) % 4 == 0)),
    ]  # fmt: skip
    for left, right in pairs:
        assert left.equals(right) is True
        assert driver.lowered(left).keep == driver.lowered(right).keep
    assert mc.causal().equals(mc.window(None, 0)) is True
    assert mc.causal().equals(mc.causal(align="start")) is False
    assert mc.window(5).subset_of(mc.causal()) is True
    assert mc.causal().subset_of(mc.window(5)) is False
    assert mc.documents("one").equals(mc.documents("two")) is False


# ------------------------------------------------------------------ answers


FEWER = settings(max_examples=examples(30))
QUICK = settings(FEWER, max_examples=examples(20))


def own(mask: mc.Mask, data: dict[str, object]) -> dict[str, object]:
    return {name: x for name, x in data.items() if name in declared_names(mask)}


@FEWER
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


@FEWER
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
