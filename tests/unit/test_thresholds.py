"""Thresholds of keys that are chosen one by one, on GPUs in emulation, against a sort.

A query is a unit vector: its scores are one column of k, exactly, so that rows may have any values.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.abi import ATTENTION
from maskc.core.problem import Direction, Feature
from maskc.core.target import TARGETS as TARGETS_BY_NAME
from maskc.testing.emulator import machine
from tests.support.chosen_keys import (
    BOTH,
    PASSES,
    TARGETS,
    check_counts,
    check_entmax,
    check_nans,
    check_passes,
)
from tests.support.hopper import nan_memory
from tests.support.ledger import build
from tests.support.thorough import alternating, chiefly, more

N_Q, N_KV, DIM = 130, 700, 64


@pytest.fixture(params=TARGETS)
def target(request):
    return request.param


def columns(rng, n_kv=N_KV) -> dict[str, np.ndarray]:
    """Scores of rows by what they are: [n_kv]."""
    normal = rng.standard_normal
    return {
        "normal": normal(n_kv),
        "far from 0": 1000 + normal(n_kv),
        "heavy tails": normal(n_kv) / (1e-3 + np.abs(normal(n_kv))),
        "all magnitudes": normal(n_kv) * 2.0 ** rng.integers(-120, 120, n_kv),
        "few values": rng.integers(-2, 3, n_kv),
        "alike": np.full(n_kv, 0.75),
        "zeros of both signs": np.where(rng.random(n_kv) < 0.5, 0.0, -0.0),
        "mostly alike": np.where(rng.random(n_kv) < 0.9, -3.0, normal(n_kv)),
        "ascending": np.arange(n_kv) / 16,
        "descending": -np.arange(n_kv) / 16,
        "one far away": np.where(np.arange(n_kv) == 300, 1e30, normal(n_kv) * 1e-30),
        "two groups": normal(n_kv) + np.where(rng.random(n_kv) < 0.5, 50, -50),
    }


def inputs(rows, signs=False):
    """q, k and v of one sequence, two heads; the rows' scores are `rows`, one after another."""
    k = np.zeros((len(rows[0]), DIM), np.float32)
    for place, values in enumerate(rows):
        k[:, place] = values
    q = np.zeros((N_Q, DIM), np.float32)
    q[np.arange(N_Q), np.arange(N_Q) % len(rows)] = 1
    if signs:
        q[N_Q // 2 :] *= -1
    made = [torch.tensor(x[None, None]).to(torch.bfloat16) for x in (q, k, np.ones_like(k))]
    return [made[0].repeat(1, 2, 1, 1), *made[1:]]


def found_thresholds(attn, q, k, v, **data):
    """(float32 low, int32 end), [batch, heads, n_q] each, as the kernel leaves them."""
    found = []

    class Driver(machine.Driver):
        def launch(self, steps, stream, memory):
            super().launch(steps, stream, memory)
            if steps[0][0][1] == "attention_choose":
                block = ATTENTION.from_buffer_copy(memory.view)
                count = block.batch * block.heads_q * block.n_q
                base = block.delta - 4 * (-(-2 * count // 32) * 32)
                found.append(np.frombuffer(ctypes.string_at(base, 8 * count), np.int32))

    with pytest.MonkeyPatch.context() as patch:
        machine.install(patch)
        driver = Driver()
        patch.setattr("maskc.runtime.launch.cuda._driver", lambda device: driver)
        attn(q, k, v, **data)
    (words,) = found
    low, end = words.reshape(*q.shape[:3], 2).transpose(3, 0, 1, 2)
    return low.copy().view(np.float32), end


def chosen(scores, low, end):
    """Return what two numbers a row say: [rows, keys]."""
    low, key = low[:, None], np.arange(scores.shape[1])
    before = key < end[:, None]
    number = scores == scores
    return np.where(np.isnan(low), number | before, (scores > low) | ((scores == low) & before))


def best(scores, allowed, k):
    """The k best of every row: of equal scores the lower key, and last what is no number."""
    made = np.zeros_like(allowed)
    for row, (values, live) in enumerate(zip(scores, allowed, strict=True)):
        keys = np.flatnonzero(live)
        none = np.isnan(values[keys])
        order = np.lexsort((keys, np.where(none, 0, -(values[keys] + 0.0)), none))
        made[row, keys[order[:k]]] = True
    return made


def check(target, k, scores, q, keys, v, of=None, allowed=None):
    of = mc.full() if of is None else of
    attn = mc.topk(k, of=of).compile(head_dim=DIM, target=target)
    low, end = found_thresholds(attn, q, keys, v)
    allowed = np.ones(scores.shape, bool) if allowed is None else allowed
    wanted = best(scores, allowed, k)
    for head in range(q.shape[1]):
        made = chosen(scores, low[0, head], end[0, head]) & allowed
        assert (made == wanted).all(), np.flatnonzero((made != wanted).any(axis=1))


def scores_of(q, k):
    """Of the first head; products with 0 are not made, but where they are no numbers."""
    with np.errstate(all="ignore"):
        x, y = q[0, 0].float().numpy(), k[0, 0].float().numpy()
        hot = np.abs(x).argmax(axis=1)
        scores = y[:, hot].T * x[np.arange(len(x)), hot][:, None]
        bad = ~np.isfinite(y)
        others = bad.sum(axis=1)[None, :] - bad[:, hot].T
        return np.where(others > 0, np.nan, scores)


@pytest.mark.parametrize(
    ("k", "target"), alternating([0, more(1), more(64), 699, 700, more(1000), more(350)], TARGETS)
)
def test_whatever_the_scores(target, k):
    rows = columns(np.random.default_rng(k)).values()
    given = inputs(list(rows), signs=True)
    check(target, k, scores_of(*given[:2]), *given)


@pytest.mark.parametrize(
    ("k", "target"), alternating([100, more(2900), more(1), more(700)], TARGETS)
)
def test_guesses_that_are_wrong(target, k):
    """Longer rows, of which scores as if they were normal tell little: more than fit a list lie
    where the threshold is expected, or it is elsewhere."""
    rng, n = np.random.default_rng(k), 3000
    rows = columns(rng, n)
    rows |= {
        "exponential": np.exp(3 * rng.standard_normal(n)),
        "of one sign": -(np.abs(rng.standard_normal(n)) ** 3),
        "two values": np.where(rng.random(n) < 0.3, 1.0, 2.0),
        "hardly normal": np.round(rng.standard_normal(n), 1),
        "least numbers": rng.integers(-9, 9, n) * 2.0**-130,
        "one narrow peak": np.where(rng.random(n) < 0.5, 4 + rng.standard_normal(n) / 64, 0),
    }
    given = inputs(list(rows.values()), signs=True)
    check(target, k, scores_of(*given[:2]), *given)


@pytest.mark.parametrize("k", [3, more(200)])
def test_among_the_keys_that_may_be_chosen(target, k):
    given = inputs(list(columns(np.random.default_rng(7)).values()))
    query, key = np.arange(N_Q)[:, None] + N_KV - N_Q, np.arange(N_KV)[None, :]
    allowed = (key <= query) & (key >= query - 300)
    check(target, k, scores_of(*given[:2]), *given, mc.window(300), allowed)


def test_heads_have_as_many_constants(target):
    """The number of keys to choose is at the same place for all, whatever their candidates."""
    problem = driver.problem(64, None, 4, "bfloat16")
    mask = PASSES["candidates of heads"].mask
    chooser = driver.plan_kernel(mask, problem, TARGETS_BY_NAME[target]).chooser
    constants = [planned.lifted.args for planned in chooser.masks]
    assert {len(args) for args in constants} == {chooser.chosen + 1}
    assert {args[chooser.chosen] for args in constants} == {E.const(9)}


def test_rows_without_candidates(target):
    given = inputs(list(columns(np.random.default_rng(8)).values()))
    allowed = np.broadcast_to((np.arange(N_Q) >= 129)[:, None], (N_Q, N_KV))
    check(target, 5, scores_of(*given[:2]), *given, mc.where(lambda q, k: q >= 129), allowed)


@pytest.mark.parametrize("k", [1, more(5), more(30), more(400), 690])
def test_what_is_no_number_comes_last(target, k):
    """A column with infinities: its own rows have them as scores, others what is no number."""
    rng = np.random.default_rng(k)
    made = list(columns(rng).values())[:5]
    made[0] = np.where(rng.random(N_KV) < 0.05, np.inf, made[0])
    made[0] = np.where(rng.random(N_KV) < 0.3, -np.inf, made[0])
    made[1][rng.random(N_KV) < 0.1] = np.nan
    given = inputs(made, signs=True)
    check(target, k, scores_of(*given[:2]), *given)


# ------------------------------------------------------------------ what reads thresholds


@pytest.mark.parametrize(("name", "target"), alternating(
        chiefly(list(PASSES), "one key", "union", "union that is tested", "ordered",
                "documents", "heads", "wide", "rows of 136 and 72"),
        TARGETS,
    ),
)  # fmt: skip
def test_passes(name, target, monkeypatch):
    machine.install(monkeypatch)
    check_passes(name, target=target)


@pytest.mark.parametrize(
    ("mask", "dim", "target"), alternating(list(BOTH), [64, more(128), more(256)], TARGETS)
)
def test_passes_see_the_keys_that_were_chosen(mask, dim, target, monkeypatch):
    machine.install(monkeypatch)
    check_counts(*BOTH[mask], dim, 150, 333, target=target)


@pytest.mark.parametrize("name", [more("union"), "ordered"])
def test_rows_and_columns_that_are_cut(name, monkeypatch):
    machine.install(monkeypatch)
    check_passes(name, most_tiles=1)


def test_keys_that_are_no_numbers(target, monkeypatch):
    machine.install(monkeypatch)
    check_nans(target=target)


# ------------------------------------------------------------------ sm_80


@pytest.mark.parametrize(
    ("dim", "dtype"), alternating([32, more(96), more(192)], ["bfloat16", "float16"])
)
def test_other_head_dimensions(dim, dtype, monkeypatch):
    machine.install(monkeypatch)
    for each in BOTH.values():
        check_counts(*each, dim, 70, 140, dtype=dtype, target="sm_80")


@pytest.mark.parametrize(
    "dim", [64, 128, 256, *(pytest.param(dim, marks=pytest.mark.matrix) for dim in (32, 96, 192))]
)
def test_sources_have_no_spills(dim):
    target, forward = TARGETS_BY_NAME["sm_80"], (Direction.forward,)
    features = [{}, *({each} for each in Feature if each is not Feature.entmax)]
    for mask in (mc.topk(9, mc.causal()), mc.topk(9, mc.causal()) | mc.window(6)):
        bundle = mask.compile(dim, target="sm_80").bundle
        wanted = [(bundle.units[0], frozenset(each)) for each in features]
        for unit, asked in [*wanted, (bundle.chooser.units[0], frozenset())]:
            (use,) = build(unit, asked, forward, arch="sm_80").report.kernels
            assert (use.stack, use.spill_stores) == (0, 0), (unit.key, asked)
            assert unit.mode().launches[0].shared_bytes <= target.shared_memory


# ------------------------------------------------------------------ entmax over the chosen keys


SMALL = ["causal", "union", "union that is tested", "none", "less is more", "documents", "heads"]
LARGE = [name for name in PASSES if name not in SMALL and name != "logits"]


@pytest.fixture(autouse=True)
def entmax_driver(monkeypatch):
    with nan_memory():
        yield machine.install(monkeypatch)


@pytest.mark.parametrize(
    ("name", "target"), alternating(chiefly([*SMALL, *LARGE], "union", "documents"), TARGETS)
)
def test_passes_of_entmax(name, target):
    check_entmax(name, target=target)


@pytest.mark.parametrize(
    ("alpha", "target"), alternating([1.001, 1.25, more(2.0), more(1.75)], TARGETS)
)
def test_alphas(alpha, target):
    check_entmax("causal", alpha, target=target)


@pytest.mark.parametrize("target", ["sm_90a", more("sm_80")])
def test_logits(target):
    slopes = torch.rand(4)
    check_entmax("union", target=target, softcap=3.0, alibi_slopes=slopes)


@pytest.mark.parametrize("target", TARGETS)
def test_the_chosen_keys_decide_not_entmax_over_all(target):
    """With scores so close that entmax would give weight to every key, `top` of them have one."""
    n, top = 130, 7
    q, k, v = (torch.randn(1, 1, n, 64, dtype=torch.bfloat16) for _ in range(3))
    q, k = ((x * 4).round() / 64 for x in (q, k))
    attn = mc.topk(top, mc.full()).compile(64, target=target)
    _, lse = attn(q, k, v, return_lse=True, normalizer="entmax", alpha=1.5)
    x = (1 + 0.5 * (q.float() @ k.float().mT / 8 - lse[..., None])).clamp(min=0)
    assert ((x > 0).sum(-1) > top).all()
    kept = (q.float() @ k.float().mT).topk(top).values[..., -1:]
    assert (x.square() * (q.float() @ k.float().mT >= kept)).sum(-1).min() > 0.99
