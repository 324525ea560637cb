"""The entmax kernels for Hopper compile under NVRTC without a spill, and run as they should.

No GPU is needed; tests/gpu/test_entmax_hopper.py judges their numbers.
"""

from __future__ import annotations

import pytest

import maskc as mc
from maskc import driver
from maskc.core.bundle import EXCLUSIVE_DQ
from maskc.core.problem import Direction, Feature
from maskc.core.target import TARGETS
from maskc.dispatch.selector import modes_of
from tests.support import sass
from tests.support.ledger import Binary, build
from tests.unit import test_sm90a_sources as sources
from tests.unit.test_sm90a_sources import BACKWARD, FORWARD, MIXED, Job, gate, unit

ENTMAX = frozenset({Feature.entmax})
LOGITS = frozenset({Feature.softcap, Feature.alibi})


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Only the pass with the values overlaps anything, and has no maxima nor exponentials to: what
    the gate asks of a softmax does not hold."""
    monkeypatch.setattr(sources, "overlap_faults", lambda job, binary, entry: [])


EACH = [64, pytest.param(96, marks=pytest.mark.matrix), 128,
        *(pytest.param(dim, marks=pytest.mark.matrix) for dim in (192, 256))]  # fmt: skip
"""Head dimensions; three of them only where all are asked for."""


@pytest.mark.parametrize("head_dim", EACH)
def test_sources(head_dim: int) -> None:
    units = [unit(name, FORWARD, head_dim) for name in MIXED[FORWARD]]
    gate([Job(u, features, "default") for u in units for features in (ENTMAX, ENTMAX | LOGITS)])


@pytest.mark.parametrize("head_dim", EACH)
def test_backward_sources(head_dim: int) -> None:
    units = [unit(name, BACKWARD, head_dim) for name in MIXED[BACKWARD]]
    sets = [ENTMAX, *(ENTMAX | each for each in sources.together(BACKWARD, head_dim))]
    sets = [each - {Feature.sinks} for each in sets]
    gate(
        [
            job
            for job in sources.jobs(units, *sets)
            if job.features == ENTMAX or job.mode == "default"
        ]
    )


def machine_code(direction: Direction, head_dim: int) -> Binary:
    if sass.disassembler() is None:
        pytest.skip("nvdisasm comes with the nvidia-cuda-nvdisasm wheel")
    return build(unit("causal", direction, head_dim), ENTMAX, (direction,))


@pytest.mark.parametrize("head_dim", [64, 96, 128, 192, 256])
def test_the_mean_takes_two_products_side_by_side(head_dim: int) -> None:
    code, entry = machine_code(BACKWARD, head_dim), "attention_backward_mean"
    assert code.count("HGMMA", entry) == 2 * head_dim // 16
    assert code.count(r"WARPGROUP\.ARRIVE", entry) == 2
    assert code.count("R2UR", entry, "among products") <= sources.A_ROW


def test_float16() -> None:
    gate([Job(unit("causal", FORWARD, 64, "float16"), ENTMAX, "default")])


MAIN = "attention_forward"


def scores() -> int:
    """Of a thread in a tile."""
    return unit("causal", FORWARD, 64).tile.k // 2


def test_weights_of_alpha_three_halves_take_few_instructions() -> None:
    """The mask's product by one fused and saturating instruction; powers only for other alphas."""
    code = machine_code(FORWARD, 64)
    kinds, sweeps = 4, 3  # the fourth kind has no x; a first, a middle and a last pass
    assert code.count(r"FFMA\.SAT", MAIN) >= (kinds - 1) * sweeps * scores()
    assert code.count("FMNMX", MAIN) >= scores()


def test_weights_are_computed_under_the_products_of_the_last_ones() -> None:
    code = machine_code(FORWARD, 64)
    kinds = 3  # of alpha, whose weights a saturating product gives
    assert code.parts("under products", MAIN) == 1
    assert code.count(r"FFMA\.SAT", MAIN, "under products") >= kinds * scores()


def test_a_list_takes_three_instructions_a_score():
    """A comparison, a store that most scores skip, and the next place, which has a bound."""
    code, kept = machine_code(FORWARD, 64), 2 * scores()  # in two places
    assert code.count(r"@P\d STS", MAIN) >= kept
    assert code.count(r"@P\d VI(ADD)?MNMX", MAIN) >= kept
    assert code.count(r"FSETP\.GTU", MAIN) >= kept


def test_lists_are_read_without_asking_where_they_end():
    """Minus infinity lies behind them: their loads have no predicates."""
    code, step = machine_code(FORWARD, 64), "0xc00"  # bytes, of three warpgroups
    loads = rf"LDS(\.64)? R\d+, \[R\d+\+-?{step}\]"
    assert code.count(loads, MAIN) > 0
    assert code.count(rf"@!?P\d {loads}", MAIN) == 0


@pytest.mark.parametrize("dim", [64, 128])
def test_no_pass_of_entmax_stores_dq_from_its_only_column(dim):
    """The means need more shared memory than that mode takes: calls run the usual one."""
    mask = mc.block_diagonal(128)
    unit = driver.emit_bundle(
        driver.plan_kernel(mask, driver.problem(dim, None, None, "bfloat16"), TARGETS["sm_90a"])
    ).unit("sm_90a", Direction.backward)
    assert EXCLUSIVE_DQ in dict(unit.modes)
    assert EXCLUSIVE_DQ in modes_of(unit, frozenset())
    for feature in (Feature.entmax, Feature.sinks, Feature.alibi):
        assert EXCLUSIVE_DQ not in modes_of(unit, frozenset({feature}))
