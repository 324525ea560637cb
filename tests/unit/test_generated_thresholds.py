"""Generated modules of masks whose keys are chosen one by one: sources for every target, read back
from files, against the mask itself."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import maskc as mc
from maskc import driver
from maskc.core.target import TARGETS
from maskc.runtime.compiled import CompiledMask
from maskc.testing.emulator import machine
from tests.support.chosen_keys import live_of, on_grid
from tests.support.exact_attention import called, exact_and_rough, tensors, wrong
from tests.support.hopper import nan_memory

MASK = mc.topk(9, mc.causal()) | mc.window(mc.param("near", 3))
GPUS = ("sm_80", "sm_90a")


def module_of(folder: Path, mask: mc.Mask, targets: tuple[str, ...]):
    """The module, imported, and its files."""
    problem = driver.problem(64, None, None, "bfloat16")
    plans = [driver.plan_module(mask, problem, TARGETS[name]) for name in targets]
    files = driver.generate(mask, "chosen", plans, "A test.")
    for name, text in files.items():
        (folder / name).write_text(text)
    spec = importlib.util.spec_from_file_location("chosen", folder / "chosen.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, files


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return module_of(tmp_path_factory.mktemp("made"), MASK, tuple(TARGETS))


def given(n=140):
    return on_grid(tensors(n, n + 10, 64, torch.bfloat16, batch=1, heads=2, kv_heads=1))


def check(attn, **data):
    q, k, v, dout = given()
    live = live_of(MASK, q, k, data)
    with nan_memory():
        computed = called(attn, q, k, v, dout, data=data)
    sides = exact_and_rough(q, k, v, dout, live)
    assert not wrong(computed, *sides)


def test_every_target_has_its_sources(written):
    _, files = written
    assert {f"chosen.{name}.cu" for name in ("sm_80", "sm_90a", "simt")} < set(files)
    assert {f"chosen.{name}_choose.cu" for name in GPUS} < set(files)
    assert {"chosen.cpu.c", "chosen.simt_backward.cu", "chosen.sm_90a_backward.cu"} < set(files)


def test_on_the_cpu(written):
    module, _ = written
    check(module._MASK.on(torch.zeros(1)))
    check(module._MASK.on(torch.zeros(1)), near=11)


@pytest.mark.parametrize("target", GPUS)
def test_on_gpus(written, target, monkeypatch):
    machine.install(monkeypatch)
    module, _ = written
    attn = CompiledMask(module._MASK.bundle.serving(target), target)
    check(attn)


def test_questions_speak_of_what_is_chosen(written, tmp_path):
    """Also where no target of a module is one whose formulas do."""
    module, _ = written
    alone, _ = module_of(tmp_path, MASK, ("sm_90a",))
    scores = torch.randn(70, 70).numpy()
    wanted = MASK.dense(70, scores=scores)
    for each in (module, alone):
        assert (each.dense(70, scores=scores) == wanted).all()
    assert alone._MASK.bundle.targets == ("sm_90a",)


def test_a_module_that_was_read_is_written_again(written):
    """The digest knows what finds thresholds, and which formulas other targets have."""
    module, _ = written
    bundle = module._MASK.bundle
    (sibling,) = bundle.siblings
    assert sibling.chooser is not None
    assert sibling.targets == GPUS
    assert bundle.digest != replace(bundle, siblings=()).digest
