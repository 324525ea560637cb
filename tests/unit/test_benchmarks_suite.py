"""Suites: the anchors mean what their names say, and one failure stops nothing."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from benchmarks import anchors, correctness, suite
from benchmarks.anchors import ANCHORS, CPU, DENSE, SEVENTEEN, SM80, Anchor
from benchmarks.contest import Measured
from benchmarks.correctness import patterns_folder
from benchmarks.runs import save, saved
from benchmarks.suite import SUITES, Limits, Suite, run_suite
from maskc.core.dtypes import DType
from maskc.core.errors import NoDevice, UsageMistake
from maskc.core.target import Target
from maskc.lab.case_pairs import defined_rows

ROOT = Path(__file__).parents[2]
N = 700
Q, K = np.arange(N)[:, None], np.arange(N)[None]
needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="PyTorch draws the data")


def window(size: int):
    return lambda q, k: (k <= q) & (size > q - k)


def streaming(sinks: int, size: int):
    return lambda q, k: (k <= q) & ((size > q - k) | (sinks > k))


def dilated(size: int, stride: int):
    return lambda q, k: (k <= q) & (size * stride > q - k) & ((q - k) % stride == 0)


def full(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return k >= 0 * q


def causal(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    return k <= q


def table(size: int):
    return lambda q, k, table: table[q // size, k // size]


DEFINITIONS = {
    **{f"full_8k{d}": full for d in ("", "_d64", "_d256")},
    **{f"causal_16k{d}": causal for d in ("", "_d64", "_d256")},
    "window1024_32k": window(1024),
    "window4096_128k": window(4096),
    "streaming_16_64_4k": streaming(16, 64),
    "streaming_64_1024_128k": streaming(64, 1024),
    "blockdiag16_4k": lambda q, k: q // 16 == k // 16,
    "longformer_256_g64_16k": lambda q, k: (abs(q - k) <= 256) | (q < 64) | (k < 64),
    "dilated_w512_s4_32k": dilated(512, 4),
    "strided_128_16k": lambda q, k: (k <= q) & ((q - k < 128) | ((q - k) % 128 == 0)),
    "logdilated_256x6_32k": lambda q, k: np.any([dilated(256, 2**i)(q, k) for i in range(6)], 0),
    "prefixlm_4k_16k": lambda q, k: (k <= q) | (k < 4096),
    "bigbird64_16k": table(64),
    "document_32k": lambda q, k, doc: (k <= q) & (doc[q] == doc[k]),
    **{name: table(128) for name in ("random50_4k", "random25_8k", "random10_16k")},
}
"""Written from the names, not from the package."""


def test_the_anchors_are_seventeen_with_the_usual_sizes_and_four_more():
    sizes = {a.name: (a.batch, a.heads, a.n, a.head_dim) for a in ANCHORS}
    assert len(SEVENTEEN) == 17
    assert set(sizes) == {a.name for a in (*SEVENTEEN, *DENSE)} == set(DEFINITIONS)
    assert sizes["full_8k_d64"] == (2, 32, 8192, 64)
    assert sizes["causal_16k_d64"] == (1, 16, 16384, 64)
    assert sizes["full_8k_d256"] == (1, 16, 8192, 256)
    assert sizes["causal_16k_d256"] == (1, 8, 16384, 256)
    assert sizes["full_8k"] == (2, 16, 8192, 128)
    assert sizes["streaming_64_1024_128k"] == (1, 8, 131072, 128)
    assert sizes["longformer_256_g64_16k"] == (1, 12, 16384, 64)
    assert sizes["random50_4k"] == (4, 16, 4096, 128)
    assert {a.name for a in SM80} == {
        f"{name}{d}" for name in ("full_8k", "causal_16k", "window1024_32k") for d in ("", "_d64")
    }


@pytest.mark.parametrize("anchor", ANCHORS, ids=lambda a: a.name)
def test_anchors_by_definition(anchor: Anchor):
    definition = DEFINITIONS[anchor.name]
    if anchor.data is dict:
        np.testing.assert_array_equal(anchor.mask().dense(N), definition(Q, K))
    torch = pytest.importorskip("torch", reason="it draws data, and FlexAttention is its")
    case = anchor.case(DType.bfloat16)
    rows = np.unique([0, 1, 63, 130, *np.linspace(200, case.n_q - 1, 18, dtype=int)])
    right = definition(rows[:, None], np.arange(case.n_kv)[None], **case.data)
    np.testing.assert_array_equal(defined_rows(case, 0, 0, rows), right)

    keep = anchor.formula({name: torch.tensor(x) for name, x in case.data.items()})
    q, k = (torch.arange(case.n_kv, dtype=torch.int32) for _ in range(2))
    zero = torch.tensor(0, dtype=torch.int32)
    kept = keep(zero, zero, q[rows.tolist()][:, None], k[None])
    np.testing.assert_array_equal(kept.expand(len(rows), case.n_kv).numpy(), right)


def test_cpu_anchors_by_definition():
    right = [window(512)(Q, K), streaming(16, 256)(Q, K), Q // 128 == K // 128, K <= Q]
    for anchor, expected in zip(CPU[: len(right)], right, strict=True):
        assert (anchor.batch, anchor.heads, anchor.n, anchor.head_dim) == (1, 8, 4096, 64)
        np.testing.assert_array_equal(anchor.mask().dense(N), expected)


def best_before(scores: np.ndarray, ends: np.ndarray, count: int) -> np.ndarray:
    """bool: the `count` best of the first `ends` columns of each row; no two scores are equal."""
    open_columns = np.arange(scores.shape[1]) < ends[:, None]
    ranked = np.where(open_columns, scores, -np.inf)
    least = -np.sort(-ranked, axis=1)[:, [min(count, scores.shape[1]) - 1]]
    return open_columns & (ranked >= least)


def test_cpu_anchors_that_choose_by_definition():
    tokens, blocks = (
        np.random.default_rng(0).permuted(np.tile(np.arange(n, dtype=np.float32), (N, 1)), axis=1)
        for n in (N, -(-N // 128))
    )
    right = {
        "topk64_2k": (tokens, best_before(tokens, Q[:, 0] + 1, 64) | window(32)(Q, K)),
        "moba_128_2k": (
            blocks,
            np.repeat(best_before(blocks, Q[:, 0] // 128, 3), 128, axis=1)[:, :N]
            | ((Q // 128 == K // 128) & (K <= Q)),
        ),
    }
    assert {anchor.name for anchor in CPU[4:]} == set(right)
    for anchor in CPU[4:]:
        scores, expected = right[anchor.name]
        assert (anchor.batch, anchor.heads, anchor.n, anchor.head_dim) == (1, 8, 2048, 64)
        np.testing.assert_array_equal(anchor.mask().dense(N, scores=scores), expected)


@needs_torch
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("bigbird64_16k", 0.0386), ("document_32k", 0.0426), ("random50_4k", 0.512),
        ("random25_8k", 0.260), ("random10_16k", 0.110),
    ],
)  # fmt: skip
def test_anchors_with_data_have_the_known_density(name: str, share: float):
    anchor = next(a for a in ANCHORS if a.name == name)
    case = anchor.case(DType.bfloat16)
    count = case.mask.count(case.n_q, **case.data)
    assert count / case.n_q**2 == pytest.approx(share, abs=0.0005 if share > 0.1 else 0.00005)


@needs_torch
def test_bigbird_blocks_by_definition():
    found = anchors.bigbird_blocks(20, 3, 3, 2)
    index = np.arange(20)
    fixed = (abs(index[:, None] - index) <= 1) | (index < 2) | (index[:, None] < 2)
    assert (found >= fixed).all()
    assert ((found & ~fixed).sum(axis=1) <= 3).all()
    assert (found & ~fixed).any()


@pytest.mark.parametrize("longest", [80, 200, 500])
def test_short_documents(longest: int):
    """They keep what they promise, and those with and without a promise are the same."""
    ends = anchors.packed_ends(4096, longest)
    sizes = np.diff(ends)
    assert (ends[0], ends[-1]) == (0, 4096)
    assert 0 < sizes.min() <= sizes.max() <= longest
    assert (sizes[:-1] >= longest // 2).all()
    plain, promised = (
        next(a for a in anchors.DOCUMENTS if a.name == f"documents{longest}_4k_d64{end}")
        for end in ("", "_promised")
    )
    cases = [anchor.case(DType.bfloat16) for anchor in (plain, promised)]
    counts = {case.mask.count(4096, **case.data) for case in cases}
    assert counts == {int((sizes * (sizes + 1) // 2).sum())}
    assert [case.data["doc"].max_seqlen for case in cases] == [None, longest]


# ------------------------------------------------------------------ running suites

TINY = (
    Anchor("one", lambda: mc.window(3), 1, 2, 40, 8),
    Anchor("bad", lambda: 1 // 0, 1, 2, 40, 8),
    Anchor("wide", lambda: mc.causal(), 1, 2, 40, 1000),
    Anchor("two", lambda: mc.block_diagonal(8), 1, 2, 40, 8),
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SUITES, "tiny", Suite(TINY, "cpu", DType.float32, ("maskc",)))


def test_a_failing_case_is_recorded_and_the_rest_goes_on(tiny: None):
    seen: list[tuple[str | None, int]] = []

    def each(report: dict) -> None:
        seen.append((report["environment"].get("running"), len(report["rows"])))
        json.dumps(report)

    report = run_suite("tiny", Limits(repeats=1), each=each)
    assert {(r["case"], r["direction"]): r["ok"] for r in report["rows"]} == {
        ("one", "fwd"): True, ("one", "bwd"): True, ("bad", "fwd"): False,
        ("wide", "fwd"): False, ("two", "fwd"): True, ("two", "bwd"): True,
    }  # fmt: skip
    notes = report["environment"]["notes"]
    assert notes[0].startswith("bad: ZeroDivisionError: ")
    assert notes[1].startswith("wide: MC504 target cpu has no kernel for head_dim=1000")
    assert [name for name, _ in seen if name] == ["one", "bad", "wide", "two"]
    assert seen[2] == (None, 2)
    assert "running" not in report["environment"]


def test_only_some_cases(tiny: None):
    report = run_suite("tiny", Limits(("t*", "one"), repeats=1))
    assert list(report["environment"]["cases"]) == ["one", "two"]
    with pytest.raises(UsageMistake, match="no case of tiny matches x\\*"):
        run_suite("tiny", Limits(("x*",)))
    with pytest.raises(UsageMistake, match="there is no suite 'huge'"):
        run_suite("huge")


def test_cases_due_after_the_deadline_are_left_out(tiny: None):
    report = run_suite("tiny", Limits(repeats=1, deadline=0.0))
    assert not report["rows"]
    assert report["environment"]["notes"][0] == "one: left out, the time was up"


@needs_torch
def test_rivals_run_where_maskc_cannot(monkeypatch: pytest.MonkeyPatch):
    whole = Suite((TINY[2], TINY[1], TINY[0]), "cpu", DType.float32, ("maskc", "dense"), True)
    monkeypatch.setitem(SUITES, "tiny", whole)
    report = run_suite("tiny", Limits(repeats=1))
    rows = {(r["case"], r["impl"], r["direction"]): r for r in report["rows"]}
    assert rows["wide", "dense", "bwd"]["ok"]
    for direction in ("fwd", "bwd"):
        refused = rows["wide", "maskc", direction]
        assert refused["raised"].startswith("MC504 target cpu has no kernel for head_dim=1000")
        assert not refused["ok"]
        assert refused["ms"] is None
    assert rows["bad", "maskc", "fwd"]["raised"].startswith("ZeroDivisionError")
    assert rows["one", "maskc", "fwd"]["ok"]
    assert rows["one", "maskc", "fwd"]["compile_ms"] > 0


@needs_torch
def test_a_part_of_a_suite(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SUITES, "tiny", Suite(TINY, "cpu", DType.float32, ("maskc", "dense")))
    limits = Limits(("one",), impls=("dense",), directions=("bwd",), repeats=1)
    rows = run_suite("tiny", limits)["rows"]
    assert [(r["case"], r["impl"], r["direction"]) for r in rows] == [("one", "dense", "bwd")]
    with pytest.raises(UsageMistake, match="nothing here is called 'fa9'"):
        run_suite("tiny", Limits(impls=("fa9",)))


def test_a_gpu_that_stops_answering_ends_the_suite(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(suite, "_answers", lambda: False)
    kept: list[dict] = []
    report = {"environment": {"cases": {}, "notes": []}, "rows": []}
    with pytest.raises(NoDevice, match="after broken"):
        suite._run_unit(("broken", Measured), report, Target.named("sm_80"), kept.append, None)
    assert report["environment"]["cases"] == {"broken": {}}


# ------------------------------------------------------------------ correctness

PATTERNS = """
import maskc as mc
@mc.pattern
def packed() -> mc.Mask:
    return mc.causal() & mc.documents("doc")
