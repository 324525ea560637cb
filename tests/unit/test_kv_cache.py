"""Keys that later queries may see, and decoding against a ring of them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import maskc as mc
from maskc.core.errors import (
    BadLength,
    CacheCall,
    CacheNotRagged,
    CacheReadsData,
    CacheUnbounded,
    DataShape,
    DataUnknown,
)

BOUNDED = {
    "window": (mc.window(5), 0, 6),
    "streaming": (mc.causal() & (mc.sinks(3) | mc.window.hf(5)), 3, 5),
    "chunked": (mc.chunked(4), 0, 4),
    "dilated": (mc.dilated(3, stride=2), 0, 7),
    "landmarks": (mc.causal() & (mc.global_tokens([0, 9]).columns | mc.window(3)), 2, 4),
    "prefix": (mc.prefix(3), 3, 1),
    "beside": (mc.window(2, 2) - mc.offsets([1]), 0, 3),
    "start": (mc.window(2, align="start"), 1, 1),
    "parameter": (mc.window(mc.param("w", 4)) | mc.sinks(1), 1, 5),
}


def needed(mask: mc.Mask, n: int, queries: int, horizon: int) -> set[int]:
    """The keys that calls at n tokens or later see, by the dense definition, key by key."""
    found = set()
    for total in range(n, n + horizon):
        for new in range(1, queries + 1):
            if new <= total and (total == n or total - new >= n):
                found |= {*np.flatnonzero(mask.dense(new, total).any(0)[:n]).tolist()}
    return found


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("queries", [1, 3])
def test_slots_hold_what_is_needed_and_nothing_is_lost(name: str, queries: int):
    mask, fixed, ring = BOUNDED[name]
    cache = mask.cache(queries=queries)
    assert cache.slots == cache.first_of_ring + cache.ring
    if queries == 1:
        assert (cache.first_of_ring, cache.ring) == (fixed, ring)
    written: dict[int, int] = {}  # slot -> key, as a caller writes
    for n in range(1, 26):
        written[int(cache.slot(n - 1))] = n - 1
        held = {slot: key for slot, key in enumerate(cache.positions(n)) if key >= 0}
        assert held.items() <= written.items()
        assert needed(mask, n, queries, 20) <= set(held.values())
        for n_q in range(1, min(n, queries) + 1):
            seen, right = cache.seen(n, n_q), mask.dense(n_q, n)
            shown = np.zeros_like(right)
            for slot, key in held.items():
                shown[:, key] = seen[:, slot]
            assert np.array_equal(shown, right)


@pytest.mark.parametrize("name", BOUNDED)
def test_decoding_against_the_ring_is_decoding_with_all_keys(name: str):
    mask = BOUNDED[name][0]
    cache, rng = mask.cache(), np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, h, 40, 32), dtype=np.float32) for h in (4, 2, 2))
    whole = mask.compile(32, dtype="float32", target="cpu")
    ring = cache.mask.compile(32, dtype="float32", target="cpu")
    keys, values = (np.zeros((2, 2, cache.slots, 32), np.float32) for _ in range(2))
    prompt = 11
    held = cache.positions(prompt)
    keys[:, :, held >= 0] = k[:, :, held[held >= 0]]
    values[:, :, held >= 0] = v[:, :, held[held >= 0]]
    for n in range(prompt + 1, 41):
        slot = cache.slot(n - 1)
        keys[:, :, slot], values[:, :, slot] = k[:, :, n - 1], v[:, :, n - 1]
        new = q[:, :, n - 1 : n]
        out = ring(new, keys, values, **cache.given(n))
        right = whole(new, k[:, :, :n], v[:, :, :n])
        np.testing.assert_allclose(out, right, rtol=2e-6, atol=2e-6)


def test_several_tokens_a_call_and_heads_that_differ():
    mask = mc.per_head([mc.window(3), mc.chunked(4), mc.causal() & mc.sinks(2)])
    cache, rng = mask.cache(queries=3), np.random.default_rng(0)
    assert (cache.fixed, cache.ring) == (((0, 1),), 6)
    assert not cache.all_seen
    assert cache.seen(9, 2).shape == (3, 2, 8)
    q, k, v = (rng.standard_normal((1, 3, 30, 32), dtype=np.float32) for _ in range(3))
    whole = mask.compile(32, dtype="float32", target="cpu")
    ring = cache.mask.compile(32, dtype="float32", target="cpu", n_heads=3)
    keys, values = (np.zeros((1, 3, cache.slots, 32), np.float32) for _ in range(2))
    for first in range(0, 30, 3):
        new = slice(first, first + 3)
        slots = cache.slot(np.arange(first, first + 3))
        assert len({*slots.tolist()}) == 3
        keys[:, :, slots], values[:, :, slots] = k[:, :, new], v[:, :, new]
        out = ring(q[:, :, new], keys, values, **cache.given(first + 3, 3))
        right = whole(q[:, :, new], k[:, :, : first + 3], v[:, :, : first + 3])
        np.testing.assert_allclose(out, right, rtol=2e-6, atol=2e-6)


def test_memory_is_constant_and_streaming_needs_no_table():
    cache = (mc.causal() & (mc.sinks(4) | mc.window.hf(1024))).cache()
    assert (cache.slots, cache.all_seen) == (1028, True)
    assert cache.given(10) == {"written": 10}
    assert cache.given(1 << 29) == {"written": 1028}
    assert cache.slot([0, 3, 4, 1027, 1028, 1 << 40]).tolist() == [0, 3, 4, 1027, 4, 1024]
    assert cache.slot([]).tolist() == []
    with pytest.raises(BadLength, match="k must be an integer"):
        cache.slot(2.5)
    assert pickle.loads(pickle.dumps(cache)) == cache
    assert str(cache) == (
        "1028 slots at any length, for calls of at most 1 new token\n"
        "fixed   slots 0..3: keys 0..3, which any later query may see\n"
        "ring    slots 4..1027: other keys k, in slot 4 + (k - 4) % 1024\n"
        "proof   a key that is seen at n tokens or later is fixed or has "
        "k >= n - 1024, at all lengths\n"
        "seen    every slot that was written, so no slot is tested alone"
    )
    assert "\nring    slots 0..3: key k, in slot k % 4\n" in str(mc.window(3).cache())


def test_parameters_take_the_values_that_are_given():
    mask = mc.window(mc.param("w", 4))
    assert (mask.cache().ring, mask.cache(w=9).ring) == (5, 10)
    with pytest.raises(DataUnknown, match="'width'"):
        mask.cache(width=9)


@pytest.mark.parametrize(
    "mask",
    [mc.causal(), mc.full(), mc.strided(4), mc.prefix(4) | mc.causal(),
     mc.where(lambda q, k: 2 * k >= q + mc.n_kv - mc.n_q)],
    ids=str,
)  # fmt: skip
def test_masks_without_a_bound_are_refused(mask: mc.Mask):
    with pytest.raises(CacheUnbounded):
        mask.cache()


@pytest.mark.parametrize(
    "mask",
    [mc.documents("doc") & mc.window(3), mc.random_blocks(64, 2, seed=0),
     mc.topk(4, of=mc.window(9))],
    ids=str,
)  # fmt: skip
def test_data_decide_and_are_refused(mask: mc.Mask):
    with pytest.raises(CacheReadsData):
        mask.cache()


def test_calls_that_the_cache_is_not_for():
    cache = mc.window(3).cache()
    for n, n_q in ((5, 2), (0, 1), (5, 0)):
        with pytest.raises(CacheCall):
            cache.given(n, n_q)
    with pytest.raises(BadLength, match="n_q"):
        cache.given([5, 5], 1.0)


@pytest.mark.parametrize("name", BOUNDED)
def test_sequences_of_different_lengths(name: str):
    """Each decodes as it would alone, in slots of its own."""
    mask, rng, lengths = BOUNDED[name][0], np.random.default_rng(0), np.array([4, 11, 7])
    cache = mask.cache(ragged=True)
    q, k, v = (rng.standard_normal((3, h, 20, 32), dtype=np.float32) for h in (4, 2, 2))
    whole = mask.compile(32, dtype="float32", target="cpu")
    ring = cache.mask.compile(32, dtype="float32", target="cpu")
    keys, values = (np.zeros((3, 2, cache.slots, 32), np.float32) for _ in range(2))
    for b, held in enumerate(cache.positions(lengths)):
        keys[b, :, held >= 0] = k[b, :, held[held >= 0]]
        values[b, :, held >= 0] = v[b, :, held[held >= 0]]
    for _ in range(8):
        lengths += 1
        rows, slots = np.arange(3), cache.slot(lengths - 1)
        keys[rows, :, slots], values[rows, :, slots] = (x[rows, :, lengths - 1] for x in (k, v))
        new = q[rows, :, lengths - 1][:, :, None]
        out = ring(np.ascontiguousarray(new), keys, values, **cache.given(lengths))
        for b, n in enumerate(lengths):
            own = (np.ascontiguousarray(x[b : b + 1, :, :n]) for x in (k, v))
            right = whole(np.ascontiguousarray(new[b : b + 1]), *own)
            np.testing.assert_allclose(out[b : b + 1], right, rtol=2e-6, atol=2e-6)


def test_lengths_of_sequences_and_heads_that_differ():
    mask = mc.per_head([mc.window(3), mc.chunked(4)])
    cache = mask.cache(queries=2)
    seen = cache.seen([9, 5, 2], 2)
    assert seen.shape == (3, 2, 2, cache.slots)
    for b, n in enumerate([9, 5, 2]):
        assert np.array_equal(seen[b], cache.seen(n, 2))
    assert cache.positions([9, 5]).tolist() == [cache.positions(n).tolist() for n in (9, 5)]
    shared = mc.dilated(3, stride=2).cache()
    assert shared.seen([9, 5]).shape == (2, 1, 1, shared.slots)
    assert shared.given(np.array([9, 5]))["seen"].shape == (2, 1, 1, shared.slots)


def test_a_cache_of_equal_lengths_refuses_others():
    cache = mc.window(5).cache()
    assert cache.given([8, 8]) == cache.given(8)
    with pytest.raises(CacheNotRagged, match=r"have lengths from 4 to 9, and this cache"):
        cache.given([9, 4])
    with pytest.raises(DataShape, match="'n' has shape"):
        cache.given([[9, 4]])
    with pytest.raises(CacheCall):
        mc.window(5).cache(ragged=True).given([9, 0])
