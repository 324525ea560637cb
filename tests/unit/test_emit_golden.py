"""The text of every stage for a few masks, and what that text must not depend on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import maskc as mc
from maskc import driver
from maskc.core.expr_text import to_python
from maskc.core.problem import Direction
from maskc.core.target import TARGETS
from maskc.plan.explain import explain

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
TARGET_NAMES = ["cpu", "sm_80"]


def plan(mask: mc.Mask, target: str, head_dim: int = 64):
    heads = 4 if "per_head" in str(mask) else None
    return driver.planned(mask, driver.problem(head_dim, None, heads, "bfloat16"), TARGETS[target])


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", TARGET_NAMES)
def test_source(name, target, golden):
    unit = driver.bundled(plan(CASES[name], target)).units[0]
    golden(f"source/{name}.{target}.{TARGETS[target].suffix}", unit.text)
    assert unit.text.isascii()
    assert max(map(len, unit.text.splitlines())) <= 100
    assert "\n\n\n" not in unit.text


CHOSEN = mc.topk(8, mc.causal(), score="block_mean", block=64) | mc.window(63)


def test_source_of_a_selection(golden):
    """Lists of chosen blocks, read as bits of a tile; what ranks; and what explain() says of it."""
    made = plan(CHOSEN, "cpu")
    unit = driver.bundled(made).units[0]
    golden("source/chosen.cpu.c", unit.text)
    golden("explain/chosen.txt", explain(made))
    assert unit.text.isascii()
    assert max(map(len, unit.text.splitlines())) <= 100
    assert "\n\n\n" not in unit.text


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("name", ["band", "documents"])
def test_source_of_hopper(name, direction, golden):
    """An interval per row with tile ranges; pairs tested one by one, with tile lists."""
    unit = driver.bundled(plan(CASES[name], "sm_90a", 128)).unit("sm_90a", direction)
    golden(f"source/{name}.sm_90a_{direction.value}.cu", unit.text)
    assert unit.text.isascii()
    assert max(map(len, unit.text.splitlines())) <= 100


@pytest.mark.parametrize("direction", Direction)
def test_source_of_hopper_in_boxes(direction, golden):
    """Tiles that are boxes of a grid."""
    units = driver.bundled(plan(GRID, "sm_90a", 128)).choice("sm_90a", direction)
    (unit,) = (unit for unit in units if unit.boxes)
    golden(f"source/grid.sm_90a_{direction.value}.cu", unit.text)
    assert unit.text.isascii()
    assert max(map(len, unit.text.splitlines())) <= 100
    assert "\n\n\n" not in unit.text


def test_source_of_hopper_with_dq_apart(golden):
    """Small tiles, with the launch that makes dq by tile rows."""
    made = driver.bundled(plan(CASES["streaming"], "sm_90a", 128))
    (unit,) = (x for x in made.choice("sm_90a", Direction.backward) if x.form == "small")
    golden("source/streaming.sm_90a_small_backward.cu", unit.text)
    assert "attention_backward_rows" in unit.text
    assert max(map(len, unit.text.splitlines())) <= 100
    assert "\n\n\n" not in unit.text


@pytest.mark.parametrize("direction", Direction)
def test_source_of_hopper_in_registers(direction, golden):
    """Tiles of 16 x 16."""
    units = driver.bundled(plan(mc.block_diagonal(16), "sm_90a", 64)).choice("sm_90a", direction)
    (unit,) = (unit for unit in units if unit.form == "tiny")
    golden(f"source/blocks.sm_90a_{direction.value}.cu", unit.text)
    assert unit.text.isascii()
    assert max(map(len, unit.text.splitlines())) <= 100
    assert "\n\n\n" not in unit.text


@pytest.mark.parametrize("name", CASES)
def test_stages(name, golden):
    mask = CASES[name]
    made = plan(mask, "cpu")
    lines = [f"mask   {mask}"]
    lines += [f"keep   {to_python(m.ir.keep)}" for m in made.masks]
    lines += [f"piece  {to_python(p.keep)}" for m in made.masks for p in m.ir.pieces]
    lines += [f"shape  {to_python(m.lifted.shape)}" for m in made.masks]
    lines += [f"args   {', '.join(map(to_python, m.lifted.args))}" for m in made.masks]
    golden(f"stages/{name}.txt", "\n".join(lines) + "\n")
    golden(f"explain/{name}.txt", explain(made, None if made.masks[0].ir.data else 4096))


def test_constants_share_a_source():
    """Masks that differ only in data integers have one binary; strides have their own."""

    def digest(mask: mc.Mask) -> str:
        return driver.bundled(plan(mask, "cpu")).units[0].digest

    assert digest(mc.window(255)) == digest(mc.window(511)) == digest(mc.window(mc.param("w", 9)))
    assert digest(mc.causal() & (mc.sinks(4) | mc.window(100))) == digest(
        mc.causal() & (mc.sinks(64) | mc.window(2000))
    )
    assert digest(mc.dilated(9, stride=2)) != digest(mc.dilated(9, stride=4))
    assert digest(mc.documents("one")) == digest(mc.documents("two"))


def test_names_never_reach_the_source():
    plain = mc.documents("doc") & mc.window(mc.param("w", 3))
    hostile = mc.documents("attack_me") & mc.window(mc.param("system", 3))
    texts = [driver.bundled(plan(mask, "cpu"), "mask").units[0].text for mask in (plain, hostile)]
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
plan = driver.planned(mask, driver.problem(64, None, None, "bfloat16"), TARGETS["cpu"])
files = driver.generate(mask, "demo", plan.problem, (TARGETS["cpu"],), "Demo.")
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
