"""maskc compile and explain: stages, modules, drift, summaries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from tests.support.cli import maskc, maskc_json

CPU = ("--target", "cpu", "--head-dim", "16", "--dtype", "float32")
STREAMING = ("--expr", "causal() & (sinks(4) | window(15))")

TWO = '''\
"""Two masks."""

import maskc as mc


@mc.pattern
def near(*, width: int = 8, both: bool = False) -> mc.Mask:
    """Keys close by.

    More words.
    """
    return mc.window(width, width if both else 0)


@mc.pattern
def blocks(*, size: int = 32) -> mc.Mask:
    return mc.block_diagonal(size)
'''


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two patterns' file.py"
    path.write_text(TWO)
    return path


def test_every_stage_prints():
    assert maskc("compile", *STREAMING, "--emit", "mask").stdout == f"{STREAMING[1]}\n"
    ir = maskc("compile", *STREAMING, "--emit", "ir").stdout
    assert ir.startswith("keep  ((k >= q + n_kv - n_q - 15) | (k < 4)) & (k <= q + n_kv - n_q)\n")
    assert "causal: yes (all lengths" in maskc("compile", *STREAMING, "--emit", "facts").stdout
    plan = maskc("compile", *STREAMING, *CPU, "--emit", "plan", "--n", 100).stdout
    assert "target   cpu, float32, head_dim 16" in plan
    assert "100 x 100" in plan
    source = maskc("compile", *STREAMING, *CPU, "--emit", "source").stdout
    assert "// k <= q + n_kv - n_q" in source or "causal" in source
    assert "void attention_forward(" not in source
    whole = maskc("compile", *STREAMING, *CPU, "--emit", "source", "--standalone").stdout
    assert "void attention_forward(" in whole
    assert '#include "' not in whole
    assert maskc_json("compile", *STREAMING, "--emit", "mask") == {
        "mask": {"mask": f"{STREAMING[1]}\n"}
    }


def test_stages_of_several_patterns_have_titles(two: Path):
    text = maskc("compile", two, "--emit", "mask").stdout
    assert text == "==> near <==\nwindow(8)\n\n==> blocks <==\nblock_diagonal(32)\n"


def test_parameters_of_calls_and_data_are_listed():
    text = maskc(
        "compile", "--expr", 'window(param("w", 9)) & documents("doc")', "--emit", "ir"
    ).stdout
    assert "param w = 9\n" in text
    assert "data  doc: documents\n" in text


def test_heads_are_told_apart():
    expr = "per_head([causal(), full(), causal()])"
    text = maskc("compile", "--expr", expr, "--emit", "ir").stdout
    assert "heads 0, 2:\n" in text
    assert "head 1:\nkeep  True\n" in text


# ------------------------------------------------------------------ modules


def test_modules_are_written_and_run(two: Path, tmp_path: Path):
    out = tmp_path / "made here"
    written = maskc("compile", two, *CPU, "-o", out).stdout.splitlines()
    assert [Path(line).name for line in written] == [
        f"{name}.{end}" for name in ("near", "blocks") for end in ("py", "plan.json", "cpu.c")
    ]
    assert (out / "near.py").read_text().startswith('"""Keys close by.\n\nMask: window(8)\n')
    script = (
        "import sys, numpy as np; sys.path.insert(0, sys.argv[1]); import near; "
        "q = np.zeros((1, 2, 30, 16), np.float32); "
        "out = near.attention(q, q, np.ones_like(q)); print(out.min(), out.max())"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script, str(out)],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1.0 1.0\n"


def test_a_dash_prints_the_files(two: Path):
    text = maskc("compile", two, "--pattern", "blocks", *CPU, "-o", "-").stdout
    assert text.startswith("==> blocks.py <==\n")
    assert "\n==> blocks.cpu.c <==\n" in text
    assert set(maskc_json("compile", two, "--pattern", "near", *CPU, "-o", "-")["files"]) == {
        "near.py", "near.plan.json", "near.cpu.c",
    }  # fmt: skip


def test_the_same_bytes_again(two: Path, tmp_path: Path):
    for name in ("one", "other"):
        maskc("compile", two, *CPU, "-o", tmp_path / name)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()
        assert str(tmp_path) not in path.read_text()


def test_drift_names_every_file(two: Path, tmp_path: Path):
    out = tmp_path / "generated"
    maskc("compile", two, *CPU, "-o", out)
    same = maskc("compile", two, *CPU, "-o", out, "--check")
    assert same.stdout == f"6 files in {out} are what the patterns give\n"
    (out / "near.py").write_text("something else\n")
    (out / "blocks.cpu.c").unlink()
    (out / "near.sm_80.cu").write_text("left from before\n")
    (out / "another.py").write_text("of another pattern\n")
    (out / "README.md").write_text("not generated\n")
    drift = maskc("compile", two, *CPU, "-o", out, "--check", code=3)
    assert drift.stdout == ""
    assert "blocks.cpu.c (missing), near.py (changed), near.sm_80.cu (left over)\n" in drift.stderr
    errors = json.loads(maskc("compile", two, *CPU, "-o", out, "--check", "--json", code=3).stderr)
    assert [error["code"] for error in errors["errors"]] == ["MC601"]
    assert errors["exit_code"] == 3


