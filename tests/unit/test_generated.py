"""Generated modules: written, read, imported by a stranger, called, and kept from drifting."""

from __future__ import annotations

import importlib.util
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core import library
from maskc.core.errors import BadPlan
from maskc.core.library import standing_alone
from maskc.core.target import TARGETS
from maskc.reference.attention import attention

GENERATED = Path(__file__).parents[2] / "generated"
MASK = mc.causal() & (mc.sinks(3) | mc.window(mc.param("w", 40))) | mc.documents("doc")


def write(
    folder: Path, mask: mc.Mask, name: str, n_heads: int | None = None, standalone: bool = False
) -> Path:
    problem = driver.problem(32, None, n_heads, "float32")
    plan = driver.plan_module(mask, problem, TARGETS["cpu"])
    files = driver.generate(mask, name, [plan], "A test.", standalone)
    for file, text in files.items():
        (folder / file).write_text(text)
    return folder / f"{name}.py"


def imported(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", ["cpu", "simt", "sm_80", "sm_90a"])
def test_headers_and_sources_that_stand_alone_are_the_same_kernels(target, tmp_path):
    plan = driver.plan_kernel(MASK, driver.problem(64, None, None, "float16"), TARGETS[target])
    bundles = []
    for alone in (False, True):
        folder = tmp_path / str(alone)
        folder.mkdir()
        files = driver.generate(MASK, "made", [plan], "A test.", standalone=alone)
        for file, text in files.items():
            (folder / file).write_text(text)
            if file.endswith((".c", ".cu")):
                assert ('#include "' in text) == (not alone)
                assert standing_alone(text) == standing_alone(standing_alone(text))
        bundles.append(imported(folder / "made.py")._MASK.bundle)
    header, whole = (bundle.units for bundle in bundles)
    assert [unit.source for unit in header] == [unit.text for unit in whole]
    assert [unit.digest for unit in header] == [unit.digest for unit in whole]


def test_a_module_refuses_other_kernels(tmp_path, monkeypatch):
    path = write(tmp_path, MASK, "made")
    alone = tmp_path / "alone"
    alone.mkdir()
    write(alone, MASK, "made", standalone=True)
    assert imported(path).explain()
    text = (tmp_path / "made.cpu.c").read_text()
    name = re.findall(r'#include "([\w/.]+)"', text)[-1]
    read = library.static
    monkeypatch.setattr(library, "static", partial(_edited, read, name, "// a remark"))
    library._whole.cache_clear()
    assert imported(path).explain()  # the same kernels
    monkeypatch.setattr(library, "static", partial(_edited, read, name, "int other;"))
    library._whole.cache_clear()
    with pytest.raises(BadPlan, match=r"made\.cpu\.c: another version of maskc wrote it"):
        imported(path)
    assert imported(alone / "made.py").explain()  # has kernels of its own


def _edited(read, name, line, file):
    return read(file) + line * (file == name)


def test_the_key_of_a_binary_covers_static_files(monkeypatch):
    unit = MASK.compile(32, dtype="float32", target="cpu").bundle.units[0]
    name = re.findall(r'#include "([\w/.]+)"', unit.text)[-1]
    before = unit.digest
    monkeypatch.setattr(library, "static", partial(_edited, library.static, name, "int other;"))
    library._whole.cache_clear()
    assert replace(unit).digest != before


@pytest.fixture(autouse=True)
def _own_library():
    yield
    library._whole.cache_clear()


def test_a_module_runs_like_the_mask(tmp_path):
    module = imported(write(tmp_path, MASK, "made"))
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, 150, 32), dtype=np.float32) for _ in range(3))
    doc = np.repeat(np.arange(5), 30)
    for width in (40, 7):
        dense = MASK.dense(150, doc=doc, w=width)
        assert (module.dense(150, doc=doc, w=width) == dense).all()
        out, lse = module.attention(q, k, v, return_lse=True, doc=doc, w=width)
        expected, expected_lse = attention(q, k, v, dense)
        assert np.abs(out - expected).max() < 1e-5
        assert np.abs(lse - expected_lse).max() < 1e-5
        tiles = module.layout(150, doc=doc, w=width).to_dense()
        assert (tiles == MASK.layout(150, block=(64, 64), doc=doc, w=width).to_dense()).all()
    gradients = module.backward(q, k, v, out, lse, out, doc=doc, w=7)
    assert [g.shape for g in gradients] == [q.shape] * 3
    assert "target   cpu" in module.explain()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 200])
def test_recipes_survive_the_text(tmp_path, n):
    masks = {
        "band": mc.window(30, 5),
        "lattice": mc.dilated(9, stride=4) | mc.strided(16, 3),
        "blocks": mc.chunked(48) | mc.global_tokens([2, 70]),
        "heads": mc.per_head([mc.causal(), mc.window(9)]),
    }
    for name, mask in masks.items():
        heads = 2 if name == "heads" else None
        module = imported(write(tmp_path, mask, f"{name}_{n}", heads))
        for head in range(heads or 1):
            tiles = module.layout(n, n + 7, head=head).to_dense()
            expected = mask.layout(n, n + 7, block=(64, 64), head=head).to_dense()
            assert (tiles == expected).all()


def test_text_is_readable_and_imports_little(tmp_path):
    text = write(tmp_path, MASK, "made").read_text()
    assert max(map(len, text.splitlines())) <= 100
    imports = [line for line in text.splitlines() if line.startswith(("import", "from"))]
    assert [line.split()[1] for line in imports] == ["maskc.runtime.generated"]
    assert str(Path(sys.prefix)) not in text


def test_the_files_in_the_repository_stay_short():
    """Config headers are read whole, and plans are compact."""
    files = [path for path in GENERATED.iterdir() if path.is_file()]
    lines = {path.name: path.read_text().count("\n") for path in files}
    headers = {name: count for name, count in lines.items() if name.endswith((".c", ".cu"))}
    assert sum(lines.values()) < 8000
    assert max(headers.values()) <= 141, headers
    assert sum(headers.values()) < 107 * len(headers)