@mc.pattern
def two_heads() -> mc.Mask:
    return mc.per_head([mc.causal(), mc.window(3)])
"""


def test_every_pattern_against_the_oracle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "some.py").write_text(PATTERNS)
    monkeypatch.setattr(correctness, "patterns_folder", lambda: tmp_path)
    problems = [(24, DType.float32), (16, DType.bfloat16)]
    monkeypatch.setattr(correctness, "_problems", lambda target: problems)
    monkeypatch.setattr(correctness, "LENGTHS", ((1, 1), (20, 33)))
    report = run_suite("correctness", target="cpu")
    cases = [(r["case"], r["direction"]) for r in report["rows"]]
    assert cases == [
        (f"{name} {problem}", direction)
        for name in ("packed", "two_heads")
        for problem in ("d24 float32", "d16 bfloat16")
        for direction in ("fwd", "bwd")
    ]
    assert all(r["ok"] and r["error"] > 0 and r["ms"] is None for r in report["rows"])
    assert report["environment"]["cases"]["two_heads"]["heads"] == 2


def test_a_wrong_kernel_fails_its_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "some.py").write_text(PATTERNS)
    monkeypatch.setattr(correctness, "patterns_folder", lambda: tmp_path)
    monkeypatch.setattr(correctness, "_problems", lambda target: [(16, DType.float32)])
    monkeypatch.setattr(
        "maskc.dsl.mask.Mask.dense", lambda mask, n_q, n_kv, **_: np.ones((n_q, n_kv), dtype=bool)
    )
    report = run_suite("correctness", Limits(("packed",)), target="cpu")
    assert [r["ok"] for r in report["rows"]] == [False, False]


def test_every_head_dim_and_dtype_of_a_target():
    target = Target.named("sm_80")
    found = list(correctness._problems(target))
    assert found == [(dim, dtype) for dim in target.head_dims for dtype in target.dtypes]
    found = {dtype for _, dtype in correctness._problems(Target.named("cpu"))}
    assert found == set(DType) - {DType.float8_e4m3fn}


def test_the_library_of_patterns_is_found():
    names = [name for name, _ in correctness.units(Target.named("cpu"), ("stream*",), print)]
    assert names == ["streaming"]
    assert (patterns_folder() / "streaming.py").is_file()


# ------------------------------------------------------------------ files


def test_results_are_written_whole(tmp_path: Path):
    path = tmp_path / "new" / "r.json"
    save(path, {"environment": {}, "rows": [1]})
    assert saved(path) == {"environment": {}, "rows": [1]}
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]
    assert saved(tmp_path / "none.json") is None
