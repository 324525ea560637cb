"""The backward kernels for Hopper without a GPU: their schedule, their text, their machine code.

What every source for Hopper has to keep through the compiler is in test_sm90a_sources.py.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

import maskc as mc
from maskc import driver
from maskc.core.abi import FIELDS
from maskc.core.bundle import Grid, SourceUnit
from maskc.core.dtypes import DType
from maskc.core.problem import Direction, Feature, Problem
from maskc.core.target import TARGETS
from maskc.plan.families.sm90a import SMALL_HEAD_DIMS
from maskc.plan.families.sm90a_backward import (
    LONG_COLUMN,
    MAX_COLUMN_TILES,
    SLOPE_SUMS,
    BackwardSchedule,
    backward_schedule,
    small_backward_schedule,
)
from tests.support import sass
from tests.support.ledger import build

SM_90A = TARGETS["sm_90a"]
DIMS = SM_90A.head_dims
SOURCES = [*((dim, "") for dim in DIMS), *((dim, "small") for dim in SMALL_HEAD_DIMS)]
MADE = {"": backward_schedule, "small": small_backward_schedule}
"""Head dimensions, with the form of a source."""
BACKWARD = Direction.backward
LIST = mc.causal() & mc.strided(3)
"""A mask without closed forms: tile lists in memory."""


def planned(dim: int, form: str = "") -> BackwardSchedule:
    return MADE[form](Problem(dim, dim, DType.bfloat16))


@cache
def unit(mask: mc.Mask, dim: int, dtype: str = "bfloat16", form: str = "") -> SourceUnit:
    plan = driver.plan_kernel(mask, driver.problem(dim, None, 4, dtype), SM_90A)
    (found,) = (u for u in driver.emit_bundle(plan).choice("sm_90a", BACKWARD) if u.form == form)
    return found


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize(("dim", "form"), [each for each in SOURCES if each[1] != "small"])
def test_two_warpgroups_divide_a_tile(dim, form):
    plan = planned(dim, form)
    if plan.split == "keys":
        assert (plan.tile.k, plan.score_queries) == (128, plan.tile.q)
    else:
        assert (plan.tile.k, plan.score_queries) == (64, plan.tile.q // 2)
        dq = sum(p.columns for p in plan.products if p.name == "multiply_dq")
        assert 2 * dq == dim
    assert plan.shared_bytes <= SM_90A.shared_memory
    assert 2 * plan.registers[0] + plan.registers[1] <= 3 * 168, "what a launch of 384 has"


@pytest.mark.parametrize("dim", SMALL_HEAD_DIMS)
def test_small_tiles_leave_room_for_another_block(dim):
    """Registers move inside of a block, shared memory has the system's part in every block."""
    plan = planned(dim, "small")
    compute, copy = plan.registers
    assert (plan.warpgroups, plan.min_blocks, plan.staged) == (1, 2, False)
    assert compute % 8 == copy % 8 == 0
    assert plan.min_blocks * 128 * (compute + copy) <= 64 * 1024
    assert plan.min_blocks * (plan.shared_bytes + 1024) <= SM_90A.shared_memory + 1024
    assert plan.work.resident == plan.min_blocks
    for _, mode in plan.modes:
        (main,) = (launch for launch in mode.launches if launch.entry == "attention_backward")
        assert (main.threads, main.resident) == (256, plan.min_blocks)


@pytest.mark.parametrize(("dim", "form"), SOURCES)
def test_accumulators_leave_room_for_scores(dim, form):
    """Count registers of dk, dv, and the larger of scores with dp and dq."""
    plan = planned(dim, form)
    size = {product.name: product.registers for product in plan.products}
    scores = size.pop("multiply_scores")
    share = sum(n for name, n in size.items() if "gradient" in name)
    dq = sum(n for name, n in size.items() if "dq" in name)
    assert 2 * share + max(2 * scores, dq) <= plan.registers[0] - 32


