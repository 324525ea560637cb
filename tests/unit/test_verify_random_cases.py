"""maskc verify reaches what a mask is made of, finds wrong kernels, and makes their cases small."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.cli import verify
from maskc.cli.entries import entries
from maskc.cli.given import Arrays
from maskc.core.dtypes import DType
from maskc.core.target import Target
from maskc.dsl.nodes import default_parameters
from maskc.ir.heads import written_heads
from maskc.reference.attention import attention, gradients
from maskc.runtime import CompiledMask
from maskc.verify import case_tensors as L
from maskc.verify import full_judge as S
from maskc.verify import random_cases as cases
from maskc.verify.case_lengths import MARGIN, SHORT, Lengths, constants, lengths_for, seen
from maskc.verify.full_judge import FullJudge
from maskc.verify.judge import rounding
from tests.support.cli import maskc, maskc_json
from tests.support.thorough import alternating, more

ROOT = Path(__file__).parents[2]
PATTERNS = sorted((ROOT / "patterns").glob("*.py"))
CPU_TARGET = Target.named("cpu")
CPU = ("--target", "cpu", "--head-dim", "16", "--dtype", "float32")


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, all cases are tried."""
    monkeypatch.setattr(cases, "_SECONDS", 3600.0)


# ------------------------------------------------------------------ lengths