def test_a_folder_is_all_its_files(two: Path, tmp_path: Path):
    folder = tmp_path / "patterns"
    folder.mkdir()
    two.rename(folder / "two.py")
    (folder / "third.py").write_text("import maskc as mc\n\nwide = mc.window(64)\n")
    (folder / "_helper.py").write_text("raise SystemExit\n")
    out = tmp_path / "generated"
    maskc("compile", folder, *CPU, "-o", out)
    assert {path.name for path in out.glob("*.py")} == {"near.py", "blocks.py", "wide.py"}
    maskc("compile", folder, *CPU, "-o", out, "--check")
    (out / "gone.cpu.c").write_text("its pattern was removed\n")
    assert (
        "gone.cpu.c (left over)"
        in maskc("compile", folder, *CPU, "-o", out, "--check", code=3).stderr
    )
    one = ("compile", folder, "--pattern", "wide", *CPU, "-o", out, "--check")
    assert "wide.py" in maskc_json(*one)["checked"]


def test_all_targets_unless_one_is_asked_for():
    names = set(maskc_json("compile", *STREAMING, "--dtype", "bfloat16", "-o", "-")["files"])
    forms = ("", "_small", "_backward", "_small_backward")
    hopper = {f"mask.sm_90a{form}.cu" for form in forms}
    cores = {f"mask.simt{form}.cu" for form in ("", "_backward")}
    ampere = {f"mask.sm_80{form}.cu" for form in ("", "_backward")}
    assert names == {"mask.py", "mask.plan.json", "mask.cpu.c"} | ampere | hopper | cores
    names = set(maskc_json("compile", *STREAMING, "--dtype", "float32", "-o", "-")["files"])
    assert names == {"mask.py", "mask.plan.json", "mask.cpu.c"} | cores


ONE_KEY = ("--expr", "topk(4, causal())")
FLOATS = (*STREAMING, "--dtype", "float32")
WIDE = (*STREAMING, "--head-dim", "84")


@pytest.mark.parametrize(("words", "without"), [
    (ONE_KEY, {}),
    (FLOATS, {"sm_80": "MC505", "sm_90a": "MC505"}),
    (WIDE, {"sm_80": "MC504", "sm_90a": "MC504"}),
])  # fmt: skip
def test_targets_without_a_kernel_are_told_of(words, without):
    """On stderr and in the JSON, with the reason; asked for by name it is an error."""
    done = maskc("compile", *words, "-o", "-")
    found = json.loads(maskc("compile", *words, "-o", "-", "--json").stdout)["left_out"]
    assert {each["target"]: each["code"] for each in found} == without
    for each in found:
        assert f"mask: nothing for {each['target']}: {each['code']}" in done.stderr
        assert each["reason"] in " ".join(done.stderr.split())
        refused = maskc("compile", *words, "--target", each["target"], "-o", "-", code=1)
        assert each["code"] in refused.stderr
        assert refused.stdout == ""


def test_several_targets_may_be_named(tmp_path):
    words = (*STREAMING, "--target", "cpu", "--target", "sm_80")
    names = set(maskc_json("compile", *words, "-o", "-")["files"])
    ampere = {f"mask.sm_80{form}.cu" for form in ("", "_backward")}
    assert names == {"mask.py", "mask.plan.json", "mask.cpu.c"} | ampere
    assert "give --target once" in maskc("compile", *words, "--emit", "source", code=2).stderr


# ------------------------------------------------------------------ the manifest


def test_a_manifest_tells_drift_without_the_sources(two: Path, tmp_path: Path):
    file = tmp_path / "MANIFEST.txt"
    words = ("compile", two, "--dtype", "float32", "--manifest", file)
    assert maskc(*words).stdout == f"8 patterns and targets written to {file}\n"
    rows = [line.split() for line in file.read_text().splitlines() if not line.startswith("#")]
    assert [row[:2] for row in rows if row[2] != "none"] == [
        ["near", "cpu"], ["near", "simt"], ["blocks", "cpu"], ["blocks", "simt"],
    ]  # fmt: skip
    assert ["near", "sm_90a", "none", "MC505"] in rows
    assert str(tmp_path) not in file.read_text()
    maskc(*words, "--check")
    file.write_text(file.read_text().replace(rows[0][2], "0" * 16))
    refused = maskc(*words, "--check", code=3)
    assert f"MC601 {file}  the files differ from what the patterns generate now: near cpu" in (
        refused.stderr
    )
    assert "--manifest" in refused.stderr
    assert "-o and --manifest were both given" in maskc(*words, "-o", "-", code=2).stderr


def test_a_manifest_does_not_see_comments_or_names(two: Path, tmp_path: Path):
    def rows() -> list[str]:
        file = tmp_path / "MANIFEST.txt"
        maskc("compile", two, *CPU, "--manifest", file)
        return [line for line in file.read_text().splitlines() if not line.startswith("#")]

    before = rows()
    two.write_text(two.read_text().replace('"""Two masks."""', '"""Two."""\n\n# moved down\n'))
    assert rows() == before
    two.write_text(two.read_text().replace("size: int = 32", "size: int = 48"))
    assert rows()[0] == before[0]
    assert rows()[1] != before[1]


