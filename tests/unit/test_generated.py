"""Generated modules: written, read, imported by a stranger, called, and kept from drifting."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import maskc as mc
from maskc import driver
from maskc.core.library import expanded, shared
from maskc.core.target import TARGETS
from maskc.reference.attention import attention

MASK = mc.causal() & (mc.sinks(3) | mc.window(mc.param("w", 40))) | mc.documents("doc")


def write(folder: Path, mask: mc.Mask, name: str, n_heads: int | None = None) -> Path:
    problem = driver.problem(32, None, n_heads, "float32")
    files = driver.generate(
        mask, name, [driver.plan_module(mask, problem, TARGETS["cpu"])], "A test."
    )
    for file, text in files.items():
        (folder / file).write_text(text)
    return folder / f"{name}.py"


def imported(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", ["cpu", "simt", "sm_80", "sm_90a"])
def test_sources_that_include_static_files_are_the_same_sources(target, tmp_path):
    plan = driver.plan_kernel(MASK, driver.problem(64, None, None, "float16"), TARGETS[target])
    files = driver.generate(MASK, "made", [plan], "A test.")
    whole = {name: text for name, text in files.items() if name.endswith((".c", ".cu"))}
    short = {name: shared(text) for name, text in whole.items()}
    lines, fewer = (sum(text.count("\n") for text in texts.values()) for texts in (whole, short))
    assert fewer < 0.6 * lines
    assert {name: expanded(text) for name, text in short.items()} == whole
    bundles = []
    for texts in (whole, short):
        for file, text in {**files, **texts}.items():
            (tmp_path / file).write_text(text)
        bundles.append(imported(tmp_path / "made.py")._MASK.bundle)
    assert bundles[0] == bundles[1]


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
        found = module.layout(150, doc=doc, w=width).to_dense()
        assert (found == MASK.layout(150, block=(64, 64), doc=doc, w=width).to_dense()).all()
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
            found = module.layout(n, n + 7, head=head).to_dense()
            expected = mask.layout(n, n + 7, block=(64, 64), head=head).to_dense()
            assert (found == expected).all()


def test_text_is_readable_and_imports_little(tmp_path):
    text = write(tmp_path, MASK, "made").read_text()
    assert max(map(len, text.splitlines())) <= 100
    imports = [line for line in text.splitlines() if line.startswith(("import", "from"))]
    assert [line.split()[1] for line in imports] == ["maskc.runtime.generated"]
    assert str(Path(sys.prefix)) not in text
