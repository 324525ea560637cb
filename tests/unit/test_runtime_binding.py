"""Data of calls are known by content: equal ones are read once, whatever differs is read again."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core import captured, errors
from maskc.core.captured import HELD
from maskc.core.data import CuSeqlens
from maskc.core.dtypes import DType
from maskc.core.problem import Problem
from maskc.core.target import Target
from maskc.dispatch.call import Bound
from maskc.dsl.slots import emptied
from maskc.reference.attention import attention
from maskc.runtime import CompiledMask, binding
from maskc.runtime.binding import Binder
from tests.support.bundles import bundle, pairs
from tests.unit.test_runtime_attention import case, close, path, quiet  # noqa: F401

N = 32
IDS = np.arange(N) // 5
PROBLEM, CPU = Problem(32, 32, DType.float32), Target.named("cpu")
TABLE = np.arange(4 * 2 * 2).reshape(4, 2, 2) % 3 == 0


def torch_tensor(array: np.ndarray):
    return pytest.importorskip("torch").from_numpy(array.copy())


FORMS = {
    "int32": lambda: IDS.astype(np.int32),
    "int64": IDS.copy,
    "uint8": lambda: IDS.astype(np.uint8),
    "other byte order": lambda: IDS.astype(">i4"),
    "every other": lambda: np.repeat(IDS, 2)[::2],
    "backwards": lambda: IDS[::-1].copy()[::-1],
    "Fortran order": lambda: np.asfortranarray(np.stack([IDS, IDS])),
    "list": IDS.tolist,
    "list of lists": lambda: [IDS.tolist(), IDS.tolist()],
    "list of arrays": lambda: [IDS.copy(), IDS.copy()],
    "pair": lambda: (IDS.copy(), IDS.astype(np.int32)),
    "pair of lists": lambda: (IDS.tolist(), IDS.tolist()),
    "torch": lambda: torch_tensor(IDS),
    "torch, every other": lambda: torch_tensor(np.repeat(IDS, 2))[::2],
    "pair of torch": lambda: (torch_tensor(IDS), torch_tensor(IDS)),
}


def raise_last(given) -> None:
    """Write into the very object: the last token gets a document of its own."""
    while isinstance(given, (list, tuple)) and not isinstance(given[-1], int):
        given = given[-1]
    if getattr(given, "ndim", 1) == 2:
        given = given[-1]
    given[-1] = 99


def ids_of(bound: Bound) -> list:
    return [bound.arrays[name].tolist() for name in ("doc.q", "doc.k")]


@pytest.mark.parametrize("form", FORMS)
def test_equal_data_are_read_once_and_changed_ones_again(form):
    binder = Binder(bundle("documents"))
    given = FORMS[form]()
    first = binder.bind({"doc": given}, N, N)
    assert binder.bind({"doc": FORMS[form]()}, N, N) is first
    before = ids_of(first)
    raise_last(given)
    changed = binder.bind({"doc": given}, N, N)
    assert changed.key != first.key
    assert np.ravel(ids_of(changed)[1])[-1] == 99
    assert ids_of(changed) == ids_of(Binder(bundle("documents")).bind({"doc": given}, N, N))
    assert binder.bind({"doc": FORMS[form]()}, N, N) is first
    assert ids_of(first) == before


def test_cumulative_lengths():
    binder, ends = Binder(bundle("documents")), np.array([0, 10, N])
    first = binder.bind({"doc": CuSeqlens(ends)}, N, N)
    assert binder.bind({"doc": CuSeqlens(ends.copy())}, N, N) is first
    promise = binder.bind({"doc": CuSeqlens(ends, 100)}, N, N)
    assert promise.key != first.key
    assert (first.longest, promise.longest) == (None, 112)
    assert binder.bind({"doc": CuSeqlens(ends, 100)}, N, N) is promise
    ends[1] = 20
    assert binder.bind({"doc": CuSeqlens(ends)}, N, N).key != first.key
    with pytest.raises(errors.DataShape):
        binder.bind({"doc": np.array([0, 10, N])}, N, N)


@pytest.mark.parametrize("order", ["C", "F"])
def test_tables(order):
    binder = Binder(bundle("table"))
    doc, blocks = IDS.copy(), np.array(TABLE, order=order)
    first = binder.bind({"doc": doc, "blocks": blocks}, N, N)
    assert binder.bind({"doc": doc, "blocks": TABLE.copy()}, N, N).key == first.key
    np.testing.assert_array_equal(first.arrays["blocks"], TABLE)
    turned = binder.bind({"doc": doc, "blocks": blocks.swapaxes(1, 2)}, N, N)
    np.testing.assert_array_equal(turned.arrays["blocks"], TABLE.swapaxes(1, 2))


def test_the_same_bytes_in_another_dtype_or_shape():
    binder = Binder(bundle("documents"))
    wide = IDS.astype("<i8")
    one = binder.bind({"doc": wide}, N, N)
    two = binder.bind({"doc": wide.view("<i4").reshape(2, N)}, N, N)
    assert one.arrays["doc.q"].shape == (N,)
    assert two.arrays["doc.q"].shape == (2, N)
    narrow = IDS.astype("<i4")
    three = binder.bind({"doc": narrow}, N, N)
    four = binder.bind({"doc": narrow.view(">i4")}, N, N)
    assert three.key == one.key
    np.testing.assert_array_equal(four.arrays["doc.q"], IDS << 24)
    assert len({one.key, two.key, four.key}) == 3


class OnDevice:
    """An array that has to be copied to the host."""

    __cuda_array_interface__: dict = {}

    def __init__(self) -> None:
        self.copies = 0

    def get(self) -> np.ndarray:
        self.copies += 1
        return IDS + self.copies


def test_device_memory_is_read_every_time():
    binder, given = Binder(bundle("documents")), OnDevice()
    for number in (1, 2, 3):
        bound = binder.bind({"doc": given}, N, N)
        assert bound.arrays["doc.q"][0] == number == given.copies
        bound = binder.bind({"doc": (IDS, OnDevice())}, N, N)
        assert bound.arrays["doc.k"][0] == 1
    assert not binder._known


def test_a_pair_is_not_a_batch():
    binder = Binder(bundle("documents"))
    pair = binder.bind({"doc": (IDS.tolist(), IDS.tolist())}, N, N)
    batch = binder.bind({"doc": [IDS.tolist(), IDS.tolist()]}, N, N)
    assert (pair.arrays["doc.q"].ndim, batch.arrays["doc.q"].ndim) == (1, 2)


def test_lengths_and_parameters_count():
    binder = Binder(bundle("band", "documents", head_variant=(0, 1)))
    ids = np.zeros(N, np.int64)
    found = [
        binder.bind({"doc": (ids, ids[:n_kv]), **more}, N, n_kv)
        for n_kv in (N, N - 1)
        for more in ({}, {"w": 3}, {"w": 4})
    ]
    assert [bound.params["w"] for bound in found] == [20, 3, 4] * 2
    assert len({bound.key for bound in found}) == 6
    assert binder.bind({"doc": (ids, ids[:-1]), "w": 3}, N, N - 1) is found[4]


REFUSED = {
    "floats of the same bytes": lambda: IDS.astype("<i8").view("<f8"),
    "booleans of the same bytes": lambda: IDS.astype(np.uint8).view(bool),
    "objects": lambda: IDS.astype(object),
    "a list of booleans": lambda: [True] * N,
    "too many": lambda: np.concatenate([IDS, IDS]),
    "a stacked column": lambda: IDS[:, None],
    "nothing": lambda: None,
    "a ragged list": lambda: [IDS.tolist(), [1]],
    "a number": lambda: 1,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_stays_refused(name):
    """Words stay the same, whatever was remembered before; and again."""
    given = REFUSED[name]()

    def words(binder: Binder) -> str:
        with pytest.raises(errors.MaskcError) as caught:
            binder.bind({"doc": given}, N, N)
        return str(caught.value)

    fresh, used = Binder(bundle("documents")), Binder(bundle("documents"))
    for good in (IDS.astype("<i8"), IDS.astype(np.uint8), [1] * N):
        used.bind({"doc": good}, N, N)
    assert words(used) == words(fresh) == words(used)
    with pytest.raises(errors.DataUnknown):
        used.bind({"doc": [1] * N, "docs": 1}, N, N)
    with pytest.raises(errors.DataType):
        used.bind({"doc": (np.array([True] * N), np.ones(N, int))}, N, N)


def test_parameters_are_checked_whatever_is_remembered():
    binder = Binder(bundle("band", "documents", head_variant=(0, 1)))
    binder.bind({"doc": IDS, "w": 1}, N, N)
    with pytest.raises(errors.DataType):
        binder.bind({"doc": IDS, "w": True}, N, N)
    with pytest.raises(errors.DataType):
        binder.bind({"doc": IDS, "w": 1.0}, N, N)
    assert binder.bind({"doc": IDS, "w": np.int64(1)}, N, N).params["w"] == 1


def test_what_is_remembered_is_not_the_callers_memory(path):  # noqa: F811
    """int32 is what kernels read; here the array itself must not be."""
    mask, given = quiet(CompiledMask(bundle("documents"), "cpu"), path), case(100, 100)
    doc = np.arange(100, dtype=np.int32) // 9
    equal = doc.copy()
    before = mask(*given.qkv, doc=doc)
    doc[:] = 0
    keep = pairs("documents", 100, 100, doc=(equal, equal))
    after = mask(*given.qkv, doc=equal, softcap=None)
    np.testing.assert_array_equal(after, before)
    with_lse = mask(*given.qkv[:2], given.v.copy(), doc=equal, return_lse=True)[0]
    close(with_lse, attention(*given.qkv, keep)[0], 1e-5)
    backward = mask.backward(*given.qkv, *mask(*given.qkv, doc=equal, return_lse=True),
                             given.dout, doc=equal)  # fmt: skip
    fresh = quiet(CompiledMask(bundle("documents"), "cpu"), path)
    wanted = fresh.backward(*given.qkv, *fresh(*given.qkv, doc=equal, return_lse=True),
                            given.dout, doc=equal)  # fmt: skip
    for found, want in zip(backward, wanted, strict=True):
        np.testing.assert_array_equal(found, want)


def test_the_last_few_calls_are_remembered():
    binder = Binder(bundle("documents"))
    first = [binder.bind({"doc": IDS + i}, N, N) for i in range(4)]
    assert all(binder.bind({"doc": IDS + i}, N, N) is first[i] for i in (0, 3, 1, 2, 0))
    binder.bind({"doc": IDS + 4}, N, N)
    assert len(binder._known) == 4
    assert [binder.bind({"doc": IDS + i}, N, N) is first[i] for i in (0, 2, 1)] == [True] * 3
    again = binder.bind({"doc": IDS + 3}, N, N)  # used longest ago, so forgotten
    assert again is not first[3]
    assert again.key == first[3].key


@pytest.mark.parametrize("given", [IDS.copy, IDS.tolist, lambda: (IDS, IDS)])
def test_large_data_are_not_remembered(given, monkeypatch):
    monkeypatch.setattr(binding, "_MAX_MARKED", IDS.nbytes - 1)
    binder = Binder(bundle("documents"))
    first = binder.bind({"doc": given()}, N, N)
    assert not binder._known
    second = binder.bind({"doc": given()}, N, N)
    assert second is not first
    assert second.key == first.key


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(binding, "_MAX_BYTES", 2 * (IDS.nbytes + 4 * N))
    binder = Binder(bundle("documents"))
    for i in range(4):
        binder.bind({"doc": IDS + i}, N, N)
        assert len(binder._known) == min(i + 1, 2)
    monkeypatch.setattr(binding, "_MAX_BYTES", 1)
    assert binder.bind({"doc": IDS + 9}, N, N).arrays["doc.q"][0] == 9
    assert not binder._known


def test_captured_arrays_are_read_once(monkeypatch):
    """They stay alive with their mask: calls of several lengths and equal masks do not push each
    other out, and a content's digest is found once."""
    monkeypatch.setattr(binding, "_MAX_BYTES", 1000)
    table = np.random.default_rng(0).integers(0, 2, (64, 64))
    found = []

    def counted(*given, **options):
        found.append(given)
        return hashlib.blake2b(*given, **options)

    monkeypatch.setattr(captured, "blake2b", counted)
    masks = [mc.where(lambda q, k, own=own: own[q, k] == 1) for own in (table, table.copy())]
    (inner, one), (_, other) = map(emptied, masks)
    binder = Binder(driver.emit_bundle(driver.plan_kernel(inner, PROBLEM, CPU)))
    keys = set()
    for _ in range(3):
        for n in (32, 48):
            for held in (one, other):
                keys.add(binder.bind({HELD: held.of_call(1, 1, n, n)}, n, n).key)
    assert len(keys) == 1
    assert len(binder._known) == 2
    assert len(found) <= 2


