"""Whole heads: every row and key counts, and the mask on the device must be the mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import maskc as mc
from benchmarks import heads as module
from benchmarks.heads import HeadJudges, confirm
from maskc.core.dtypes import DType
from maskc.core.errors import CheckFailed
from maskc.lab.case_pairs import CasePairs
from maskc.reference.attention import attention, gradients
from maskc.verify.case import Case
from maskc.verify.case_tensors import make_tensors

N = 90
MASK = mc.causal() & mc.window(20)


def case_of(dtype: str = "float32", **changes) -> Case:
    given = {"mask": MASK, "batch": 2, "heads": 4, "kv_heads": 2, **changes}
    return Case("c", n_q=N, n_kv=N, head_dim=16, dtype=DType.parse(dtype), **given)


@pytest.fixture(autouse=True)
def few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_CHUNK", 32 * N)


def right_answers(case: Case, tensors):
    arrays = [x.float().numpy() for x in (*tensors.qkv, tensors.dout)]
    keep = case.mask.dense(N)
    out, lse = attention(*arrays[:3], keep)
    results = gradients(*arrays[:3], keep, arrays[3])
    as_torch = [torch.tensor(x).float() for x in (out, lse)]
    return tuple(as_torch), tuple(torch.tensor(results[p]).float() for p in ("dq", "dk", "dv"))


def test_the_oracle_passes_and_any_wrong_element_does_not():
    case = case_of()
    tensors = make_tensors(case, "cpu")
    judges = HeadJudges(case, tensors, CasePairs(case))
    (out, lse), (dq, dk, dv) = right_answers(case, tensors)
    assert judges.number == 4
    assert judges.forward((out, lse)).ok
    assert judges.forward(out).ok
    assert judges.backward((dq, dk, dv)).ok

    for head, row in ((0, 37), (3, 89)):  # of the first and the last group
        spoilt = out.clone()
        batch = 0 if head == 0 else 1
        spoilt[batch, head, row] *= 1.01
        verdict = judges.forward((spoilt, lse))
        assert not verdict.ok
        assert verdict.error == pytest.approx(0.01, rel=0.6)
    spoilt = dk.clone()
    spoilt[1, 1, 55, 3] += 0.1
    assert not judges.backward((dq, spoilt, dv)).ok
    assert not judges.backward((dq, dv, dk)).ok
    spoilt = lse.clone()
    spoilt[0, 1, 64] += 1e-3
    assert not judges.forward((out, spoilt)).ok


def test_halves_may_be_off_as_far_as_rounding_goes():
    case = case_of("bfloat16")
    tensors = make_tensors(case, "cpu")
    judges = HeadJudges(case, tensors, CasePairs(case))
    (out, lse), grads = right_answers(case, tensors)
    assert judges.forward((out.bfloat16(), lse)).ok
    assert judges.backward(tuple(x.bfloat16() for x in grads), out).ok
    assert not judges.forward((out.bfloat16() * 1.1, lse)).ok


def test_a_forward_alone_needs_no_gradients():
    case = case_of()
    tensors = make_tensors(case, "cpu")
    judges = HeadJudges(case, tensors, CasePairs(case), backward=False)
    assert judges.forward(right_answers(case, tensors)[0]).ok


def test_very_long_sequences_have_one_group_checked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_LARGE", 100)
    case = case_of()
    assert HeadJudges(case, make_tensors(case, "cpu"), CasePairs(case)).number == 2


# ------------------------------------------------------------------ the mask on the device


def confirmed(case: Case, live: int | None = None) -> None:
    pairs = CasePairs(case)
    rows = np.array([0, 5, 88])
    confirm(case, make_tensors(case, "cpu"), pairs, rows, pairs.live() if live is None else live)


def test_the_compilers_formula_is_confirmed():
    confirmed(case_of())
    confirmed(case_of(mask=mc.per_head([mc.causal(), MASK, mc.causal(), MASK])))


def test_a_formula_by_hand_must_be_the_mask():
    def by_hand(size: int):
        return lambda data: lambda b, h, q, k: (q >= k) & (q - k <= size)

    confirmed(replace(case_of(), formula=by_hand(20)))
    with pytest.raises(CheckFailed, match="differs from its definition"):
        confirmed(replace(case_of(), formula=by_hand(21)))


def test_a_wrong_count_is_noticed():
    with pytest.raises(CheckFailed, match="live pairs, but a head has"):
        confirmed(case_of(), live=CasePairs(case_of()).live() + 1)
    # a formula that errs only where no sampled row looks
    wrong = replace(
        case_of(), formula=lambda data: lambda b, h, q, k: (q >= k) & (q - k <= 20) & (q != 40)
    )
    with pytest.raises(CheckFailed, match="live pairs, but a head has"):
        confirmed(wrong)
