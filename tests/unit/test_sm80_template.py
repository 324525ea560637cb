"""The mma.sync kernels without a GPU: numbers of the schedule, the text, what NVRTC makes of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import maskc as mc
from maskc import driver
from maskc.core.bundle import SourceUnit
from maskc.core.dtypes import DType
from maskc.core.errors import BuildFailed, SharedMemoryExceeded
from maskc.core.library import standing_alone, static
from maskc.core.problem import Direction, Feature, Problem, TileShape
from maskc.core.target import TARGETS
from maskc.emit.environment import render
from maskc.emit.spec import Iteration, KernelSpec, PredicateLine, Shape
from maskc.plan.explain import explain
from maskc.plan.families.ampere import AMPERE
from maskc.plan.families.sm80 import BLOCK_BYTES, Sm80Schedule, schedule, shared_bytes
from maskc.plan.types import KernelPlan
from tests.support import sass
from tests.support.ledger import build

SM_80 = TARGETS["sm_80"]
DIMS = SM_80.head_dims
BF16, F16 = DType.bfloat16, DType.float16
LIMIT = 99 * 1024
"""Bytes that a block may use on the Ampere and Ada cards with the least shared memory."""

BAND = Shape(
    (PredicateLine("k <= q + m.c0 &&"), PredicateLine("q - k <= m.c1")),
    ("max_i32(0, floor_div(ti * 128 - m.c1, 64))", "(n_kv + 63) / 64", "0", "0"),
    None,
)
DOCUMENTS = Shape((PredicateLine("m.a0[q] == m.a1[k] && k <= q + m.c0"),), None, None)
TABLE = Shape((PredicateLine("m.a2[(q / 16) * m.row2 + k / 16] != 0"),), None, None)
LATTICE = Shape((PredicateLine("floor_mod(q + m.c0 - k, 7) == 0 || k < m.c1"),), None, None)


def planned(dim: int, dtype: DType = BF16, short_rows: bool = False) -> Sm80Schedule:
    return schedule(Problem(dim, dim, dtype), short_rows)


def spec(dim: int, dtype: DType = BF16, plan: Sm80Schedule | None = None, **changes) -> KernelSpec:
    """Four formulas over lists in memory; `changes` replace fields."""
    plan = plan or planned(dim, dtype)
    made = KernelSpec(
        SM_80, dtype, dim, dim, plan.tile, Iteration.csr, (BAND, DOCUMENTS, TABLE, LATTICE),
        n_args=2, arg_notes=("c0", "c1"), table_ranks=(1, 1, 2), array_notes=("a", "b", "t"),
        schedule=plan,
    )  # fmt: skip
    return replace(made, **changes)


def unit(kernel: KernelSpec, extra: str = "") -> SourceUnit:
    text = standing_alone(render("sm80/forward.cu.j2", kernel)) + extra
    return SourceUnit("sm_80", text, kernel.tile, False)


def compiled(source: SourceUnit, arch: str = "sm_80", features: frozenset[Feature] = frozenset()):
    """The one kernel's use of the machine."""
    (use,) = build(source, features, arch=arch).report.kernels
    return use


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("short_rows", [False, True])
@pytest.mark.parametrize("dim", DIMS)
def test_tiles_divide_among_warps_and_fit_the_smallest_card(dim, short_rows):
    plan = planned(dim, short_rows=short_rows)
    sharing = 1 + (dim > 256)
    assert plan.tile.q * sharing % (16 * plan.warps) == 0
    assert plan.tile.k % 16 == 0
    assert 0 < plan.shared_bytes <= LIMIT == SM_80.shared_memory
    if sharing == 1:
        assert plan.shared_bytes == shared_bytes(plan.tile, dim, plan.park_rows)
    assert plan.group_keys * 4 * dim <= 32 * 1024 * 1024
    assert plan.tile.q == (64 if short_rows or dim > 128 else 128)


def test_a_schedule_depends_on_lengths_and_heads_in_nothing():
    assert planned(128) == schedule(Problem(128, 128, F16, n_heads=3))


LOW = {
    "window": mc.window(1023),
    "both sides": mc.window(500, 523),
    "sinks": mc.causal() & (mc.sinks(64) | mc.window(1023)),
    "gaps": mc.dilated(15, stride=64),
    "documents": mc.documents("doc") & mc.window(300),
    "parameter": mc.window(mc.param("w", 1023)),
    "blocks": mc.random_blocks(64, 3, 0) | mc.block_diagonal(64),
    "table": mc.block_table("t", 64),
}
HIGH = {
    "causal": mc.causal(),
    "one key more": mc.window(1024),
    "one sink more": mc.causal() & (mc.sinks(65) | mc.window(1023)),
    "global row": mc.window(100) | mc.global_tokens([7]).rows,
    "blocks of 128": mc.block_diagonal(128),
    "finer table": mc.block_table("t", 32),
    "documents": mc.documents("doc"),
    "parameter": mc.window(mc.param("w", 1024)),
}


def chosen(mask: mc.Mask, dim: int = 128, heads: int | None = None) -> KernelPlan:
    return driver.plan_kernel(mask, driver.problem(dim, None, heads, "bfloat16"), SM_80)


@pytest.mark.parametrize("name", LOW)
def test_short_rows_and_small_blocks_get_low_tiles(name):
    plan = chosen(LOW[name])
    assert plan.tile == TileShape(64, 64)
    why = "every block of 64 x 64" if name in ("blocks", "table") else "rows are short"
    assert f"64 queries a tile because {why}" in " ".join(explain(plan).split())