def test_threads_get_their_own_data():
    binder = Binder(bundle("documents"))

    def wrong(number: int) -> int:
        mine = [IDS + number * 10 + i for i in range(3)]
        return sum(
            not np.array_equal(binder.bind({"doc": ids}, N, N).arrays["doc.k"], ids)
            for _ in range(200)
            for ids in mine
        )

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(wrong, range(4))) == 0
    assert len(binder._known) <= 4


def test_tensors_are_checked_before_data_whatever_came_before():
    mask, given = CompiledMask(bundle("documents"), "cpu"), case(N, N)
    q, k, v = given.qkv
    mask(q, k, v, doc=IDS)
    mask(q, k, v, doc=IDS)
    for wrong, error in (
        ((q.astype(np.float64), k, v), errors.WrongDType),
        ((q[..., :8], k, v), errors.BadShape),
        ((q, k[:, :, :-1], v), errors.BadShape),
        ((q, k, v[..., ::-1]), errors.NotContiguous),
        ((q[:1], k, v), errors.BadShape),
    ):
        for doc in (IDS, IDS[:-1], IDS * 0.5):
            with pytest.raises(error):
                mask(*wrong, doc=doc)
    with pytest.raises(errors.DataShape):
        mask(q, k, v, doc=IDS[:-1])
    with pytest.raises(errors.DataShape):  # other lengths, all sound
        mask(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], doc=IDS)
    keep = pairs("documents", N - 1, N - 1, doc=(IDS[1:], IDS[1:]))
    found = mask(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], doc=IDS[1:])
    close(found, attention(q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], keep)[0], 1e-5)
