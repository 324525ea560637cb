"""Bundles as text and back, and from the disk: whatever was planned once is not planned again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.build import bundles
from maskc.build.cache import open_cache
from maskc.core import package
from maskc.core.plain import from_text, to_readable_text, to_text
from maskc.core.problem import Problem
from maskc.core.target import Target

MASKS = {
    "parts": mc.causal() & mc.dilated(16, stride=4),
    "data": (mc.causal() & mc.documents("doc")) | mc.sinks(mc.param("n", 4)),
    "table": mc.block_table(np.tri(3, dtype=bool), 64),
    "heads": mc.per_head([mc.causal(), mc.window(3)]),
    "tests pairs": mc.where(lambda q, k: (q * 3 + k) % 7 < 3),
}


def bundled(mask: mc.Mask, target: str):
    problem = driver.problem(64, None, 2, "bfloat16")
    return driver.emit_bundle(driver.plan_kernel(mask, problem, Target.named(target)))


# ------------------------------------------------------------------ text


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
@pytest.mark.parametrize("name", MASKS)
def test_a_bundle_comes_back_equal(name: str, target: str):
    made = bundled(MASKS[name], target)
    again = from_text(to_text(made))
    assert again == made
    assert (again.report, again.units[0].origins) == (made.report, made.units[0].origins)
    assert to_text(again) == to_text(made)
    readable = to_readable_text(made)
    assert to_readable_text(from_text(readable)) == readable


def test_formulas_are_texts_behind_a_sign():
    keep = driver.lowered(mc.causal()).keep
    text = to_readable_text((keep, "k", 3))
    assert json.loads(text) == ["= k <= q + n_kv - n_q", "k", 3]
    assert from_text(text) == (keep, "k", 3)
    for write in (to_text, to_readable_text):
        with pytest.raises(TypeError, match="would be read as a formula"):
            write(("= k",))


@dataclass(frozen=True)
class Mine:
    """A dataclass of somebody else."""

    x: int


@pytest.mark.parametrize("value", [Mine(1), [1], {"a": 1}, object(), (1, {2})])
def test_only_plain_values_have_a_text(value: object):
    with pytest.raises(TypeError, match="is not a plain value"):
        to_text(value)


@pytest.mark.parametrize(
    "found",
    [
        {"os.system": ["true"]}, {"package.state": []}, {"package.Path": ["/"]},
        {"problem.dataclass": []}, {"problem.Problem": [64]}, {"problem.Direction": "sideways"},
        {"errors.MaskcError": []}, {"": []}, {"a": 1, "b": 2}, {"nothing.Here": []},
    ],
)  # fmt: skip
def test_a_text_makes_nothing_else(found: dict):
    with pytest.raises(ValueError, match="not plain values"):
        from_text(json.dumps(found))


def test_problems_and_enums_are_checked_when_read():
    problem = driver.problem(64, None, 2, "bfloat16")
    assert from_text(to_text((problem, (1, 2.5, None, True, b"\0x", "ä")))) == (
        problem, (1, 2.5, None, True, b"\0x", "ä"),
    )  # fmt: skip
    assert isinstance(from_text(to_text(problem)), Problem)


# ------------------------------------------------------------------ on disk


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch, tmp_path) -> list[str]:
    """Masks that were planned, in a fresh cache."""
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path / "cache"))
    found, plan = [], driver.plan_kernel

    def counted(mask, problem, target):
        found.append(str(mask))
        return plan(mask, problem, target)

    monkeypatch.setattr(driver, "plan_kernel", counted)
    return found


@pytest.mark.remembers_plans
def test_the_second_time_nothing_is_planned(planned: list[str]):
    mask = mc.causal() & mc.window(mc.param("w", 9))
    first, again = (mask.compile(16, dtype="float32", target="cpu") for _ in range(2))
    assert planned == [str(mask)]
    assert first.bundle == again.bundle
    q = np.random.default_rng(0).standard_normal((1, 1, 40, 16)).astype(np.float32)
    assert np.array_equal(first(q, q, q, w=3), again(q, q, q, w=3))
    assert first.explain() == again.explain()
    assert planned.count(str(mask)) == 2, "explain() plans where that was not done here"


@pytest.mark.remembers_plans
def test_whatever_decides_is_asked_for(planned: list[str], monkeypatch: pytest.MonkeyPatch):
    mask = mc.window(5)
    for options in ({}, {"dtype": "bfloat16"}, {"head_dim": 24}, {"n_heads": 3}):  # fmt: skip
        mask.compile(**{"head_dim": 16, "dtype": "float32", "target": "cpu"} | options)
    mc.window(6).compile(16, dtype="float32", target="cpu")
    assert len(planned) == 4, "kernels of masks that heads share serve any number of heads"
    elsewhere = mc.window(5)
    elsewhere.compile(16, dtype="float32", target="cpu")
    assert len(planned) == 5, "comments of the source name the mask's own line"
    monkeypatch.setattr(bundles, "state", lambda: "changed code")
    mask.compile(16, dtype="float32", target="cpu")
    assert len(planned) == 6


@pytest.mark.remembers_plans
def test_an_entry_of_another_form_is_planned_anew(planned: list[str], monkeypatch):
    mask = mc.window(5)
    mask.compile(16, dtype="float32", target="cpu")
    monkeypatch.setattr(open_cache(), "get", lambda key: b'{"os.system":["true"]}')
    mask.compile(16, dtype="float32", target="cpu")
    assert len(planned) == 2


def test_the_state_of_the_code_is_that_of_its_files(monkeypatch, tmp_path):
    inside = tmp_path / "maskc" / "templates"
    inside.mkdir(parents=True)
    (tmp_path / "maskc" / "one.py").write_text("x = 1\n")
    monkeypatch.setattr(package, "_PACKAGE", tmp_path / "maskc")
    found = [package.state.__wrapped__()]
    for file, text in (
        ("one.py", "x = 12\n"),
        ("templates/a.j2", ""),
        ("templates/b.cuh", ""),
        ("templates/c.h", ""),
        ("cost.toml", ""),
    ):
        (tmp_path / "maskc" / file).write_text(text)
        found.append(package.state.__wrapped__())
    (tmp_path / "maskc" / "notes.txt").write_text("")
    assert len(set(found)) == 6
    assert package.state.__wrapped__() == found[-1]


USER = """
import sys, numpy as np, maskc as mc
mask = mc.causal() & (mc.sinks(3) | mc.window(20))
q = np.ones((1, 1, 50, 8), np.float32)
assert mc.attention(q, q, q, mask).shape == q.shape
print(sorted({"islpy", "sympy", "jinja2"} & set(sys.modules)))
"""


def test_another_process_loads_no_compiler(tmp_path):
    (tmp_path / "user.py").write_text(USER)
    env = {**os.environ, "MASKC_CACHE_DIR": str(tmp_path / "cache")}
    printed = [
        subprocess.run(
            [sys.executable, str(tmp_path / "user.py")], capture_output=True, text=True,
            check=True, env=env,
        ).stdout.strip()
        for _ in range(2)
    ]  # fmt: skip
    assert "islpy" in printed[0]
    assert printed[1] == "[]"


@pytest.mark.remembers_plans
@pytest.mark.filterwarnings("ignore::maskc.build.CacheWarning")
def test_a_bundle_or_binary_of_another_mask_is_not_used(planned: list[str], tmp_path):
    """Copied to this mask's key, it would give wrong results, or crash."""
    q = np.random.default_rng(1).standard_normal((1, 1, 60, 16)).astype(np.float32)
    masks = [mc.window(5), mc.strided(3) & mc.causal()]
    files = tmp_path / "cache" / "files"
    found, own = [], []
    for mask in masks:
        before = set(os.listdir(files)) if files.exists() else set()
        found.append(mask.compile(16, dtype="float32", target="cpu")(q, q, q))
        own.append(
            sorted(set(os.listdir(files)) - before, key=lambda n: (files / n).stat().st_size)
        )
    for theirs, ours in zip(own[0][-2:], own[1][-2:], strict=True):
        (files / ours).write_bytes((files / theirs).read_bytes())
    assert len(planned) == 2
    again = masks[1].compile(16, dtype="float32", target="cpu")(q, q, q)
    assert len(planned) == 3
    assert np.array_equal(again, found[1])
    assert not np.array_equal(again, found[0])