@pytest.mark.parametrize(("dim", "form"), SOURCES)
def test_workspace_is_what_the_source_reckons_with(dim, form):
    """Per tile: lse, delta and control numbers, and a tile of dq with the slopes' sums."""
    plan, text = planned(dim, form), unit(mc.causal(), dim, form=form).source
    of_dq = plan.tile.q * dim + plan.shares * SLOPE_SUMS
    assert plan.row_floats == -(-(5 * plan.tile.q + of_dq) // plan.tile.q)
    assert "ROW_FLOATS = 4;" in text
    assert plan.key_floats == 2 * dim
    assert f"constexpr int SHARES = {plan.shares};" in text
    assert "TILE_FLOATS = TILE_Q * HEAD_DIM + SHARES * SLOPE_SUMS;" in text
    assert "KEY_TILE_FLOATS = TILE_K * (HEAD_DIM + HEAD_DIM_V);" in text
    assert f"SLOPE_SUMS = HEAD_GRADIENT ? {SLOPE_SUMS} : 0;" in text


@pytest.mark.parametrize("dim", DIMS)
def test_long_columns_are_cut_and_sooner_where_others_are_short(dim):
    work = planned(dim).work
    assert (work.most_tiles, work.uneven_tiles) == (MAX_COLUMN_TILES, LONG_COLUMN)
    assert LONG_COLUMN < MAX_COLUMN_TILES


def test_launches_in_order():
    modes = dict(planned(128).modes)
    grids = [(each.entry.removeprefix("attention_backward"), each.grid, each.per_block)
             for each in modes["default"].launched(frozenset())]  # fmt: skip
    assert grids == [
        ("_prepare", Grid.queries, 64),
        ("_few", Grid.few, 1),
        ("", Grid.stream, 1),
        ("_finish", Grid.queries, 64),
        ("_finish_keys", Grid.keys, 16),
    ]
    entries = {name: [each.entry for each in mode.launches] for name, mode in modes.items()}
    assert entries["deterministic"] == entries["default"]
    assert entries["default"].pop(4) == "attention_backward_finish"
    assert entries["exclusive_dq"] == entries["default"]
    rooms = [
        modes[name].launches[3].shared_bytes
        for name in ("default", "deterministic", "exclusive_dq")
    ]
    assert rooms == sorted(set(rooms), reverse=True), "zeros, and dq, where these are"
    entmax = [each.entry for each in modes["default"].launched(frozenset({Feature.entmax}))]
    assert entmax[:4] == [f"attention_backward{name}" for name in ("_prepare", "_mean", "_few", "")]
    assert modes["deterministic"].macro == "DETERMINISTIC"


@pytest.mark.parametrize("dim", SMALL_HEAD_DIMS)
def test_rows_first_where_dq_is_made_apart(dim):
    plan = planned(dim, "small")
    rows, main, keys = dict(plan.modes)["separate_dq"].launches
    assert [rows.entry, main.entry] == ["attention_backward_rows", "attention_backward"]
    assert keys == dict(plan.modes)["exclusive_dq"].launches[-1]
    assert plan.row_bytes == rows.shared_bytes
    assert plan.min_blocks * (rows.shared_bytes + 1024) <= SM_90A.shared_memory + 1024
    tiles = 2 * 64 * plan.slabs * 64
    assert rows.shared_bytes - 1024 == tiles * (7 if plan.keep_rows else 10)


@pytest.mark.parametrize("dim", DIMS)
def test_a_thread_for_all_that_items_share(dim):
    """Eight columns of two keys, of dk or dv."""
    for form in ("", "small")[: 1 + (dim in SMALL_HEAD_DIMS)]:
        plan = planned(dim, form)
        last = dict(plan.modes)["default"].launches[-1]
        blocks = -(-plan.tile.k // last.per_block)
        assert blocks == plan.key_blocks
        wanted = 2 * plan.tile.k * dim // 16
        assert (blocks - 1) * last.threads < wanted <= blocks * last.threads


@pytest.mark.parametrize("dim", DIMS)
def test_maps_are_the_members_of_the_second_parameter(dim):
    source = unit(mc.causal(), dim)
    members = re.search(r"struct Maps {\n    TensorMap ([\w, ]+);", source.source)
    assert members is not None
    assert members[1].split(", ") == [each.tensor for each in source.maps]
    assert {each.tensor for each in source.maps} <= {field.name for field in FIELDS}


# ------------------------------------------------------------------ machine code


@pytest.mark.parametrize("mask", [mc.causal(), LIST], ids=["range", "list"])
@pytest.mark.parametrize("mode", ["default", "deterministic"])
@pytest.mark.parametrize(("dim", "form"), SOURCES)
def test_compiles_without_spills_or_serial_products(dim, form, mode, mask):
    source = unit(mask, dim, "float16" if dim == 96 else "bfloat16", form)
    plan, binary = planned(dim, form), build(source, frozenset(), (BACKWARD,), mode=mode)
    assert not re.findall(r".*\bC75\d\d\b.*", binary.report.log)
    for use in binary.report.kernels:
        assert (use.name, use.stack, use.spill_stores) == (use.name, 0, 0)
    if sass.disassembler():
        main = "attention_backward"
        products, begun = binary.count("HGMMA", main), binary.count(r"WARPGROUP\.ARRIVE", main)
        own = plan.shares // plan.warpgroups
        assert begun == 4 + own, "five products, the last one share by share"
        assert products == steps(plan)


def steps(plan: BackwardSchedule) -> int:
    """Matrix instructions of one step."""
    size = dict.fromkeys(("scores", "pieces", "gradient", "dq"), 0)
    for product in plan.products:
        if product.name != "multiply_kept_scores":  # of another launch
            size[product.name.split("_")[1]] += 1
    dim = 64 * plan.slabs if plan.split == "columns" else next(
        p.columns for p in plan.products if p.name == "multiply_gradient"
    )  # fmt: skip
    along = {
        "scores": dim // 16,
        "pieces": 1,
        "gradient": plan.tile.q // 16,
        "dq": plan.tile.k // 16,
    }
    times = {
        "scores": 2,
        "pieces": 2 // size["pieces"],
        "gradient": 2,
        "dq": plan.shares // plan.warpgroups,
    }
    return sum(size[name] * along[name] * times[name] for name in size)


@pytest.mark.parametrize("dim", [64, 128])
def test_shared_columns_are_added_up_four_numbers_at_a_time(dim):
    if sass.disassembler() is None:
        pytest.skip("nvdisasm comes with the nvidia-cuda-nvdisasm wheel")
    code, main = build(unit(mc.causal(), dim), frozenset(), (BACKWARD,)), "attention_backward"
    assert code.count(r"REDG?\.E\.ADD\.F32x4", main) == 2 * dim // 8
    assert code.count("UBLKRED", main) == 2, "dq leaves through the copy engine"
