"""maskc visualize, doctor and the group itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc.build import toolchain
from maskc.build.toolchain import ToolchainCheck
from maskc.cli.doctor import COSTS
from maskc.core.problem import TileShape
from maskc.viz.picture import KernelTiles, picture
from maskc.viz.terminal import render
from tests.support.cli import maskc, maskc_json

LONGFORMER = ("--expr", "window(32, 32) | global_tokens(8)")
MASK = mc.window(32, 32) | mc.global_tokens(8)


def test_the_terminal_shows_the_drawing():
    done = maskc("visualize", *LONGFORMER, "--n", 600)
    kernel = KernelTiles("cpu", TileShape(64, 64))
    assert done.stdout == render(picture(MASK, 600, kernel=kernel), 64)
    assert done.stderr == ""


@pytest.mark.parametrize(("target", "tile"), [("cpu", [64, 64]), ("sm_90a", [128, 128])])
def test_tiles_are_those_of_the_kernel(target: str, tile: list[int]):
    found = maskc_json("visualize", *LONGFORMER, "--n", 1000, "--target", target)["pictures"][0]
    (panel,) = found["panels"]
    assert (found["kernel"], panel["tile"], panel["unit"]) == (target, tile, tile)
    dense = MASK.dense(1000)
    rows, columns = np.arange(0, 1000, tile[0]), np.arange(0, 1000, tile[1])
    live = np.add.reduceat(np.add.reduceat(dense, rows, 0, int), columns, 1)
    sizes = np.outer(np.diff([*rows, 1000]), np.diff([*columns, 1000]))
    np.testing.assert_allclose(panel["shares"], live / sizes, atol=1e-4)
    assert panel["shares_by"] == 1


def test_a_kernel_that_there_is_not():
    """A picture needs none, unless its target was named."""
    few = ("--expr", "topk(3, of=causal(), score='given')", "--n", 500, "--head-dim", 600)
    assert "MC5" in maskc("visualize", *few, "--target", "sm_80", code=1).stderr
    (shown,) = maskc_json("visualize", *few)["pictures"]
    assert shown["kernel"] == ""
    assert shown["formula"].endswith("(random scores, seed 0)")


def test_lengths_at_which_masks_have_their_shape():
    for expr, n in (
        ("window(20)", 256), ("window(100)", 2048), ("window(1023)", 4096), ("causal()", 4096),
        ("topk(2048, of=causal(), score='indexer')", 4096), ("window(10000)", 65536),
        ("window(1000000)", 131072),
    ):  # fmt: skip
        (found,) = maskc_json("visualize", "--expr", expr)["pictures"]
        assert (found["n_q"], found["n_kv"]) == (n, n), expr


def test_costs_follow_the_options():
    text = maskc("visualize", *LONGFORMER, "--n", 64, "--head-dim", 32, "--dtype", "fp16").stdout
    assert "head_dim 32, float16" in text


@pytest.mark.parametrize("suffix", ["png", "svg", "PNG"])
def test_files_are_written(tmp_path: Path, suffix: str):
    pytest.importorskip("matplotlib")
    path = tmp_path / "a folder" / f"it's a mask.{suffix}"
    assert maskc("visualize", *LONGFORMER, "--n", 600, "-o", path).stdout == f"{path}\n"
    start = path.read_bytes()[:5]
    assert start == (b"<?xml" if suffix == "svg" else b"\x89PNG\r")


def test_several_patterns_give_several_pictures(tmp_path: Path):
    pytest.importorskip("matplotlib")
    file = tmp_path / "masks.py"
    file.write_text("import maskc as mc\n\none = mc.causal()\nother = mc.full()\n")
    answer = maskc_json("visualize", file, "--n", 32, "-o", tmp_path / "all.svg")
    assert [Path(path).name for path in answer["written"]] == ["all.one.svg", "all.other.svg"]
    assert all(Path(path).stat().st_size > 1000 for path in answer["written"])
    text = maskc("visualize", file, "--n", 8).stdout
    assert text.startswith("one\ncausal()\n")
    assert "\n\nother\nfull()\n" in text


def test_a_range_shows_elements():
    words = ("visualize", *LONGFORMER, "--n", 10_000, "--range", "5000:5040,4990:5030")
    (panel,) = maskc_json(*words)["pictures"][0]["panels"]
    cells = np.array([[int(cell) for cell in row] for row in panel["cells"]])
    q, k = np.ogrid[5000:5040, 4990:5030]
    np.testing.assert_array_equal(cells == 2, abs(q - k) <= 32)
    assert panel["unit"] == [1, 1]
    assert "queries 5000:5040, keys 4990:5030 of 10000" in maskc(*words).stdout


def test_one_range_means_both():
    found = maskc_json("visualize", *LONGFORMER, "--n", 100, "--range", "10:20")["pictures"][0]
    assert found["range"] == [10, 20, 10, 20]


def test_tiles_can_be_chosen():
    (shown,) = maskc_json("visualize", *LONGFORMER, "--n", 512, "--tile", "64,32")["pictures"]
    (panel,) = shown["panels"]
    classes = np.array([[int(cell) for cell in row] for row in panel["cells"]])
    np.testing.assert_array_equal(classes, MASK.layout(512, block=(64, 32)).to_dense())
    assert panel["live_pairs"] == MASK.count(512)
    (half,) = maskc_json("visualize", *LONGFORMER, "--n", 512, "--tile", "64")["pictures"]
    assert half["panels"][0]["tile"] == [64, 64]


def test_heads_are_asked_for_or_written():
    text = maskc("visualize", "--expr", "per_head([causal(), full()])", "--n", 16).stdout
    assert "head 0\n" in text
    assert "head 1\n" in text
    answer = maskc_json("visualize", "--expr", "where(lambda h, q, k: k % 4 == h % 4)", "--n", 16)
    heads = [panel["heads"] for panel in answer["pictures"][0]["panels"]]
    assert heads == [[i, i + 4] for i in range(4)]
    answer = maskc_json("visualize", "--expr", "heads(1)", "--n", 16, "--heads", 3)
    assert [panel["heads"] for panel in answer["pictures"][0]["panels"]] == [[0, 2], [1]]


@pytest.mark.parametrize("expr", [
    'documents("doc")', 'flags("f1")', 'flags("f2", on="q")', 'intervals("iv")', 'tree("walk")',
    'block_table("t", 16)', 'tree("walk") | intervals("below") | documents("parent")',
])  # fmt: skip
def test_data_is_made_up(expr: str):
    square = maskc_json("visualize", "--expr", expr, "--n", 70)["pictures"][0]["panels"][0]
    wide = maskc_json("visualize", "--expr", expr, "--n", 70, "--n-kv", 90)["pictures"][0][
        "panels"
    ][0]
    assert 0 < square["live_pairs"] < 70 * 70
    assert 0 < wide["live_pairs"] < 70 * 90
    again = maskc_json("visualize", "--expr", expr, "--n", 70)["pictures"][0]["panels"][0]
    assert again == square


@pytest.mark.parametrize(("words", "finding"), [
    (("--range", "0:9"), None),
    (("--range", "0:900"), "the range reaches 900 queries and 900 keys, there are 100 and 100"),
    (("--range", "9:3"), "does not ascend from 0 on"),
    (("--range", "a:b"), "is not Q0:Q1,K0:K1"),
    (("--tile", "x"), "is not Q,K"),
    (("-o", "mask.gif"), "'mask.gif' is neither *.png nor *.svg"),
    (("--n", "-1"), "not in the range"),
])  # fmt: skip
def test_usage(words: tuple[str, ...], finding: str | None):
    done = maskc("visualize", *LONGFORMER, "--n", 100, *words, code=0 if finding is None else 2)
    assert (finding or "") in done.stderr


def test_a_place_that_cannot_be_written(tmp_path: Path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    done = maskc("visualize", *LONGFORMER, "--n", 8, "-o", tmp_path / "file" / "a.png", code=2)
    assert "cannot write" in done.stderr


# ------------------------------------------------------------------ doctor


def test_doctor_names_every_probe_and_what_gaps_cost(monkeypatch: pytest.MonkeyPatch):
    names = [probe.name for probe in toolchain.probes()]
    assert set(names) <= set(COSTS)
    gone = tuple(ToolchainCheck(name, False, "not there") for name in names)
    monkeypatch.setattr(toolchain, "probes", lambda: gone)
    answer = maskc_json("doctor")
    assert [probe["name"] for probe in answer["probes"]] == [*names, "matplotlib"]
    assert all(probe["cost"] == COSTS[probe["name"]] for probe in answer["probes"][:-1])
    text = maskc("doctor").stdout
    assert text.count("missing") >= len(names)
    assert "kernels run in NumPy" in " ".join(text.split())


def test_doctor_tells_what_is_there_and_what_each_card_gets():
    answer = maskc_json("doctor")
    assert answer["maskc"] == mc.__version__
    numpy = next(probe for probe in answer["probes"] if probe["name"] == "numpy")
    assert numpy == {"name": "numpy", "ok": True, "found": np.__version__, "cost": ""}
    assert answer["cards"] == {
        **{card: ["simt"] for card in ("7.0", "7.5")},
        **{card: ["sm_80", "simt"] for card in ("8.0", "8.6", "8.9", "10.0", "12.0")},
        "9.0": ["sm_90a", "sm_80", "simt"],
    }
    text = " ".join(maskc("doctor").stdout.split())
    assert "sm_90a (bf16, fp16, E4M3; head_dim to 256)" in text


# ------------------------------------------------------------------ the group


def test_help_and_version():
    text = maskc("--help").stdout
    for name in ("compile", "visualize", "explain", "verify", "bench", "doctor"):
        assert f"\n  {name} " in text
        assert "--json" in maskc(name, "-h").stdout
    assert mc.__version__ in maskc("--version").stdout


def test_close_matches():
    assert "Did you mean 'visualize'?" in maskc("visualise", code=2).stderr
    assert "'--head-dim'" in maskc("explain", "--head-dims", 3, code=2).stderr


def test_usage_mistakes_of_the_parser_as_json():
    errors = json.loads(maskc("explain", "--nonsense", "--json", code=2).stderr)
    assert errors["exit_code"] == 2
    assert errors["errors"][0]["code"] == "usage"
    assert "--nonsense" in errors["errors"][0]["finding"]


def test_warnings_are_one_line(monkeypatch: pytest.MonkeyPatch):
    import warnings

    from maskc.cli import entries

    def with_warning(*arguments: object) -> list:
        warnings.warn("the cache was repaired", UserWarning, stacklevel=1)
        return []

    monkeypatch.setattr(entries, "entries", with_warning)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert maskc("explain", "x.py").stderr == "warning: the cache was repaired\n"
