"""The loop nest of a plan in words: what it says about tiles is what the mask has."""

from __future__ import annotations

import re

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.target import TARGETS
from maskc.plan.loops import loop_nest
from tests.support.cli import maskc, maskc_json

SHOWN = {
    "streaming": (mc.causal() & (mc.sinks(4) | mc.window.hf(1024)), "sm_90a"),
    "band": (mc.window(255), "cpu"),
    "lattice": (mc.dilated(63, stride=4) | mc.strided(128) & mc.causal(), "cpu"),
    "documents": (mc.documents("doc") & mc.causal(), "sm_90a"),
    "per_head": (mc.per_head([mc.causal(), mc.window(8), mc.causal()]), "sm_80"),
    "chosen": (mc.topk(64, of=mc.causal()) | mc.window(15), "sm_90a"),
    "gathered": (mc.topk(64, of=mc.causal(), score="indexer") | mc.window(15), "sm_90a"),
    "grid": (
        mc.where(lambda q, k: (abs(q // 64 - k // 64) <= 3) & (abs(q % 64 - k % 64) <= 3)),
        "sm_90a",
    ),
    "blocks": (mc.block_diagonal(64), "sm_90a"),
}  # fmt: skip


def nest(mask: mc.Mask, target: str, n_q: int = 4096, n_kv: int | None = None) -> str:
    heads = len(mask.children) if isinstance(mask, type(SHOWN["per_head"][0])) else None
    problem = driver.problem(64, None, heads, "bfloat16")
    return loop_nest(driver.plan_kernel(mask, problem, TARGETS[target]), n_q, n_kv or n_q)


@pytest.mark.parametrize("name", SHOWN)
def test_texts(name: str, golden):
    text = nest(*SHOWN[name])
    golden(f"loops/{name}.txt", text)
    assert max(map(len, text.splitlines())) <= 100
    for one in text.split(" pass, ")[1:]:
        assert 10 <= len(one.splitlines()) <= 30


def test_who_makes_a_list():
    for mask, what in (
        (mc.causal() & mc.random_blocks(64, 3, seed=0), "the mask's own tables"),
        (mc.causal() & mc.documents("doc"), "the data of the call"),
        (mc.random_blocks(64, 3, seed=0) & mc.documents("doc"), "the data of the call"),
    ):
        assert f"tiles(ti) = a list in memory from {what}, made on the" in nest(mask, "cpu")


FORM = re.compile(
    r"^ +(live|full|partial) +(t[ij]) = (.+?)(?:\.\.(.+?))?"
    r"(?: in steps of (\d+))?(?:, for t[ij] = (\d+)(?:\.\.(\d+))?|, where (.+))?$", re.M
)  # fmt: skip


def tiles_of(text: str, rows: int, columns: int) -> np.ndarray:
    """Return the tiles that the closed forms of a pass describe: 0, 1 partial, 2 full."""
    array = np.zeros((rows, columns), int)
    forms = FORM.findall(text)
    if not forms:
        assert re.search(r"a list in memory of \d+ full and \d+ partial tiles", text)
        pytest.skip("no closed forms at these lengths")
    order = {"live": 1, "partial": 1, "full": 2}
    for kind, inner, first, last, step, low, high, where in forms:
        size = rows if inner == "tj" else columns
        only = range(int(low), int(high or low) + 1) if low else range(size)
        for outer in only:
            at = {"ti" if inner == "tj" else "tj": outer, "min": min, "max": max}
            if where and not eval(where, at):
                continue
            start = eval(first, at)
            end = eval(last, at) if last else start
            for one in range(start, end + 1, int(step or 1)):
                at_tile = (outer, one) if inner == "tj" else (one, outer)
                array[at_tile] = max(array[at_tile], order[kind])
    return array


@pytest.mark.parametrize("lengths", [(640, 640), (1000, 1000), (300, 1000)], ids=str)
@pytest.mark.parametrize(
    "mask",
    [mc.window(255), mc.causal(), mc.causal() & (mc.sinks(4) | mc.window(100)), mc.chunked(128),
     mc.window(100, 30), mc.prefix(70) | mc.causal()],
    ids=str,
)  # fmt: skip
def test_closed_forms_are_the_tiles(mask: mc.Mask, lengths: tuple[int, int]):
    n_q, n_kv = lengths
    dense = mask.dense(n_q, n_kv)
    rows, columns = -(-n_q // 64), -(-n_kv // 64)
    right = np.zeros((rows, columns), int)
    for ti, tj in np.ndindex(rows, columns):
        part = dense[64 * ti : 64 * ti + 64, 64 * tj : 64 * tj + 64]
        right[ti, tj] = 2 if part.all() else int(part.any())
    forward, backward = nest(mask, "cpu", n_q, n_kv).split("\n\n")
    for text in (forward, backward):
        found = tiles_of(text, rows, columns)
        assert np.array_equal(found > 0, right > 0)
        assert ((found == 2) <= (right == 2)).all()  # where a kernel computes them, certain ones


def test_lengths_decide_between_a_whole_and_parts():
    """Both of them: with fewer queries, both passes run in parts."""
    for n_q, passes in ((1024, 1), (64, 2)):
        assert nest(*SHOWN["lattice"], n_q, 1024).count("# part 1 of 2") == passes


def test_lengths_without_tokens_and_the_command():
    assert "no tiles" in nest(mc.causal(), "cpu", 0, 5)
    asked = ("compile", "--expr", "window(5)", "--target", "cpu", "--emit", "loops", "--n", 100)
    text = maskc(*asked).stdout
    assert text.startswith("# forward pass, 100 x 100, on cpu; tiles of 64 queries x 64 keys\n")
    assert maskc_json(*asked) == {"loops": {"mask": text}}
