"""Every source for Hopper compiles under NVRTC, without a spill, to the machine code it should be.

No GPU is needed. What a source must not lose on its way through the compiler: products that run
side by side (ptxas puts waits between them when it is unsure, and says so with C75xx), maxima and
exponentials under those products, copies by the copy engine, and not a byte of local memory.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any

import pytest

import maskc as mc
from maskc import driver
from maskc.build import build as compile_source
from maskc.core.bundle import (
    EXCLUSIVE_DQ,
    INTERLEAVED,
    NOT_INTERLEAVED,
    PACK_GQA,
    PERSISTENT,
    SEPARATE_DQ,
    SourceUnit,
)
from maskc.core.errors import BuildFailed
from maskc.core.forms import MEDIUM
from maskc.core.library import SWITCHES
from maskc.core.problem import OF_HEADS, Direction, Feature, Features
from maskc.core.target import Target
from maskc.ir.heads import fixed_heads
from maskc.plan.families.sm90a import MEDIUM_HEAD_DIMS
from maskc.plan.list_making import BLOCKS
from tests.support import sass
from tests.support.ledger import Binary, build
from tests.support.patterns import patterns_with_kernels

FOLDER = Path(__file__).parents[2] / "patterns"
PATTERNS = patterns_with_kernels("sm_90a")
SM_90A = Target.named("sm_90a")
FORWARD, BACKWARD = Direction.forward, Direction.backward
NONE = frozenset()
ALL = frozenset(Feature) - {Feature.nan_safe, Feature.entmax, Feature.wide}
"""The first is served by another target, the second is a kernel of its own: test_sm90a_entmax."""
SINGLE = [frozenset({feature}) for feature in Feature if feature in ALL]
CROWDED = {(BACKWARD, 64)}
"""Where soft-cap and ALiBi together are known to spill: test_softcap_with_alibi."""
REGISTERS = 64 * 1024
"""Of a multiprocessor."""
RESERVED = 1024  # bytes of every block's shared memory, by the system
A_ROW = 12
"""Moves to uniform registers that a new row takes at most: what counts where products are few."""
SMALL = "small"
WIDTHS = sorted({*SM_90A.head_dims, *(x.of_qk for x in SM_90A.further if x.of_qk == x.of_v)})
SMALL_DIMS = (32, 64, 96, 128)
"""Head dimensions with a second source of each pass, for short rows and columns."""
SMALL_EACH = [64, pytest.param(96, marks=pytest.mark.matrix), 128]
"""The same; one of them only where all are asked for."""
MEDIUM_EACH = [pytest.param(80, marks=pytest.mark.matrix), 96, 112]
"""Head dimensions with a second source of the forward pass, for short rows; likewise."""
BY_DOCUMENTS = ("documents", "flamingo")
"""Whose tiles begin with documents."""

MASKS: dict[str, str] = {}
"""For messages: by digest the first mask that gave a source."""

PASSES = [
    pytest.param(
        direction,
        id=direction.value,
        marks=pytest.mark.skipif(
            direction not in SM_90A.directions, reason=f"sm_90a has no {direction.value} pass"
        ),
    )
    for direction in Direction
]


def units_of(
    mask: mc.Mask, direction: Direction, head_dim: int, dtype: str, form: str = "",
    dim_v: int | None = None,
) -> list[SourceUnit]:  # fmt: skip
    """One, or none where a mask has no such form."""
    heads = fixed_heads(mask) or 4
    plan = driver.plan_kernel(mask, driver.problem(head_dim, dim_v, heads, dtype), SM_90A)
    found = [u for u in driver.emit_bundle(plan).choice("sm_90a", direction) if u.form == form]
    MASKS.update({u.digest: shorten(str(mask), 60, placeholder=" ...") for u in found} | MASKS)
    return found


def unit_of(mask: mc.Mask, *args: Any) -> SourceUnit:
    (unit,) = units_of(mask, *args)
    return unit


def pattern(name: str) -> mc.Mask:
    return mc.load(FOLDER / f"{name}.py")[name]()


@cache
def unit(
    name: str, direction: Direction, head_dim: int, dtype: str = "bfloat16", form: str = ""
) -> SourceUnit:  # fmt: skip
    return unit_of(pattern(name), direction, head_dim, dtype, form)


@cache
def distinct(
    direction: Direction, head_dim: int, dtype: str, form: str = ""
) -> tuple[SourceUnit, ...]:  # fmt: skip
    """Sources of all patterns; some differ in constants only."""
    names = [path.stem for path in PATTERNS if not form or path.stem not in BY_DOCUMENTS]
    found = (units_of(pattern(name), direction, head_dim, dtype, form) for name in names)
    return tuple({unit.digest: unit for each in found for unit in each}.values())


# ------------------------------------------------------------------ the gate


@dataclass(frozen=True)
class Job:
    """One compilation."""

    unit: SourceUnit
    features: Features
    mode: str

    def __str__(self) -> str:
        direction = self.unit.directions[0].value
        title = self.unit.source.partition("\n")[0].removeprefix("// Attention for one mask: ")
        features = "+".join(sorted(feature.value for feature in self.features)) or "plain"
        return f"{direction} of {MASKS[self.unit.digest]}: {title} {features}, {self.mode}"


def jobs(units: Iterable[SourceUnit], *features: Features, once: bool = False) -> list[Job]:
    """In all modes that know the features but the one that stores dq once, or in that alone."""
    names = [
        (unit, name) for unit in units for name, _ in unit.modes if once == (name == EXCLUSIVE_DQ)
    ]
    return [
        Job(unit, feature, name)
        for unit, name in names
        for feature in features
        if name != SEPARATE_DQ or not feature & OF_HEADS
        if name != INTERLEAVED or not feature & NOT_INTERLEAVED
    ]


def gate(wanted: list[Job]) -> None:
    """Compile and judge them all, side by side, and name all that is wrong."""
    assert wanted
    with ThreadPoolExecutor(min(len(wanted), os.cpu_count() or 1)) as pool:
        found = list(pool.map(faults, wanted))
    wrong = [
        f"{job}: {fault}" for job, faults in zip(wanted, found, strict=True) for fault in faults
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def faults(job: Job) -> list[str]:
    """Return what is wrong with one source in one mode."""
    try:
        binary = build(job.unit, job.features, job.unit.directions, mode=job.mode)
    except BuildFailed as error:
        return [f"does not compile: {error}"]
    report, launches = binary.report, job.unit.mode(job.mode).launched(job.features)
    found = [line for line in report.log.splitlines() if re.search(r"\bC75\d\d\b", line)]
    threads = {launch.entry: launch.threads for launch in launches}
    resident = {launch.entry: launch.resident for launch in launches}
    kernels = {kernel.name: kernel for kernel in report.kernels}
    for entry in threads.keys() - kernels.keys():
        found.append(f"ptxas does not report {entry}")
    for kernel in report.kernels:
        spills = (kernel.stack, kernel.spill_stores, kernel.spill_loads)
        if any(spills):
            found.append("{}: {} bytes of stack, {} of stores, {} of loads spilled".format(
                kernel.name, *spills
            ))  # fmt: skip
        blocks = resident.get(kernel.name, 1)
        if blocks * kernel.registers * threads.get(kernel.name, 0) > REGISTERS:
            found.append(f"{kernel.name}: {kernel.registers} registers are too many to launch")
    for launch in launches:
        static = kernels[launch.entry].shared if launch.entry in kernels else 0
        asked = launch.resident * (static + launch.shared_bytes + RESERVED) - RESERVED
        if asked > SM_90A.shared_memory:
            found.append(f"{launch.entry}: {asked} bytes of shared memory")
    return found + (machine_faults(job, binary) if sass.disassembler() else [])


def machine_faults(job: Job, binary: Binary) -> list[str]:
    entry = f"attention_{job.unit.directions[0].value}"
    found = []
    if both := binary.parts("operands of two kinds", f"{entry}_rows"):
        found.append(f"rows: {both} registers are operands of two kinds")
    found += [f"{op}: local memory" for op in ("LDL", "STL") if binary.count(op)]
    streams = job.mode in (PERSISTENT, INTERLEAVED)
    from_registers = streams and "ONE_Q = 1" in job.unit.text
    stores = "STG" if from_registers else "UTMASTG"
    found += [f"no {op}" for op in ("HGMMA", "UTMALDG", stores) if not binary.count(op, entry)]
    products, begun = binary.count("HGMMA", entry), binary.count(r"WARPGROUP\.ARRIVE", entry)
    if 2 * begun > products:
        found.append(f"{begun} groups for {products} products: they run one after another")
    moves = binary.count("R2UR", entry, "among products")
    waits = job.mode == PACK_GQA and Feature.alibi in job.features  # for memory: 190 us beside 187
    if moves > max(products // 2, A_ROW) and not waits:
        found.append(f"{moves} moves for {products} products: operands in ordinary registers")
    if entry == "attention_forward" and Feature.softcap not in job.features:
        found += overlap_faults(job, binary, entry)
    return found


def overlap_faults(job: Job, binary: Binary, entry: str) -> list[str]:
    """The maxima of a tile, 2 rows of a quarter of its keys, run under p v; so does one row's half
    of the exponentials, but where blocks stream or registers are short."""
    places = binary.parts("under products", entry)
    if places != 1:
        return [f"{places} places where p v is waited for, not one"]
    found, tile = [], job.unit.tile
    wanted = {"FMNMX": 2 * (tile.k // 4 - 1)}
    if job.mode == "default" and tile.q != 192:
        wanted[r"MUFU\.EX2"] = tile.k // 4
    for opcode, least in wanted.items():
        if (seen := binary.count(opcode, entry, "under products")) < least:
            found.append(f"{seen} of {least} {opcode} under p v")
    return found


def test_the_disassembler_is_there():
    """Without it half of the gate is silent."""
    if sass.disassembler() is None:
        pytest.skip("nvdisasm comes with the nvidia-cuda-nvdisasm wheel")


BROKEN = {
    "under p v": ("constexpr int PV_WAIT =", "constexpr int PV_WAIT = 0; constexpr int LATER = "),
    "local memory": (
        "    const i32 group = uniform(threadIdx.x / 128);\n",
        "    const i32 group = uniform(threadIdx.x / 128);\n    volatile i32 x[9]; x[group] = 0;\n",
    ),
    "ordinary registers": ("= uniform(threadIdx.x / 128)", "= threadIdx.x / 128"),
    "does not compile": ("constexpr int THREADS", "constexpr THREADS"),
    "bytes of shared memory": (
        "extern __shared__",
        "__shared__ volatile u64 y[5000]; y[0] = 1; extern __shared__",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_the_gate_can_fail(fault):
    source = unit("causal", FORWARD, 256)
    assert BROKEN[fault][0] in source.source
    broken = replace(source, text=source.source.replace(*BROKEN[fault]))
    MASKS[broken.digest] = fault
    if fault in ("under p v", "local memory", "ordinary registers") and sass.disassembler() is None:
        pytest.skip("nvdisasm comes with the nvidia-cuda-nvdisasm wheel")
    with pytest.raises(AssertionError, match=fault):
        gate([Job(broken, NONE, "default")])


MIXED = {
    FORWARD: ("causal", "longformer", "exponential_dilation", "bigbird_itc"),
    BACKWARD: ("causal", "exponential_dilation", "bigbird_itc"),
}
"""One interval, several, bits from a table, and pairs with lists and a table."""


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize("direction", PASSES)
def test_plain(direction, head_dim):
    names = MIXED[direction] + (BY_DOCUMENTS if direction is FORWARD else ())
    gate(jobs([unit(name, direction, head_dim) for name in names], NONE))


@pytest.mark.parametrize("dims", [(160, 160), (192, 128)], ids=str)
def test_sums_of_160_registers(dims):
    gate(jobs(units_of(pattern("causal"), BACKWARD, dims[0], "bfloat16", dim_v=dims[1]), NONE))


WIDE = {  # what takes further registers there, and the bytes that are known to spill
    ("causal", Feature.alibi): 0,
    ("causal", Feature.softcap): 28,
    ("causal", Feature.entmax): 16,
    ("bigbird_itc", None): 16,
    ("bigbird_itc", Feature.softcap): 0,
    ("bigbird_itc", Feature.alibi): 0,
    ("bigbird_itc", Feature.entmax): 0,
}


@pytest.mark.parametrize(("name", "feature"), WIDE, ids=str)
def test_products_beside_160_registers_of_sums(name, feature):
    """They overlap, because dp comes in halves: ptxas does not run them one after another."""
    features = NONE if feature is None else frozenset({feature})
    report = build(unit(name, BACKWARD, 160), features, (BACKWARD,)).report
    assert "C75" not in report.log
    assert sum(use.spill_stores for use in report.kernels) <= WIDE[name, feature]


@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("features", [NONE, ALL - NOT_INTERLEAVED], ids=["plain", "all"])
def test_interleaved_heads(head_dim, features):
    gate([Job(unit("causal", FORWARD, head_dim), features, INTERLEAVED)])


@pytest.mark.parametrize("head_dim", SMALL_EACH)
def test_small_tiles(head_dim):
    names = (*MIXED[FORWARD], "longnet", *BY_DOCUMENTS)  # LongNet's formula is the longest
    gate(jobs([unit(name, FORWARD, head_dim, form=SMALL) for name in names], NONE))


@pytest.mark.parametrize("head_dim", MEDIUM_EACH)
def test_medium_tiles(head_dim):
    units = [unit(name, FORWARD, head_dim, form=MEDIUM) for name in ("causal", "bigbird_itc")]
    gate(jobs(units, NONE) + jobs(units[:1], ALL))


@pytest.mark.matrix
@pytest.mark.parametrize("head_dim", MEDIUM_HEAD_DIMS)
def test_matrix_of_medium_tiles(head_dim):
    gate(jobs(distinct(FORWARD, head_dim, "bfloat16", MEDIUM), NONE, ALL))


@pytest.mark.parametrize("head_dim", SMALL_EACH)
def test_small_tiles_backward(head_dim):
    found = [unit(name, BACKWARD, head_dim, form=SMALL) for name in ("streaming", "bigbird_itc")]
    capped = [Job(each, frozenset({Feature.softcap}), SEPARATE_DQ) for each in found]
    gate(jobs(found, NONE, ALL) + capped)


@pytest.mark.xfail(strict=True, reason="spills 8 bytes")
def test_softcap_with_alibi():
    gate(jobs([unit("causal", BACKWARD, 64)], ALL))


def test_dq_without_sums():
    found = [unit("block_diagonal", BACKWARD, dim) for dim in SM_90A.head_dims]
    found += [unit("natten_2d", BACKWARD, dim, form=SMALL) for dim in SMALL_DIMS]
    gate(jobs(found, NONE, once=True))


@pytest.mark.matrix
@pytest.mark.parametrize("head_dim", SM_90A.head_dims)
def test_matrix_without_sums(head_dim):
    gate(jobs(distinct(BACKWARD, head_dim, "bfloat16"), NONE, once=True))


def test_lists_of_documents():
    """The kernels that make lists spill nothing, and as many of their blocks as planned fit a
    multiprocessor."""
    plans = [
        driver.plan_kernel(pattern(name), driver.problem(dim, None, 4, "float16"), SM_90A)
        for name in BY_DOCUMENTS for dim in (64, 256)
    ]  # fmt: skip
    made = {driver.emit_bundle(plan).list_source("sm_90a") for plan in plans}
    for source in sorted(made, key=lambda each: each.text):
        for name, mode in source.modes:
            assert all(launch.overlaps for launch in mode.launches)
            report = build(source, NONE, (), mode=name).report
            entries = {launch.entry for launch in mode.launches}
            assert {kernel.name for kernel in report.kernels} == entries
            assert not report.spills()
            assert all(BLOCKS * kernel.registers * 128 <= REGISTERS for kernel in report.kernels)


@pytest.mark.parametrize("head_dim", SMALL_EACH)
def test_features_of_small_tiles(head_dim):
    wanted = jobs([unit("causal", FORWARD, head_dim, form=SMALL)], *SINGLE, ALL)
    gate([job for job in wanted if job.features == ALL or job.mode == "default"])


@pytest.mark.matrix
@pytest.mark.parametrize("head_dim", SMALL_DIMS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("direction", PASSES)
def test_matrix_of_small_tiles(direction, dtype, head_dim):
    gate(jobs(distinct(direction, head_dim, dtype, SMALL), NONE, ALL, *SINGLE))


def together(direction: Direction, head_dim: int) -> list[Features]:
    """All features, or the largest sets that are known to fit."""
    if (direction, head_dim) not in CROWDED:
        return [ALL]
    return [ALL - {Feature.softcap}, ALL - {Feature.alibi}]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("direction", PASSES)
def test_features(direction, head_dim):
    sets = together(direction, head_dim)
    wanted = jobs([unit("causal", direction, head_dim)], *SINGLE, *sets)
    gate([job for job in wanted if job.features in sets or job.mode == "default"])


@pytest.mark.parametrize("direction", PASSES)
def test_other_sizes_and_types(direction):
    gate(jobs([unit("causal", direction, 96), unit("causal", direction, 192, "float16")], NONE))


def test_heads_with_masks_of_their_own():
    """Two formulas in one source, and two constants of one formula."""
    parts = [mc.causal(), mc.window(40), mc.window(90), mc.strided(3)]
    gate(jobs([unit_of(mc.per_head(parts), FORWARD, 128, "bfloat16")], NONE))


@pytest.mark.matrix
@pytest.mark.parametrize("head_dim", SM_90A.head_dims)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("direction", PASSES)
def test_matrix(direction, dtype, head_dim):
    gate(jobs(distinct(direction, head_dim, dtype), NONE, *together(direction, head_dim)))


@pytest.mark.matrix
@pytest.mark.parametrize("head_dim", SM_90A.head_dims)
@pytest.mark.parametrize("direction", PASSES)
def test_matrix_of_single_features(direction, head_dim):
    names = ("causal", "longformer", "bigbird_itc")
    gate(jobs([unit(name, direction, head_dim) for name in names], *SINGLE))


# ------------------------------------------------------------------ plan and source agree


@pytest.mark.parametrize("direction", PASSES)
def test_maps_and_modes(direction):
    for head_dim in SM_90A.head_dims:
        source = unit("causal", direction, head_dim)
        modes = dict(source.modes)
        assert "default" in modes
        assert ("deterministic" in modes) == (direction is BACKWARD)
        assert all(each.rows <= 256 for each in source.maps)
        for mode in modes.values():
            for launch in mode.launches:
                assert f"\n{launch.entry}(" in source.source
                assert launch.threads % 32 == 0
            known = mode.macro in SWITCHES or f"#ifndef {mode.macro}\n" in source.source
            assert not mode.macro or known


# ------------------------------------------------------------------ the text


EQUAL = {
    "and": (lambda: mc.causal() & mc.window(5, 9), lambda: mc.window(5, 0)),
    "not": (lambda: ~(~mc.causal()), lambda: mc.causal()),
    "where": (
        lambda: mc.where(lambda q, k: (k <= q + mc.n_kv - mc.n_q) | (k < 4)),
        lambda: mc.prefix(4) | mc.causal(),
    ),
}


@pytest.mark.parametrize("name", EQUAL)
@pytest.mark.parametrize("direction", PASSES)
def test_equal_masks_have_equal_sources(direction, name):
    left, right = (unit_of(make(), direction, 128, "bfloat16") for make in EQUAL[name])
    again = unit_of(EQUAL[name][0](), direction, 128, "bfloat16")
    assert left.text == again.text
    assert left.digest == right.digest, "all but comments are equal"
    assert [line for line in left.source.splitlines() if "//" not in line] == [
        line for line in right.source.splitlines() if "//" not in line
    ]


@pytest.mark.matrix
def test_time_to_compile(capsys, monkeypatch, tmp_path):
    """Printed, not judged."""
    source = unit("causal", FORWARD, 128)
    monkeypatch.setenv("MASKC_CACHE_DIR", str(tmp_path))
    begin = time.perf_counter()
    report = compile_source(source, NONE, (FORWARD,)).report
    took = time.perf_counter() - begin
    with capsys.disabled():
        print(f"\n{report.toolchain}: a forward source at head dimension 128 in {took:.2f} s")
    assert report.kernels


# ------------------------------------------------------------------ shared memory


@pytest.mark.parametrize("head_dim", WIDTHS)
@pytest.mark.parametrize("direction", PASSES)
def test_planned_shared_memory_is_what_the_source_uses(direction, head_dim):
    """The plan's number holds struct Shared, and with less than a kilobyte to spare."""
    mask = pattern("causal")
    sources = [each for form in ("", MEDIUM, SMALL) for each in
               units_of(mask, direction, head_dim, "bfloat16", form)]  # fmt: skip
    medium = direction is FORWARD and head_dim in MEDIUM_HEAD_DIMS
    assert len(sources) == 1 + medium + (head_dim <= SMALL_DIMS[-1])
    _check_memory(sources, direction)


