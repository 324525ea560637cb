"""The text of every stage for a few masks, and what that text must not depend on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest

import maskc as mc
from maskc import driver
from maskc.core import expr as E
from maskc.core.expr_text import to_python
from maskc.core.target import TARGETS
from maskc.emit import environment
from maskc.emit.emitter import kernel_spec
from maskc.plan.explain import explain
from maskc.plan.types import KernelPlan

ROOT = Path(__file__).parents[2]

CASES = {
    "streaming": mc.causal() & (mc.sinks(4) | mc.window(mc.param("w", 255))),
    "band": mc.window(255),
    "lattice": mc.dilated(63, stride=4) | mc.strided(128) & mc.causal(),
    "documents": mc.documents("doc") & mc.causal(),
    "per_head": mc.per_head([mc.causal(), mc.window(8), mc.window(16), mc.causal()]),
    "table": mc.random_blocks(64, 3, 0) | mc.block_table("blocks", 64) | mc.global_tokens([0, 9]),
}
GRID = mc.where(
    lambda q, k: (abs(q // 80 - k // 80) <= 20) & ((q % 80 + 4) // 8 == (k % 80 + 4) // 8)
)


def plan(mask: mc.Mask, target: str, head_dim: int = 64):
    heads = 4 if "per_head" in str(mask) else None
    return driver.plan_kernel(
        mask, driver.problem(head_dim, None, heads, "bfloat16"), TARGETS[target]
    )


def shapes(made: KernelPlan) -> str:
    """The text that a mask decides in its sources: predicates, tile ranges, bounds."""
    reads = sorted({name for mask in made.masks for name in E.arrays(mask.lifted.shape)})
    spec = kernel_spec(made, tuple(reads))
    parts = []
    for shape in spec.shapes:
        lines = [f"{line.text:60s} {line.comment}".rstrip() for line in shape.predicate]
        parts.append("\n".join(["predicate", *lines]))
        for name in ("tile_range", "column_range", "key_bounds", "query_bounds"):
            found = getattr(shape, name)
            texts = [" .. ".join(x) if isinstance(x, tuple) else x for x in found or ("none",)]
            parts.append("\n".join([name, *(" ".join(text.split()) for text in texts)]))
    return "\n".join(parts) + "\n"


@pytest.mark.parametrize("name", CASES)
def test_predicates(name, golden):
    golden(f"predicates/{name}.txt", shapes(plan(CASES[name], "sm_90a")))


CHOSEN = mc.topk(8, mc.causal(), score="block_mean", block=64) | mc.window(63)


def test_a_selection(golden):
    """Lists of chosen blocks, read as bits of a tile; what ranks; and what explain() says of it."""
    made = plan(CHOSEN, "cpu")
    golden("predicates/chosen.txt", shapes(made))
    golden("explain/chosen.txt", explain(made))


GATHERED = mc.topk(9, mc.causal(), score="indexer", share="all")
EVERY = {**CASES, "chosen": CHOSEN, "grid": GRID, "blocks": mc.block_diagonal(16),
         "gathered": GATHERED}  # fmt: skip


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("target", ["cpu", "sm_80", "sm_90a"])
def test_sources_fit_a_page(name, target):
    """ASCII, lines of at most 100 columns, no two empty lines in a row: every form and pass."""
    for unit in driver.emit_bundle(plan(EVERY[name], target)).units:
        assert unit.source.isascii()
        assert max(map(len, unit.source.splitlines())) <= 100
        assert "\n\n\n" not in unit.source


def test_what_the_cases_cover():
    """Boxes, tiles of 16 x 16, small tiles with dq apart, lists made on the device."""
    forms = {unit.key for name in EVERY
             for unit in driver.emit_bundle(plan(EVERY[name], "sm_90a")).units}  # fmt: skip
    assert forms >= {
        "sm_90a", "sm_90a_backward", "sm_90a_small", "sm_90a_small_backward", "sm_90a_tiny",
        "sm_90a_tiny_backward", "sm_90a_grid", "sm_90a_documents", "sm_90a_selections",
        "sm_90a_gather",
    }  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_stages(name, golden):
    mask = CASES[name]
    made = plan(mask, "cpu")
    from maskc.ir.decompose import pieces_of  # golden texts name lines of this file

    lines = [f"mask   {mask}"]
    lines += [f"keep   {to_python(m.ir.keep)}" for m in made.masks]
    lines += [f"piece  {to_python(p.keep)}" for m in made.masks for p in pieces_of(m.ir)]
    lines += [f"shape  {to_python(m.lifted.shape)}" for m in made.masks]
    lines += [f"args   {', '.join(map(to_python, m.lifted.args))}" for m in made.masks]
    golden(f"stages/{name}.txt", "\n".join(lines) + "\n")
    golden(f"explain/{name}.txt", explain(made, None if made.masks[0].ir.data else 4096))


def test_constants_share_a_source():
    """Masks that differ only in data integers have one binary; strides have their own."""

    def digest(mask: mc.Mask) -> str:
        return driver.emit_bundle(plan(mask, "cpu")).units[0].digest

    assert digest(mc.window(255)) == digest(mc.window(511)) == digest(mc.window(mc.param("w", 9)))
    assert digest(mc.causal() & (mc.sinks(4) | mc.window(100))) == digest(
        mc.causal() & (mc.sinks(64) | mc.window(2000))
    )
    assert digest(mc.dilated(9, stride=2)) != digest(mc.dilated(9, stride=4))
    assert digest(mc.documents("one")) == digest(mc.documents("two"))


def test_names_never_reach_the_source():
    plain = mc.documents("doc") & mc.window(mc.param("w", 3))
    hostile = mc.documents("attack_me") & mc.window(mc.param("system", 3))
    texts = [
        driver.emit_bundle(plan(mask, "cpu"), "mask").units[0].text for mask in (plain, hostile)
    ]
    strip = [
        [line for line in text.splitlines() if not line.strip().startswith("// line")]
        for text in texts
    ]
    assert strip[0] == strip[1]
    assert "attack_me" not in texts[1]
    assert "system" not in texts[1]


SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import maskc as mc
from maskc import driver
from maskc.core.target import TARGETS
mask = (mc.causal() & (mc.sinks(4) | mc.window(255)) | mc.dilated(3, stride=8)
        | mc.documents("doc") & mc.flags("f") | mc.global_tokens([1, 5, 900]))
plan = driver.plan_kernel(mask, driver.problem(64, None, None, "bfloat16"), TARGETS["cpu"])
files = driver.generate(mask, "demo", [plan], "Demo.")
print("".join(files.values()))
"""


