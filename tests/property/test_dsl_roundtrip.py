"""Text, trees and meaning agree on random masks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given, note, settings
from hypothesis import strategies as st

import maskc as mc
from maskc.core import expr as E
from maskc.core.expr_text import parse_expr, to_python
from maskc.dsl.nodes import data_of_calls, default_parameters
from maskc.reference.dense import dense
from maskc.reference.formula import condition
from maskc.testing.strategies import (
    HEADS,
    NAMESPACE,
    condition_texts,
    data_for,
    integer_texts,
    lengths,
    masks,
)
from tests.support.thorough import examples


@pytest.mark.filterwarnings("ignore::maskc.PackedSelectionWarning")
@given(masks(with_heads=True, with_topk=True))
def test_text_parses_back_to_an_equal_mask(mask: mc.Mask) -> None:
    text = str(mask)
    note(text)
    parsed = mc.parse(text)
    assert parsed == mask
    assert str(parsed) == text


@given(condition_texts(3, with_heads=True))
def test_a_traced_formula_means_what_python_says(text: str) -> None:
    n_q, n_kv, heads = 11, 13, 3
    note(text)
    mask = mc.where(eval(f"lambda h, q, k: {text}", dict(NAMESPACE)))
    h, q, k = np.ogrid[:heads, :n_q, :n_kv]
    lengths = SimpleNamespace(n_q=np.int64(n_q), n_kv=np.int64(n_kv))
    words = {"mc": lengths, "min": np.minimum, "max": np.maximum, "h": h, "q": q, "k": k}
    meant = np.broadcast_to(eval(text, dict(NAMESPACE) | words), (heads, n_q, n_kv))
    got = np.broadcast_to(dense(mask, n_q, n_kv, n_heads=heads), meant.shape)
    assert np.array_equal(got, meant)


@given(integer_texts(4), st.integers(-9, 9), st.integers(-9, 9))
def test_integer_text_reads_back_equal(text: str, low: int, other: int) -> None:
    predicate = f"lambda q, k: min({text}, {low} * q) <= max(k, {other})"
    mask = mc.where(eval(predicate, dict(NAMESPACE)))
    note(str(mask.formula))
    assert parse_expr(to_python(mask.formula)) == mask.formula


@given(condition_texts(3), st.integers(1, 6))
@example("((q < 1) | (k < 2) | (q > 5)) & ((k > 6) | (q == 3))", 5)
@example("((q < 1) | (k < 2) | (q > 5)) & ((k > 6) | (q == 3))", 6)
def test_alternatives_are_few_and_add_up(text: str, most: int) -> None:
    keep = mc.where(eval(f"lambda q, k: {text}", dict(NAMESPACE))).formula
    note(str(keep))
    found = E.alternatives(keep, most)
    if found is None:
        return
    assert len(found) <= most
    assert not any(isinstance(node, E.Any) for part in found for node in E.walk(part))
    assert E.alternatives(keep, len(found)) == found
    assert len(found) < 2 or E.alternatives(keep, len(found) - 1) is None
    assert np.array_equal(np.any([_live(part) for part in found], axis=0), _live(keep))


@given(condition_texts(3))
def test_negation_is_an_involution_and_a_complement(text: str) -> None:
    formula = mc.where(eval(f"lambda q, k: {text}", dict(NAMESPACE))).formula
    assert np.array_equal(_live(formula), ~_live(E.negate(formula)))


def _live(formula: E.Expr) -> np.ndarray:
    """Where a traced formula holds, [8, 8]."""
    q, k = np.ogrid[:8, :8]
    scope = {"q": q, "k": k, "n_q": np.int64(8), "n_kv": np.int64(8)}
    scope |= dict.fromkeys(E.arrays(formula), NAMESPACE["VECTOR"])
    scope |= dict.fromkeys(_grids(formula), NAMESPACE["BITS"] * 1)
    return np.broadcast_to(condition(formula, scope), (8, 8))


def _grids(formula: E.Expr) -> set[str]:
    return {n.array for n in E.walk(formula) if isinstance(n, E.Load) and len(n.index) == 2}


_MASKS = masks(max_depth=2, with_heads=True)


@given(_MASKS, _MASKS, lengths(12), st.data())
@settings(max_examples=examples(60))
def test_the_algebra_is_set_algebra(
    left: mc.Mask, right: mc.Mask, sizes: tuple[int, int], data: st.DataObject
) -> None:
    n_q, n_kv = sizes
    given_data = data.draw(data_for(left | right, n_q, n_kv))

    def matrix(mask: mc.Mask) -> np.ndarray:
        needed = {n: v for n, v in given_data.items() if n in _names(mask)}
        dense_mask = dense(mask, n_q, n_kv, n_heads=HEADS, **needed)
        return np.broadcast_to(dense_mask, (HEADS, n_q, n_kv))

    a, b = matrix(left), matrix(right)
    assert np.array_equal(matrix(left & right), a & b)
    assert np.array_equal(matrix(left | right), a | b)
    assert np.array_equal(matrix(left - right), a & ~b)
    assert np.array_equal(matrix(left ^ right), a ^ b)
    assert np.array_equal(matrix(~left), ~a)


def _names(mask: mc.Mask) -> set[str]:
    return {decl.name for decl in data_of_calls(mask)} | set(default_parameters(mask))
