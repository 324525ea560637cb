"""Bits of chosen blocks in partial tiles are the mask, lane by lane, for any table of them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.evaluator import evaluate
from maskc.core.problem import Direction
from maskc.core.target import TARGETS
from maskc.layout import Chosen
from maskc.layout.tiles.chosen_blocks import NONE
from maskc.plan.explain import explain
from tests.support.host_bits import HostBits
from tests.support.thorough import each

SM_90A = TARGETS["sm_90a"]
HEADS = 2
SIZES = [(1, 1), (64, 65), (130, 128), (333, 777), (777, 333), (191, 2300)]


CAUSAL = mc.causal()


def top(block: int, q_block: int, of: mc.Mask = CAUSAL) -> mc.Mask:
    return mc.topk(3, of=of, score="block_mean", block=block, q_block=q_block)


BY_CELLS = {
    "alone": top(64, 16),
    "a row each": top(64, 1),
    "a few rows": top(32, 4, mc.full()),
    "wide": top(256, 128),
    "narrow": top(16, 8),
    "no power of two": top(24, 24),
    "wider than a tile": top(136, 40, mc.window(500, 20)),
    "beside others": mc.window(90) | top(64, 32) | mc.sinks(5),
    "in one way or the other": mc.window(90) ^ top(64, 16, mc.full()),
    "beside chunks": mc.chunked(64) | top(64, 1, mc.where(lambda q, k: k // 64 < q // 64)),
    "beside near blocks": top(32, 16) | (CAUSAL & mc.where(lambda q, k: q // 32 - k // 32 <= 2)),
    "without": mc.causal() - top(40, 16),
}
FEW_PAIRS = "if (keep(mask, q, k, p.n_q, p.n_kv))\n                exact +="
PAIRS = {
    "blocks that share cells": top(20, 16),
    "two selections": top(64, 16) | top(32, 16, mc.full()),
    "several formulas": mc.per_head([top(64, 16), mc.window(9)]),
    "too many intervals": mc.offsets(range(0, 70, 9)) | top(64, 16),
}


@cache
def planned(mask: mc.Mask, dim: int = 128):
    return driver.plan_kernel(mask, driver.problem(dim, None, HEADS, "bfloat16"), SM_90A)


@cache
def emitted(mask: mc.Mask, dim: int = 128):
    return driver.emit_bundle(planned(mask, dim))


def tables(mask: mc.Mask, n_q: int, n_kv: int, rng: np.random.Generator) -> dict[str, Chosen]:
    """A random third of all blocks is chosen, whatever its scores."""
    found = {}
    for one in driver.lowered(mask).selections:
        rows, columns = -(-n_q // one.q_block), -(-n_kv // one.block)
        blocks = np.where(rng.random((HEADS, rows, columns)) < 1 / 3, np.arange(columns), NONE)
        lists = np.sort(blocks.astype(np.int32), axis=-1)[None]
        found[one.name] = Chosen(lists, columns, one.block, one.q_block)
    return found


def live(mask: mc.Mask, n_q: int, n_kv: int, chosen: dict[str, Chosen]) -> np.ndarray:
    """bool [heads, n_q, n_kv]: the formula itself."""
    env = {"q": np.arange(n_q)[:, None], "k": np.arange(n_kv), "n_q": n_q, "n_kv": n_kv}
    array = np.zeros((HEADS, n_q, n_kv), bool)
    for head in range(HEADS):
        own = {name: table.part(0).part(head) for name, table in chosen.items()}
        array[head] = evaluate(driver.lowered(mask).keep, env | own)
    return array


@pytest.mark.parametrize(
    ("name", "dim", "source"), each(list(BY_CELLS), [64, 128, 192], ["large", "small", "backward"])
)
def test_bits_are_the_mask(name, dim, source):
    mask = BY_CELLS[name]
    bundle = emitted(mask, dim)
    direction = Direction.backward if source == "backward" else Direction.forward
    form = "small" if source == "small" else ""
    units = [x for x in bundle.choice("sm_90a", direction) if x.form == form]
    if not units:
        pytest.skip("there are no smaller tiles")
    bits = HostBits(bundle, units[0])
    rng = np.random.default_rng(dim)
    for n_q, n_kv in SIZES:
        chosen = tables(mask, n_q, n_kv, rng)
        want = live(mask, n_q, n_kv, chosen)
        found = bits.live(n_q, n_kv, HEADS, chosen=chosen)
        np.testing.assert_array_equal(found, want, str((n_q, n_kv)))


@pytest.mark.parametrize("name", ["alone", "a row each", "no power of two"])
def test_packed_heads_have_the_same_rows(name):
    """The queries of several heads, one head after another, are rows of one tile."""
    mask = BY_CELLS[name]
    bundle = emitted(mask)
    bits = HostBits(bundle, bundle.unit("sm_90a", Direction.forward), packed=3)
    rng = np.random.default_rng(0)
    for n_q, n_kv in ((1, 300), (5, 260), (16, 9)):
        chosen = tables(mask, n_q, n_kv, rng)
        want = np.tile(live(mask, n_q, n_kv, chosen), (1, 3, 1))
        np.testing.assert_array_equal(bits.live(n_q, n_kv, HEADS, chosen=chosen), want)


@pytest.mark.parametrize("name", BY_CELLS)
def test_no_pair_is_tested(name):
    """Explain says so."""
    plan = planned(BY_CELLS[name])
    assert "and of the chosen blocks, no test per pair" in " ".join(explain(plan).split())
    for unit in driver.emit_bundle(plan).units:
        # Where a call has few pairs, delta is summed anew pair by pair, by a launch of its own.
        text = unit.source.replace("FN i32 keep(", "").replace(FEW_PAIRS, "")
        assert unit.target != "sm_90a" or "keep(" not in text


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_are_tested_of(name):
    assert "partial tiles: test each" in " ".join(explain(planned(PAIRS[name])).split())


def test_what_is_both_chosen_and_not_is_nothing():
    mask = top(64, 16) & (mc.window(9) | (mc.causal() - top(64, 16)))
    (one,) = planned(mask).masks
    assert {interval.chosen for interval in one.intervals} == {True}
    assert E.arrays(one.lifted.shape)
