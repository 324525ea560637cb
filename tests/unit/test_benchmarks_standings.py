"""Several runs in one file, ratios inside runs only, and what is written from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import suite
from benchmarks.runs import added, next_number, notes, one_run
from benchmarks.standings import draw, markdown, standings
from maskc.core.errors import UsageMistake
from tests.support.cli import benchmarks


def row(impl: str, ms: float | None, direction: str = "fwd", case: str = "full_8k", **more):
    return {
        "case": case, "impl": impl, "direction": direction, "ms": ms,
        "live_tflops": ms and 600 / ms, "error": 0.002 if ms else None, "ok": ms is not None,
        **more,
    }  # fmt: skip


def report(*rows: dict, gpu: str = "H200", **more) -> dict:
    about = {
        "maskc": "1", "gpu": gpu, "driver": "580", "cpu": "x", "suite": "anchors",
        "target": "sm_90a", "repeats": 20, "cases": {"full_8k": {"n_q": 8192}}, "notes": ["n"],
    }  # fmt: skip
    return {"environment": about | more, "rows": list(rows)}


FIRST = report(row("maskc", 2.0), row("fa4", 2.2), row("flex", 3.0), row("cudnn", None, raised="x"))
SECOND = report(row("maskc", 1.0), row("flex", 1.8), notes=["n", "m"], torch="2.12")


def both() -> dict:
    return added(added(None, FIRST, 1), SECOND, 2)


def test_runs_come_back_as_they_were_added():
    file = both()
    assert json.loads(json.dumps(file)) == file
    assert next_number(None) == 1
    assert next_number(file) == 3
    assert one_run(file, 1) == FIRST
    assert one_run(file, 2) == SECOND
    assert one_run(file, 3) is None
    assert one_run(None, 1) is None
    assert [r["run"] for r in file["rows"]] == [1, 1, 1, 1, 2, 2]
    assert notes(file) == ["n", "m"]
    assert notes(FIRST) == ["n"]


def test_a_run_replaces_itself_and_nothing_else():
    file = added(both(), report(row("maskc", 7.0)), 2)
    assert [r["ms"] for r in file["rows"]] == [2.0, 2.2, 3.0, None, 7.0]
    assert list(file["environment"]["runs"]) == ["1", "2"]


def test_runs_of_another_card_are_refused():
    with pytest.raises(UsageMistake, match="another machine: H200 and H100"):
        added(both(), report(gpu="H100"), 3)


# ------------------------------------------------------------------ standings


def test_ratios_are_formed_inside_a_run():
    (found,) = standings(both())
    assert found.own["ms"] == 1.0
    # 2.2 of run 1 is compared with 2.0 of run 1, not with 1.0 of run 2
    assert found.ratios == {"fa4": pytest.approx(1.1), "flex": pytest.approx(1.8)}
    assert found.best == ("fa4", pytest.approx(1.1))
    assert found.peers["flex"]["run"] == 2


def test_failed_and_missing_rows_make_no_ratio():
    wrong = {**row("fa4", 0.1), "ok": False}
    (found,) = standings(report(row("maskc", 2.0), wrong, row("dense", 0.5)))
    assert found.ratios == {}
    assert found.best is None
    (found,) = standings(report({**row("maskc", 0.1), "ok": False}, row("fa4", 2.0)))
    assert found.ratios == {}
    (found,) = standings(added(added(None, FIRST, 1), report(row("maskc", None)), 2))
    assert found.own["ms"] == 2.0


def test_deterministic_rows_are_a_cost_and_no_rival():
    rows = [row("maskc", 2.0, "bwd"), row("maskc", 2.5, "bwd", variant="deterministic")]
    (found,) = standings(report(*rows, row("fa4", 3.0, "bwd")))
    assert found.own["ms"] == 2.0
    assert found.deterministic == pytest.approx(1.25)


def test_anchors_come_in_their_order():
    rows = [row("maskc", 1.0, case=name) for name in ("other", "random10_16k", "full_8k")]
    found = [standing.case for standing in standings(report(*rows))]
    assert found == ["full_8k", "random10_16k", "other"]


def test_markdown():
    rows = [
        row("maskc", 2.0, matmul_share=0.812), row("fa4", 2.2), row("cudnn", None, raised="no"),
        row("maskc", 4.0, "bwd"), row("maskc", 5.0, "bwd", variant="deterministic"),
        {**row("fa4", 1.0, "bwd"), "ok": False},
    ]  # fmt: skip
    missing = "flex_flash: the package flash-attn-4 is not installed"
    text = markdown(added(None, report(*rows, notes=[missing]), 1))
    lines = text.splitlines()
    assert lines[0] == (
        "| case | direction | maskc ms | live TFLOP/s | of matmul | best rival | cuDNN | FA4 "
        "| deterministic |"
    )
    assert lines[2] == ("| full_8k | fwd | 2 | 300 | 81% | **1.10** FA4 | error | 2.2 (1.10) |  |")
    assert lines[3] == "| full_8k | bwd | 4 | 150 |  |  |  | failed | 1.25x |"
    assert "- cudnn on full_8k fwd: no" in lines
    assert "- fa4 on full_8k bwd: failed its check, error 0.002" in lines
    assert lines.count(f"- {missing}") == 1
    assert lines[-1].endswith("suite anchors, 1 runs")


def test_a_picture(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="it draws")
    rows = [row("maskc", 2.0), row("fa4", 2.2), row("maskc", 4.0, "bwd", case="causal_16k")]
    for name in ("a.svg", "b.svg"):
        draw(report(*rows), tmp_path / name)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    draw(report(*rows), tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(UsageMistake, match="neither"):
        draw(report(*rows), tmp_path / "c.gif")


# ------------------------------------------------------------------ the command


def test_a_file_is_shown(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="it draws")
    file = tmp_path / "r.json"
    file.write_text(json.dumps(both()))
    shown = benchmarks("show", file)
    assert "full_8k fwd (run 1): maskc 1.10 times faster than fa4, the best other" in shown.stdout
    assert "1 of 6 results could not run: cudnn on full_8k fwd" in shown.stdout
    table, plot = tmp_path / "t.md", tmp_path / "p.png"
    done = benchmarks("show", file, "--table", table, "--plot", plot)
    assert done.stdout == ""
    assert table.read_text() == markdown(both())
    assert plot.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "nothing"), "there is no suite 'nothing'"),
        (("show", "none.json"), "none.json: there is no such file"),
        (("run", "cpu", "-o", "x", "--into", "y"), "--output replaces a file, --into adds to one"),
        (("run", "anchors", "--impl", "fa9", "--target", "cpu"), "nothing here is called"),
    ],
)
def test_mistakes(words: tuple[str, ...], message: str):
    assert message in benchmarks(*words, code=2).stderr


def test_results_of_another_kind_are_refused(tmp_path: Path):
    file = tmp_path / "r.json"
    file.write_text("[1]")
    assert "holds no results" in benchmarks("show", file, code=2).stderr


def test_a_wrong_result_of_maskc_ends_with_3(tmp_path: Path):
    results = both()
    next(row for row in results["rows"] if row["impl"] == "maskc")["ok"] = False
    file = tmp_path / "r.json"
    file.write_text(json.dumps(results))
    assert "results of maskc are wrong: full_8k fwd" in benchmarks("show", file, code=3).stderr


def test_results_are_written_and_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fake(name: str, limits: suite.Limits, **options: Any) -> dict[str, Any]:
        assert (name, limits.repeats, limits.directions) == ("cpu", 3, ("fwd",))
        found = {"environment": {"cpu": "some"}, "rows": both()["rows"][:1]}
        options["each"](found)
        return found

    monkeypatch.setattr(suite, "run_suite", fake)
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    words = ("run", "cpu", "--repeats", 3, "--direction", "fwd", "--json")
    shown = json.loads(benchmarks(*words, "-o", one).stdout)
    assert json.loads(one.read_text()) == shown
    for _ in range(2):
        benchmarks(*words, "--into", many)
    assert {row["run"] for row in json.loads(many.read_text())["rows"]} == {1, 2}


def test_committed_files_have_times():
    for file in sorted((Path(suite.__file__).parent / "results").glob("*.json")):
        report = json.loads(file.read_text())
        rows = report["rows"] if isinstance(report, dict) and "rows" in report else [{}]
        assert any("problem" not in row for row in rows), f"{file.name}: every case failed"