# ------------------------------------------------------------------ summaries


def test_a_summary_tells_what_was_built_and_what_it_costs():
    text = maskc("compile", *STREAMING, *CPU, "--n", 200).stdout
    live = mc.parse(STREAMING[1]).dense(200).sum()
    assert text.startswith(f"mask: {STREAMING[1]}\n  kernel   cpu, float32, head_dim 16, tiles of ")
    assert f"at 200 x 200: {live:,} of 40,000 pairs" in text
    assert "  built    " in text
    assert "  source   " in text


def test_a_summary_as_json():
    (summary,) = maskc_json("compile", *STREAMING, *CPU, "--n", 100, "--n-kv", 140)["patterns"]
    dense = mc.parse(STREAMING[1]).dense(100, 140)
    (cost,) = summary["costs"]
    assert (cost["live_pairs"], cost["pairs"]) == (dense.sum(), dense.size)
    assert cost["flops"] == 4 * 16 * dense.sum()
    assert summary["target"] == "cpu"
    assert summary["built"]["bytes"] > 1000
    rows, columns = (-(-n // side) for n, side in zip(dense.shape, summary["tile"], strict=True))
    assert cost["full"] + cost["partial"] + cost["empty"] == rows * columns


def test_without_a_toolchain_the_summary_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    text = maskc("compile", *STREAMING, *CPU, "--n", 64).stdout
    assert "  built    no, no working C compiler: tried CC=no-such-compiler (not found)\n" in text


def test_a_table_that_fits_other_lengths_is_no_mistake(tmp_path: Path):
    file = tmp_path / "table.py"
    file.write_text("import maskc as mc\n\nfixed = mc.block_table([[1, 0], [1, 1]], 64)\n")
    text = maskc("compile", file, *CPU, "--n", 100).stdout
    assert "100 x 100: " in text
    text = maskc("explain", file, *CPU, "--n", 200).stdout
    assert "live     unknown at 200 x 200, give --n: " in text


def test_data_is_made_up_and_said_so():
    done = maskc("compile", "--expr", 'causal() & documents("doc")', *CPU, "--n", 99, "--seed", 3)
    assert done.stderr == "mask: random doc, seed 3\n"
    assert "at 99 x 99" in done.stdout


# ------------------------------------------------------------------ settings


def test_set_changes_parameters_where_they_are(two: Path):
    text = maskc("compile", two, "--emit", "mask", "--set", "width=3", "--set", "both=true").stdout
    assert "window(3, 3)" in text
    assert "block_diagonal(32)" in text


def test_set_changes_parameters_of_the_call():
    words = ("--expr", 'window(param("w", 9))', "--set", "w=2", "--n", 50)
    (shown,) = maskc_json("visualize", *words)["pictures"]
    assert shown["panels"][0]["live_pairs"] == mc.window(2).count(50)
    refused = maskc("compile", *words, "-o", "-", code=2)
    assert "it is a parameter of the call" in refused.stderr


# ------------------------------------------------------------------ explain


def test_rows_of_v_may_be_narrower(tmp_path):
    dims = ("--head-dim", 24, "--head-dim-v", 16)
    (told,) = maskc_json("explain", *STREAMING, *CPU, *dims)["patterns"]
    assert (told["head_dim"], told["head_dim_v"]) == (24, 16)
    maskc("compile", *STREAMING, *CPU, *dims, "-o", tmp_path)
    (source,) = tmp_path.glob("*.c")
    assert "HEAD_DIM_V = 16," in source.read_text()


def test_explain_gives_facts_formulas_costs_and_reasons():
    text = maskc("explain", *STREAMING, *CPU, "--n", 300).stdout
    for words in (
        "proof    causal: yes (all lengths; mask - {k <= p} is empty)",
        "pairs    20*N - 190", "flops    forward", "bytes    at least", "plan     tiles of",
        "at 300 x 300", "they run ",
    ):  # fmt: skip
        assert words in text, words
    assert mc.parse(STREAMING[1]).count(300) == 20 * 300 - 190


def test_explain_as_json():
    (report,) = maskc_json("explain", *STREAMING, *CPU, "--n", 300)["patterns"]
    (only,) = report["sets"]
    assert only["heads"] == []
    assert {fact["name"]: fact["holds"] for fact in only["facts"]}["causal"] is True
    assert only["live_pairs"]["formula"] == "20*N - 190"
    assert report["costs"][0]["live_pairs"] == 20 * 300 - 190
    assert report["reasons"]


def test_explain_of_heads():
    expr = "per_head([causal(), full()])"
    reports = maskc_json("explain", "--expr", expr, *CPU, "--n", 64)["patterns"]
    assert [part["heads"] for part in reports[0]["sets"]] == [[0], [1]]
    assert [cost["live_pairs"] for cost in reports[0]["costs"]] == [2080, 4096]
    assert np.sum(mc.parse(expr).dense(64, n_heads=2)) == 2080 + 4096