@pytest.mark.parametrize("name", HIGH)
def test_others_get_high_ones(name):
    plan = chosen(HIGH[name])
    assert plan.tile == TileShape(128, 64)
    assert "because" not in plan.reasons[0]


def test_heads_share_a_tile_and_so_do_equal_masks():
    assert chosen(mc.per_head([mc.window(9), mc.window(99)]), heads=2).tile.q == 64
    assert chosen(mc.per_head([mc.window(9), mc.causal()]), heads=2).tile.q == 128
    assert chosen(mc.window(9), dim=256).schedule == schedule(Problem(256, 256, BF16))
    assert chosen(mc.window(255)).schedule == chosen(mc.causal() & mc.window(255, 40)).schedule


def test_tiles_that_do_not_fit_are_refused_with_the_numbers():
    large = replace(planned(256), shared_bytes=201728)
    family = replace(AMPERE, by_masks=lambda problem, masks: large)
    with pytest.raises(SharedMemoryExceeded, match="needs 201728 bytes") as found:
        family.schedule(Problem(256, 256, BF16), (), Direction.forward, "")
    assert str(LIMIT) in str(found.value)


# ------------------------------------------------------------------ text


@pytest.mark.parametrize("dim", DIMS)
def test_text_is_the_same_twice_and_stands_alone(dim):
    text = standing_alone(render("sm80/forward.cu.j2", spec(dim)))
    assert text == standing_alone(render("sm80/forward.cu.j2", spec(dim)))
    assert "#include" not in text


def test_the_parts_come_in_the_order_of_every_target():
    text = standing_alone(render("sm80/forward.cu.j2", spec(128, banner=("what this is",))))
    marks = ["// what this is", "struct Attention", "FN i32 keep(", "constexpr int HEAD_DIM",
             "mma.sync", 'extern "C" __global__']  # fmt: skip
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


def test_dtype_reaches_instructions_only_where_it_must():
    """Instructions are constants of one file, that of the dtype."""
    texts = [standing_alone(render("sm80/forward.cu.j2", spec(64, dtype))) for dtype in (BF16, F16)]
    bf16, f16 = (text.splitlines() for text in texts)
    changed = [a for a, b in zip(bf16, f16, strict=True) if a != b]
    assert changed == [
        '#define ELEMENT_POLICY "common/lib/element_bf16.cuh"',
        "// ======== common/lib/element_bf16.cuh",
        *(line for line in static("common/lib/element_bf16.cuh").splitlines() if line in changed),
    ]
    names = [re.search(r"ELEMENT|(\w+) =", line) for line in changed if line[:2] != "//"]
    found = [name[1] or name[0] for name in names if name]
    assert found == ["ELEMENT", "ELEMENT", "BFLOAT16", "ROUNDING", "EXPONENT", "ONE"]


# ------------------------------------------------------------------ machine code


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize("dim", DIMS)
def test_compiles_without_spills(dim, dtype):
    plan = planned(dim, dtype)
    sizes = (
        f"static_assert(sizeof(struct Shared) <= {plan.shared_bytes});\n"
        f"static_assert(sizeof(struct Shared) > {plan.shared_bytes - BLOCK_BYTES});\n"
    )
    use = compiled(unit(spec(dim, dtype), sizes))
    assert (use.stack, use.spill_stores, use.spill_loads, use.shared) == (0, 0, 0, 0)
    assert use.registers * 32 * plan.warps * plan.min_blocks <= 65536


@pytest.mark.parametrize(("dim", "arch", "features"), [
    *((128, arch, ()) for arch in ("sm_86", "sm_89", "sm_90")),
    *((dim, "sm_80", (feature,)) for dim in (64, 128, 256) for feature in Feature),
])  # fmt: skip
def test_neither_later_cards_nor_features_cost_spills(dim, arch, features):
    use = compiled(unit(spec(dim)), arch, frozenset(features))
    assert use.spill_stores == use.spill_loads == 0


@pytest.mark.parametrize("dim", [64, 96, 128])
def test_closed_forms_and_narrow_tiles(dim):
    plan = planned(dim, short_rows=True)
    shapes = {"shapes": (BAND,), "iteration": Iteration.range}
    for kernel in (spec(dim, **shapes), spec(dim, plan=plan), spec(dim, plan=plan, **shapes)):
        use = compiled(unit(kernel))
        assert use.spill_stores == use.spill_loads == 0


def test_a_mask_with_too_many_constants_is_refused_by_the_compiler():
    names = tuple(f"c{i}" for i in range(400))
    with pytest.raises(BuildFailed, match="too many constants"):
        build(unit(spec(64, n_args=400, arg_notes=names)))


def test_machine_code_has_the_instructions_meant_and_no_local_memory():
    if sass.disassembler() is None:
        pytest.skip("nvdisasm comes with the nvidia-cuda-nvdisasm wheel")
    plan, code = planned(128), build(unit(spec(128)))
    rows, steps = plan.tile.q // plan.warps // 16, 128 // 16
    products = 2 * rows * steps * plan.tile.k // 8
    assert code.count("HMMA") == products, "both products, no copies"
    assert code.count("LDSM") == steps * (rows + 2 * plan.tile.k // 16)
    assert code.count("LDGSTS")
    assert not any(code.count(opcode) for opcode in ("LDL", "STL", "HGMMA"))
