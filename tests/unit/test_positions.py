"""Positions that calls give: combinators over them, compared with their definition by hand."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import (
    DataMissing,
    DataRange,
    DataShape,
    DataType,
    NotPositions,
    ReservedName,
)
from maskc.dsl.parser import parse

AT = mc.positions(q="pq", k="pk")
MASKS = {
    "causal": (mc.causal(at=AT), lambda p, k: k <= p),
    "window": (mc.window(9, 3, at=AT), lambda p, k: (p - k <= 9) & (k - p <= 3)),
    "left open": (mc.window(None, 3, at=AT), lambda p, k: k - p <= 3),
    "dilated": (
        mc.dilated(4, 2, stride=3, at=AT),
        lambda p, k: (p - k <= 12) & (k - p <= 6) & ((p - k) % 3 == 0),
    ),
    "blocks": (mc.block_diagonal(8, at=AT), lambda p, k: p // 8 == k // 8),
    "chunked": (mc.chunked(8, at=AT), lambda p, k: (p // 8 == k // 8) & (k <= p)),
}


def made(n_q, n_kv, seed=0, batch=None):
    rng = np.random.default_rng(seed)
    front = () if batch is None else (batch,)
    return {
        "pq": rng.integers(-5, 90, (*front, n_q)).astype(np.int32),
        "pk": np.sort(rng.integers(-5, 90, (*front, n_kv)).astype(np.int32)),
    }


def by_hand(rule, data):
    return rule(data["pq"][..., :, None], data["pk"][..., None, :])


@pytest.mark.parametrize("name", MASKS)
def test_meaning(name):
    mask, rule = MASKS[name]
    for n_q, n_kv in ((70, 90), (90, 70), (1, 40), (40, 1)):
        data = made(n_q, n_kv)
        live = by_hand(rule, data)
        assert np.array_equal(mask.dense(n_q, n_kv, **data), live)
        assert mask.count(n_q, n_kv, **data) == live.sum()


@pytest.mark.parametrize("name", MASKS)
def test_layouts_are_those_of_the_pairs(name):
    mask, rule = MASKS[name]
    data = made(70, 90)
    live = np.pad(by_hand(rule, data), ((0, 10), (0, 6))).reshape(5, 16, 6, 16)
    tiles = mask.layout(70, 90, block=(16, 16), **data).to_dense()
    assert not tiles[~live.any((1, 3))].any() or (tiles[~live.any((1, 3))] == 1).all()
    assert tiles[live.any((1, 3))].all()


@pytest.mark.parametrize("name", MASKS)
def test_they_are_read_back_pickled_and_compared(name):
    mask, _ = MASKS[name]
    assert parse(str(mask)) == mask
    assert pickle.loads(pickle.dumps(mask)) == mask
    assert mask.equals(mask)
    assert not mask.equals(mc.full())


def test_what_is_known_of_them():
    narrow, wide = mc.window(4, at=AT), mc.window(9, at=AT)
    assert narrow.subset_of(wide)
    assert not wide.subset_of(narrow)
    assert (mc.causal(at=AT) & mc.window(9, 9, at=AT)).equals(mc.window(9, at=AT))
    difference = mc.diff(narrow, wide, n=8)
    assert (
        narrow.dense(8, **difference.data)[difference.q, difference.k]
        != wide.dense(8, **difference.data)[difference.q, difference.k]
    )


def test_places_in_the_sequence_are_positions():
    data = {"pq": np.arange(20, 60), "pk": np.arange(60)}
    for at, plain in (
        (mc.causal(at=AT), mc.causal()), (mc.chunked(16, at=AT), mc.chunked(16)),
        (mc.dilated(3, stride=5, at=AT), mc.dilated(3, stride=5)),
    ):  # fmt: skip
        assert np.array_equal(at.dense(40, 60, **data), plain.dense(40, 60))


def test_parameters_and_other_terms():
    mask = mc.window(mc.param("w", 4), at=AT) | mc.sinks(2) & mc.documents("doc")
    data = made(40, 40) | {"doc": np.arange(40) // 10}
    live = by_hand(lambda p, k: (p - k <= 7) & (k <= p), data)
    live |= (np.arange(40) < 2) & (data["doc"][:, None] == data["doc"])
    assert np.array_equal(mask.dense(40, w=7, **data), live)


@pytest.mark.parametrize("batch", [None, 2])
def test_kernels_of_the_cpu(batch):
    mask, rule = MASKS["causal"]
    data = made(50, 70, batch=batch)
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, 1, n, 16)).astype(np.float32) for n in (50, 70, 70))
    out, lse = mask.compile(16, dtype="float32", target="cpu")(q, k, v, return_lse=True, **data)
    live = np.broadcast_to(by_hand(rule, data), (2, 50, 70))[:, None]
    scores = np.where(live, q @ k.swapaxes(-1, -2) / 4, -np.inf)
    weights = np.exp(scores - np.where(live.any(-1), scores.max(-1), 0)[..., None])
    total = weights.sum(-1, keepdims=True)
    wanted = np.divide(weights @ v, total, out=np.zeros_like(q), where=total > 0)
    assert np.allclose(out, wanted, atol=1e-5)
    assert np.array_equal(np.isinf(lse), ~live.any(-1))


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "simt"])
def test_kernels_of_gpus(monkeypatch, target):
    torch = pytest.importorskip("torch")
    from maskc.testing.emulator import machine
    from tests.support.exact_attention import tensors
    from tests.support.hopper import check

    machine.install(monkeypatch)
    data = made(130, 150)
    given = {name: torch.from_numpy(x) for name, x in data.items()}
    mask, rule = MASKS["window"]
    tensors_of = tensors(130, 150, 64, torch.float16, batch=1, heads=2, kv_heads=1)
    live = torch.from_numpy(by_hand(rule, data))
    check(mask.compile(64, dtype="float16", target=target), tensors_of, live, given)


@pytest.mark.parametrize("name", MASKS)
def test_positions_at_both_ends_of_32_bits(name):
    """Their differences need 33 bits, which the 64-bit form of the formula has."""
    mask, rule = MASKS[name]
    ends = np.array([-(2**31), -(2**31) + 1, -1, 0, 3, 2**31 - 2, 2**31 - 1])
    data = {"pq": ends[::-1].copy(), "pk": ends}
    live = by_hand(rule, data)
    assert np.array_equal(mask.dense(7, **data), live)
    assert mask.count(7, **data) == live.sum()
    assert np.array_equal(mask.layout(7, block=(1, 1), **data).to_dense() > 0, live)
    q = np.zeros((1, 1, 7, 16), np.float32)
    v = np.eye(7, 16, dtype=np.float32)[None, None]
    out = mask.compile(16, dtype="float32", target="cpu")(q, q, v, **data)[0, 0, :, :7]
    assert np.array_equal(out > 0, live)


# ------------------------------------------------------------------ mistakes


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.uint32])
def test_positions_beyond_32_bits(dtype):
    """Time stamps: `dense` knows them, kernels and layouts refuse them with the numbers."""
    stamps = np.array([0, 5, 2**31, 2**31 + 4], dtype)
    data = {"pq": stamps, "pk": stamps}
    mask = mc.causal(at=AT)
    assert np.array_equal(mask.dense(4, **data), np.tri(4, dtype=bool))
    x = np.zeros((1, 1, 4, 16), np.float32)
    for call in (
        lambda: mask.count(4, **data),
        lambda: mask.layout(4, **data),
        lambda: mc.attention(x, x, x, mask, **data),
    ):
        with pytest.raises(DataRange, match=r"reach from 0 to 2147483652, beyond 32 bits"):
            call()


def test_positions_whose_differences_leave_64_bits():
    far = np.array([-(2**62), 2**62])
    with pytest.raises(DataRange, match="subtract the smallest one"):
        mc.causal(at=AT).dense(2, pq=far, pk=far)


@pytest.mark.parametrize("at", ["pq", 3, ("pq", "pk"), mc.causal()])
def test_what_is_no_positions(at):
    with pytest.raises(NotPositions, match=r"MC492 .* causal: at must be mc.positions"):
        mc.causal(at=at)


def test_positions_leave_nothing_to_align():
    with pytest.raises(NotPositions, match="nothing to align"):
        mc.chunked(8, align="start", at=AT)


def test_names():
    with pytest.raises(ReservedName, match="the name of the queries' positions"):
        mc.positions(q="p", k="p")
    with pytest.raises(ReservedName):
        mc.positions(q="scale", k="pk")


def test_data_of_a_call():
    mask = MASKS["causal"][0]
    with pytest.raises(DataMissing, match="'pk'"):
        mask.dense(5, pq=np.arange(5))
    with pytest.raises(DataShape, match="pk"):
        mask.count(5, 6, pq=np.arange(5), pk=np.arange(5))
    with pytest.raises(DataType, match="integers"):
        mask.count(5, pq=np.ones(5), pk=np.arange(5))