def test_the_hash_seed_does_not_matter():
    texts = []
    for seed in ("1", "4242"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(root=str(ROOT))],
            capture_output=True, text=True, env=env, check=True, cwd=ROOT,
        )  # fmt: skip
        texts.append(done.stdout)
    assert texts[0] == texts[1]


def test_the_longest_formula_decides_how_many_pairs_are_tested_at_once():
    long = mc.offsets([1, 5, 11, 30]) & mc.where(lambda q, k: (q % 2 < k % 3) | (q % 5 > k % 7))
    spec = kernel_spec(plan(mc.per_head([mc.causal(), long] * 2), "sm_90a"), ())
    assert [len(shape.predicate) <= 4 for shape in spec.shapes] == [True, False]
    assert spec.keys_at_once == 8


# ------------------------------------------------------------------ templates


def test_compiled_templates_are_kept_but_never_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    template = tmp_path / "x.cu.j2"
    compiled = []
    generate = jinja2.Environment._generate
    monkeypatch.setattr(
        jinja2.Environment, "_generate", lambda *args, **more: compiled.append(1) or
        generate(*args, **more),
    )  # fmt: skip

    def rendered(text):
        """Return what a new process renders, and whether it compiled the template."""
        template.write_text(text)
        compiled.clear()
        made = environment.environment.__wrapped__()
        made.loader = jinja2.FileSystemLoader(tmp_path)
        return made.get_template(template.name).render(spec=1), bool(compiled)

    assert rendered("a {{ spec }}") == ("a 1", True)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert [rendered("a {{ spec }}")[1] for _ in range(2)] == [True, False]
    assert rendered("b {{ spec }}") == ("b 1", True)
    (kept,) = (file for file in (tmp_path / "cache").rglob("*") if file.is_file())
    for damaged in (b"", b"x" * 99, kept.read_bytes()[:-9], kept.read_bytes()[:40]):
        kept.write_bytes(damaged)
        assert rendered("b {{ spec }}") == ("b 1", True)
        assert rendered("b {{ spec }}") == ("b 1", False)
    monkeypatch.setattr(jinja2, "__version__", "0")
    assert rendered("b {{ spec }}")[1]
    kept.unlink()
    kept.mkdir()  # which nobody can write to as a file
    assert rendered("b {{ spec }}") == ("b 1", True)
    assert [*kept.parent.iterdir()] == [kept]
