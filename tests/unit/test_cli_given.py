"""--data, lengths, targets, and patterns by name."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc.cli.options import tokens
from maskc.core.target import SERVED_BY, TARGETS, Target
from tests.support.cli import maskc, maskc_json

IDS = np.repeat([0, 1, 2], [30, 50, 20])
PACKED = ("--expr", 'causal() & documents("doc")')


def live(*words: object) -> int:
    """Live pairs of the only panel."""
    ((panel,),) = (shown["panels"] for shown in maskc_json("visualize", *words)["pictures"])
    return panel["live_pairs"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("source", [
    "ids.npy", "ids.json", "ids.npz", "two.npz:doc", "cu_seqlens:0,30,80,100", "cu_seqlens:cu.json",
])  # fmt: skip
def test_documents_from_files(here: Path, source: str):
    np.save("ids.npy", IDS)
    np.savez("ids.npz", IDS)
    np.savez("two.npz", doc=IDS, other=IDS[:3])
    Path("ids.json").write_text(json.dumps(IDS.tolist()))
    Path("cu.json").write_text("[0, 30, 80, 100]")
    expected = sum(n * (n + 1) // 2 for n in (30, 50, 20))
    assert live(*PACKED, "--data", f"doc={source}") == expected
    done = maskc("explain", *PACKED, "--data", f"doc={source}", "--target", "cpu")
    assert "at 100 x 100" in done.stdout
    assert "random" not in done.stderr


def test_pairs_are_named_in_the_file(here: Path):
    low, high = np.arange(40), np.arange(40) + 5
    np.savez("spans.npz", lo=low, hi=high)
    Path("spans.json").write_text(json.dumps({"hi": high.tolist(), "lo": low.tolist()}))
    Path("rows.json").write_text(json.dumps([low.tolist(), high.tolist()]))
    expected = mc.intervals("iv").count(40, iv=(low, high))
    for source in ("spans.npz", "spans.json", "rows.json"):
        assert live("--expr", 'intervals("iv")', "--data", f"iv={source}", "--n", 40) == expected
    np.savez("doc.npz", q=IDS[-10:], k=IDS)
    expected = mc.documents("doc").count(10, 100, doc=(IDS[-10:], IDS))
    assert live("--expr", 'documents("doc")', "--data", "doc=doc.npz") == expected


def test_arrays_that_are_made_up_have_the_shape_of_the_call():
    drawn = maskc("visualize", "--expr", "block_table('t', 4)", "--n", 8, "--n-kv", 20).stdout
    assert "8 queries x 20 keys" in drawn


def test_verify_and_bench_take_data(here: Path):
    Path("parents.json").write_text(json.dumps([-1, 0, 0, 1, 2, 4]))
    tree = ("--expr", 'tree("walk")', "--data", "walk=parents:parents.json")
    cpu = ("--target", "cpu", "--head-dim", 16, "--dtype", "float32")
    found = maskc_json("verify", *tree, *cpu)["patterns"][0]
    assert {row["case"] for row in found["rows"]} == {"6 x 6"}
    assert all(row["ok"] for row in found["rows"])
    assert found["drawn"]["cases"] == 0


@pytest.mark.parametrize(("given", "finding"), [
    ("doc", "--data expects NAME=FILE, found 'doc'"),
    ("dox=a.npy", "--data  no data 'dox'\n    hint: did you mean doc? there is: doc"),
    ("doc=none.npy", "cannot read none.npy: No such file"),
    ("doc=a.txt", "--data cannot tell what 'a.txt' holds"),
    ("doc=bad.json", "cannot read bad.json: Expecting value"),
    ("doc=bad.npz", "cannot read bad.npz: "),
    ("doc=objects.npy", "cannot read objects.npy: Object arrays cannot be loaded"),
    ("doc=two.npz", "two.npz holds a, b\n    hint: choose one with two.npz:NAME, or a file "),
    ("doc=two.npz:c", "two.npz holds a, b, not c"),
])  # fmt: skip
def test_what_cannot_be_read(here: Path, given: str, finding: str):
    Path("bad.json").write_text("{")
    Path("bad.json").write_text("")
    Path("bad.npz").write_text("PK\x03\x04 no archive")
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez("two.npz", a=IDS, b=IDS)
    done = maskc("visualize", *PACKED, "--data", given, code=2)
    assert done.stderr.startswith("MC603 --data  ")
    assert finding in done.stderr


@pytest.mark.parametrize(("name", "finding"), [
    ("deep.json", "recursion"), ("huge.npy", "allocate"), ("encrypted.npz", "encrypted"),
    ("method.npz", "compression"), ("cut.npz", "cannot read cut.npz"),
    ("torn.npz", "cannot read torn.npz"), ("header.npy", "cannot read header.npy"),
])  # fmt: skip
def test_damaged_files(here: Path, name: str, finding: str):
    """Readers raise many kinds of errors: each becomes one that names the file."""
    Path("deep.json").write_text("[" * 100_000 + "]" * 100_000)
    claim = b"{'descr': '<i8', 'fortran_order': False, 'shape': (10000000000000,), }"
    for file, text in (("huge.npy", claim), ("header.npy", claim.replace(b"'<i8'", b"{1: 2}"))):
        padded = text + b" " * (63 - (len(text) + 10) % 64) + b"\n"
        Path(file).write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(padded)) + padded)
    np.savez_compressed("good.npz", doc=IDS)
    good = Path("good.npz").read_bytes()
    local, central = good.find(b"PK\x03\x04"), good.find(b"PK\x01\x02")
    for file, first, second, value in (("encrypted.npz", 6, 8, 1), ("method.npz", 8, 10, 99)):
        changed = bytearray(good)
        changed[local + first] = changed[central + second] = value
        Path(file).write_bytes(changed)
    Path("cut.npz").write_bytes(good[: len(good) // 2])
    torn = bytearray(good)
    torn[local + 60 : local + 70] = b"\xff" * 10
    Path("torn.npz").write_bytes(torn)
    done = maskc("visualize", *PACKED, "--data", f"doc={name}", code=2)
    assert done.stderr.startswith(f"MC603 --data  cannot read {name}: ")
    assert finding in done.stderr


@pytest.mark.parametrize(("text", "number"), [
    ("4096", 4096), ("1_000_000", 10**6), ("1e6", 10**6), ("128k", 131072), ("1M", 1 << 20),
    ("1.5k", 1536), ("2.5e3", 2500), ("0", 0),
])  # fmt: skip
def test_lengths(text: str, number: int):
    assert tokens(text) == number


@pytest.mark.parametrize("text", ["", "k", "1.5", "1e-3", "nan", "inf", "1e99", "12kk", "٣e2"])
def test_no_lengths(text: str):
    with pytest.raises((ValueError, ArithmeticError)):
        tokens(text)
    assert "is no number of tokens" in maskc("explain", "causal", "--n", text, code=2).stderr


def test_architectures_are_served_by_a_family():
    for name, serving in SERVED_BY.items():
        assert Target.named(name) is TARGETS[serving]
    for name in ("sm_86", "sm_89", "sm_100", "sm_120"):
        done = maskc("compile", "causal", "--emit", "plan", "--target", name)
        assert done.stderr == f"{name} runs the kernels of sm_80\n"
        assert "target   sm_80," in done.stdout
    assert mc.causal().compile(head_dim=64, target="sm_90").target.name == "sm_90a"


# ------------------------------------------------------------------ patterns


def test_every_pattern_of_the_library_has_a_name_a_line_and_a_paper():
    found = maskc_json("patterns")["patterns"]
    assert [each["name"] for each in found] == list(mc.patterns.names())
    assert len(found) == len(list((Path(__file__).parents[2] / "patterns").glob("*.py")))
    assert all(each["title"] and each["paper"][-4:].isdigit() for each in found)
    text = maskc("patterns", "landmark", "infinite").stdout
    assert "landmark_selection" in text
    assert "longformer" not in text


def test_names_stand_for_patterns(here: Path):
    assert (
        maskc("compile", "longformer", "--emit", "mask").stdout == f"{mc.patterns.longformer()}\n"
    )
    assert "did you mean longformer" in maskc("explain", "longfomer", code=2).stderr
    Path("longformer").write_text("import maskc as mc\n\nown = mc.causal()\n")  # comes first
    assert maskc("compile", "longformer", "--emit", "mask").stdout == "causal()\n"


def test_patterns_are_attributes():
    from maskc.patterns import natten_2d

    assert natten_2d(width=8).count(64) > 0
    assert "swin" in dir(mc.patterns)
    with pytest.raises(AttributeError, match="did you mean 'swin'"):
        _ = mc.patterns.swim


def test_a_file_to_start_from(here: Path):
    done = maskc("init", "near")
    assert done.stdout == "near.py\n"
    assert "next: maskc verify near.py\n" in done.stderr
    assert maskc("compile", "near.py", "--emit", "mask").stdout == (
        "causal() & (sinks(4) | window(1023))\n"
    )
    assert "near.py is there already" in maskc("init", "near.py", code=2).stderr
    maskc("init", "near.py", "--force")
    assert "MC203" in maskc("init", "2d.py", code=1).stderr


@pytest.mark.parametrize(("written", "ours"), [
    ("mc.stride(4)", "strided"), ("mc.top_k(4)", "topk"), ("mc.global(4)", "global_tokens"),
    ("mc.sliding_window(4)", "window"), ("mc.casual()", "causal"),
    ("mc.causal().top_k(4)", "mc.topk"), ("mc.causal().densee(4)", "dense"),
    ("mc.documents('d', aligned='start')", "align"),
    ("mc.topk(4, mc.full(), scoring='qk')", "score"),
])  # fmt: skip
def test_what_was_meant(here: Path, written: str, ours: str):
    Path("m.py").write_text(f"import maskc as mc\n\nm = {written}\n")
    done = maskc("compile", "m.py", code=1)
    assert done.stderr.startswith("MC201 m.py:3:")
    assert f"did you mean {ours!r}?" in done.stderr
    assert not hasattr(mc, "__nothing__")


@pytest.mark.parametrize(("written", "said"), [
    ("mc.window(4, stride=2)",
     "window() got an unexpected keyword argument 'stride'; "
     "mc.window takes left, right, align, at"),
    ("mc.full(n=2)", "full() got an unexpected keyword argument 'n'; mc.full takes no arguments"),
    ("mine(x=2)", "mine() got an unexpected keyword argument 'x'"),
])  # fmt: skip
def test_what_a_combinator_takes(here: Path, written: str, said: str):
    Path("m.py").write_text(f"import maskc as mc\ndef mine(): ...\nm = {written}\n")
    found = maskc("compile", "m.py", code=1).stderr.splitlines()[0]
    assert found.startswith("MC201 m.py:3:5  ")
    assert found.endswith(said)
