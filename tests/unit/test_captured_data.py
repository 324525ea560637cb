"""Captured arrays are data: replaced without planning, read where they decide."""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.captured import Captured
from maskc.core.errors import DataRange, DataShape, NameClash, NoSuchHead
from maskc.core.target import Target
from maskc.dsl.slots import emptied
from maskc.reference.attention import attention

N, D = 40, 16
DOC = np.array([0, 1, 1, 0, 2, 2, 0, 1] * 5)


def same(doc: object) -> mc.Mask:
    return mc.where(lambda q, k: (doc[q] == doc[k]) & (q >= k))


def right(doc: np.ndarray, n: int = N) -> np.ndarray:
    return np.tril(doc[:n, None] == doc[:n])


def tensors(n: int = N, heads: int = 2) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((1, heads, n, D), dtype=np.float32) for _ in range(3))


def close(mask: mc.Mask, dense: np.ndarray) -> None:
    q, k, v = tensors(dense.shape[-1])
    wanted, _ = attention(q, k, v, dense)
    np.testing.assert_allclose(mc.attention(q, k, v, mask), wanted, atol=1e-5)


# ------------------------------------------------------------------ one plan for all


def test_masks_that_differ_in_content_are_one_to_the_planner(monkeypatch) -> None:
    close(same(DOC), right(DOC))
    monkeypatch.setattr(driver, "emit_bundle", None)  # what plans and emits
    for doc in (DOC[::-1].copy(), np.arange(N) // 7, np.arange(500) // 3, DOC.astype(np.int8)):
        mask = same(doc)
        assert emptied(mask)[0] == emptied(same(DOC))[0]
        close(mask, right(doc))
        assert mask.count(N) == right(doc).sum()


@pytest.mark.parametrize("parts", [1, 2])
def test_tensors_that_are_equal_at_first_stay_two(parts: int) -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = (torch.zeros(N, dtype=torch.int32) for _ in range(2))
    if parts == 1:
        mask = mc.from_mask_mod(lambda b, h, q, k: (ours[q] == 0) & (theirs[k] == 0))
    else:
        mask = mc.from_mask_mod(lambda b, h, q, k: ours[q] == 0)
        mask &= mc.from_mask_mod(lambda b, h, q, k: theirs[k] == 0)
    assert mask.count(N) == N * N
    theirs[3:] = 1
    assert mask.count(N) == N * 3
    close(mask, ((ours == 0)[:, None] & (theirs == 0)).numpy())


def test_the_bundle_holds_no_content() -> None:
    doc = np.arange(100_000) // 7
    attn = same(doc).compile(D, dtype="float32")
    (decl,) = attn.bundle.data
    assert not decl.values
    assert decl.held
    assert attn.layout(N, block=(16, 16)).nnz == same(doc).layout(N, block=(16, 16)).nnz


def test_equal_arrays_are_one_and_others_are_not() -> None:
    other = DOC.copy()
    mask = mc.where(lambda q, k: DOC[q] == other[k]) & mc.where(lambda q, k: other[q] > 0)
    _, held = emptied(mask)
    assert len(held.tables) == 1
    assert mask == mc.where(lambda q, k: other[q] == DOC[k]) & mc.where(lambda q, k: DOC[q] > 0)
    third = DOC + 1
    assert mask != mc.where(lambda q, k: third[q] == DOC[k]) & mc.where(lambda q, k: DOC[q] > 0)
    assert same(DOC).equals(same(DOC[:20])) is True  # wherever both are defined
    assert same(DOC).equals(same(DOC // 2)) is False
    assert same(DOC).equals(same(other)) is True


def test_names_do_not_meet_the_callers() -> None:
    mask = same(DOC) | mc.flags("table0")
    flags = np.arange(N) == 3
    assert mask.count(N, table0=flags) == (right(DOC) | flags).sum()
    with pytest.raises(mc.MaskcError, match="table_1"):
        same(DOC).compile(D, dtype="float32").layout(N, table_1=DOC)


# ------------------------------------------------------------------ who writes into them


def test_a_tensor_that_is_written_into_is_read_again() -> None:
    torch = pytest.importorskip("torch")
    doc = torch.arange(N) // 7
    mask = mc.from_mask_mod(lambda b, h, q, k: (doc[q] == doc[k]) & (q >= k))
    attn, row = mask.compile(D, dtype="float32"), mc.where(lambda q, k: doc[3:][k % 9] == q)
    computed = {  # by the function, from captured tensors
        "by operators": mc.from_mask_mod(
            lambda b, h, q, k: ((2 * doc + 1)[q] == 2 * doc[k] + 1) & (q >= k)
        ),
        "pairs": mc.from_mask_mod(lambda b, h, q, k: (doc[:, None] == doc)[q, k] & (q >= k)),
        "views": mc.from_mask_mod(
            lambda b, h, q, k: (
                (doc.flip(0).flip(0)[1:][q - 1] == doc[k]) & (q >= k) & (q > 0)
                | (q == 0) & (k == 0)
            )
        ),
    }
    attns = {name: mask.compile(D, dtype="float32") for name, mask in computed.items()}
    q, k, v = tensors()
    for step in range(3):
        doc += step
        doc[5 * step :] = 17
        dense = right(doc.numpy())
        np.testing.assert_array_equal(mask.dense(N), dense)
        np.testing.assert_allclose(attn(q, k, v), attention(q, k, v, dense)[0], atol=1e-5)
        close(mask, dense)
        for name, other in computed.items():
            np.testing.assert_array_equal(other.dense(N), dense, name)
            close(other, dense)
            right_out = attention(q, k, v, dense)[0]
            np.testing.assert_allclose(attns[name](q, k, v), right_out, atol=1e-5, err_msg=name)
        i = np.arange(N)
        np.testing.assert_array_equal(row.dense(N), doc.numpy()[3:][i % 9][None] == i[:, None])


def test_what_nobody_writes_into_is_read_once(monkeypatch) -> None:
    torch = pytest.importorskip("torch")
    doc = torch.arange(N) // 7
    attn = mc.from_mask_mod(lambda b, h, q, k: doc[q] == doc[k]).compile(D, dtype="float32")
    q, k, v = tensors()
    attn(q, k, v)
    monkeypatch.setattr("maskc.core.captured._host", None)
    monkeypatch.setattr("maskc.runtime.binding.held_arrays", None)
    attn(q, k, v)


def test_gradients_belong_to_the_content_of_the_forward_pass() -> None:
    torch = pytest.importorskip("torch")
    doc = torch.arange(N) // 7
    mask = mc.from_mask_mod(lambda b, h, q, k: doc[q] == doc[k])
    q = torch.randn(1, 2, N, D, requires_grad=True)
    mc.attention(q, q, q, mask).sum().backward()
    wanted, q.grad = q.grad, None
    out = mc.attention(q, q, q, mask).sum()
    doc[:] = 0
    out.backward()
    torch.testing.assert_close(q.grad, wanted)


def test_numpy_arrays_are_copied() -> None:
    doc = DOC.copy()
    mask = same(doc)
    doc[:] = 0
    np.testing.assert_array_equal(mask.dense(N), right(DOC))


def test_copies_and_pickles() -> None:
    torch = pytest.importorskip("torch")
    doc = torch.from_numpy(DOC)
    mask = mc.from_mask_mod(lambda b, h, q, k: doc[q] == doc[k])
    mask.compile(D, dtype="float32")
    for other in (copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert other == mask
        assert hash(other) == hash(mask)
        np.testing.assert_array_equal(other.dense(N), mask.dense(N))
    captured = Captured(DOC)
    assert pickle.loads(pickle.dumps(captured)) == captured


# ------------------------------------------------------------------ outside an array

GUARDED = {
    "below": (lambda q, k: (q >= 1) & (DOC[q - 1] == DOC[k]), N),
    "far_below": (lambda q, k: (q >= k + 2) & (DOC[q - k - 2] == 1), N),
    "or": (lambda q, k: (q < 2) | (DOC[q - 2] == 1), N),
    "above": (lambda q, k: (q < N) & (k < N) & (DOC[q] == DOC[k]), N + 9),
    "next": (lambda q, k: (q + 1 < N) & (DOC[q + 1] > DOC[k]), N),
    "not": (lambda q, k: ~((q < 3) | (DOC[q - 3] == 0)), N),
    "value": (lambda q, k: (DOC[q] >= 1) & (DOC[DOC[q] - 1] == DOC[k]), N),
    "far_above": (lambda q, k: (q < 3) & (k < 5) & (DOC[7 * q + 5 * k] == 0), N),
}


def guarded(predicate: object, n: int) -> np.ndarray:
    """Pair by pair with Python's own `and`: what a false condition guards is not read."""
    array = np.zeros((n, n), bool)

    class Careful(dict):
        def __getitem__(self, i):
            inside = 0 <= i < N
            return np.int64(DOC[i]) if inside else Unknown

    class _Unknown:
        """Any value: comparisons with it are neither true nor false."""

        def compared(self, other):
            return Maybe

        __eq__ = __lt__ = __gt__ = __le__ = __ge__ = compared
        __rsub__ = __sub__ = lambda self, other: self

        def __int__(self):
            return -1

    class _Maybe:
        def __and__(self, other):
            return self if other is self or other else np.False_

        def __or__(self, other):
            return self if other is self or not other else np.True_

        def __invert__(self):
            return self

        __rand__, __ror__ = __and__, __or__

    Unknown, Maybe = _Unknown(), _Maybe()
    scope = {**predicate.__globals__, "DOC": Careful()}
    judged = type(predicate)(predicate.__code__, scope)
    for q in range(n):
        for k in range(n):
            kept = judged(np.int64(q), np.int64(k))
            assert kept is not Maybe
            array[q, k] = kept
    return array


@pytest.mark.parametrize("name", GUARDED)
def test_the_guard_decides(name: str) -> None:
    predicate, n = GUARDED[name]
    mask, dense = mc.where(predicate), guarded(predicate, n)
    np.testing.assert_array_equal(mask.dense(n), dense)
    assert mask.count(n) == dense.sum()
    tiles = mask.layout(n, block=(16, 16)).to_dense() > 0
    live = np.add.reduceat(np.add.reduceat(dense, range(0, n, 16), 0), range(0, n, 16), 1) > 0
    np.testing.assert_array_equal(tiles, live)
    close(mask, dense)


UNGUARDED = {
    "below": lambda q, k: DOC[q - 1] == DOC[k],
    "guarded_too_late": lambda q, k: (q >= 1) & (DOC[q - 2] == DOC[k]),
    "above": lambda q, k: DOC[q + 1] == DOC[k],
    "by_the_wrong_index": lambda q, k: (k >= 1) & (DOC[q - 1] == 0),
    "too_short": lambda q, k: (DOC[:20][q] == 1) & (q >= k),
}


@pytest.mark.parametrize("name", UNGUARDED)
def test_an_index_outside_that_decides_is_refused_with_its_line(name: str) -> None:
    mask = mc.where(UNGUARDED[name])
    q, k, v = tensors()
    for asked in (
        lambda: mask.dense(N), lambda: mask.count(N), lambda: mask.layout(N),
        lambda: mc.attention(q, k, v, mask),
    ):  # fmt: skip
        with pytest.raises(DataRange) as caught:
            asked()
        assert Path(caught.value.at.file).name == Path(__file__).name
        assert caught.value.at.line == UNGUARDED[name].__code__.co_firstlineno
        assert "table" not in caught.value.finding
    assert "at q = " in str(caught.value)


def test_too_few_rows_for_heads_or_sequences_are_refused() -> None:
    torch = pytest.importorskip("torch")
    reach, lengths = torch.arange(3), torch.arange(3) + 4
    q = torch.zeros(4, 4, 8, D)
    for mod in (lambda b, h, q, k: q - k <= reach[h], lambda b, h, q, k: k < lengths[b]):
        mask = mc.from_mask_mod(mod)
        mc.attention(q[:2, :2], q[:2, :2], q[:2, :2], mask)  # more rows than heads do no harm
        with pytest.raises(DataShape) as caught:
            mc.attention(q, q, q, mask)
        assert caught.value.at.line == mod.__code__.co_firstlineno


# ------------------------------------------------------------------ generated modules


def module(mask: mc.Mask, folder: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    plan = driver.plan_module(mask, driver.problem(D, None, None, "float32"), Target.named("cpu"))
    files = driver.generate(mask, "held", [plan], "Captured.")
    for name, text in files.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("held", None)
    return importlib.import_module("held")


@pytest.mark.parametrize(
    "mask",
    [
        same(DOC),
        mc.where(lambda q, k: (q >= 1) & (DOC[q - 1] == DOC[k])),
        mc.where(lambda q, k: DOC[DOC[q]] == DOC.reshape(2, 4, 5)[q % 2, k % 4, k % 5]),
    ],
    ids=["vector", "guarded", "three"],
)
def test_generated_modules_hold_the_content(mask, tmp_path, monkeypatch) -> None:
    made, dense = module(mask, tmp_path, monkeypatch), mask.dense(N)
    np.testing.assert_array_equal(made.dense(N), dense)
    q, k, v = tensors()
    np.testing.assert_allclose(made.attention(q, k, v), attention(q, k, v, dense)[0], atol=1e-5)


def test_generated_modules_refuse_what_they_cannot_check() -> None:
    mask = mc.where(lambda q, k: DOC[q - 1] == 0)
    problem = driver.problem(D, None, None, "float32")
    plan = driver.plan_module(mask, problem, Target.named("cpu"))
    with pytest.raises(DataRange, match="below 0"):
        driver.generate(mask, "held", [plan], "x")


def test_an_error_names_a_pair_of_the_call():
    """Keys behind the last one are in its tile, but in no pair."""
    ids = np.ones(200, int)
    mask = mc.where(
        lambda q, k: ((q == 1) & (k == 140) | (q == 0) & (k >= 150)) & (ids[k + 100] > 0)
    )
    with pytest.raises(DataRange, match=r"at q = 1, k = 140 the index \[k \+ 100\] is \[240\]"):
        mask.layout(150, block=(64, 64))


# ------------------------------------------------------------------ names and heads


def test_flags_on_both_sides() -> None:
    keep = np.arange(N) % 3 == 1
    both = mc.flags("pad") & mc.flags("pad", on="q")
    np.testing.assert_array_equal(both.dense(N, pad=keep), keep[:, None] & keep)
    either = mc.causal() & (mc.flags("pad") | mc.flags("pad", on="q"))
    for n_q in (N, 13):
        last = keep[N - n_q :]
        dense = np.tri(n_q, N, N - n_q, dtype=bool) & (keep | last[:, None])
        np.testing.assert_array_equal(either.dense(n_q, N, pad=keep), dense)
        assert either.count(n_q, N, pad=keep) == dense.sum()
        q, (_, k, v) = tensors(n_q)[0], tensors()
        out = mc.attention(q, k, v, either, pad=keep)
        np.testing.assert_allclose(out, attention(q, k, v, dense)[0], atol=1e-5)
    with pytest.raises(NameClash, match="as documents and as flags"):
        (mc.documents("x") & mc.flags("x")).count(4, x=np.zeros(4, int))


def test_heads_that_do_not_exist_are_refused() -> None:
    q, k, v = tensors()
    for mask in (mc.heads(9), mc.causal() & mc.heads(0, 9), mc.heads(2)):
        for asked in (
            lambda: mask.dense(4, n_heads=2),  # noqa: B023
            lambda: mask.count(4, n_heads=2),  # noqa: B023
            lambda: mask.compile(D, n_heads=2, dtype="float32"),  # noqa: B023
            lambda: mc.attention(q, k, v, mask),  # noqa: B023
        ):
            with pytest.raises(NoSuchHead):
                asked()
    assert mc.heads(1).count(4, n_heads=2) == 16
