"""Which keys a row sees, from the oracle and from the formula, and the same for FlexAttention."""

from __future__ import annotations

import numpy as np
import pytest

import maskc as mc
from maskc.core.dtypes import DType
from maskc.core.errors import CheckFailed
from maskc.lab import case_pairs as module
from maskc.lab.case_pairs import CasePairs
from maskc.verify.case import Case
from maskc.verify.samples import sample_data

N, HEADS = 40, 2
TABLE = np.random.default_rng(1).random((HEADS, 5, 5)) < 0.5
IDS = np.repeat([0, 1, 2], [10, 25, 5])

MASKS = {
    "window": (mc.window(5, 2), {}),
    "streaming": (mc.causal() & (mc.sinks(3) | mc.window(4)), {}),
    "parameter": (mc.window(mc.param("w", 3)), {"w": 9}),
    "clamped": (mc.where(lambda q, k: abs(min(q, 20) - k) % 7 < max(k // 5, 2)), {}),
    "ids": (mc.global_tokens([1, 2, 7, 30]) | mc.window(1), {}),
    "not ids": (~mc.offsets([1, 5, 9]), {}),
    "per head": (mc.per_head([mc.causal(), mc.window(3)]), {}),
    "by h": (mc.where(lambda h, q, k: (q - k) % 3 <= h), {}),
    "equal heads": (mc.per_head([mc.causal(), mc.window(None)]), {}),
    "documents": (mc.causal() & mc.documents("doc"), {"doc": IDS}),
    "batch": (mc.documents("doc"), {"doc": np.stack([IDS, IDS[::-1]])}),
    "table by head": (mc.block_table("table", 8), {"table": TABLE}),
    "random": (mc.random_blocks(8, 2, 7), {}),
    "empty": (mc.full() - mc.full(), {}),
    "full": (mc.full(), {}),
}


def case_of(name: str, batch: int = 2) -> Case:
    mask, data = MASKS[name]
    return Case(name, mask, batch, HEADS, 1, N, N, 8, DType.float32, data)


def truth(case: Case) -> np.ndarray:
    """bool [batch, heads, N, N] from the oracle."""
    dense = case.mask.dense(N, N, n_heads=HEADS, **case.data)
    if dense.ndim == 3 and case.name == "batch":
        dense = dense[:, None]
    return np.broadcast_to(dense, (case.batch, HEADS, N, N))


@pytest.mark.parametrize("formula", [False, True], ids=["oracle", "formula"])
@pytest.mark.parametrize("name", MASKS)
def test_rows_and_counts(name: str, formula: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_DENSE_ELEMENTS", 0 if formula else 1 << 25)
    case = case_of(name)
    found, right = CasePairs(case), truth(case)
    assert found.source == ("the mask's definition" if formula else "the dense oracle")
    rows = np.array([0, 7, 8, 39])
    for b in range(2):
        for h in range(HEADS):
            np.testing.assert_array_equal(found.rows(b, h, rows), right[b, h, rows])
    assert found.live() == right.sum()


def test_a_formula_that_differs_from_the_oracle_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_DENSE_ELEMENTS", 0)
    monkeypatch.setattr(module.driver, "dense", lambda *_, **__: np.ones((N, N), dtype=bool))
    with pytest.raises(CheckFailed, match="differs from the oracle"):
        CasePairs(case_of("window"))


def test_rows_that_differ_from_the_formula_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_DENSE_ELEMENTS", 0)
    found = CasePairs(case_of("documents"))
    right = module.defined_rows(case_of("documents"), 0, 0, np.array([7]))
    monkeypatch.setattr(module, "defined_rows", lambda *_: ~right)
    with pytest.raises(CheckFailed, match="differs from the oracle"):
        found.rows(0, 0, np.array([7]))


@pytest.mark.parametrize("name", MASKS)
def test_flex_sees_the_same_pairs(name: str):
    torch = pytest.importorskip("torch", reason="FlexAttention is PyTorch's")
    from maskc.lab.mask_mod import mask_mod

    case = case_of(name)
    keep = mask_mod(case, CasePairs(case), "cpu")
    q, k = torch.arange(N)[:, None], torch.arange(N)[None]
    right = truth(case)
    for b in range(2):
        for h in range(HEADS):
            kept = keep(torch.tensor(b), torch.tensor(h), q, k)
            np.testing.assert_array_equal(np.broadcast_to(kept.numpy(), (N, N)), right[b, h])


@pytest.mark.parametrize("name", MASKS)
def test_boolean_masks_for_sdpa(name: str):
    pytest.importorskip("torch", reason="SDPA is PyTorch's")
    from maskc.lab.rivals import boolean_mask
    from maskc.verify.case_tensors import make_tensors

    case = case_of(name)
    found = boolean_mask(case, make_tensors(case, "cpu"), CasePairs(case)).numpy()
    np.testing.assert_array_equal(np.broadcast_to(found, (2, HEADS, N, N)), truth(case))


# ------------------------------------------------------------------ data made up

ATOMS = {
    "documents": mc.documents("x"),
    "flags": mc.flags("x"),
    "flags on q": mc.flags("x", on="q"),
    "intervals": mc.intervals("x"),
    "tree": mc.tree("x"),
    "table": mc.block_table("x", 16),
    "two": mc.documents("x") & mc.block_table("y", 8),
}


@pytest.mark.parametrize("lengths", [(1, 1), (33, 33), (17, 40)], ids=str)
@pytest.mark.parametrize("name", ATOMS)
def test_sampled_data_suits_the_mask(name: str, lengths: tuple[int, int]):
    mask = ATOMS[name]
    data = sample_data(mask, *lengths)
    dense = mask.dense(*lengths, **data)
    assert dense.shape == lengths
    assert mask.count(*lengths, **data) == dense.sum()
    if lengths == (33, 33):
        assert 0 < dense.sum() < dense.size
    assert repr(sample_data(mask, *lengths)) == repr(data)


def test_masks_without_data_need_none():
    assert sample_data(mc.window(3) | mc.random_blocks(8, 1, 0), 64) == {}
