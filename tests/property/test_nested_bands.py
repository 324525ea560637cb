"""Unions of bands inside residue classes: pieces by arithmetic against brute force, and isl's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskc as mc
from maskc import driver
from maskc.core.evaluator import evaluate
from maskc.ir import decompose as decomposing
from maskc.ir import nested as nesting
from maskc.ir.lower import lower
from maskc.ir.nested import nested
from maskc.ir.types import Band, Lattice, PieceKind
from tests.support.thorough import examples

PATTERNS = Path(__file__).parents[2] / "patterns"
DILATION = mc.load(PATTERNS / "exponential_dilation.py")["exponential_dilation"]

STRIDES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 5]


@st.composite
def terms(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """(low, high, stride, rest) of distances."""
    stride = draw(st.sampled_from(STRIDES))
    low = draw(st.integers(-12, 20))
    return low, low + draw(st.integers(0, 40)), stride, draw(st.integers(0, stride - 1))


def mask_of(term: tuple[int, int, int, int], align: str) -> mc.Mask:
    low, high, stride, rest = term
    by = mc.n_kv - mc.n_q if align == "end" else 0
    return mc.where(
        lambda q, k: (q + by - k >= low) & (q + by - k <= high) & ((q + by - k) % stride == rest)
    )


def pairs(keep, n_q: int, n_kv: int, **more: object) -> np.ndarray:
    env = {"q": np.arange(n_q)[:, None], "k": np.arange(n_kv)[None], "n_q": n_q, "n_kv": n_kv}
    return np.broadcast_to(evaluate(keep, {**env, **more}), (n_q, n_kv))


def keys_of(band: Band, n_q: int, n_kv: int) -> np.ndarray:
    q, k = np.arange(n_q)[:, None], np.arange(n_kv)[None]
    env = {"q": q, "n_q": n_q, "n_kv": n_kv}
    live = np.zeros((n_q, n_kv), int)
    for span in band.spans:
        inside = (evaluate(span.first, env) <= k) & (k <= evaluate(span.last, env))
        live = live + (evaluate(span.rows, env) & inside)
    return live


def keys_of_lattice(of: Lattice, n_q: int, n_kv: int) -> np.ndarray:
    """Count how often each pair comes from coordinates."""
    reach = np.arange(-n_q - n_kv - 2, n_q + n_kv + 2)
    t_q, t_k = reach[:, None], reach[None]
    live = np.zeros((n_q, n_kv), int)
    for c in range(of.stride):
        env = {"c": c, "j": 0, "t_q": t_q, "t_k": t_k, "n_q": n_q, "n_kv": n_kv}
        q, k = (np.broadcast_to(evaluate(f, env), (len(reach),) * 2) for f in (of.queries, of.keys))
        inside = (q >= 0) & (q < n_q) & (k >= 0) & (k < n_kv) & evaluate(of.band, env)
        np.add.at(live, (q[inside], k[inside]), 1)
    return live


@pytest.fixture(scope="module", autouse=True)
def from_two_terms_on():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nesting, "MANY", 0)
        yield


@settings(max_examples=examples(250))
@given(st.lists(terms(), min_size=2, max_size=7), st.sampled_from(["start", "end"]),
       st.integers(1, 40), st.integers(1, 40))  # fmt: skip
def test_pieces_add_up_to_the_mask(drawn, align, n_q, n_kv):
    mask = mask_of(drawn[0], align)
    for term in drawn[1:]:
        mask = mask | mask_of(term, align)
    keep = lower(mask, 0, None).keep
    union = nested(keep)
    if union is None:
        return
    want = pairs(keep, n_q, n_kv)
    assert (pairs(union.simplified(), n_q, n_kv) == want).all()
    total = np.zeros((n_q, n_kv), int)
    for piece in union.pieces():
        live = pairs(piece.keep, n_q, n_kv)
        total += live
        told = keys_of if piece.kind is PieceKind.band else keys_of_lattice
        assert (told(piece.detail, n_q, n_kv) == live).all(), piece
    assert (total == want).all()


def found_anew(ir):
    """The pieces of a mask, which no earlier question left."""
    decomposing.pieces_of.cache_clear()
    return decomposing.pieces_of(ir)


@pytest.mark.parametrize(("window", "levels"), [(256, 3), (256, 6), (3, 5), (2, 4), (17, 7)])
def test_the_pieces_are_those_that_isl_finds(window, levels, monkeypatch):
    monkeypatch.setattr(nesting, "MANY", 6)
    ir = driver.lowered(DILATION(window=window, levels=levels), 0)
    by_isl = found_anew(ir)
    monkeypatch.setattr(nesting, "MANY", 0)
    assert nested(ir.keep) is not None
    assert found_anew(ir) == by_isl


@pytest.mark.parametrize("levels", [8, 12, 16])
def test_many_levels_are_a_piece_each_and_isl_is_not_asked(levels, monkeypatch):
    def asked(keep):
        raise AssertionError("isl was asked")

    monkeypatch.setattr(nesting, "MANY", 6)
    monkeypatch.setattr(decomposing, "_exact", asked)
    found = found_anew(driver.lowered(DILATION(levels=levels), 0))
    assert [piece.kind for piece in found] == [PieceKind.band] + [PieceKind.lattice] * (levels - 1)
    assert [piece.detail.stride for piece in found[1:]] == [2**i for i in range(1, levels)]


def test_what_is_no_such_union():
    masks = [
        mc.window(5) | mc.dilated(4, stride=3) | mc.dilated(9, stride=2),  # 2 does not divide 3
        mc.window(5) | mc.dilated(4, stride=2) | mc.sinks(3),
        mc.causal() | mc.dilated(9, stride=2),
        mc.window(5, align="start") | mc.dilated(9, stride=2),
    ]
    assert all(nested(lower(mask, 0, None).keep) is None for mask in masks)