@pytest.mark.parametrize(("mask", "expected"), [
    (mc.window(300), {300}), (mc.window(mc.param("w", 300)), {300}), (mc.sinks(40), {39}),
    (mc.dilated(10, stride=7), {7, 70}), (mc.block_diagonal(96), {96}), (mc.strided(13, 5), {13}),
    (mc.offsets([3, 900]), {3, 900}), (mc.global_tokens([2, 77]), {2, 77}),
    (mc.where(lambda q, k: (k // 64 - q // 64) % 5 < 3), {64, 320}),
    (mc.where(lambda q, k: k // 16 // 10 == 3), {480, 639}),
    (mc.random_blocks(32, 3, 1), {128}), (mc.block_table("t", 48), {48}),
    (mc.topk(6, of=mc.causal(), block=16), {128}),
    (mc.per_head([mc.window(9), mc.window(700)]), {700}),
    (mc.where(lambda q, k: q - k < 2 * (mc.n_q // 8) + 5), {8}),
])  # fmt: skip
def test_constants_in_tokens(mask: mc.Mask, expected: set[int]):
    assert expected <= set(constants(mask, written_heads(mask), {}))


def test_parameters_that_were_set_count():
    assert 900 in set(constants(mc.window(mc.param("w", 3)), None, {"w": 900}))


def test_lengths_go_past_the_largest_constant():
    assert lengths_for(mc.window(5), None, {}).shapes == SHORT
    assert lengths_for(mc.window(300), None, {}).shapes[-1] == (300 + MARGIN,) * 2
    wide, tall = lengths_for(mc.window(4095), None, {}).shapes[-2:]
    assert wide[1] == tall[0] == 4095 + MARGIN
    assert wide[0] == tall[1] < 300


def test_what_is_not_reached_is_said():
    found = lengths_for(mc.window(300) | mc.offsets([10**6, 10**9]), None, {})
    assert found.unreached == (10**6, 10**9)
    assert found.shapes[-1] == (300 + MARGIN,) * 2
    text = maskc("verify", "--expr", "window(3) | offsets([1000000])", *CPU, "--cases", 0).stdout
    assert "not reached: what changes from 1000000 tokens on (give --n and --n-kv)" in text


def test_a_table_of_its_own_decides_the_lengths(tmp_path: Path):
    mask = mc.block_table(np.tri(3, 4, dtype=bool), 32)
    shapes = lengths_for(mask, None, {}).shapes
    assert {n for n, _ in shapes} == {65, 81, 96}
    assert {n for _, n in shapes} == {97, 113, 128}
    (report,) = maskc_json("verify", "--expr", str(mask), *CPU, "--cases", 5)["patterns"]
    assert report["skipped"] == []
    assert report["drawn"]["cases"] == 5


def own_kind(mask: mc.Mask) -> set[str]:
    """Return the kinds that a mask is at all lengths."""
    return {
        name for name, plain in (("causal", mc.causal()), ("full", mc.full()))
        if mask.equals(plain) is True
    }  # fmt: skip


ALIGNED = {"full", "bigbird_etc", "bigbird_itc", "block_diagonal", "sta"}
"""Made of whole blocks of 64: no tile of the fixed lengths is partial; drawn lengths have some."""
LONG = {"longnet", "dsa", "moba", "bigbird_itc", "adaptive_local_global_content"}
"""Take a second or more."""
EVERYWHERE = {"full", "ast_tree", "axial"}
"""Every tile has a pair: a token in each block of 64 is an ancestor, or in the same column."""


@pytest.mark.parametrize(
    "path", [more(p) if p.stem in LONG else p for p in PATTERNS],
    ids=lambda path: path.stem,
)  # fmt: skip
def test_every_pattern_is_verified_where_it_is_itself(path: Path):
    """At some length it is neither causal nor full, and partial and empty tiles occur."""
    (entry,) = entries(str(path), None, (), None)
    heads = written_heads(entry.mask)
    attn = SimpleNamespace(  # no kernel is needed
        bundle=SimpleNamespace(problem=driver.problem(16, None, heads, "float32")),
        target=CPU_TARGET,
    )
    lengths, own = lengths_for(entry.mask, heads, {}), own_kind(entry.mask)
    looks, empty, partial = set(), 0, 0
    for n_q, n_kv in sorted(lengths.shapes, key=lambda shape: shape[0] * shape[1]):
        found = seen(verify._probe(entry, attn, heads or 2, n_q, n_kv, Arrays(0), "").keep, "")
        looks.add(found.looks)
        empty, partial = empty + found.empty, partial + found.partial
        if "other" in looks and empty and partial:
            break
    assert ("other" in looks) == (not own), lengths
    assert bool(partial) == (path.stem not in ALIGNED)
    assert bool(empty) == (path.stem not in EVERYWHERE)


def test_how_many_patterns_there_are():
    assert len(PATTERNS) == 42


def test_what_is_seen():
    assert seen(np.ones((2, 70, 130), bool), "x").looks == "full"
    causal = seen(np.tri(130, dtype=bool), "x")
    assert (causal.looks, causal.full, causal.partial, causal.empty) == ("causal", 3, 3, 3)
    late = np.arange(200)[None, :] <= np.arange(70)[:, None] + 130
    assert seen(late, "x").looks == "causal"
    assert seen(np.zeros((1, 3), bool), "x").looks == "empty"


# ------------------------------------------------------------------ the judge


@pytest.mark.parametrize(
    "options", [(), ("scale",), ("softcap",), ("alibi_slopes",), ("sink_logits",), "all"]
)
def test_step_by_step_in_fp64_is_the_reference(options: Any):
    rng = np.random.default_rng(5)
    q, k, v, dout = (
        rng.standard_normal((2, h, n, d)).astype(np.float32)
        for h, n, d in ((4, 20, 8), (2, 30, 8), (2, 30, 6), (4, 20, 6))
    )
    keep = rng.random((2, 4, 20, 30)) < 0.3
    keep[:, :, 3] = False
    given = {
        "softcap": 2.0, "alibi_slopes": rng.random(4).astype(np.float32),
        "sink_logits": rng.standard_normal(4).astype(np.float32), "scale": -0.4,
    }  # fmt: skip
    some = given if options == "all" else {name: given[name] for name in options}
    found = S.stepwise(q, k, v, keep, dout, None, **some)
    out, lse = attention(q, k, v, keep, **some)
    np.testing.assert_allclose(found.out, out, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.lse, lse, rtol=1e-12)
    for name, right in gradients(q, k, v, keep, dout, **some).items():
        np.testing.assert_allclose(getattr(found, name), right, rtol=1e-10, atol=1e-12)
    rounded = S.stepwise(q, k, v, keep, dout, DType.float16, **some)
    assert rounded.out.dtype == np.float32
    np.testing.assert_allclose(rounded.out, out, atol=2e-2)


def problem(number: int) -> tuple[np.ndarray, ...]:
    """Random q, k, v, keep, dout: every query sees two keys or more, scores are small to large."""
    rng = np.random.default_rng(number)
    n_q, n_kv, d = rng.integers(1, 40), rng.integers(4, 70), rng.choice([8, 16, 64])
    shapes = (2, 4, n_q, d), (2, 2, n_kv, d), (2, 2, n_kv, d), (2, 4, n_q, d)
    q, k, v, dout = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    keep = rng.random((2, 4, n_q, n_kv)) < rng.choice([0.1, 0.5, 1.0])
    keep[..., :2] = True
    return q * np.float32(rng.choice([0.3, 1.0, 3.0])), k, v, keep, dout


def verdicts(given: tuple[np.ndarray, ...], found: S.Results, dtype: DType) -> dict[str, float]:
    """Return each part's share of the allowed error; lse is fp32 in kernels of every dtype."""
    judge, shares = FullJudge(*given, dtype), {}
    for part in ("out", "dq", "dk", "dv", *(["lse"] if dtype is DType.float32 else [])):
        error, allowed = judge.error(part, getattr(found, part))
        shares[part] = error / allowed
    return shares


def in_blocks(q: np.ndarray, k: np.ndarray, v: np.ndarray, keep: np.ndarray, dout: np.ndarray):
    """fp32 in another order of sums than the definition's: keys back to front."""
    found = S.stepwise(q, k[:, :, ::-1], v[:, :, ::-1], keep[..., ::-1], dout, DType.float32)
    return dataclasses.replace(found, dk=found.dk[:, :, ::-1], dv=found.dv[:, :, ::-1])


@pytest.mark.parametrize("hundred", [0, more(1), more(2)])
def test_fp32_in_any_order_passes(hundred: int):
    for number in range(100 * hundred, 100 * hundred + 100):
        given = problem(number)
        found = verdicts(given, in_blocks(*given), DType.float32)
        assert max(found.values()) <= 1, (number, found)


def of_heads(number: int) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    """A problem with all that has one number for each head."""
    rng = np.random.default_rng(number)
    slopes, sinks = rng.uniform(0.01, 0.2, 4), rng.standard_normal(4)
    return problem(number), {
        "alibi_slopes": slopes.astype(np.float32), "sink_logits": sinks.astype(np.float32)
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16, DType.float16])
def test_gradients_of_heads_are_judged(dtype: DType):
    """Right gradients pass in fp32, where delta comes from the out that was stored. That a
    sequence is left out is caught in fp32, and that the sign is wrong in every dtype."""
    for number in range(60):
        given, options = of_heads(number)
        given = tuple(x if x.dtype == bool else rounding(dtype)(x) for x in given)
        judge, dout = FullJudge(*given, dtype, **options), given[4]
        right = S.stepwise(*given, DType.float32, **options)
        delta = (dout * (rounding(dtype)(right.out) - right.out)).sum(3)
        at_sink = np.exp(options["sink_logits"][:, None] - right.lse)
        made = {"dsink": right.dsink - (at_sink * delta).sum((0, 2)), "dalibi": right.dalibi}
        short = S.stepwise(*(x[:1] for x in given), DType.float32, **options)
        for part, found in made.items():
            error, allowed = judge.error(part, found)
            assert error <= allowed, (number, part, error, allowed)
            assert np.isnan(judge.error(part, found * np.nan)[0])
            error, allowed = judge.error(part, -found)
            assert error > allowed, (number, part)
            if dtype is DType.float32:
                error, allowed = judge.error(part, getattr(short, part))
                assert error > allowed, (number, part)


def without_a_key(q, k, v, keep, dout):
    """One query of a head misses the key that weighs most."""
    scores = np.where(keep[1, 2, -1], k[1, 1] @ q[1, 2, -1], -np.inf)
    keep = keep.copy()
    keep[1, 2, -1, scores.argmax()] = False
    return in_blocks(q, k, v, keep, dout)


def with_a_wrong_row(q, k, v, keep, dout):
    """One query of a head sees what it should not, and not what it should; or one key of all."""
    keep = keep.copy()
    keep[0, 1, 0] = np.eye(1, keep.shape[-1])[0] if keep[0, 1, 0].all() else ~keep[0, 1, 0]
    return in_blocks(q, k, v, keep, dout)


def with_another_scale(q, k, v, keep, dout):
    """Scores are off by a thousandth."""
    return in_blocks(q * np.float32(1.001), k, v, keep, dout)


def with_rounded_weights(q, k, v, keep, dout):
    """Weights pass through bf16 on their way to the product."""
    found, group = in_blocks(q, k, v, keep, dout), q.shape[1] // k.shape[1]
    wide_k, wide_v = (np.repeat(x, group, 1) for x in (k, v))
    s = np.where(keep, q @ wide_k.swapaxes(-1, -2) * np.float32(q.shape[-1] ** -0.5), -np.inf)
    p = np.exp(s - found.lse[..., None]).astype(ml_dtypes.bfloat16).astype(np.float32)
    return dataclasses.replace(found, out=p @ wide_v)


@pytest.mark.parametrize("fault", [
    without_a_key, with_a_wrong_row, with_another_scale, with_rounded_weights,
])  # fmt: skip
def test_faults_are_caught_in_fp32(fault: Any):
    for number in range(100):
        given = problem(number)
        found = verdicts(given, fault(*given), DType.float32)
        assert max(found.values()) > 1, (number, found)


@pytest.mark.parametrize(
    ("dtype", "fault"),
    alternating([DType.bfloat16, DType.float16], [without_a_key, with_a_wrong_row]),
)
def test_faults_are_caught_in_half_precision(dtype: DType, fault: Any):
    for number in range(40):
        given = problem(number)
        given = tuple(x if x.dtype == bool else rounding(dtype)(x) for x in given)
        right = S.stepwise(*given, dtype)
        assert max(verdicts(given, right, dtype).values()) <= 1
        wrong = verdicts(given, fault(*given), dtype)
        assert max(wrong.values()) > 1, (number, wrong)


def test_values_below_the_smallest_of_fp16_are_rounded_too():
    """A query whose sink weighs nearly all: out is below 2^-24, and 0 is as near as fp16 comes."""
    q, k, v, keep, _ = problem(5)
    sinks = np.full(4, 40.0, np.float32)
    judge = FullJudge(q, k, v, keep, None, DType.float16, sink_logits=sinks)
    assert 0 < abs(judge.expected.out).max() < 2**-24
    error, allowed = judge.error("out", np.zeros_like(q))
    assert error <= allowed


@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16])
def test_rows_that_see_nothing_are_exact_and_nan_is_wrong(dtype: DType):
    q, k, v, keep, dout = problem(6)
    keep[:, :, 0], keep[..., 1] = False, False
    judge, right = FullJudge(q, k, v, keep, dout, dtype), S.stepwise(q, k, v, keep, dout, dtype)
    assert np.all(right.out[:, :, 0] == 0)
    assert np.all(np.isneginf(right.lse[:, :, 0]))
    assert np.all(right.dk[:, :, 1] == 0)
    for part in ("out", "dq", "dk", "dv"):
        error, allowed = judge.error(part, getattr(right, part))
        assert error <= allowed
        spoilt = getattr(right, part).copy()
        spoilt[0, 0, 0] = np.nan
        error, allowed = judge.error(part, spoilt)
        assert not error <= allowed


# ------------------------------------------------------------------ drawn cases


@pytest.mark.parametrize("expr", [
    "causal() & window(param('w', 70))", "causal() & documents('doc')", "tree('t') | flags('f')",
    "per_head([causal(), window(3), sinks(2), intervals('i')])", "causal() & ~causal()",
    "block_table('t', 16)", *map(more, ("topk(3, of=causal())",)),
    "topk(2, of=causal(), score='given', block=8)",
    "topk(2, of=window(20), score='indexer', share='group')", "random_blocks(16, 2, 3)",
    "where(lambda h, q, k: q - k < 8 * h)",
])  # fmt: skip
def test_right_kernels_pass(expr: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cases, "OPTIONS", ((), ("scale",)))  # whose kernels are others
    mask = mc.parse(expr)
    heads, params = written_heads(mask), tuple(default_parameters(mask).items())
    attn = mask.compile(16, n_heads=heads, dtype="float32", target="cpu")
    lengths = lengths_for(mask, heads, {})
    subject = cases.MaskUnderTest("mask", mask, {"float32": attn}, lengths, heads, params)
    done = cases.try_cases(subject, 8, 0)
    assert done.mismatch is None
    assert done.shrunk
    assert (done.cases, done.refused) == (8, 0), done.reason


def test_half_precision_and_all_that_can_be_drawn():
    subject = subject_of(mc.causal() & mc.window(40), dtype="bfloat16")
    rng = np.random.default_rng(3)
    draw = cases.Draw(lambda least, most: int(rng.integers(least, most + 1)))
    found = [cases.drawn(draw, subject) for _ in range(40)]
    assert {case.strides for case in found} == set(cases.STRIDES)
    assert {case.options for case in found} == set(cases.OPTIONS)
    assert {case.batch for case in found} == {1, 2}
    assert {case.heads for case in found} == {1, 2, 4}
    assert any(case.n_q > 41 and case.n_kv > 41 for case in found)
    assert any(case.n_q < case.n_kv for case in found)
    assert any(case.n_q > case.n_kv for case in found)
    assert [cases.mismatch(case, subject) for case in found[:10]] == [None] * 10


def subject_of(mask: mc.Mask, dtype: str = "float32") -> cases.MaskUnderTest:
    attn = mask.compile(16, dtype=dtype, target="cpu")
    return cases.MaskUnderTest("mask", mask, {dtype: attn}, lengths_for(mask, None, {}), None, ())


def test_data_of_each_sequence():
    mask = mc.causal() & mc.documents("doc") & mc.flags("f")
    subject = subject_of(mask)
    case = cases.DrawnCase(70, 70, 2, 2, 1, (), "BSHD", True, 4, (), "float32")
    data = cases.data_for(case, subject)
    assert data["doc"].shape == data["f"].shape == (2, 70)
    assert not np.array_equal(*data["doc"])
    assert cases.mismatch(case, subject) is None


@pytest.mark.parametrize("strides", cases.STRIDES)
@pytest.mark.parametrize("with_torch", [False, True])
@pytest.mark.parametrize("dtype", [DType.float32, DType.bfloat16])
def test_strides(strides: str, with_torch: bool, dtype: DType, monkeypatch: pytest.MonkeyPatch):
    if with_torch:
        pytest.importorskip("torch")
    monkeypatch.setattr(L, "has_torch", lambda: with_torch)
    x = np.arange(2 * 3 * 5 * 8, dtype=np.float32).reshape(2, 3, 5, 8) % 64
    made = L.laid(x, strides, dtype, "cpu")
    elements = {
        "contiguous": (120, 40, 8, 1), "BSHD": (120, 8, 24, 1), "padded": (360, 120, 24, 1),
    }[strides]  # fmt: skip
    found = made.stride() if with_torch else tuple(s // made.dtype.itemsize for s in made.strides)
    assert found == elements
    assert np.array_equal(np.asarray(made.float() if with_torch else made, np.float32), x)


# ------------------------------------------------------------------ wrong kernels


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes every kernel wrong in one row where a condition on q and k holds."""

    def install(holds: Any) -> None:
        right = CompiledMask.__call__

        def wrong(self: Any, q: Any, k: Any, v: Any, **more: Any) -> Any:
            found = right(self, q, k, v, **more)
            out = found[0] if isinstance(found, tuple) else found
            if holds(q, k, more):
                out[:, :, -1] += 0.5
            return found

        monkeypatch.setattr(CompiledMask, "__call__", wrong)

    return install


def counterexample(*words: object) -> dict[str, Any]:
    done = maskc("verify", *words, "--json", code=3)
    assert json.loads(done.stderr)["exit_code"] == 3
    return json.loads(done.stdout)["patterns"][0]["drawn"]["counterexample"]


def test_a_fault_beyond_a_window_is_found_and_made_small(broken: Any):
    """Below 300 tokens, where a window of 290 is plain causal, the kernel is right."""
    broken(lambda q, k, more: k.shape[2] > 300)
    words = ("--expr", "causal() & window(290)", *CPU)
    done = maskc("verify", *words, "--cases", 60, "--json", code=3)
    (report,) = json.loads(done.stdout)["patterns"]
    assert {row["case"] for row in report["rows"] if not row["ok"]} == {"547 x 547"}
    found = report["drawn"]["counterexample"]
    assert found["part"] == "out"
    assert found["n_kv"] == 301
    assert (found["n_q"], found["batch"], found["heads"], found["options"]) == (1, 1, 1, [])
    assert found["strides"] == "contiguous"
    assert json.loads(done.stderr)["exit_code"] == 3


def test_a_wrong_case_is_printed_as_a_program(broken: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("maskc.verify.case_lengths.SHORT", ((5, 5),))
    broken(lambda q, k, more: q.shape[0] > 1)
    done = maskc("verify", "--expr", "window(20)", *CPU, "--cases", 40, code=3)
    text = done.stdout.partition("the smallest wrong case:\n\n")[2]
    assert text.startswith("# maskc verify: out is wrong by ")
    assert "mask = mc.parse('window(20)')\n" in text
    assert "batch, heads, kv_heads, n_q, n_kv = 2, 1, 1, 1, 1\n" in text
    assert "MC602  a random case of mask is wrong" in done.stderr


@pytest.mark.parametrize(("fault", "expected"), [
    (lambda q, k, more: q.shape[0] > 1, {"batch": 2, "n_q": 1, "n_kv": 1}),
    (lambda q, k, more: "sink_logits" in more, {"options": ["sink_logits"], "n_q": 1}),
    (lambda q, k, more: not q.is_contiguous(), {"part": "out"}),
    (lambda q, k, more: q.shape[1] > k.shape[1], {"heads": 2, "kv_heads": 1, "n_q": 1}),
    (lambda q, k, more: q.shape[2] > k.shape[2], {"n_q": 2, "n_kv": 1, "options": []}),
])  # fmt: skip
def test_faults_that_fixed_lengths_do_not_show(
    broken: Any, fault: Any, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("torch")
    monkeypatch.setattr("maskc.verify.case_lengths.SHORT", ((5, 5),))
    broken(fault)
    found = counterexample("--expr", "causal() & window(20)", *CPU, "--cases", 40)
    assert expected.items() <= found.items()


def test_without_hypothesis_cases_are_drawn_and_do_not_shrink(
    broken: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cases, "find_spec", lambda name: None)
    monkeypatch.setattr("maskc.verify.case_lengths.SHORT", ((5, 5),))
    text = maskc("verify", "--expr", "window(20)", *CPU, "--cases", 6).stdout
    assert "random cases: 6 compared, all right" in text
    assert "cases do not shrink without Hypothesis: pip install 'maskc[test]'" in text
    broken(lambda q, k, more: q.shape[0] > 1)
    found = counterexample("--expr", "window(20)", *CPU, "--cases", 40)
    assert found["batch"] == 2


def test_the_same_seed_draws_the_same_cases(monkeypatch: pytest.MonkeyPatch):
    subject, tried = subject_of(mc.window(20)), []
    monkeypatch.setattr(cases, "mismatch", lambda case, _: tried.append(case))
    for seed in (1, 1, 2):
        cases.try_cases(subject, 10, seed)
    assert len(tried) == 30
    assert tried[:10] == tried[10:20] != tried[20:]


def test_shrinking_ends(monkeypatch: pytest.MonkeyPatch):
    """The smallest so far is given when the time is up."""
    clock = iter(range(10**6))
    monkeypatch.setattr(cases, "monotonic", lambda: next(clock))
    monkeypatch.setattr(cases, "_SECONDS", 20.0)
    wrong = lambda case, _: cases.Mismatch(case, "out", 1.0, 0.0)  # noqa: E731
    monkeypatch.setattr(cases, "mismatch", wrong)
    done = cases.try_cases(subject_of(mc.window(20)), 50, 0)
    assert done.mismatch is not None
    assert done.cases == 1


@pytest.mark.usefixtures("soon_elsewhere")
def test_nothing_is_left_in_the_working_directory(tmp_path: Path):
    """In a process of its own: pytest tells Hypothesis where to keep things."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HYPOTHESIS")}
    words = ["verify", "--expr", "window(9)", *CPU, "--cases", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "maskc", *words], cwd=tmp_path, capture_output=True, text=True,
        check=False, env={**env, "PYTHONPATH": str(ROOT)}, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "random cases: 1 compared, all right" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_refused_cases_are_counted(monkeypatch: pytest.MonkeyPatch):
    def refuses(*_: object, **__: object) -> None:
        raise mc.MaskcError("no")

    monkeypatch.setattr(cases, "mismatch", refuses)
    done = cases.try_cases(subject_of(mc.window(20)), 5, 0)
    assert (done.cases, done.refused, done.reason) == (0, 5, "MC000 no")


# ------------------------------------------------------------------ the program


@pytest.mark.parametrize(("expr", "dtype"), alternating([
    "causal() & documents('doc') & flags('f')", "tree('t') | intervals('i')",
    "topk(3, of=causal())", "per_head([causal(), window(param('w', 4))])",
    "where(lambda q, k: (q + 2 * k) % 3 < 2)",
], ["float32", "bfloat16"]))  # fmt: skip
def test_the_program_shows_the_fault_and_nothing_else(
    expr: str, dtype: str, monkeypatch: pytest.MonkeyPatch
):
    from maskc.verify.counterexample import script

    mask = mc.parse(expr)
    heads = written_heads(mask)
    attn = mask.compile(16, n_heads=heads, dtype=dtype, target="cpu")
    subject = cases.MaskUnderTest("mask", mask, {dtype: attn}, Lengths((), ()), heads, ())
    params = (("w", 2),) if "param" in expr else ()
    by_sequence = "doc" in expr
    options = ("softcap", "sink_logits", "scale")
    case = cases.DrawnCase(
        9, 9, 2, 2, 1, options, "BSHD", by_sequence, 7, params, dtype,
        data_as_tensors="tree" in expr and L.has_torch(), deterministic="topk" in expr,
    )  # fmt: skip
    programs = {
        part: script(cases.Mismatch(case, part, 1.0, 1e-2 if part == "lse" else 0.1), subject)
        for part in ("out", "dk", "lse", "dsink", "planted")
    }
    if "topk" in expr:  # whose keys NaN would rank
        del programs["planted"]
    assert set(map(run, programs.values())) == {0}
    right = CompiledMask.__call__

    def wrong(self: Any, q: Any, k: Any, v: Any, **more: Any) -> Any:
        out, lse = right(self, q, k, v, **more)
        out[:, :, -1] += 1
        return out, lse

    monkeypatch.setattr(CompiledMask, "__call__", wrong)
    assert run(programs["out"]) == 1


def run(program: str) -> int:
    """Exit status of a program, run in this process: another would import for seconds."""
    try:
        exec(compile(program, "program", "exec"), {})
    except SystemExit as end:
        return int(end.code)
    raise ValueError("the program does not say how it went")