@pytest.mark.parametrize("direction", PASSES)
def test_planned_shared_memory_of_narrower_values(direction):
    _check_memory(units_of(pattern("causal"), direction, 192, "bfloat16", dim_v=128), direction)


def _check_memory(sources, direction):
    wanted = [(s, *each, NONE) for s in sources for each in s.modes]
    if direction is FORWARD:  # entmax's lists
        wanted.append((sources[0], "default", sources[0].mode(), frozenset({Feature.entmax})))
    for source, name, mode, features in wanted:
        rooms = {
            "by_rows::" * each.entry.endswith("_rows"): each.shared_bytes
            for each in mode.launched(features) if each.shared_bytes
        }  # fmt: skip
        asked = "".join(
            f'static_assert(sizeof(struct {where}Shared) <= {size}, "too small");\n'
            f'static_assert(sizeof(struct {where}Shared) > {size} - 1024, "too large");\n'
            for where, size in rooms.items()
        )
        extended = replace(source, text=source.in_mode(name).source + asked)
        build(extended, features, source.directions, arch="compute_90a", mode=name)  # no ptxas
        assert max(rooms.values()) <= SM_90A.shared_memory


@pytest.mark.parametrize("head_dim", WIDTHS)
@pytest.mark.parametrize("direction", PASSES)
def test_what_distance_adds_fits_beside_it(direction, head_dim):
    """Arrays of a kernel's own come on top of what a launch asks for, and the driver refuses a
    kernel that together would have more than there is."""
    alibi = frozenset({Feature.alibi})
    for form in ("", SMALL):
        for source in units_of(pattern("causal"), direction, head_dim, "bfloat16", form):
            name, mode = source.modes[0]
            built = build(source, alibi, source.directions, mode=name)
            own = {each.name: each.shared for each in built.report.kernels}
            for each in mode.launched(alibi):
                most = SM_90A.shared_bytes_of(each.resident or 1)
                assert own[each.entry] + each.shared_bytes <= most, each.entry


def test_the_size_check_can_fail():
    source = unit("causal", FORWARD, 64)
    size = source.mode().launches[0].shared_bytes
    wrong = f'static_assert(sizeof(struct Shared) > {size}, "");\n'
    with pytest.raises(BuildFailed):
        build(replace(source, text=source.source + wrong), NONE, (FORWARD,), arch="compute_90a")
